"""A real model that drafts for another: the same texts, its share of memory, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.own_loop import OwnLoop
from lmprog import wire
from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter
from lmprog.runtime.engine.draft_model import without_draft_memory
from lmprog.runtime.text.tokenizer import ByteTokenizer, first_difference

SCHEMA = wire.JsonSchema('{"type": "object", "properties": {"a": {"type": "integer"}}}')


def answers(own: OwnLoop) -> list[str]:
    """Of calls that are under way together: greedy, drawn, stopped, constrained, of several."""
    ops = (
        wire.SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True),
        wire.SamplingParams(temperature=1.0, max_tokens=24, ignore_eos=True, seed=3),
        wire.SamplingParams(temperature=0.0, max_tokens=40, stop=("e", "t")),
        wire.SamplingParams(temperature=1.0, max_tokens=24, seed=4),
        wire.SamplingParams(temperature=1.0, max_tokens=12, seed=5, n=2, repetition_penalty=1.2),
    )
    for number, sampling in enumerate(ops):
        own.say(
            b"me",
            wire.Open(number),
            wire.Append(number, (wire.TextPiece("Once upon a time"),)),
            wire.Generate(number, number, sampling, SCHEMA if number == 3 else None),
        )
    found: dict[int, wire.CallDone] = {}
    while len(found) < len(ops):
        for came in own.turn():
            assert not isinstance(came.reply, wire.Failed), came.reply
            if isinstance(came.reply, wire.CallDone):
                found[came.reply.call] = came.reply
    return [output.text for number in range(len(ops)) for output in found[number].outputs]


def test_texts_are_those_without_a_draft_model() -> None:
    alone = OwnLoop("nano", speculation="off", kv_memory_mb=16)
    drafted = OwnLoop("nano", speculation="always", kv_memory_mb=16, draft_model="nano")
    assert answers(drafted) == answers(alone)
    stats = drafted.loop.scheduler.stats
    assert stats.accepted_tokens > 0.9 * stats.drafted_tokens > 0, "it is the same model"
    assert stats.steps < alone.loop.scheduler.stats.steps / 2


def test_both_models_have_what_was_given_together() -> None:
    alone = OwnLoop("nano", kv_memory_mb=16)
    drafted = OwnLoop("nano", kv_memory_mb=16, draft_model="nano")
    model = drafted.loop.scheduler.drafting.model
    assert model is not None
    assert alone.loop.scheduler.pages.num_pages == pytest.approx(
        drafted.loop.scheduler.pages.num_pages + model.num_pages, abs=2
    )
    config = RuntimeConfig(kv_memory_mb=80, draft_model="nano")
    assert without_draft_memory(config).kv_memory_mb == 70


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"draft_model": "dummy:64x1"}, "another vocabulary than 'nano'.*tokens"),
        ({"draft_model": "nano", "tp": 2}, "several processes"),
        ({"draft_model": "nano", "scheduler": {"speculation": "off"}}, "never be asked"),
        ({"draft_model": "nano", "device": "emulated"}, "beside emulated.*processor only"),
    ],
)
def test_what_cannot_draft_is_refused(fields: dict[str, Any], why: str) -> None:
    scheduling = fields.get("scheduler", {})
    others = {name: value for name, value in fields.items() if name != "scheduler"}
    with pytest.raises(InvalidParameter, match=why) as raised:
        OwnLoop("nano", kv_memory_mb=16, **scheduling, **others)
    assert raised.value.name == "draft_model"


def test_the_first_token_that_differs_is_named() -> None:
    one, other = ByteTokenizer(), ByteTokenizer()
    assert first_difference(one, other) is None
    other._pieces = [b"x" if token == 65 else piece for token, piece in enumerate(other._pieces)]
    assert first_difference(one, other) == "token 65 is 'A' and 'x'"
