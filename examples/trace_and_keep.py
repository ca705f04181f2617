"""Answers kept on disk: a second run asks only what is new, and a callback is told of every call.

A path in the place of the callback writes a file, which `lmprog trace FILE` shows.

    python examples/trace_and_keep.py [--model NAME_OR_FOLDER]
    lmprog run examples/trace_and_keep.py::answered
"""

from __future__ import annotations

import argparse
import tempfile

import lmprog

QUESTIONS = ("Where does Mia live?", "Where does Ben live?", "How old is Mia?")


@lmprog.function
async def answered(s: lmprog.Branch, questions: tuple[str, ...] = QUESTIONS) -> list[str]:
    s.append("Mia lives in Oslo. Mia is 31 years old. Ben lives in Lima.\n")
    async with s.fork(len(questions), temperature=0) as branches:
        branches += [f"Q: {question}\nA:" for question in questions]
        answers = await branches.map(lambda b: b.gen("answer", max_tokens=8, stop="\n"))
    return [answer.strip() for answer in answers]


def tell(event: lmprog.TraceEvent) -> None:
    if event.kind == "call" and event.phase == "end" and event.usage is not None:
        print(f"  {event.branch}: {event.name}, {event.usage.generated} tokens generated")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, lmprog.tracing(tell):
        for count in (2, 3):
            run = answered.using(cache=folder).run(QUESTIONS[:count])
            print(f"{run.value}: {run.num_from_cache} of {count} answers from the folder")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Answers that are kept, calls that are told of.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
