"""Skeleton of thought: first the points, then all points expanded at once, then one text. In the
operator spelling.

This is the spelling that SGLang's frontend has: `s += ...`, `s["name"]`, `forks += ...`,
`forks.join()`.

    python examples/skeleton_of_thought.py [--model NAME_OR_FOLDER]
    lmprog run examples/skeleton_of_thought.py::answer --arg topic="better sleep"
"""

from __future__ import annotations

import argparse

import lmprog

POINTS = r"1\. [A-Z][a-z ]{4,40}\n2\. [A-Z][a-z ]{4,40}\n3\. [A-Z][a-z ]{4,40}\n"


@lmprog.function
def answer(s: lmprog.Branch, topic: str = "working in a team") -> str:
    s += f"Question: What should I know about {topic}?\nSkeleton:\n"
    s += lmprog.gen("skeleton", max_tokens=72, regex=POINTS)
    points = s["skeleton"].splitlines()  # waits for it; everything below is sent without waiting
    forks = s.fork(len(points))
    forks += lambda index: f"\nTopic: {topic}\n{points[index]}:"
    forks += lmprog.gen("paragraph", max_tokens=48, stop="\n")
    forks.join()  # s["paragraph"] is the list of all
    return "\n".join(f"{point}.{text}" for point, text in zip(points, s["paragraph"], strict=True))


def main() -> None:
    state = answer.using(temperature=0).run()
    print(state["skeleton"])
    print(state.ret_value)
    usage = state.usage
    print(f"\n{usage.prompt} prompt tokens in four calls, {usage.cached} of them found in the tree")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Points first, then all expanded at once.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
