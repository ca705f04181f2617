"""The benchmark of shipping: both forms do the same, whole takes fewer messages, and the way is as
long as it says.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from benchmarks.shipping import PROGRAMS, DelayedChannel, measured, ship
from lmprog import wire
from lmprog.backends.client import RuntimeBackend, describe
from lmprog.backends.textual import TextAnswer, TextRuntime
from lmprog.errors import LmprogError, RuntimeGone


class Echo:
    """Answers with the end of the prompt."""

    def answer(
        self, prompt: str, op: wire.Generate | wire.Select
    ) -> TextAnswer | LmprogError | None:
        if isinstance(op, wire.Select):
            return TextAnswer(scores=tuple(-float(index) for index, _ in enumerate(op.choices)))
        return TextAnswer(texts=(prompt[-9:-1].replace("'", ""),))


@pytest.fixture
def channel() -> Iterator[DelayedChannel]:
    made = DelayedChannel(TextRuntime(Echo()), 0.02)
    yield made
    made.close()


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_forms_give_the_same_and_whole_takes_fewer_messages(
    channel: DelayedChannel, name: str
) -> None:
    with RuntimeBackend(channel) as backend:
        whole, single = measured(backend, channel, PROGRAMS[name], 4, 1)
        assert whole.messages < single.messages
        assert whole.messages <= 4
        assert describe(backend)["branches"] == 0


def test_every_wait_costs_the_whole_way(channel: DelayedChannel) -> None:
    with RuntimeBackend(channel) as backend:
        waits = 8  # one for each field of the form
        assert ship(backend, channel, PROGRAMS["form"], False, 4).seconds >= waits * 0.02
        begin = time.perf_counter()
        describe(backend)
        assert time.perf_counter() - begin >= 0.02


def test_the_end_of_the_runtime_arrives(channel: DelayedChannel) -> None:
    inner = channel._inner
    assert isinstance(inner, TextRuntime)
    with RuntimeBackend(channel) as backend:
        inner.die("killed")
        with pytest.raises(RuntimeGone, match="killed"):
            describe(backend)
