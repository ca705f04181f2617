"""Two models in one program: one writes, another one judges, on the text of the same branch.

Here both are the same small model, on two runtimes; `--judge` may name another one.

    python examples/two_models.py [--model NAME_OR_FOLDER]
    lmprog run examples/two_models.py::checked
"""

from __future__ import annotations

import argparse

import lmprog


@lmprog.function
async def checked(
    s: lmprog.Branch, a: int = 23, b: int = 45, judge: lmprog.Runtime | None = None
) -> tuple[int, bool]:
    s.append(f"Question: What is {a} + {b}?\nAnswer: ")
    answer = await s.gen(int, temperature=0)
    by_judge = s.with_(backend=judge)  # the same branch, asked elsewhere; None: where the run is
    s.append("\nIs the answer good or bad?\nReasoning:")
    await by_judge.gen(stop="\n", max_tokens=48, temperature=0)  # it does the sum again
    s.append("\nJudgment:")
    return answer, await by_judge.select(" good", " bad") == " good"


def main(judge: lmprog.Runtime | None = None) -> None:
    run = checked.run(judge=judge)
    answer, is_right = run.value
    print(f"23 + 45 = {answer}: {'right' if is_right else 'wrong'}, says the judge")
    for model, usage in run.usage_by_model.items():
        print(f"{model}: {usage.prompt} tokens of prompts, {usage.computed} computed")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="One writes, the other one judges.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    options.add_argument("--judge", default="nano", help="name or folder (default: nano)")
    given = options.parse_args()
    with lmprog.Runtime(given.model) as runtime, lmprog.Runtime(given.judge) as other:
        lmprog.set_default_backend(runtime)
        main(other)
