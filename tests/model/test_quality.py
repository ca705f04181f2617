"""What rounding costs is measured against the most exact type, on the user's text."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from lmprog.cli import main
from lmprog.errors import InvalidParameter
from lmprog.native import compiler
from lmprog.runtime import quality
from lmprog.runtime.engine.model.locate import NANO
from lmprog.runtime.text.tokenizer import load_tokenizer
from tests.model.driver import Driver

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")

TEXT = "Mia lives in Oslo. Tom has a dog, and the dog is old. " * 12


def test_figures_are_those_of_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "_WINDOW", 64)
    found = {one.weight_type: one for one in quality.quality_report("nano", TEXT, 150)}
    assert list(found) == ["float32", "bfloat16", "int8", "int4"]
    tokens = load_tokenizer(NANO).encode(TEXT)[:150]
    windows = [tokens[at : at + 64] for at in range(0, 150, 64)]

    def judged(**config: str) -> tuple[list[float], list[int]]:
        from lmprog.config import RuntimeConfig
        from lmprog.runtime.engine.engine import load_engine

        driver = Driver(load_engine(RuntimeConfig(kv_memory_mb=8, **config)), 16)
        scores, best = [], []
        for window in windows:
            logprobs = driver.score(window)
            for place in range(max(1, len(window) // 4), len(window)):
                scores.append(float(logprobs[place - 1, window[place]]))
                best.append(int(logprobs[place - 1].argmax()))
        return scores, best

    exact, best = judged(dtype="float32", engine="torch")
    assert found["float32"].num_tokens == len(exact)
    assert found["float32"].agreement == 1
    assert found["float32"].perplexity == pytest.approx(math.exp(-np.mean(exact)), rel=1e-3)
    scores, other = judged(quantize="int4")
    assert found["int4"].perplexity == pytest.approx(math.exp(-np.mean(scores)), rel=0.02)
    agreed = torch.tensor(other).eq(torch.tensor(best)).float().mean()
    assert found["int4"].agreement == pytest.approx(float(agreed), abs=0.02)


def test_the_command_prints_a_line_for_each_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text(TEXT)
    file = str(tmp_path / "text")
    assert main(["doctor", "--quality", "nano", "--text", file, "--tokens", "100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["float32", "bfloat16", "int8", "int4"]
    assert lines[1].split()[2] == "100.00%"


def test_a_text_that_says_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidParameter, match="at least 64"):
        next(iter(quality.quality_report("nano", "short", 100)))
    assert main(["doctor", "--quality", "nano"]) == 2
    assert "--text FILE" in capsys.readouterr().err
    assert main(["doctor", "--quality", "nano", "--text", "/not/there"]) == 2
