"""The promise of the whole runtime, on a real (small, random, float32) model: whatever is shared,
cut, mixed, preempted or forked, greedy tokens are those of each prompt alone with the cache off,
and so are log-probabilities."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.torch_engine.engine import TorchEngine
from lmprog.runtime.engine.torch_engine.sampler import TorchSampler
from lmprog.wire import SamplingParams
from tests.runtime.guesses import knowing
from tests.runtime.rig import Rig

NUM_PROMPTS = 32
NEW_TOKENS = 12
GREEDY = SamplingParams(temperature=0.0, logprobs=0)


@cache
def prompts() -> list[list[int]]:
    """Prompts that share prefixes of all kinds: none, inside a page, at a page's end, nearly
    everything, everything.
    """
    dice = random.Random(5)
    base = [dice.randrange(256) for _ in range(90)]
    made = []
    for index in range(NUM_PROMPTS):
        common = [0, 5, 16, 17, 31, 32, 48, 80][index % 8]
        own = dice.randrange(0 if common else 1, 40)
        made.append(base[:common] + [dice.randrange(256) for _ in range(own)])
    return made


def engine_for(scheduler: SchedulerConfig, attention: Any) -> TorchEngine:
    pages = scheduler.num_pages * scheduler.page_size
    memory = max(1, pages * 2048 // (1 << 20) + 1)
    return load_engine(
        RuntimeConfig(
            model="dummy:tiny",
            dtype="float32",
            attention=attention,
            threads=1,
            kv_memory_mb=memory,
            scheduler=scheduler,
        )
    )


@cache
def engines(page_size: int, attention: str) -> TorchEngine:
    """A model is loaded once for each layout of pages."""
    return engine_for(SchedulerConfig(page_size=page_size, num_pages=4096 // page_size), attention)


def answers(rig: Rig, at_once: int) -> tuple[list[list[int]], list[float]]:
    tokens, logprobs = [], []
    todo = prompts()
    for start in range(0, len(todo), at_once):
        sequences = [
            rig.gen(prompt, NEW_TOKENS, GREEDY) for prompt in todo[start : start + at_once]
        ]
        rig.run()
        tokens += [list(sequence.tokens) for sequence in sequences]
        logprobs += [one.logprob for sequence in sequences for one in sequence.task.logprobs]  # type: ignore[union-attr]
    return tokens, logprobs


def rig_for(attention: str, preempt_every: int = 0, **changes: Any) -> Rig:
    fields = {"page_size": 16, "num_pages": 256, "speculation": "off", **changes}
    config = SchedulerConfig(**fields)
    engine = engines(config.page_size, attention)
    assert engine.num_pages >= config.num_pages
    return Rig(config, 512, preempt_every, engine, TorchSampler())


@cache
def alone(attention: str) -> tuple[list[list[int]], list[float]]:
    """Each prompt by itself, nothing shared, nothing cut."""
    return answers(rig_for(attention, share=False), at_once=1)


CASES = {
    "cache on, alone": ({}, 1, 0),
    "cache on, batch of 8": ({}, 8, 0),
    "cache on, batch of 32": ({}, 32, 0),
    "cache off, batch of 32": ({"share": False}, 32, 0),
    "pages of 1": ({"page_size": 1, "num_pages": 4096}, 32, 0),
    "chunks of 1": ({"max_chunk": 1}, 8, 0),
    "chunks of 7": ({"max_chunk": 7}, 32, 0),
    "chunks of 64": ({"max_chunk": 64}, 32, 0),
    "a budget of 10 tokens": ({"token_budget": 10}, 32, 0),
    "preempted every third step": ({"max_chunk": 16}, 8, 3),
    "preempted, pages of 1": ({"page_size": 1, "num_pages": 4096, "max_chunk": 16}, 8, 3),
    "hardly any memory": ({"num_pages": 14}, 32, 0),
    "drafts": ({"speculation": "always"}, 32, 0),
    "drafts, hardly any memory": ({"speculation": "always", "num_pages": 14}, 32, 0),
}


@pytest.mark.parametrize("attention", ["native", "reference"])
@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_the_same(case: str, attention: str) -> None:
    changes, at_once, preempt_every = CASES[case]
    rig = rig_for(attention, preempt_every, **changes)
    expected, expected_logprobs = alone(attention)
    if rig.scheduler.drafting is not None:
        rig.scheduler.drafting.source = knowing(expected, 0.8)
    tokens, logprobs = answers(rig, at_once)
    assert (rig.scheduler.stats.accepted_tokens > 100) == ("drafts" in case)
    assert tokens == expected
    assert max(abs(a - b) for a, b in zip(logprobs, expected_logprobs, strict=True)) < 1e-4
    if preempt_every:
        assert rig.scheduler.stats.preemptions > 10


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("count", [1, 2, 7, 16])
@pytest.mark.parametrize("common", [32, 37])
def test_forks_answer_as_if_each_were_alone(page_size: int, count: int, common: int) -> None:
    dice = random.Random(common)
    parent = [dice.randrange(256) for _ in range(common)]
    children = [[*parent, dice.randrange(256), *([7] * index)] for index in range(count)]
    rig = rig_for("native", page_size=page_size, num_pages=4096 // page_size)
    first = rig.gen(parent, 4, GREEDY)
    rig.run()
    sequences = [rig.gen([*first.tokens, *child[common:]], 8, GREEDY) for child in children]
    rig.run()
    for sequence, child in zip(sequences, children, strict=True):
        single = rig_for("native", share=False)
        solo = single.gen([*first.tokens, *child[common:]], 8, GREEDY)
        single.run()
        assert list(sequence.tokens) == list(solo.tokens)
