"""Streaming: the events of a run while it goes on: text as it comes, values when they are there,
the end.

python examples/streaming.py [--model NAME_OR_FOLDER]
lmprog run examples/streaming.py::story --arg name=Ben --arg town=Lima
"""

from __future__ import annotations

import argparse
import time

import lmprog


@lmprog.function
async def story(s: lmprog.Branch, name: str = "Mia", town: str = "Oslo") -> str:
    s.append(
        f"Story: {name} found an old map in the tower of {town}. Ben knew how to read it.\nEnding:"
    )
    ending = s.gen(name="ending", stop="\n", max_tokens=48)
    s.append("\nReview: I loved it.\nIs this review positive, negative or neutral?\nSentiment:")
    await s.select(" positive", " negative", " neutral", name="mood")
    return await ending


def main() -> None:
    start = time.perf_counter()
    first = None
    for event in story.using(temperature=0).stream():  # `async for` works as well
        match event:
            case lmprog.Text(var="ending", delta=delta):
                first = first or time.perf_counter() - start
                print(delta, end="", flush=True)
            case lmprog.Value(var=name, value=value):
                print(f"\n[{name} is there: {str(value).strip()!r}]")
            case lmprog.Done(usage=usage):
                print(f"[done: {usage.generated} tokens in {time.perf_counter() - start:.2f} s]")
    print(f"[the first text came after {first or 0:.2f} s]")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Text while it comes.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
