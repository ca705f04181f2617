"""Several tokens in one step: what stood in the text before is tried, and kept where the model says
the same. The answer is the same with `Runtime(speculation="off")`.

python examples/drafted_extraction.py [--model NAME_OR_FOLDER]
lmprog run examples/drafted_extraction.py::person --arg text="Ben is 45. Ben lives in Lima."
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import lmprog

TEXT = "Mia is 31 years old. Mia lives in Oslo. Mia likes singing and hiking."


@dataclass
class Person:
    name: str
    age: int
    town: str


@lmprog.function
def person(s: lmprog.Branch, text: str = TEXT) -> Person:
    s.append(f"Text: {text}\nExtract name, age, town as JSON.\nJSON: ")
    return s.gen(Person, temperature=0, jump="exact").value  # no token is forced: all are sampled


def main() -> None:
    run = person.run()
    usage = run.usage
    print(run.value)
    print(f"{usage.generated} tokens in {usage.generated - usage.accepted} steps")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Tokens that are tried together.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
