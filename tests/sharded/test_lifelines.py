"""Lifelines: whoever holds one learns that the other side has ended, and how."""

from __future__ import annotations

import queue
import socket
import threading

import pytest

from lmprog.runtime.ranks.lifelines import Meeting, meet, say_farewell, watch

Ends = queue.Queue[tuple[int, bool]]


@pytest.mark.parametrize("is_orderly", [False, True])
def test_an_end_with_a_farewell_is_told_from_one_without(is_orderly: bool) -> None:
    ended: Ends = queue.Queue()
    pairs = {rank: socket.socketpair() for rank in (1, 2)}
    watch({rank: ours for rank, (ours, _) in pairs.items()}, lambda *end: ended.put(end))
    for rank in (2, 1):
        _, theirs = pairs[rank]
        if is_orderly:
            say_farewell({0: theirs})
        theirs.close()
        assert ended.get(timeout=60) == (rank, is_orderly)
    for ours, _ in pairs.values():
        ours.close()


def test_ranks_of_other_machines_meet_rank_0_and_strangers_do_not() -> None:
    meeting = Meeting("127.0.0.1")
    ended: Ends = queue.Queue()
    stranger = socket.create_connection(("127.0.0.1", meeting.port))
    stranger.sendall(b"0" * 32 + b"\0\0\0\1")  # a token of as many characters, and not ours
    others: dict[int, socket.socket] = {}

    def come(rank: int) -> None:
        others[rank] = meet("127.0.0.1", meeting.port, meeting.token, rank)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in (2, 1)]
    for thread in threads:
        thread.start()
    found = meeting.wait(2)
    for thread in threads:
        thread.join()
    assert set(found) == {1, 2}
    assert stranger.recv(1) == b""
    stranger.close()
    watch(found, lambda *end: ended.put(end))
    others[1].close()
    assert ended.get(timeout=60) == (1, False)
    others[2].close()
    assert ended.get(timeout=60) == (2, False)
    for end in found.values():
        end.close()
