"""A program that waits for somebody's approval, in a file: another process can go on with it.

What is known is not asked again: the program goes on behind its question.

    python examples/approve.py [--model NAME_OR_FOLDER]
    lmprog run examples/approve.py::book --arg name=Mia
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import lmprog

NOTES = "Mia is 31 years old. Mia lives in Oslo. Tom lives in Lima."


@lmprog.function
def book(s: lmprog.Branch, name: str = "Mia") -> str:
    s += f"{NOTES}\nQ: Where does {name} live?\nA:"
    town = s.gen(max_tokens=12, stop=["\n", "."], temperature=0).value.strip()
    if s.pause(f"Book a flight to {town}?") != "yes":
        return "nothing booked"
    s += f".\nQ: How old is {name}?\nA:"
    age = s.gen(max_tokens=12, stop=["\n", "."], temperature=0).value.strip()
    return f"a flight to {town} for {name}, {age}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "book.jsonl"
        try:
            book.run()
        except lmprog.Paused as paused:
            print(f"asked: {paused.question}")
            paused.checkpoint(path)
        run = lmprog.resume(path, book, answer="yes")  # perhaps days later, on another machine
    print(f"value: {run.value}")
    print(f"{run.num_from_cache} call from the checkpoint, {run.usage.generated} tokens generated")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="A program waits for an approval.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
