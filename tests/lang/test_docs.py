"""The tutorial's code runs: each block of `docs/language.md`, one after the other, against its scripted answers."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from lmprog.lang.backends.default import set_default_backend
from lmprog.testing import Scripted

PAGE = Path(__file__).parents[2] / "docs" / "language.md"
BLOCK = re.compile(r"(?:<!-- answers: (?P<answers>.*?) -->\n)?```python\n(?P<code>.*?)```", re.DOTALL)


def test_every_block_of_the_tutorial_runs_as_it_says(tmp_path: Path) -> None:
    blocks = list(BLOCK.finditer(PAGE.read_text()))
    assert len(blocks) >= 10
    names: dict[str, object] = {}
    for block in blocks:
        path = tmp_path / "block.py"
        line = PAGE.read_text().count("\n", 0, block.start("code"))
        path.write_text(f"from lmprog.errors import *\n__answers = {block['answers'] or '[]'}\n")
        with Scripted(runpy.run_path(str(path))["__answers"]) as scripted:
            set_default_backend(scripted)
            try:
                path.write_text("\n" * line + block["code"])
                names = {**names, **runpy.run_path(str(path), init_globals=names)}
            finally:
                set_default_backend(None)
