"""The engine on the emulated device answers as the engine on the processor, whatever the scheduler
does: caches, forks, chunks, preemption, copies of pages.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import InvalidParameter, NotSupported
from lmprog.native import compiler
from lmprog.runtime.engine.device import device_engine
from lmprog.runtime.engine.device.choice import chosen_device
from lmprog.runtime.engine.device.device_engine import DeviceEngine
from lmprog.runtime.engine.device.items import AttentionItems
from lmprog.runtime.engine.device.staging import Staging
from lmprog.runtime.engine.device.step_arrays import Arrays, StepPlans, step_arrays
from lmprog.runtime.engine.engine import SelectedEngine, select_engine
from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.scheduling.generation import Scoring
from lmprog.wire import SamplingParams
from tests.cuda.conftest import named
from tests.cuda.trees import Row, batch_of
from tests.runtime.guesses import knowing
from tests.runtime.rig import GREEDY, Rig

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
NEW_TOKENS = 4


@cache
def selected(device: str, page_size: int = 16) -> SelectedEngine:
    scheduler = SchedulerConfig(page_size=page_size, num_pages=1024 // page_size, token_budget=128)
    config = RuntimeConfig(
        model="dummy:tiny",
        dtype="float32",
        device=named(device),
        context_len=512,
        scheduler=scheduler,
    )
    return select_engine(config)


def prompts() -> list[list[int]]:
    """They share prefixes of all kinds: none, inside a page, at its end, nearly everything."""
    dice = random.Random(5)
    base = [dice.randrange(256) for _ in range(70)]
    own = [[dice.randrange(256) for _ in range(3 + index)] for index in range(10)]
    return [
        base[:common] + tail
        for common, tail in zip([0, 5, 16, 17, 31, 32, 48, 60, 60, 69], own, strict=True)
    ]


def rig_for(device: str, preempt_every: int = 0, **changes: Any) -> Rig:
    fields = {"page_size": 16, "num_pages": 64, "token_budget": 128, "speculation": "off"}
    config = SchedulerConfig(**{**fields, **changes})
    made = selected(device, config.page_size)
    return Rig(config, 512, preempt_every, made.engine, made.sampler)


def answers(rig: Rig, at_once: int, sampling: SamplingParams = GREEDY) -> list[list[int]]:
    tokens, todo = [], prompts()
    for start in range(0, len(todo), at_once):
        sequences = [
            rig.gen(prompt, NEW_TOKENS, sampling) for prompt in todo[start : start + at_once]
        ]
        rig.run()
        tokens += [list(sequence.tokens) for sequence in sequences]
    return tokens


@cache
def alone() -> list[list[int]]:
    """Each prompt by itself on the processor, nothing shared."""
    return answers(rig_for("cpu", share=False), at_once=1)


CASES = {
    "cache on, alone": ({}, 1, 0),
    "cache on, batch of 10": ({}, 10, 0),
    "cache off, batch of 10": ({"share": False}, 10, 0),
    "pages of 1": ({"page_size": 1, "num_pages": 1024}, 10, 0),
    "chunks of 7": ({"max_chunk": 7}, 10, 0),
    "preempted every third step": ({"max_chunk": 16}, 5, 3),
    "hardly any memory": ({"num_pages": 9}, 10, 0),
    "drafts": ({"speculation": "always"}, 10, 0),
}


@needs_compiler
@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_that_of_the_processor(case: str) -> None:
    changes, at_once, preempt_every = CASES[case]
    rig = rig_for("emulated", preempt_every, **changes)
    if rig.scheduler.drafting is not None:
        rig.scheduler.drafting.source = knowing(alone(), 0.8)
    before = engine_of("emulated", rig.config.page_size).num_replays
    assert answers(rig, at_once) == alone()
    num_replays = engine_of("emulated", rig.config.page_size).num_replays
    assert num_replays > before, "decoded by graphs"
    if preempt_every:
        assert rig.scheduler.stats.preemptions > 2
    if case == "drafts":
        assert rig.scheduler.stats.accepted_tokens > 10


def engine_of(device: str, page_size: int = 16) -> DeviceEngine:
    engine = selected(device, page_size).engine
    assert isinstance(engine, DeviceEngine)
    return engine


@needs_compiler
def test_draws_are_those_of_the_processor() -> None:
    """The same logits up to rounding, the same numbers: the same tokens, unless a number falls on
    the very border between two of them, which these do not.
    """
    sampling = SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.3, seed=4)
    drawn = answers(rig_for("emulated"), 10, sampling)
    assert drawn == answers(rig_for("cpu"), 10, sampling)
    assert drawn != alone()


@needs_compiler
def test_scores_are_those_of_the_processor() -> None:
    found = {}
    for device in ("cpu", "emulated"):
        rig = rig_for(device)
        task = rig.score(prompts()[8], 40, (3, 99, 200)).task
        rig.run()
        assert isinstance(task, Scoring)
        found[device] = [one.logprob for one in (*task.logprobs, *task.final_logprobs)]
    assert found["emulated"] == pytest.approx(found["cpu"], abs=1e-4)
    assert len(found["cpu"]) > 3


def steps(engine: DeviceEngine, *batches: Batch) -> list[torch.Tensor]:
    """The logits of each."""
    found = []
    for batch in batches:
        logits = engine.forward(batch)
        engine.driver.event().wait()
        found.append(logits.values.clone().cpu())
    return found


def decode(*rows: Row) -> Batch:
    """A step of rows with one token each, of which the logits are wanted."""
    batch = batch_of(list(rows), 16)
    each = np.arange(len(rows), dtype=np.int32)
    return replace(batch, tokens=each + 7, logit_tokens=each)


def fresh() -> DeviceEngine:
    selected.cache_clear()
    return engine_of("emulated")


PROMPT = [Row(0, 40, (3, 4, 5)), Row(0, 40, (6, 7, 8))]
NEXT = decode(Row(40, 1, (3, 4, 5)), Row(40, 1, (6, 7, 8)))
SWAPPED = decode(Row(40, 1, (6, 7, 8)), Row(40, 1, (3, 4, 5)))


@needs_compiler
def test_a_graph_that_would_use_memory_that_is_gone_is_captured_anew() -> None:
    engine = fresh()
    engine._staging = Staging(engine.driver, 1 << 14)
    engine._moves = engine._staging.moves
    tokens = np.random.default_rng(0).integers(0, 256, 80).astype(np.int32)
    prompt = replace(batch_of(PROMPT, 16), tokens=tokens)
    long = replace(batch_of([Row(0, 100, tuple(range(9, 60)))], 16), tokens=np.zeros(100, np.int32))
    _, before, *_, after = steps(engine, prompt, NEXT, long, NEXT)
    engine._staging.send({"more": np.zeros(1 << 14, np.uint8)})  # grows, and moves
    assert torch.equal(steps(engine, NEXT)[0], after)
    assert torch.equal(before, after)
    # The same without noticing the move: the graph reads what was sent before it.
    right = steps(engine, SWAPPED)[0]
    steps(engine, NEXT)
    engine._staging.send({"more": np.zeros(1 << 17, np.uint8)})
    engine._moves = engine._staging.moves
    assert not torch.allclose(steps(engine, SWAPPED)[0], right, atol=1e-3)


def drafted(*rows: Row) -> Batch:
    """A step of rows whose tokens' logits are all wanted."""
    batch = batch_of(list(rows), 16)
    each = np.arange(batch.num_tokens, dtype=np.int32)
    return replace(batch, tokens=each + 7, logit_tokens=each)


@needs_compiler
def test_a_step_with_drafts_is_captured_when_its_like_comes_again() -> None:
    engine = fresh()
    rng = np.random.default_rng(0)
    prompt = replace(batch_of(PROMPT, 16), tokens=rng.integers(0, 256, 80).astype(np.int32))
    step = drafted(Row(40, 3, (3, 4, 5)), Row(40, 1, (6, 7, 8)))
    like = drafted(Row(40, 1, (6, 7, 8)), Row(40, 3, (3, 4, 5)))
    steps(engine, prompt)
    (first,) = steps(engine, step)
    assert engine.num_replays == 0
    again, turned = steps(engine, step, like)
    assert engine.num_replays == 2, "one graph for both"
    assert torch.equal(again, first)
    assert not torch.allclose(turned, first, atol=1e-3)
    other = fresh()
    other._can_capture = False
    _, right = steps(other, prompt, like)
    assert torch.equal(turned, right)


@needs_compiler
def test_a_stale_page_table_would_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fresh()
    rng = np.random.default_rng(0)
    prompt = replace(batch_of(PROMPT, 16), tokens=rng.integers(0, 256, 80).astype(np.int32))
    _, first, right = steps(engine, prompt, NEXT, SWAPPED)
    assert not torch.allclose(first, right, atol=1e-3)
    stale = step_arrays(NEXT, StepPlans(engine.attention.rules).of(NEXT))["pages"]

    def forgetful(batch: Batch, plans: list[AttentionItems]) -> Arrays:
        return {**step_arrays(batch, plans), "pages": stale}

    monkeypatch.setattr(device_engine, "step_arrays", forgetful)
    assert not torch.allclose(steps(engine, SWAPPED)[0], right, atol=1e-3)


def test_a_device_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(InvalidParameter, match="there is no device 'gpu'; there are auto, cpu"):
        chosen_device("gpu")
    with pytest.raises(NotSupported, match=r"device 'cuda:99' cannot be used: \w+"):
        chosen_device("cuda:99")
    assert chosen_device("cpu") == "cpu"


@needs_compiler
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kv_dtype": "bfloat16"}, "kept in the model's type"),
        ({"dtype": "bfloat16"}, "no kernels for heads of 32"),
        ({"context_len": 9999}, "at most 4096 tokens"),
        ({"scheduler": SchedulerConfig(page_size=24)}, "a power of two"),
    ],
)
def test_what_a_device_cannot_do_is_refused(changes: dict[str, Any], said: str) -> None:
    config = {"model": "dummy:tiny", "dtype": "float32", "device": "emulated", **changes}
    with pytest.raises((InvalidParameter, NotSupported), match=said):
        select_engine(RuntimeConfig(**config))
