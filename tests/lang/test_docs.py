"""The code of the pages runs: each block, one after the other, against its scripted answers."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from lmprog.lang.backends.default import set_default_backend
from lmprog.testing import Scripted

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"(?:<!-- answers: (?P<answers>.*?) -->\n)?```python\n(?P<code>.*?)```", re.DOTALL)


@pytest.mark.parametrize(("name", "least"), [("language.md", 15), ("from-sglang.md", 5)])
def test_every_block_of_a_page_runs_as_it_says(name: str, least: int, tmp_path: Path) -> None:
    page = (DOCS / name).read_text()
    blocks = list(BLOCK.finditer(page))
    assert len(blocks) >= least
    names: dict[str, object] = {}
    for block in blocks:
        path = tmp_path / "block.py"
        line = page.count("\n", 0, block.start("code"))
        path.write_text(f"from lmprog.errors import *\n__answers = {block['answers'] or '[]'}\n")
        with Scripted(runpy.run_path(str(path))["__answers"]) as scripted:
            set_default_backend(scripted)
            try:
                path.write_text("\n" * line + block["code"])
                names = {**names, **runpy.run_path(str(path), init_globals=names)}
            finally:
                set_default_backend(None)
