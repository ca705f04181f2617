"""Fork: a list of tips, then one branch for each tip that goes on from the whole list, all at once.

Nothing waits before the branches are read: a pending tip is put into later text as a reference.

    python examples/fork_tips.py [--model NAME_OR_FOLDER]
    lmprog run examples/fork_tips.py::fork_tips --arg topic="better sleep" --arg number=2
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import lmprog


@dataclass
class Tip:
    short: str
    long: str


@lmprog.function
async def fork_tips(s: lmprog.Branch, topic: str = "saving money", number: int = 3) -> list[Tip]:
    s.append(f"Give {number} tips for {topic}.\n")
    short = []
    for index in range(1, number + 1):
        s.append(f"{index}.")
        short.append(s.gen(stop="\n", max_tokens=16, temperature=0))
        s.append("\n")
    async with s.fork(
        number, temperature=0
    ) as branches:  # copies of a cursor; leaving the block frees them
        branches += [f"\nTip:{tip}\nExpand:" for tip in short]
        long = await branches.map(lambda branch: branch.gen(stop="\n", max_tokens=48))
    return [Tip((await tip).strip(), text.strip()) for tip, text in zip(short, long, strict=True)]


def main() -> None:
    run = fork_tips.run()
    for number, tip in enumerate(run.value, start=1):
        print(f"{number}. {tip.short}\n   {tip.long}\n")
    usage = run.usage
    print(f"{usage.prompt} prompt tokens in all calls, {usage.cached} of them found in the tree")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="One branch for each tip.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
