"""Asking again: an answer that a check refuses is shown with the reason, and asked for once more.

What was wrong is no choice any more, so this guess is right after as many tries as there are
colours at most. Every attempt goes on from the text before it, which is computed once.

python examples/ask_again.py [--model NAME_OR_FOLDER]
lmprog run examples/ask_again.py::guess --arg secret=green
"""

from __future__ import annotations

import argparse
from typing import Literal

import lmprog


@lmprog.function
async def guess(s: lmprog.Branch, secret: str = "blue") -> str:
    s.user("Which colour do I think of: red, green, blue or white?")
    return await s.gen(
        Literal["red", "green", "blue", "white"],
        tries=4,
        check=lambda colour: colour == secret or f"It is not {colour}.",
    )


def main() -> None:
    run = guess.run()
    for message in run.messages():
        print(f"{message['role']:>9}: {message['content']}")
    usage = run.usage
    print(f"\n{usage.prompt} tokens of prompts, {usage.cached} of them from the cache")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Asking again.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
