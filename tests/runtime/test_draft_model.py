"""A draft model changes how many steps a text takes, and nothing else, whatever it proposes."""

from __future__ import annotations

import random
from collections.abc import Sequence as Rows
from typing import Any

import numpy as np
import pytest

from lmprog import wire
from lmprog.config import SchedulerConfig
from lmprog.runtime.engine.draft_model import MOST_READ, EngineDraftModel
from lmprog.runtime.engine.torch_engine.sampler import TorchSampler
from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.scheduling.drafting import GrowingDraft
from lmprog.simulation import plain_sampler
from lmprog.simulation.fake_engine import FakeEngine
from lmprog.simulation.plain_sampler import PlainSampler
from tests.runtime.rig import VOCAB, Rig, expected
from tests.runtime.talk import GREEDY, Talk, failed, text
from tests.runtime.test_speculation import OPS, tokens, told

MAX_TOKENS = 24


class SmallEngine(FakeEngine):
    """The fake model once more, with pages of its own; of every `errs`-th position it expects
    something else.
    """

    def __init__(
        self, num_pages: int, page_size: int, vocab_size: int = VOCAB, errs: int = 0
    ) -> None:
        super().__init__(num_pages, page_size, vocab_size)
        self.num_pages, self.vocab_size, self.context_len = num_pages, vocab_size, 4096
        self.errs = errs
        self.num_read: list[int] = []

    def forward(self, batch: Batch) -> Any:
        logits = super().forward(batch)
        self.num_read.append(batch.num_tokens)
        if self.errs:
            wrong = batch.positions[batch.logit_tokens] % self.errs == 0
            logits[wrong] = np.roll(logits[wrong], 1, axis=1)
        return logits


def drafting(rig: Any, engine: SmallEngine, sampler: Any = None) -> EngineDraftModel:
    """Has the scheduler of `rig` ask a draft model, whose pages are checked in each step."""
    page_size = rig.scheduler.config.page_size
    model = EngineDraftModel(engine, sampler or PlainSampler(), page_size, engine.vocab_size)
    extend = model.extend

    def checked(drafts: Rows[GrowingDraft]) -> None:
        extend(drafts)
        model.check()

    model.extend = checked  # type: ignore[method-assign]
    if rig.scheduler.drafting is not None:
        rig.scheduler.drafting.model = model
    return model


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("errs", [0, 1, 4])
@pytest.mark.parametrize("changes", [{}, {"share": False}, {"max_chunk": 4}, {"preempt": 3}])
def test_greedy_texts_are_those_without_a_draft_model(
    page_size: int, errs: int, changes: dict[str, Any]
) -> None:
    others = {name: value for name, value in changes.items() if name != "preempt"}
    config = SchedulerConfig(page_size=page_size, num_pages=512, speculation="always", **others)
    rig = Rig(config, preempt_every=changes.get("preempt", 0))
    drafting(rig, SmallEngine(256, page_size, errs=errs))
    prompts = [tokens(seed, length) for seed, length in enumerate([1, 2, 5, 16, 33])]
    sequences = [rig.gen(prompt, MAX_TOKENS) for prompt in prompts]
    rig.run()
    stats = rig.scheduler.stats
    assert [list(one.tokens) for one in sequences] == [
        prompt + expected(prompt, MAX_TOKENS) for prompt in prompts
    ]
    assert (stats.accepted_tokens > 0) == (errs != 1)
    if not errs:
        assert stats.accepted_tokens == stats.drafted_tokens > 0
        assert changes or stats.steps < MAX_TOKENS / 4


def test_every_draw_is_the_one_without_a_draft_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """By enumeration: each pair of random numbers of a grid, for two tokens of a toy vocabulary.
    So the two are equal in distribution, too. A model that expects the same draws the same.
    """
    grid, vocab = 10, 4
    monkeypatch.setattr(
        plain_sampler,
        "uniform",
        lambda seed, step: (seed // grid**step % grid + 0.5) / grid,
    )
    drawn: dict[int | None, list[list[int]]] = {}
    for errs in (None, 0, 1, 2):
        config = SchedulerConfig(
            page_size=4, num_pages=1024, speculation="off" if errs is None else "always"
        )
        rig = Rig(config, engine=FakeEngine(1024, 4, vocab))
        if errs is not None:
            drafting(rig, SmallEngine(512, 4, vocab, errs))
        sequences = [
            rig.gen([1, 2], 4, wire.SamplingParams(temperature=1.0, seed=seed))
            for seed in range(grid**2)
        ]
        rig.run()
        drawn[errs] = [list(one.tokens) for one in sequences]
        stats = rig.scheduler.stats
        assert (errs is None) == (stats.drafted_tokens == 0)
        if errs == 0:
            assert stats.accepted_tokens == stats.drafted_tokens
        elif errs is not None:
            assert 0 < stats.accepted_tokens < stats.drafted_tokens
    assert all(found == drawn[None] for found in drawn.values())


@pytest.mark.parametrize("forcing", [False, True], ids=["sampled", "forced"])
@pytest.mark.parametrize("name", OPS)
def test_an_answer_is_the_one_without_a_draft_model(name: str, forcing: bool) -> None:
    """With constraints, stops, penalties, log-probabilities and several results; the draft model
    samples under the same masks, so the same model's drafts are right.
    """
    ended: list[list[int]] = []
    found = []
    for mode in ("off", "always"):
        talk = Talk(sampler=TorchSampler(), is_forcing=forcing, num_pages=256, speculation=mode)
        vocab = talk.tokenizer.vocab_size
        drafting(talk, SmallEngine(256, 4, vocab), TorchSampler())
        found.append(told(talk, OPS[name], ended))
    without, drafted = found
    assert without.pop("drafted") == without.pop("accepted") == 0
    assert drafted.pop("drafted") == drafted.pop("accepted") > 0 or name == "best"
    if name == "best":  # which of the others are given up, and when, depends on the steps
        without, drafted = ({"outputs": one["outputs"][0]} for one in found)
    assert drafted == without


def test_a_long_prompt_is_read_in_parts_and_then_drafted() -> None:
    config = SchedulerConfig(page_size=16, num_pages=256, speculation="always")
    rig, engine = Rig(config), SmallEngine(256, 16)
    drafting(rig, engine)
    prompt = tokens(1, 3 * MOST_READ + 7)
    sequence = rig.gen(prompt, MAX_TOKENS)
    rig.run()
    assert list(sequence.tokens) == prompt + expected(prompt, MAX_TOKENS)
    assert max(engine.num_read) == MOST_READ
    assert sum(engine.num_read) < len(prompt) + 2 * MAX_TOKENS, "nothing is read twice"
    assert rig.scheduler.stats.accepted_tokens > 0


def test_a_text_that_goes_on_is_not_read_again() -> None:
    config = SchedulerConfig(page_size=4, num_pages=256, speculation="always")
    rig, engine = Rig(config), SmallEngine(256, 4)
    drafting(rig, engine)
    first = rig.gen(tokens(1, 100), MAX_TOKENS)
    rig.run()
    read = sum(engine.num_read)
    rig.gen([*list(first.tokens), 3, 4], MAX_TOKENS)
    rig.run()
    assert sum(engine.num_read) - read < 60


def test_a_text_that_parts_from_one_that_has_ended_is_drafted_by_its_own_tokens() -> None:
    """What both begin with is not read again, and nothing after it is taken for the new text's."""
    config = SchedulerConfig(page_size=4, num_pages=256, speculation="always")
    rig = Rig(config)
    drafting(rig, SmallEngine(256, 4))
    first = rig.gen(tokens(1, 40), MAX_TOKENS)
    rig.run()
    prompt = [*list(first.tokens)[:30], *tokens(2, 25)]
    second = rig.gen(prompt, MAX_TOKENS)
    rig.run()
    assert list(second.tokens) == prompt + expected(prompt, MAX_TOKENS)
    stats = rig.scheduler.stats
    assert stats.accepted_tokens == stats.drafted_tokens > 0


@pytest.mark.parametrize(("num_pages", "most"), [(1, 1), (7, 60), (20, 130)])
def test_where_its_memory_is_short_fewer_are_drafted_and_none_differs(
    num_pages: int, most: int
) -> None:
    config = SchedulerConfig(page_size=4, num_pages=512, speculation="always")
    rig = Rig(config)
    model = drafting(rig, SmallEngine(num_pages, 4))
    prompts = [tokens(seed, 3 + 5 * seed) for seed in range(6)]
    sequences = [rig.gen(prompt, MAX_TOKENS) for prompt in prompts]
    rig.run()
    assert [list(one.tokens) for one in sequences] == [
        prompt + expected(prompt, MAX_TOKENS) for prompt in prompts
    ]
    assert 0 < rig.scheduler.stats.accepted_tokens <= most
    model.check()


def test_what_it_cannot_read_is_not_drafted() -> None:
    """Tokens beyond its vocabulary, texts longer than its context."""
    config = SchedulerConfig(page_size=4, num_pages=512, speculation="always")
    rig, engine = Rig(config), SmallEngine(64, 4, VOCAB // 2)
    engine.context_len = 20
    drafting(rig, engine)
    prompts = [[VOCAB - 1, 2], list(range(25)), [1, 2, 3]]
    sequences = [rig.gen(prompt, MAX_TOKENS) for prompt in prompts]
    rig.run()
    assert [list(one.tokens) for one in sequences] == [
        prompt + expected(prompt, MAX_TOKENS) for prompt in prompts
    ]
    assert engine.num_read


def test_a_call_that_is_cancelled_leaves_its_pages_to_others() -> None:
    talk = Talk(num_pages=256, speculation="always")
    engine = SmallEngine(12, 4, talk.tokenizer.vocab_size)
    model = drafting(talk, engine)
    op = wire.Generate(1, 1, wire.SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True))
    talk.say(wire.Open(1), text(1, "abcdefghij"), op)
    for _ in range(3):
        talk.step()
    assert model.num_free_pages < 12
    talk.say(wire.Cancel(1))
    assert failed(talk.until_idle())[1].code == "cancelled"
    accepted = talk.scheduler.stats.accepted_tokens
    talk.ask(wire.Open(2), text(2, "z" * 30), wire.Generate(2, 2, GREEDY))
    assert talk.scheduler.stats.accepted_tokens > accepted
    model.check()


def test_a_draft_model_that_fails_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    config = SchedulerConfig(page_size=4, num_pages=512, speculation="always")
    rig, engine = Rig(config), SmallEngine(64, 4)
    drafting(rig, engine)
    sequence = rig.gen([1, 2, 3], MAX_TOKENS)
    engine.fail_next = True
    rig.run()
    assert list(sequence.tokens) == [1, 2, 3, *expected([1, 2, 3], MAX_TOKENS)]
    assert rig.scheduler.drafting.model is None
    assert "the draft model failed" in caplog.text


def test_a_draft_model_that_is_wrong_is_asked_seldom() -> None:
    """A step lasts a second, and one more for each token of the large model."""
    config = SchedulerConfig(page_size=16, num_pages=64, speculation="auto")
    drafted = {}
    for errs in (0, 1):
        rig = Rig(config)
        drafting(rig, SmallEngine(64, 16, errs=errs))
        prompt = [random.Random(1).randrange(VOCAB) for _ in range(9)]
        sequence = rig.gen(prompt, 150)
        rig.run()
        assert list(sequence.tokens) == prompt + expected(prompt, 150)
        drafted[errs] = rig.scheduler.stats.drafted_tokens
    assert drafted[1] < 30 < drafted[0]
