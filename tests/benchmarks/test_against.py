"""The comparison with another checkout: its options, its figures, and a small run of a side."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import against, public_client
from benchmarks.against import HERE, Rounds, chat_lines, chat_task, on_checkout, prompt_lines
from benchmarks.chat_admission import Case
from benchmarks.public_client import StreamedSteps, processor_time
from benchmarks.runner import run
from lmprog.runtime.engine.model.locate import NANO


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([str(NANO)], "is no checkout: it has no lmprog/__init__.py"),
        ([str(HERE), "--only", "chats,prompt"], "unknown workload 'prompt'; valid: chats, prompts"),
        ([str(HERE), "--only", "prompts", "--peer", "transformers"], "--peer goes with chats only"),
    ],
)
def test_options_that_cannot_be_are_refused(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(against.main, given)
    assert said in capsys.readouterr().err


def chats_took(*pairs: tuple[float, float], peer: float | None = None) -> list[str]:
    """The lines of rounds that took so many seconds on the checkout and here."""

    def runs(times: list[float]) -> list[dict[str, Any]]:
        return [{"busy": t, "wall": t, "computed_tokens": 300, "steps": 7} for t in times]

    found = {"checkout": runs([a for a, _ in pairs]), "here": runs([b for _, b in pairs])}
    if peer is not None:
        found["transformers"] = runs([peer] * len(pairs))
    return chat_lines(Rounds(found), 200)


def test_a_ratio_is_that_of_the_least_times_and_single_rounds_stand_behind_it() -> None:
    *sides, last = chats_took((2.0, 1.0), (1.0, 0.9))
    assert [line.split(" | ")[1] for line in sides] == ["1.50 to 1.50"] * 2
    assert last.endswith("checkout's: 0.90 (0.50 to 0.90): missed")
    assert chats_took((2.0, 1.0))[-1].endswith("0.50 (0.50 to 0.50): met")
    assert chats_took((2.0, 1.0), peer=0.9)[-1].endswith("missed")
    assert chats_took((2.0, 1.0), peer=1.1)[-1].endswith("met")


def test_the_bars_beside_prompts_are_the_gaps_and_the_prompts_a_second() -> None:
    def lines(gap: float, whole: float) -> list[str]:
        there = [{"gaps": [1.0], "whole": 1.0}]
        return prompt_lines(Rounds({"checkout": there, "here": [{"gaps": [gap], "whole": whole}]}))

    assert [line.rpartition(": ")[2] for line in lines(0.05, 1.1)[-2:]] == ["met", "met"]
    assert [line.rpartition(": ")[2] for line in lines(0.07, 1.2)[-2:]] == ["missed", "missed"]


def test_texts_of_several_streams_are_one_step_until_one_of_them_speaks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, times = StreamedSteps(0), iter([1.0, 2.0, 2.0001, 4.0])
    monkeypatch.setattr(public_client, "processor_time", lambda _: next(times))
    for stream in [0, 1, 2, 1, 0, 2, 0, 0]:
        steps.came(stream)
    assert steps.at == [1.0, 2.0, 4.0], "what is read late is no step of its own"
    assert steps.between(1.6, 3.5) == [2.0], "the middle of the other lies before"


def test_the_clock_of_a_process_is_its_processor_time() -> None:
    before = time.process_time()
    asked = processor_time(os.getpid())
    assert before <= asked <= time.process_time()


def test_a_side_that_runs_another_lmprog_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess([], 0, '{"lmprog": "/elsewhere/lmprog/__init__.py"}')
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(RuntimeError, match="elsewhere"):
        on_checkout(tmp_path, {})


def test_a_side_does_the_chats_and_counts_them() -> None:
    task, least = chat_task(Case(str(NANO), 8, 10.0, 1.5, 0.05))
    found = on_checkout(HERE, task)
    # The memory holds everything; the ends of prompts are healed, and drafts may be wrong.
    assert 0.95 * least < found["computed_tokens"] < 1.1 * least
    assert found["steps"] >= 4
    assert found["busy"] > 0.0
