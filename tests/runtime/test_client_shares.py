"""Rules of fair sharing between clients."""

from __future__ import annotations

from lmprog.runtime.scheduling.client_shares import ClientShares


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
