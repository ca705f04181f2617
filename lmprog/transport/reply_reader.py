"""A thread that reads a client's channel and hands on what comes.

Knows no calls and no meaning of replies; who makes one decides what happens with them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from lmprog import wire
from lmprog.errors import LmprogError
from lmprog.transport.channel import ClientChannel

POLL_SECONDS = 0.2
"""How often a reader looks whether it is to stop."""


class ReplyReader:
    """Reads `channel`, which it closes when it ends, until `stop` or the runtime's end."""

    def __init__(
        self,
        channel: ClientChannel,
        take: Callable[[list[wire.Reply]], None],
        lose: Callable[[LmprogError], None],
        *,
        name: str,
    ) -> None:
        """Starts the thread. On it, `take` gets replies in order, never an empty list; `lose` gets
        the error that ended the channel, unless `stop` came first.
        """
        self._channel = channel
        self._take = take
        self._lose = lose
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._read, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Lets the thread end soon; from any thread, safe to repeat."""
        self._is_stopping.set()

    def join(self) -> None:
        """Waits for the thread's end; returns at once on the thread itself."""
        if not self.is_current:
            self._thread.join()

    @property
    def has_ended(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on the reading thread."""
        return threading.current_thread() is self._thread

    def _read(self) -> None:
        try:
            while not self._is_stopping.is_set():
                if replies := self._channel.receive(POLL_SECONDS):
                    self._take(replies)
        except LmprogError as error:
            if not self._is_stopping.is_set():
                self._lose(error)
        finally:
            self._channel.close()
