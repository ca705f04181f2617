"""Programs as coroutines: many on one event loop, a deadline, a race whose loser is cancelled in
the runtime, too.

python examples/async_programs.py [--model NAME_OR_FOLDER]
lmprog run examples/async_programs.py::ask --arg question="Who is a baker?"
"""

from __future__ import annotations

import argparse
import asyncio

import lmprog
from lmprog.errors import DeadlineExceeded

FACTS = "Mia lives in Oslo. Ben is a baker. Mia has a dog. Ben is 45 years old.\n"
QUESTIONS = (
    "Where does Mia live?",
    "What is Ben's job?",
    "How old is Ben?",
    "What animal does Mia have?",
)


@lmprog.function
async def ask(s: lmprog.Branch, question: str = QUESTIONS[0]) -> str:
    s.append(f"{FACTS}Q: {question}\nA:")
    return (await s.gen(stop="\n", max_tokens=16, temperature=0)).strip()


@lmprog.function
async def ramble(s: lmprog.Branch, tokens: int = 2000) -> str:
    s.append(FACTS)
    return await s.gen(max_tokens=tokens, ignore_eos=True)


async def together() -> None:
    runs = await asyncio.gather(*(ask.arun(question) for question in QUESTIONS))
    for question, run in zip(QUESTIONS, runs, strict=True):
        print(f"{question} {run.value}")
    print(f"{sum(run.usage.cached for run in runs)} prompt tokens found in the tree\n")


async def in_time() -> None:
    try:
        await ramble.using(timeout=0.02).arun()
    except DeadlineExceeded as error:
        print(f"too slow: {error}")


async def race() -> None:
    """The first to end wins; cancelling a task frees its pages at once."""
    tasks = [asyncio.create_task(ramble.arun()), asyncio.create_task(ask.arun())]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.wait(pending)
    print(f"the race: {[task.result().value for task in done]}, {len(pending)} cancelled")


async def everything() -> None:
    await together()
    await in_time()
    await race()


def main() -> None:
    asyncio.run(everything())


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Many programs on one event loop.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
