"""What one client shares of its programs reaches all others that ask, once and in order."""

from __future__ import annotations

from lmprog import wire
from lmprog.runtime.programs.clients import MOST_UNTOLD, PrefixNews
from lmprog.transport import ClientId

ONE, TWO, THREE = b"1", b"2", b"3"
Sent = list[tuple[ClientId, wire.Reply]]


def news() -> tuple[PrefixNews, Sent]:
    sent: Sent = []
    return PrefixNews(lambda client, reply: sent.append((client, reply))), sent


def test_who_waits_is_told_at_once_and_who_does_not_when_it_asks_again() -> None:
    made, sent = news()
    made.answer(TWO, 7)
    made.answer(THREE, 7)
    assert sent == []
    made.share(ONE, (1, 2))
    made.share(ONE, (3,))
    assert sent == [
        (TWO, wire.PrefixesAre(7, ((1, 2),))),
        (THREE, wire.PrefixesAre(7, ((1, 2),))),
    ]
    made.answer(TWO, 8)
    assert sent[2:] == [(TWO, wire.PrefixesAre(8, ((3,),)))]
    made.answer(TWO, 9)
    assert len(sent) == 3, "nothing is told twice"


def test_nobody_is_told_of_its_own_programs_nor_who_never_asked() -> None:
    made, sent = news()
    made.answer(ONE, 1)
    made.share(ONE, (1,))
    made.share(TWO, (2,))
    assert sent == [(ONE, wire.PrefixesAre(1, ((2,),)))]
    made.answer(TWO, 1)
    assert len(sent) == 1, "it had not asked when the first was shared"


def test_a_client_that_stays_away_costs_bounded_memory_and_one_that_is_gone_none() -> None:
    made, sent = news()
    made.answer(TWO, 1)
    for number in range(MOST_UNTOLD + 9):
        made.share(ONE, (number,))
    made.answer(TWO, 2)
    reply = sent[1][1]
    assert isinstance(reply, wire.PrefixesAre)
    assert len(reply.programs) == MOST_UNTOLD
    assert reply.programs[-1] == (MOST_UNTOLD + 8,)
    made.answer(TWO, 3)
    made.forget(TWO)
    made.share(ONE, (5,))
    assert len(sent) == 2
    assert (made._untold, made._waiting) == ({}, {})
