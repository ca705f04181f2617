"""The smallest program: append text, generate, read the value, see the work.

python examples/hello.py [--model NAME_OR_FOLDER]
lmprog run examples/hello.py::hello --arg question="What animal does Mia have?"
"""

from __future__ import annotations

import argparse

import lmprog


@lmprog.function
def hello(s: lmprog.Branch, question: str = "Where does Mia live?") -> str:
    s.append(
        "Mia lives in Oslo. Mia has a dog. Mia is 31 years old.\n"
    )  # nothing is added to what you append
    s.append(f"Q: {question}\nA:")
    answer = s.gen(stop="\n", max_tokens=16, temperature=0)  # asks, and does not wait
    return answer.value.strip()  # this waits


def main() -> None:
    run = hello.run()
    print(run.text())
    print(f"\nvalue: {run.value!r}")
    print(f"work:  {run.usage.prompt} prompt tokens, {run.usage.generated} generated")

    again = hello.run("How old is Mia?")  # the text up to the question is in the tree now
    print(f"\nvalue: {again.value!r}")
    print(
        f"work:  {again.usage.prompt} prompt tokens, {again.usage.cached} of them found in the tree"
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="The smallest program.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
