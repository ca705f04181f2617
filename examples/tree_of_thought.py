"""Tree of thought: propose several next steps, let the model judge each, go on from the best few,
drop the others.

A thought is a branch. A dropped one costs nothing but what it said; the question is never computed
again.

    python examples/tree_of_thought.py [--model NAME_OR_FOLDER]
    lmprog run examples/tree_of_thought.py::solve --arg width=1
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import lmprog

QUESTION = "Tom has 12 lamps. Tom buys 7 more. Tom gives away 4. How many lamps does Tom have now?"
STEP = (
    r" \d{1,2} [+-] \d{1,2} = \d{1,3}\n"  # it ends where the line ends, as the model has learned it
)


@dataclass(frozen=True)
class Thought:
    steps: tuple[str, ...]
    score: float
    branch: lmprog.Branch


@lmprog.function
async def is_right(s: lmprog.Branch, step: str) -> float:
    s.append(f"Is {step} right?\nCheck:")
    s.gen(stop="\n", max_tokens=16, temperature=0)  # it does the sum again before it judges
    s.append("\nAnswer:")
    return (await s.select(" yes", " no")).probabilities[" yes"]


async def next_steps(thought: Thought, number: int, proposals: int) -> list[Thought]:
    async def propose(branch: lmprog.Branch) -> Thought:
        branch.append(f"Step {number}:")
        step = (await branch.gen(regex=STEP, max_tokens=24)).strip()
        sure = await is_right.arun(
            step
        )  # a program inside a program: same runtime, a branch of its own
        return Thought((*thought.steps, step), thought.score * sure.value, branch)

    return await thought.branch.fork(proposals, temperature=0.8).map(propose)


@lmprog.function
async def solve(
    s: lmprog.Branch, question: str = QUESTION, depth: int = 2, proposals: int = 3, width: int = 2
) -> tuple[str, list[Thought]]:
    s.append(f"Question: {question}\n")
    best = [Thought((), 1.0, s)]
    for number in range(1, depth + 1):
        found = [new for thought in best for new in await next_steps(thought, number, proposals)]
        different = {new.steps: new for new in found}.values()  # proposals may well agree
        best = sorted(different, key=lambda thought: -thought.score)[:width]
    last = best[0].branch
    last.append("Answer:")
    answer = await last.gen(regex=r" \d{1,3}\n", max_tokens=8, temperature=0)
    return answer.strip(), best


def main() -> None:
    run = solve.using(seed=1).run()
    answer, best = run.value
    print(QUESTION)
    for thought in best:
        print(f"{thought.score:6.3f}  {'; '.join(thought.steps)}")
    print(f"answer: {answer}")
    print(
        f"\n{run.usage.prompt} prompt tokens in all calls, {run.usage.cached} of them found "
        "in the tree"
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Propose, judge, go on.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
