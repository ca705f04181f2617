"""The rules of the thread that reads a client's channel."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from lmprog import wire
from lmprog.errors import LmprogError, RuntimeGone
from lmprog.transport import ReplyReader

SECONDS = 10.0
"""How long a test waits for what must come."""


class Channel:
    """Gives out `batches`, then stays silent until it is closed or `fail` is set."""

    def __init__(self, batches: Sequence[list[wire.Reply]]) -> None:
        self.batches = list(batches)
        self.fail = threading.Event()
        self.closed = threading.Event()

    def send(self, ops: Sequence[wire.Op]) -> None:
        raise AssertionError("a reader sends nothing")

    def receive(self, timeout: float) -> list[wire.Reply]:
        if self.batches:
            return self.batches.pop(0)
        if self.closed.is_set() or self.fail.wait(0.01):
            raise RuntimeGone("gone")
        return []

    def close(self) -> None:
        self.closed.set()


class Taken:
    def __init__(self) -> None:
        self.batches: list[list[wire.Reply]] = []
        self.errors: list[LmprogError] = []
        self.changed = threading.Event()

    def take(self, replies: list[wire.Reply]) -> None:
        self.batches.append(replies)
        self.changed.set()

    def lose(self, error: LmprogError) -> None:
        self.errors.append(error)
        self.changed.set()


def _delta(text: str) -> wire.Delta:
    return wire.Delta(1, 0, text, 1)


def test_replies_come_in_order_and_silence_is_not_handed_on() -> None:
    channel, taken = Channel([[_delta("a")], [], [_delta("b"), _delta("c")]]), Taken()
    reader = ReplyReader(channel, taken.take, taken.lose, name="test")
    channel.fail.set()
    reader.join()
    assert taken.batches == [[_delta("a")], [_delta("b"), _delta("c")]]


def test_the_end_of_the_runtime_is_reported_once_and_closes_the_channel() -> None:
    channel, taken = Channel([]), Taken()
    reader = ReplyReader(channel, taken.take, taken.lose, name="test")
    channel.fail.set()
    reader.join()
    assert [str(error) for error in taken.errors] == ["gone"]
    assert channel.closed.is_set()


def test_an_end_that_was_asked_for_is_no_loss() -> None:
    channel, taken = Channel([]), Taken()
    reader = ReplyReader(channel, taken.take, taken.lose, name="test")
    reader.stop()
    channel.close()
    reader.join()
    assert taken.errors == []


def test_a_reader_may_be_joined_from_its_own_thread() -> None:
    channel, taken = Channel([]), Taken()
    joined = threading.Event()

    def lose(error: LmprogError) -> None:
        assert reader.is_current
        reader.join()
        joined.set()

    reader = ReplyReader(channel, taken.take, lose, name="test")
    channel.fail.set()
    assert joined.wait(SECONDS)
    assert not reader.is_current
