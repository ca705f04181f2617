"""A judge: which of two answers is better? It reasons, then chooses, in both orders at once, so
that no place is liked.

python examples/judge.py [--model NAME_OR_FOLDER]
lmprog run examples/judge.py::judge --arg question="What is 3 + 4?" --arg first=7 --arg second=9
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import lmprog

PAIRS = (
    ("What is 2 + 2?", "5", "4"),
    ("What is 33 + 5?", "38", "28"),
    (
        "How can I get better at saving money?",
        "Meals at home cost less than meals in a restaurant. Cook for two days at once.",
        "Tomatoes love the sun. Give them a place with six hours of light a day.",
    ),
)


@dataclass(frozen=True)
class Verdict:
    better: str
    sure: float
    """The mean probability of the better answer; 0.5 is a guess."""
    reason: str


@lmprog.function
async def judge(
    s: lmprog.Branch, question: str = PAIRS[0][0], first: str = "5", second: str = "4"
) -> Verdict:
    s.append(f"Question: {question}\n")
    async with s.fork(2) as orders:
        orders += [
            f"Answer A: {a}\nAnswer B: {b}\nWhich answer is better, A or B?\nReasoning:"
            for a, b in ((first, second), (second, first))
        ]
        orders += lmprog.gen("reason", stop="\n", max_tokens=48, temperature=0)
        orders += "\nJudgment:"
        straight, swapped = await orders.map(lambda branch: branch.select(" A", " B"))
    liking = (straight.probabilities[" A"] + swapped.probabilities[" B"]) / 2  # of the first answer
    reason = str(orders[0]["reason"]).strip()
    return Verdict(first, liking, reason) if liking >= 0.5 else Verdict(second, 1 - liking, reason)


def main() -> None:
    runs = judge.run_batch(PAIRS)
    for (question, first, second), run in zip(PAIRS, runs, strict=True):
        verdict = run.value
        print(f"{question}\n  1. {first}\n  2. {second}")
        print(
            f"  {verdict.reason}\n  better: {1 if verdict.better == first else 2} "
            f"({verdict.sure:.0%})\n"
        )
    print(f"{sum(run.usage.cached for run in runs)} prompt tokens found in the tree")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Which of two answers is better?")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
