"""`lmprog doctor --gpu`: what it says without a GPU, and what it would find on a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmprog.cli import main
from lmprog.native import compiler
from lmprog.runtime.engine import gpu_report
from lmprog.runtime.engine.device import evidence
from lmprog.runtime.engine.device.driver import ModuleKey
from lmprog.runtime.engine.device.emulated_driver import EmulatedDriver, emulated_kernels

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
KEY = ModuleKey("bf16", 64)


def test_a_machine_without_the_gpu_is_told_so_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--gpu", "cuda:77"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("fail  device")
    assert "cuda:77" in said[0]
    assert len(said) == 3


def test_a_name_that_is_no_device_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--gpu", "gpu0"]) == 1
    assert "there is no device 'gpu0'" in capsys.readouterr().out


@needs_compiler
def test_the_tokens_of_the_device_are_those_of_the_processor() -> None:
    found = gpu_report._tokens("emulated")
    assert found.state == "ok", found


@needs_compiler
def test_evidence_is_gathered_once_for_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = EmulatedDriver(emulated_kernels(KEY))
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path))
    monkeypatch.setattr(evidence, "_TREES", 2)
    real, looks = evidence.gathered, []

    def counted(*given: object, **more: object) -> evidence.Evidence:
        looks.append(given)
        return real(driver, KEY, 2)

    monkeypatch.setattr(evidence, "gathered", counted)
    for name in ("a GPU", "a GPU", "another GPU"):
        found = evidence.kept_evidence(driver, KEY, name, "tree", lambda _: None)
        assert found.is_right
        assert 0 < found.worst < 0.01
    assert len(looks) == 2
