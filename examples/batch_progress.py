"""Many runs: `map` with a progress bar. One item that fails does not lose the others.

python examples/batch_progress.py [--model NAME_OR_FOLDER] [--items 60]
lmprog run examples/batch_progress.py::add --arg first=23 --arg second=45
"""

from __future__ import annotations

import argparse
import random

import lmprog


@lmprog.function
async def add(s: lmprog.Branch, first: int = 12, second: int = 7) -> int:
    s.user(f"What is {first} + {second}?")
    with s.assistant():
        return await s.gen(int, max_tokens=8)  # digits only, and an int


@lmprog.function
async def sum_of(s: lmprog.Branch, item: tuple[int, int]) -> int:
    first, second = item
    if first < 0:
        raise ValueError(f"{first} is below zero")
    return await add(s, first, second)  # goes on with this branch


def main(items: int = 60) -> None:
    draw = random.Random(5)
    pairs = [(draw.randint(1, 40), draw.randint(1, 40)) for _ in range(items)]
    pairs[items // 2] = (-1, 2)
    results = sum_of.map(pairs, temperature=0, concurrency=16, progress=True, on_error="collect")
    for index, error in results.errors.items():
        print(f"item {index} failed: {type(error).__name__}: {error}")
    good = [index for index in range(items) if index not in results.errors]
    right = sum(results[index] == sum(pairs[index]) for index in good)
    for index in good[:5]:
        print(f"{pairs[index][0]} + {pairs[index][1]} = {results[index]}")
    print(f"{len(good)} of {items} done, {right} sums right")
    usage = results.usage
    print(f"{usage.prompt} prompt tokens, {usage.cached} of them found in the tree")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Many runs with a progress bar.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    options.add_argument("--items", type=int, default=60, help="how many sums (default: 60)")
    given = options.parse_args()
    with lmprog.Runtime(given.model) as runtime:
        lmprog.set_default_backend(runtime)
        main(given.items)
