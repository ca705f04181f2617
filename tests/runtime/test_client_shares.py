"""Rules of fair sharing between clients."""

from __future__ import annotations

import pytest

from lmprog import wire
from lmprog.runtime.scheduling.client_shares import ClientShares
from tests.runtime.talk import Talk, text


def test_who_was_served_least_goes_first() -> None:
    shares = ClientShares()
    for client in "ab":
        shares.submit(client, 1)
    shares.serve("a", 10)
    assert shares.least_served_first("ab") == ["b", "a"]


def test_a_newcomer_starts_where_the_least_served_is_and_has_nothing_saved_up() -> None:
    shares = ClientShares()
    for client in "ab":
        shares.submit(client, 1)
    shares.serve("a", 100)
    shares.serve("b", 40)
    shares.submit("new", 1)
    assert shares.served("new") == 40
    shares.serve("new", 1)
    assert shares.least_served_first(["a", "b", "new"]) == ["b", "new", "a"]


def test_who_leaves_and_comes_back_has_saved_nothing_either() -> None:
    shares = ClientShares()
    for client in "ab":
        shares.submit(client, 1)
    shares.serve("b", 40)
    shares.end("a")
    shares.serve("b", 60)
    shares.submit("a", 1)
    assert shares.served("a") == 100


def test_the_floor_outlives_an_idle_time() -> None:
    shares = ClientShares()
    shares.submit("a", 1)
    shares.serve("a", 70)
    shares.end("a")
    shares.submit("b", 1)
    assert shares.served("b") == 70


def test_a_weight_is_a_multiple_of_the_tokens_that_others_get() -> None:
    shares = ClientShares()
    shares.submit("heavy", 1, 3.0)
    shares.submit("light", 1, 1.0)
    served = {"heavy": 0, "light": 0}
    for _ in range(400):
        first = str(shares.least_served_first(["heavy", "light"])[0])
        shares.serve(first, 5)
        served[first] += 5
    assert served == {"heavy": 1500, "light": 500}


def test_a_client_that_left_has_no_weight_any_more() -> None:
    shares = ClientShares()
    shares.submit("a", 1, 10.0)
    shares.end("a")
    shares.submit("a", 1)
    shares.serve("a", 10)
    assert shares.served("a") == 10.0


@pytest.mark.parametrize("judge", [None, wire.Judge("?")])
def test_forks_and_judges_have_the_weight_of_their_branch(judge: wire.Judge | None) -> None:
    talk = Talk()
    sampling = wire.SamplingParams(n=2, max_tokens=4, ignore_eos=True)
    talk.say(
        wire.Open(1, weight=2.5),
        text(1, "abcd"),
        wire.Fork(1, (2,)),
        wire.Generate(2, 1, sampling, keep="first" if judge is None else "best", judge=judge),
    )
    seen = set()
    while not seen or not talk.scheduler.idle:
        talk.step()
        seen |= {one.group.weight for one in talk.scheduler.running}
    assert seen == {2.5}
