"""Three small tasks as programs with slots, and their metrics. Each has 200 rows to tune on and 200
that are held out beside this file:

    lmprog evaluate examples/tasks/tasks.py::sort --rows examples/tasks/messages_held_out.csv \\
        --metric label
    python examples/tasks/tasks.py sort        # tunes it, and scores it on the rows held out
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lmprog

HERE = Path(__file__).parent


@lmprog.function
def read(s: lmprog.Branch, order: str) -> dict[str, str]:
    """An order into three fields."""
    s.instruction("task", "Read the order.\n\n")
    s.examples(
        "shots",
        format="Order: {order}\nName: {name}\nCity: {city}\nCount: {count}\n\n",
        like=order,
    )
    s += f"Order: {order}\nName:"
    name = s.gen("name", max_tokens=8, stop="\n", temperature=0)
    s += "\nCity:"
    city = s.gen("city", max_tokens=8, stop="\n", temperature=0)
    s += "\nCount:"
    count = s.gen("count", max_tokens=4, stop="\n", temperature=0)
    return {"name": name.value.strip(), "city": city.value.strip(), "count": count.value.strip()}


def share_of_fields(value: dict[str, str], row: dict[str, Any]) -> float:
    return sum(value[name] == str(row[name]) for name in value) / len(value)


@lmprog.function
def sort(s: lmprog.Branch, message: str) -> str:
    """A message into one of four kinds: scored, so that no token is generated."""
    s.instruction("task", "")
    s.examples("shots", format="{message}\nKind: {label}\n\n", answer="label", like=message)
    s += f"{message}\nKind:"
    return s.select(" invoice", " complaint", " question", " thanks").value.strip()


@lmprog.function
def add_up(s: lmprog.Branch, question: str) -> int:
    """A sum told in words."""
    s.instruction("task", "")
    s.examples("shots", format="Q: {question}\nA: {answer}\n\n", answer="answer", like=question)
    s += f"Q: {question}\nA: "
    return s.gen(int, max_tokens=4, temperature=0).value


TASKS: dict[str, tuple[Any, str, Any]] = {
    "read": (read, "orders", share_of_fields),
    "sort": (sort, "messages", "label"),
    "add_up": (add_up, "sums", "answer"),
}


def main(name: str) -> None:
    program, rows, metric = TASKS[name]
    tuned = program.tune(HERE / f"{rows}_train.csv", metric, budget=1500)
    print(tuned)
    for made in (program, tuned.program):
        print(lmprog.evaluate(made, HERE / f"{rows}_held_out.csv", metric))


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else "sort")
