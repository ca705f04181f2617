"""The code of the pages runs: each block, one after the other, against its scripted answers."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from lmprog.backends.connecting.default import set_default_backend
from lmprog.testing import Scripted

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"(?:<!-- answers: (?P<answers>.*?) -->\n)?```python\n(?P<code>.*?)```", re.DOTALL
)


@pytest.mark.parametrize(
    ("name", "least"), [("README.md", 1), ("docs/language.md", 17), ("docs/from-sglang.md", 5)]
)
def test_every_block_of_a_page_runs_as_it_says(name: str, least: int, tmp_path: Path) -> None:
    page = (ROOT / name).read_text()
    blocks = list(BLOCK.finditer(page))
    assert len(blocks) >= least
    assert len(blocks) == page.count("```python"), "no block is left out"
    names: dict[str, object] = {}
    for block in blocks:
        path = tmp_path / "block.py"
        line = page.count("\n", 0, block.start("code"))
        imports = "from lmprog.errors import *\nfrom lmprog.testing import Hold\n"
        path.write_text(f"{imports}__answers = {block['answers'] or '[]'}\n")
        with Scripted(runpy.run_path(str(path))["__answers"]) as scripted:
            set_default_backend(scripted)
            try:
                path.write_text("\n" * line + block["code"])
                names = {**names, **runpy.run_path(str(path), init_globals=names)}
            finally:
                set_default_backend(None)


def test_what_the_readme_tells_to_run_is_there() -> None:
    page = (ROOT / "README.md").read_text()
    files = re.findall(r"(?:^|[\s(`])((?:examples|docs|kernels|tests|benchmarks)/[\w./-]+)", page)
    assert len(files) > 10
    for file in files:
        assert (ROOT / file.rstrip(".,")).exists(), file
    for target in re.findall(r"^    make (\w+)", page, re.MULTILINE):
        assert f"\n{target}:" in (ROOT / "Makefile").read_text(), target
    for path, program in re.findall(r"lmprog run (\S+)::(\w+)", page):
        assert f"def {program}(" in (ROOT / path).read_text()
