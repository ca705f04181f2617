"""Beam search: four texts go on together, one token in each step; of all their continuations the
likeliest four are kept. Their common beginning is computed once; what losers held is free at once.

    python examples/beam_search.py [--model NAME_OR_FOLDER]
    lmprog run examples/beam_search.py::readings
"""

from __future__ import annotations

import argparse

import lmprog

STORY = "Mia lives in Oslo. Tom lives in Bonn.\nQ: Where does Tom live?\nA:"


@lmprog.function
def readings(s: lmprog.Branch, width: int = 4) -> list[tuple[str, float | None]]:
    s.append(STORY)
    found = s.beam(width, "answer", 12, n=width, stop="\n")
    return [(text, meta.score) for text, meta in zip(found.values, found.metas, strict=True)]


def main() -> None:
    run = readings.run()
    for text, score in run.value:
        print(f"{score:7.3f}  {text.strip()}")
    print(f"{run.usage.computed} tokens computed for the {run.usage.generated} of the results")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="The likeliest answers to a question.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
