"""Where there is neither a wheel's core nor a compiler, constraints say so; all else works."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import lmprog
from lmprog.constraints.search import AT_START, text_search
print(text_search("ab+").first_begin("xxab", text_search("ab+").of_ends, AT_START))
for say in ({"regex": "a"}, {"schema": {"type": "integer"}}, {"choices": ["a", "b"]}):
    try:
        lmprog.constraint(**say)
    except lmprog.errors.NotSupported as error:
        print(error)
"""


def test_a_constraint_without_the_native_core_is_refused_with_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "LMPROG_NATIVE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    found, *said = done.stdout.splitlines()
    assert found == "2", "stop patterns need none"
    assert len(said) == 3
    assert all("install a C++ compiler" in one and "wheel" in one for one in said)
