"""Tools from plain functions (ReAct): the model calls, Python runs the call, the model goes on.

A call is constrained to the signature, so it can always be carried out.

    python examples/act_tools.py [--model NAME_OR_FOLDER]
    lmprog run examples/act_tools.py::where --arg question="Where does Mia live?"
"""

from __future__ import annotations

import argparse
from typing import Literal

import lmprog

NOTES = {"Mia": "Mia is 31 years old. Mia lives in Oslo.", "Ben": "Ben lives in Lima."}
TOWNS = Literal["Oslo", "Lima", "Rome"]


def look_up(name: Literal["Mia", "Ben"]) -> str:
    """What the notes say of a person."""
    return NOTES[name]


def answer(town: TOWNS) -> str:
    """The answer to the question."""
    return town


@lmprog.function
async def where(s: lmprog.Branch, question: str = "Where does Ben live?") -> str:
    s = s.with_(temperature=0)
    s.user(question)
    await s.act([look_up], until=look_up)
    acted = await s.act([answer], until=answer)
    return str(acted.value)


def main() -> None:
    run = where.run()
    for message in run.messages()[1:]:
        print(f"{message['role']:>9}: {message['content']}")
    print(f"answer: {run.value}")
    usage = run.usage
    print(f"{usage.generated} tokens generated, {usage.forced} of them forced by the signatures")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="A model calls functions.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
