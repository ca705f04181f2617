"""The types that users see, as mypy infers them under `--strict`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_mypy_infers_the_types_of_programs_and_values() -> None:
    """The snippet asserts types, and expects an error (an ignore that is used) wherever a mistake is made."""
    pytest.importorskip("mypy")
    snippet = Path(__file__).with_name("typing_snippet.py")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(snippet)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=snippet.parents[2],
    )
    assert done.returncode == 0, done.stdout
