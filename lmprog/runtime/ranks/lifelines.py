"""Sockets over which nothing is said but the end: whoever reads their end of file knows that the
process at the other side is gone.

Rank 0 holds one to each other rank. Before an orderly end it says so; without that, the end of a
rank is the end of all. A machine that vanishes without a word is noticed by TCP's keep-alives.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import select
import socket
import threading
from collections.abc import Callable, Mapping

FAREWELL = b"e"
_TOKEN_BYTES = 32
_JOIN_SECONDS = 60.0
_SILENT_SECONDS = 1  # after which the system asks whether the other machine is there
_PROBES = 2
"""Unanswered ones, a second apart, after which it is taken for gone."""


def watch(ends: Mapping[int, socket.socket], on_end: Callable[[int, bool], None]) -> None:
    """Calls `on_end(rank, is_orderly)` in a thread of its own when a rank at the other end of one
    of `ends` says farewell, or is gone.
    """
    threading.Thread(target=_watch, args=(ends, on_end), name="lifelines", daemon=True).start()


def say_farewell(ends: Mapping[int, socket.socket]) -> None:
    for end in ends.values():
        with contextlib.suppress(OSError):  # it is gone already
            end.send(FAREWELL)


def _watch(ends: Mapping[int, socket.socket], on_end: Callable[[int, bool], None]) -> None:
    ranks = {end.fileno(): rank for rank, end in ends.items()}
    poller = select.poll()
    for descriptor in ranks:
        poller.register(descriptor, select.POLLIN)
    while ranks:
        for descriptor, _ in poller.poll():
            poller.unregister(descriptor)
            rank = ranks.pop(descriptor)
            on_end(rank, _last_word(ends[rank]) == FAREWELL)


def _last_word(end: socket.socket) -> bytes:
    try:
        return end.recv(1)
    except OSError:  # the other machine is gone, or its process was ended with data unread
        return b""


class Meeting:
    """Where rank 0 waits for the lifelines of ranks on other machines. `token` keeps others out
    who reach the port; it travels over torch's own rendezvous, which belongs on a private network.
    """

    def __init__(self, host: str) -> None:
        self._server = socket.create_server((host, 0))
        self.port = int(self._server.getsockname()[1])
        self.token = secrets.token_hex(_TOKEN_BYTES // 2)

    def wait(self, count: int) -> dict[int, socket.socket]:
        """The lifelines of `count` ranks. Raises TimeoutError where they do not come."""
        self._server.settimeout(_JOIN_SECONDS)
        found: dict[int, socket.socket] = {}
        while len(found) < count:
            end, _ = self._server.accept()
            end.settimeout(_JOIN_SECONDS)
            said = _received(end, _TOKEN_BYTES + 4)
            if not hmac.compare_digest(said[:_TOKEN_BYTES], self.token.encode()):
                end.close()
                continue
            found[int.from_bytes(said[_TOKEN_BYTES:], "big")] = _kept_alive(end)
        self._server.close()
        return found


def meet(host: str, port: int, token: str, rank: int) -> socket.socket:
    """This rank's lifeline to rank 0, which waits at that `Meeting`."""
    end = socket.create_connection((host, port), timeout=_JOIN_SECONDS)
    end.sendall(token.encode() + rank.to_bytes(4, "big"))
    return _kept_alive(end)


def _received(end: socket.socket, count: int) -> bytes:
    """So many bytes, or fewer where the other side has no more."""
    said = b""
    with contextlib.suppress(OSError):
        while len(said) < count and (piece := end.recv(count - len(said))):
            said += piece
    return said


def _kept_alive(end: socket.socket) -> socket.socket:
    end.settimeout(None)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": _SILENT_SECONDS, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": _PROBES}
    for name, value in options.items():
        if hasattr(socket, name):  # macOS has not all of them
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return end
