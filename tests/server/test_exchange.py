"""An exchange joins what waits for its reader, counts it, and changes nothing by it."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import Any, cast

import pytest

from lmprog import wire
from lmprog.server.link import exchange as exchanges
from lmprog.server.link.exchange import Exchange, nobodys
from lmprog.server.link.runtime_link import RuntimeLink


class _Silent:
    """A connection that takes everything."""

    def send(self, ops: Any) -> None: ...


def an_exchange() -> tuple[RuntimeLink, Exchange]:
    link = RuntimeLink()
    made = Exchange(link, cast(Any, _Silent()), None, nobodys())
    link._exchanges.add(made)
    return link, made


def some_deltas(rng: random.Random, count: int) -> list[wire.Delta]:
    """Of two calls with two results each."""
    found = []
    for at in range(count):
        rows = tuple(wire.TokenLogprob(at, f"t{at}", -1.0) for _ in range(rng.choice((0, 0, 1, 9))))
        text = "x" * rng.randrange(4)
        tags = (rng.randrange(len(text)),) if text and rng.random() < 0.3 else ()
        delta = wire.Delta(rng.choice((1, 1, 1, 2)), rng.randrange(2), text, 1, rows, tags)
        found.append(delta)
    return found


def as_told(deltas: list[wire.Delta]) -> dict[tuple[int, int], list[object]]:
    """By result: the text, the tokens, the log-probabilities, where special tokens begin."""
    told: dict[tuple[int, int], list[Any]] = defaultdict(lambda: ["", 0, (), ()])
    for delta in deltas:
        one = told[delta.call, delta.index]
        one[3] += tuple(len(one[0]) + at for at in delta.tags)
        one[0] += delta.text
        one[1] += delta.num_tokens
        one[2] += delta.logprobs
    return dict(told)


@pytest.mark.parametrize("seed", range(20))
def test_joined_deltas_say_what_single_ones_say(seed: int) -> None:
    rng = random.Random(seed)
    link, exchange = an_exchange()
    sent = some_deltas(rng, rng.choice((5, 70, 500)))
    read: list[wire.Delta] = []

    async def reader() -> None:
        at = 0
        while at < len(sent):
            burst = rng.choice((1, 2, 5, 300))
            for delta in sent[at : at + burst]:
                exchange.take(delta)
            at += burst
            left = rng.randrange(4)
            while exchange._inbox and left:
                read.append(cast(wire.Delta, await exchange.answer()))
                left -= 1
        while exchange._inbox:
            assert exchange.queued_bytes > 0
            read.append(cast(wire.Delta, await exchange.answer()))

    asyncio.run(reader())
    assert as_told(read) == as_told(sent)
    assert exchange.queued_bytes == link.memory.held == 0
    rows = exchanges.MOST_ROWS_JOINED
    assert max(len(delta.logprobs) for delta in read) < rows + 9


def test_what_came_while_nobody_read_is_one_piece() -> None:
    _, exchange = an_exchange()
    for at in range(1000):
        exchange.take(wire.Delta(1, 0, f"{at} ", 1))
    assert len(exchange._inbox) <= exchanges.LEAST_JOINED
    assert exchange.queued_bytes < 1000 * 4 + exchanges.LEAST_JOINED * exchanges._DELTA_BYTES

    delta = asyncio.run(exchange.answer())
    assert isinstance(delta, wire.Delta)
    assert (delta.text.split(), delta.num_tokens) == ([str(at) for at in range(1000)], 1000)


def test_deltas_that_cannot_be_joined_are_not_looked_at_again_for_each_that_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2,000 results in turns: each waiting delta is looked at a few times, not 2,000 times."""
    looked = 0
    plain = wire.joined_deltas

    def counted(run: list[wire.Delta]) -> wire.Delta:
        nonlocal looked
        looked += 1
        return plain(run)

    monkeypatch.setattr(wire, "joined_deltas", counted)
    _, exchange = an_exchange()
    for at in range(2000):
        exchange.take(wire.Delta(1 + at % 2, at, "x", 1))
    assert len(exchange._inbox) == 2000
    assert 1000 < looked < 3 * 2000


class _Noting(_Silent):
    """Keeps what was sent."""

    def __init__(self) -> None:
        self.ops: list[wire.Op] = []

    def send(self, ops: Any) -> None:
        self.ops += ops


def test_calls_are_suspended_beyond_the_credit_of_their_reader_and_go_on_at_half_of_it() -> None:
    link, sent = RuntimeLink(), _Noting()
    exchange = Exchange(link, cast(Any, sent), None, nobodys())
    link._exchanges.add(exchange)
    first, second = exchange.call(), exchange.call()

    def come(call: int, size: int) -> None:
        exchange.take(wire.Delta(call, 0, "x" * size, 1))

    async def whole() -> None:
        come(first, exchanges.CREDIT - 1000)
        assert sent.ops == []
        come(first, 1000)
        come(first, 1000)
        come(second, 10)
        assert sent.ops == [wire.Suspend(first), wire.Suspend(second)], "each is told once"
        come(first, exchanges.CREDIT)
        assert sent.ops[2:] == [wire.Suspend(first)], "it has moved, and does not know"
        exchange.take(wire.Failed(second, "cancelled", "", {}))
        while exchange.queued_bytes:
            await exchange.answer()
        assert sent.ops[3:] == [wire.Suspend(first, is_on=False)], "the other one is over"

    asyncio.run(whole())
