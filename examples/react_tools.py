"""Tools: the model thinks and acts, Python observes, in one growing branch (ReAct).

An action is confined to the tools there are, so it can always be read. The loop is plain Python.

    python examples/react_tools.py [--model NAME_OR_FOLDER]
    lmprog run examples/react_tools.py::react --arg question="What is 12 * 7?"
"""

from __future__ import annotations

import argparse
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

import lmprog

NOTES = {
    "Mia": "Mia is 31 years old. The friend of Mia is Ben. Mia lives in Oslo.",
    "Ben": "Ben lives in Lima. Ben is a baker. Ben is 45 years old.",
}
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
ACTION = r" (lookup|calc|finish)\[[A-Za-z0-9+*\- ]{1,24}\]"


@dataclass
class Step:
    thought: str
    tool: str
    argument: str
    observation: str


def calc(expression: str) -> str:
    parts = re.fullmatch(r" *(\d{1,9}) *([+*-]) *(\d{1,9}) *", expression)
    return (
        str(OPERATORS[parts[2]](int(parts[1]), int(parts[3])))
        if parts
        else "This cannot be computed."
    )


def lookup(name: str) -> str:
    return NOTES.get(name.strip(), "Nothing is known.")


TOOLS: dict[str, Callable[[str], str]] = {"lookup": lookup, "calc": calc, "finish": str}


@lmprog.function
def react(
    s: lmprog.Branch, question: str = "Where does the friend of Mia live?", most: int = 4
) -> list[Step]:
    s = s.with_(temperature=0)  # the same branch, with settings for what is asked through this view
    steps = []
    s.append(f"Question: {question}\n")
    for number in range(1, most + 1):
        s.append(f"Thought {number}:")
        thought = s.gen(stop="\n", max_tokens=24)
        s.append(f"\nAction {number}:")
        action = s.gen(regex=ACTION, max_tokens=48)
        tool, argument = action.value.strip().removesuffix("]").split("[")
        observation = TOOLS[tool](argument)
        steps.append(Step(thought.value.strip(), tool, argument, observation))
        if tool == "finish":
            break
        s.append(f"\nObservation {number}: {observation}\n")
    return steps


def main() -> None:
    run = react.run()
    print(run.text())
    usage = run.usage
    print(
        f"\n{2 * len(run.value)} calls, {usage.prompt} prompt tokens, {usage.cached} of them "
        "found in the tree"
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Thoughts, actions, observations.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
