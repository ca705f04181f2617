"""Reflection: the model drafts, checks its draft, and drafts again where it finds it wrong.

Every draft and every check goes on from text that is computed once.

    python examples/reflection.py [--model NAME_OR_FOLDER]
    lmprog run examples/reflection.py::reflected --arg a=31 --arg b=46
"""

from __future__ import annotations

import argparse

import lmprog


@lmprog.function
async def is_right(s: lmprog.Branch, task: str, result: int) -> bool:
    s.append(f"Question: What is {task}?\nAnswer: {result}\nIs the answer good or bad?\nReasoning:")
    s.gen(stop="\n", max_tokens=48, temperature=0)  # it does the sum again before it judges
    s.append("\nJudgment:")
    return await s.select(" good", " bad") == " good"


@lmprog.function
async def reflected(s: lmprog.Branch, a: int = 23, b: int = 45, most: int = 3) -> int:
    s.append(f"Q: What is {a} + {b}?\nA: ")
    draft = 0
    for attempt in range(most):
        with s.copy(temperature=0.7 * attempt) as branch:  # the first is the likeliest
            draft = await branch.gen(int, max_tokens=4)
        if (await is_right.arun(f"{a} + {b}", draft)).value:
            break
    return draft


def main() -> None:
    run = reflected.run()
    print(f"23 + 45 = {run.value}")
    usage = run.usage
    print(f"{usage.prompt} tokens of prompts and {usage.generated} generated, checks included")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Draft, check, draft again.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
