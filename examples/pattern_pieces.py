"""One call fills a whole form: a pattern made of pieces, whose named parts are captured.

python examples/pattern_pieces.py [--model NAME_OR_FOLDER]
lmprog run examples/pattern_pieces.py::read
"""

from __future__ import annotations

import argparse

import lmprog
from lmprog import grammar

FORM = (
    " "
    + grammar.regex(r"[A-Z][a-z]+", name="city", example="Rome")
    + "\nQ: What does Tom have?\nA: "
    + grammar.select("dog", "cat", "horse", name="animal")
    + "\n"
)


@lmprog.function
def read(s: lmprog.Branch, text: str = "Mia lives in Oslo. Tom has a dog.") -> tuple[str, str]:
    s += f"{text}\nQ: Where does Mia live?\nA:"
    s += lmprog.gen(FORM, temperature=0)  # one request; text between the pieces is forced
    return s["city"], s["animal"]


def main() -> None:
    run = read.run()
    print("Mia lives in {}, and Tom has a {}.".format(*run.value))
    print(f"{run.usage.forced} of {run.usage.generated} tokens were forced.")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="One call fills a whole form.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
