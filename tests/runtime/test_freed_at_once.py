"""What a call held is free when it ends: nothing of it waits until Python looks for circles."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from lmprog import wire
from lmprog.errors import ContextOverflow, InvalidParameter
from lmprog.runtime.programs.clients import ActiveCall
from lmprog.runtime.programs.long_texts import LONG, LongText
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup
from tests.runtime.talk import Talk, failed, text

KINDS = (ActiveCall, LongText, Sequence, SequenceGroup)


@pytest.fixture(autouse=True)
def _without_looks() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> Counter[type]:
    return Counter(type(one) for one in gc.get_objects() if isinstance(one, KINDS))


def gen(**options: Any) -> wire.Generate:
    return wire.Generate(1, 1, wire.SamplingParams(max_tokens=4, ignore_eos=True, **options))


@pytest.mark.parametrize(
    "op",
    [
        gen(n=3, prompt_logprobs=2, logprobs=2),
        wire.Select(1, 1, ("abc", "def")),
        wire.Generate(1, 1, constraint=wire.Regex("a{3}")),
        wire.Generate(1, 1, constraint=wire.Regex("(")),
    ],
    ids=["gen", "select", "constraint", "wrong constraint"],
)
def test_a_call_that_ends_leaves_no_sequence(op: wire.Op) -> None:
    talk = Talk()
    before = alive()
    talk.ask(wire.Open(1), text(1, "abc"), op, wire.Close(1))
    assert alive() == before


def test_a_call_that_is_cancelled_leaves_no_sequence() -> None:
    talk = Talk()
    before = alive()
    talk.say(wire.Open(1), text(1, "abc"), gen(n=3))
    talk.step()
    talk.ask(wire.Cancel(1), wire.Close(1))
    assert alive() == before


def test_a_text_that_is_too_long_is_kept_by_no_error() -> None:
    talk = Talk()
    before = alive()
    replies = talk.ask(wire.Open(1), text(1, "a " * LONG), gen())
    assert failed(replies)[1].code == ContextOverflow.code
    talk.ask(wire.Close(1))
    assert alive() == before


def test_an_error_without_frames_has_none_of_what_led_to_it_either() -> None:
    def fail() -> None:
        try:
            raise KeyError("inner")
        except KeyError:
            raise InvalidParameter("outer", name="x", value=1, allowed="") from None

    with pytest.raises(InvalidParameter) as caught:
        fail()
    error = caught.value
    assert error.__context__ is not None
    assert error.without_frames() is error
    assert error.__traceback__ is error.__context__.__traceback__ is None
