"""Tree of thought: propose several next steps, let the model judge each, go on from the best few,
drop the others.

A thought is a branch. A dropped one costs nothing but what it said, and its memory is free at once;
the question is never computed again.

    python examples/tree_of_thought.py [--model NAME_OR_FOLDER]
    lmprog run examples/tree_of_thought.py::solve --arg width=1
"""

from __future__ import annotations

import argparse

import lmprog

QUESTION = "Tom has 12 lamps. Tom buys 7 more. Tom gives away 4. How many lamps does Tom have now?"
STEP = (
    r" \d{1,2} [+-] \d{1,2} = \d{1,3}\n"  # it ends where the line ends, as the model has learned it
)


@lmprog.function
async def is_right(s: lmprog.Branch, step: str) -> float:
    task, _, result = step.partition(" = ")
    s.append(f"Question: What is {task}?\nAnswer: {result}\nIs the answer good or bad?\nReasoning:")
    s.gen(stop="\n", max_tokens=48, temperature=0)  # it does the sum again before it judges
    s.append("\nJudgment:")
    return (await s.select(" good", " bad")).probabilities[" good"]


async def propose(thought: lmprog.SearchPath[str]) -> str:
    thought.branch.append(f"Step {len(thought.values) + 1}:")
    return (await thought.branch.gen(regex=STEP, max_tokens=24)).strip()


async def rate(thought: lmprog.SearchPath[str]) -> float:
    sure = await is_right.arun(thought.values[-1])  # a run of its own on the same runtime
    return thought.score * sure.value


@lmprog.function
async def solve(
    s: lmprog.Branch, question: str = QUESTION, depth: int = 2, proposals: int = 3, width: int = 2
) -> tuple[str, list[lmprog.SearchPath[str]]]:
    s.append(f"Question: {question}\n")
    best = await lmprog.search(
        s,
        propose,
        rate,
        width=width,
        budget=width * depth,
        proposals=proposals,
        until=lambda thought: len(thought.values) == depth,
        temperature=0.8,
    )
    last = best[0].branch
    last.append("Answer:")
    answer = await last.gen(regex=r" \d{1,3}\n", max_tokens=8, temperature=0)
    return answer.strip(), best


def main() -> None:
    run = solve.using(seed=1).run()
    answer, best = run.value
    print(QUESTION)
    for thought in best:
        print(f"{thought.score:6.3f}  {'; '.join(thought.values)}")
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
