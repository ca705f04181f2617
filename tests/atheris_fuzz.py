"""A property of a test, fed with what libFuzzer finds by the code that it reaches.

    python -m tests.atheris_fuzz tests.server.test_fuzz:NAME -max_total_time=60

Needs the package atheris, and a property without fixtures: `make fuzz` tries all of them with
random inputs. The arguments behind the name are libFuzzer's.
"""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    atheris = importlib.import_module("atheris")
    module, _, name = sys.argv[1].partition(":")
    with atheris.instrument_imports(include=["lmprog"]):
        found = getattr(importlib.import_module(module), name)
    atheris.Setup([sys.argv[0], *sys.argv[2:]], found.hypothesis.fuzz_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
