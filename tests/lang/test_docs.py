"""The code of the pages runs as it is written: all blocks of a page, one after the other, in one
process, as a reader would paste them.

A page says what a block runs on: a service that it scripts itself, or, in a comment before it,

    <!-- nano -->          the shipped model
    <!-- server -->        a server of the shipped model at http://127.0.0.1:8000
    <!-- see PATH -->      what is not here: the file named runs the like of it

A block of text right behind is what a block prints. Of models it is compared without its words and
figures.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"(?:<!-- (?P<on>nano|server|see (?P<file>\S+)) -->\n)?```python\n(?P<code>.*?)```\n"
    r"(?:\n```text\n(?P<prints>.*?)```)?",
    re.DOTALL,
)
WORDS = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\d[\d,.]*""")
ENDED = "\x1e\n"
BEGIN = (
    "def ended_here(lmprog_given=__import__('lmprog.backends.connecting.default', "
    "fromlist=['x']).given_backend): "
    "getattr(lmprog_given(), 'check', lambda: None)(); print('\\x1e')"
)
"""The first line of each program: what is called at the end of a block, after which no answer of its
script may be left."""
URL = "http://127.0.0.1:8000"
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    if "```python" in page.read_text()
)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    command = [sys.executable, "-m", "lmprog.cli", "serve", "nano", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as serving:
        try:
            assert serving.stdout is not None
            yield next(line.split()[1] for line in serving.stdout if line.split()[:1] == ["url"])
        finally:
            serving.terminate()


def blocks_of(page: str) -> list[re.Match[str]]:
    text = (ROOT / page).read_text()
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == text.count("```python"), "no block is left out"
    return blocks


def program_of(page: str) -> str:
    """The page's blocks, each on the lines where it stands."""
    text = (ROOT / page).read_text()
    lines = [""] * (text.count("\n") + 1)
    lines[0] = BEGIN
    for block in blocks_of(page):
        if block["file"] is None:
            first = text.count("\n", 0, block.start("code"))
            code = block["code"].splitlines()
            lines[first : first + len(code) + 1] = [*code, "ended_here()"]
    return "\n".join(lines)


def shape(printed: str) -> str:
    return WORDS.sub("_", printed)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs_and_prints_as_it_says(
    page: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    blocks = [block for block in blocks_of(page) if block["file"] is None]
    if not blocks:
        pytest.skip("its blocks are run elsewhere")
    program = program_of(page)
    if any(block["on"] == "server" for block in blocks):
        program = program.replace(URL, request.getfixturevalue("server"))
    file = tmp_path / "page.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(file)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split(ENDED)[:-1]
    for block, seen in zip(blocks, printed, strict=True):
        if block["prints"] is not None:
            of_model = block["on"] is not None
            said = (shape(block["prints"]), shape(seen)) if of_model else (block["prints"], seen)
            assert said[0] == said[1], block["code"]


def test_a_block_that_is_not_run_here_is_run_by_the_file_that_it_names() -> None:
    named = [block["file"] for page in PAGES for block in blocks_of(page) if block["file"]]
    assert named
    for file in named:
        assert (ROOT / file).exists(), file


def test_the_readme_is_short_and_shows_what_its_code_prints() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
    [block] = blocks_of("README.md")
    assert block["prints"]


def test_what_the_readme_tells_to_run_is_there() -> None:
    page = (ROOT / "README.md").read_text()
    files = re.findall(r"(?:^|[\s(`])((?:examples|docs|kernels|tests|benchmarks)/[\w./-]+)", page)
    assert len(files) > 10
    for file in files:
        assert (ROOT / file.rstrip(".,")).exists(), file
    for module in re.findall(r"python -m (benchmarks\.\w+)", page):
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file(), module
    for target in re.findall(r"(?:^    |`)make ([\w-]+)", page, re.MULTILINE):
        assert f"\n{target}:" in (ROOT / "Makefile").read_text(), target
    for path, program in re.findall(r"lmprog run (\S+)::(\w+)", page):
        assert f"def {program}(" in (ROOT / path).read_text()
