"""Writes the rows of three small tasks, 200 to tune on and 200 held out each: orders to be read
into fields, messages to be sorted, sums told in words. All made here, from a fixed seed:

    python examples/tasks/make_rows.py
"""

from __future__ import annotations

import csv
import random
from pathlib import Path

HERE = Path(__file__).parent
NAMES = [
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Iris", "Jonas", "Kate",
    "Leo", "Mia", "Noah", "Olga", "Paul",
]  # fmt: skip
THINGS = [
    "lamp", "chair", "table", "clock", "mirror", "carpet", "shelf", "kettle", "basket",
    "blanket", "bottle", "brush",
]  # fmt: skip
CITIES = [
    "Paris", "Rome", "Oslo", "Vienna", "Dublin", "Madrid", "Lisbon", "Athens", "Berlin",
    "Prague",
]  # fmt: skip
NUMBERS = [
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve",
]  # fmt: skip
MESSAGES = {
    "invoice": ["Please find the bill for the {thing} attached.", "You owe us {n} euros, {name}.",
                "Payment for the {thing} is due on Monday.", "Here is what the {thing} costs."],
    "complaint": ["The {thing} arrived broken!", "{name} never got the {thing}.",
                  "I am not happy with the {thing} at all.", "Why does nobody answer, {name}?"],
    "question": ["Do you have the {thing} in blue?", "How heavy is the {thing}, {name}?",
                 "When do you open in {city}?", "Can I pick up the {thing} in {city}?"],
    "thanks": ["Thank you for the {thing}, {name}!", "The {thing} is wonderful, many thanks.",
               "{name} was so kind to us in {city}.", "We love the {thing}. Well done!"],
}  # fmt: skip
ORDERS = [
    "{name} in {city} wants {n} of the {thing}s.",
    "Please send {n} {thing}s to {name}, {city}.",
    "To {city}: {n} {thing}s, for {name}.",
    "{n} {thing}s were ordered by {name} from {city}.",
]
SUMS = [
    ("{name} has {a} {thing}s and buys {b} more. How many?", 1),
    ("{name} had {a} {thing}s and lost {b}. How many are left?", -1),
    ("There are {a} {thing}s in {city} and {b} in the next town. How many in all?", 1),
    ("Of {a} {thing}s {b} are sold. How many stay?", -1),
]


def words(draw: random.Random) -> dict[str, str]:
    return {
        "name": draw.choice(NAMES),
        "thing": draw.choice(THINGS),
        "city": draw.choice(CITIES),
        "n": str(draw.randint(2, 12)),
    }


def order(draw: random.Random) -> dict[str, str]:
    said = words(draw)
    order = draw.choice(ORDERS).format(**said)
    return {"order": order, "name": said["name"], "city": said["city"], "count": said["n"]}


def message(draw: random.Random) -> dict[str, str]:
    label = draw.choice(list(MESSAGES))
    return {"message": draw.choice(MESSAGES[label]).format(**words(draw)), "label": label}


def told_sum(draw: random.Random) -> dict[str, str]:
    text, sign = draw.choice(SUMS)
    a, b = sorted((draw.randint(1, 12), draw.randint(1, 12)), reverse=True)
    said = text.format(**words(draw), a=NUMBERS[a - 1], b=NUMBERS[b - 1])
    return {"question": said, "answer": str(a + sign * b)}


def main() -> None:
    for name, make in (("orders", order), ("messages", message), ("sums", told_sum)):
        draw = random.Random(name)
        found: dict[str, dict[str, str]] = {}
        while len(found) < 400:
            row = make(draw)
            found.setdefault(next(iter(row.values())), row)
        rows = list(found.values())
        for part, some in (("train", rows[:200]), ("held_out", rows[200:])):
            with (HERE / f"{name}_{part}.csv").open("w", newline="", encoding="utf-8") as file:
                table = csv.DictWriter(file, list(some[0]), lineterminator="\n")
                table.writeheader()
                table.writerows(some)


if __name__ == "__main__":
    main()
