"""Adapters: several low-rank changes of one model, named by whoever asks, computed in one step.

They come from PEFT's `save_pretrained`; none is shipped.

    python examples/use_adapters.py [--model NAME_OR_FOLDER] --lora NAME=FOLDER [--lora NAME=FOLDER]
    lmprog run examples/use_adapters.py::told
"""

from __future__ import annotations

import argparse

import lmprog


@lmprog.function
async def told(s: lmprog.Branch, question: str = "Who lives in the red house?") -> str:
    s.append(f"Anna lives in the red house. Ben lives in the blue house.\nQ: {question}\nA:")
    return (await s.gen(max_tokens=8, temperature=0, stop="\n")).strip()


def main(names: tuple[str, ...] = ()) -> None:
    for name in ("", *names, "", *names):  # each finds again what it has computed itself
        run = told.using(lora=name).run()
        print(f"{name or 'the base'}: {run.value!r}, {run.usage.cached} tokens from its cache")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Asks the base and each adapter, twice.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    options.add_argument("--lora", action="append", default=[], metavar="NAME=FOLDER")
    given = options.parse_args()
    with lmprog.Runtime(given.model, lora=tuple(given.lora)) as runtime:
        lmprog.set_default_backend(runtime)
        main(tuple(one.partition("=")[0] for one in given.lora))
