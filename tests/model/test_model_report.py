"""`lmprog doctor MODEL` says before loading what loading finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmprog.cli import main
from lmprog.config import RuntimeConfig
from lmprog.errors import ModelError
from lmprog.native import compiler
from lmprog.runtime import model_report as report
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.native.engine import NativeEngine
from tests.model.checkpoints import NATIVE, Recipe
from tests.model.small_checkpoint import write_checkpoint

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def findings(model: str | Path, **fields: object) -> dict[str, report.ModelFinding]:
    config = RuntimeConfig(model=str(model), **fields)  # type: ignore[arg-type]
    return {one.name: one for one in report.model_report(config)}


@pytest.mark.parametrize("fields", [{}, {"quantize": "int8"}, {"dtype": "bfloat16"}])
def test_what_it_says_is_what_loading_gives(fields: dict[str, str], tmp_path: Path) -> None:
    NATIVE["qwen2"].make(tmp_path)
    found = findings(tmp_path, **fields)
    engine = load_engine(RuntimeConfig(model=str(tmp_path), **fields))  # type: ignore[arg-type]
    assert isinstance(engine, NativeEngine)
    assert f"as {engine.dtype}, keys and values as {engine.kv_dtype}" in found["engine"].what
    tokens = engine.num_pages * engine.memory.page_size
    weights = report._gb(engine.packed.num_bytes)
    assert found["memory"].what.startswith(f"{weights} for weights")
    assert f"for {tokens:,} tokens" in found["memory"].what


def test_a_model_that_does_not_fit_says_what_makes_it_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    NATIVE["llama"].make(tmp_path)
    monkeypatch.setattr(report, "free_memory", lambda: 1000)
    assert findings(tmp_path)["memory"].state == "warn"
    assert "--quantize" in findings(tmp_path)["memory"].fix
    assert "more memory" in findings(tmp_path, quantize="int4")["memory"].fix
    monkeypatch.setattr(report, "free_memory", lambda: 1 << 20)
    assert "--kv-memory-mb" in findings(tmp_path, kv_memory_mb=64)["memory"].fix


def test_a_model_of_transformers_is_told_apart(tmp_path: Path) -> None:
    Recipe("StableLm").make(tmp_path)
    found = findings(tmp_path)["engine"]
    assert found.state == "warn"
    assert "by transformers: it does not know the architecture 'stablelm'" in found.what


def test_a_model_that_is_refused_is_refused_in_the_same_words(tmp_path: Path) -> None:
    Recipe("Mamba").make(tmp_path)
    (refused,) = (one for one in findings(tmp_path).values() if one.state == "fail")
    with pytest.raises(ModelError) as loading:
        load_engine(RuntimeConfig(model=str(tmp_path)))
    assert refused.what == str(loading.value)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--quantize", "int8"), "is for a model"),
        (("--context-len", "9"), "--context-len is for a model"),
        (("nano", "--gpu"), "MODEL and --gpu: give one"),
    ],
)
def test_what_would_be_passed_over_is_refused(
    words: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *words]) == 2
    assert reason in capsys.readouterr().err


def test_the_command_ends_with_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_checkpoint(tmp_path / "model")
    assert main(["doctor", str(folder)]) == 0
    said = capsys.readouterr().out
    assert [line.split()[:2] for line in said.splitlines() if line[:4].strip()][:5] == [
        ["ok", "files"],
        ["ok", "engine"],
        ["ok", "memory"],
        ["ok", "tokenizer"],
        ["ok", "template"],
    ]
    assert said.endswith("can run here.\n")
    (folder / "model.safetensors").unlink()
    assert main(["doctor", str(folder)]) == 1
    assert capsys.readouterr().out.endswith("cannot run here.\n")
