"""Chat: turns in the checkpoint's own template. Every turn goes on where the last one stopped;
nothing is sent again.

python examples/multi_turn_chat.py [--model NAME_OR_FOLDER]
lmprog run examples/multi_turn_chat.py::chat --arg turns='["My name is Mia.", "What is my name?"]'
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import lmprog

TURNS = (
    "Hello!",
    "My name is Mia.",
    "My favorite color is red.",
    "What is my name?",
    "What is my favorite color?",
)


@lmprog.function
def chat(
    s: lmprog.Branch, turns: Sequence[str] = TURNS, system: str = "You are a helpful assistant."
) -> list[str]:
    s.system(system)
    answers = []
    for turn in turns:
        s.user(turn)
        with s.assistant():  # a turn that is written step by step
            answers.append(s.gen(max_tokens=32, temperature=0))
    return [answer.value for answer in answers]


def main() -> None:
    run = chat.run()
    for message in run.messages():
        print(f"{message['role']:>9}: {message['content']}")
    usage = run.usage
    print(
        f"\n{usage.prompt} prompt tokens in {len(TURNS)} calls, {usage.cached} of them found "
        "in the tree"
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="A conversation.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
