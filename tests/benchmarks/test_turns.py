"""A short form of `python -m benchmarks.turns`, with a template of this suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.runner import run
from tests.tool_calls.call_templates import FAMILIES, native


def test_whole_turns_of_a_template_are_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = pytest.importorskip("benchmarks.turns", reason="needs more than is installed")
    source = native(FAMILIES["hermes"])
    thinking = source.replace("<|assistant|>{% endif", "<|assistant|><think>{% endif")
    assert thinking != source
    (tmp_path / "thinking.jinja").write_text(thinking, "utf-8")
    assert run(turns.main, ["--templates", str(tmp_path), "--seeds", "1"]) == 0
    assert "| thinking | derived | <think> (open) | 18 | 0 | 0 | 18 |" in capsys.readouterr().out
