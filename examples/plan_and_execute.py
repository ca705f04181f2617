"""Plan and execute: the model writes one step of a plan, Python carries it out, and the model goes
on from what came of it.

    python examples/plan_and_execute.py [--model NAME_OR_FOLDER]
    lmprog run examples/plan_and_execute.py::solve
"""

from __future__ import annotations

import argparse
import operator

import lmprog
from lmprog import grammar

PROBLEM = "Tom has 12 lamps. Tom buys 7 more. Tom gives away 4. How many lamps does Tom have now?"
SIGNS = {"+": operator.add, "-": operator.sub}
NUMBER = r"[1-9]\d?"
STEP = (
    grammar.regex(NUMBER, name="a") + " " + grammar.select(*SIGNS, name="sign") + " "
    + grammar.regex(NUMBER, name="b") + " = "
)  # fmt: skip


@lmprog.function
def solve(s: lmprog.Branch, problem: str = PROBLEM, steps: int = 2) -> int:
    s = s.with_(temperature=0)
    s.append(f"Question: {problem}\n")
    result = 0
    for number in range(1, steps + 1):
        s.append(f"Step {number}: ")
        plan = s.gen(STEP, max_tokens=16).captures
        result = SIGNS[str(plan["sign"])](int(plan["a"] or 0), int(plan["b"] or 0))
        s.append(f"{result}\n")  # computed, not guessed
    return result


def main() -> None:
    run = solve.run()
    print(run.text())
    usage = run.usage
    print(f"{usage.generated} tokens generated, {usage.forced} of them forced by the pattern")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Plan a step, carry it out, go on.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
