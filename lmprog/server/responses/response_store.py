"""Responses that may be asked for again, by whom they belong to: in memory, bounded by their bytes,
the oldest forgotten first.

A response is kept as bytes once it is written, its JSON and the conversation that it ends: parsed
values would take many times that, and nobody could say how much. Knows neither requests nor
runtimes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

import msgspec

from lmprog.server.openai.messages import ChatMessage

MOST_KEPT = 4096
"""Responses."""
ENTRY_BYTES = 1024
"""What one takes beside its bytes, at most: the objects that hold them, and their places."""
_conversation = msgspec.msgpack.Decoder(list[ChatMessage])


class Kept:
    """A response and the conversation that it ends, without instructions."""

    def __init__(self, caller: str, state: dict[str, Any], messages: list[ChatMessage]) -> None:
        """Of one that is being written: what is asked of it is seen in `state` until `seal`."""
        self.caller = caller
        self.name: str = state["id"]
        self.is_background: bool = state["background"]
        self.task: asyncio.Task[None] | None = None
        """What still writes it in the background."""
        self.size = ENTRY_BYTES
        """Bytes, as of when it was last written down."""
        self._live: tuple[dict[str, Any], list[ChatMessage]] | None = (state, messages)
        self._status = ""
        self._json = b""
        self._messages = b""

    @property
    def status(self) -> str:
        return self._status if self._live is None else str(self._live[0]["status"])

    @property
    def json(self) -> bytes:
        """What is known of it now."""
        return self._json if self._live is None else msgspec.json.encode(self._live[0])

    @property
    def messages(self) -> list[ChatMessage]:
        """The conversation, of one that is written."""
        return _conversation.decode(self._messages)

    def seal(self, state: dict[str, Any], messages: list[ChatMessage]) -> None:
        """It is written, and changes no more; the values that made it are held no longer."""
        self._write(state, messages)
        self._live = None

    def begin(self) -> None:
        """It is kept from now on: of one that is being written, its size is what it is now."""
        if self._live is not None:
            self._write(*self._live)
            self._json = self._messages = b""

    def _write(self, state: dict[str, Any], messages: list[ChatMessage]) -> None:
        self._status = state["status"]
        self._json = msgspec.json.encode(state)
        self._messages = msgspec.msgpack.encode(messages)
        self.size = ENTRY_BYTES + len(self._json) + len(self._messages)


class Store:
    """Forgets what was not used for longest when there is too much."""

    def __init__(self, most_bytes: int, most: int = MOST_KEPT) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._counted: dict[str, int] = {}
        self.num_bytes = 0
        """Of all that are kept."""

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, kept: Kept) -> None:
        """Keeps one more, if it is not larger than all may be. One that still runs is forgotten
        like any other; it runs on.
        """
        kept.begin()
        self._kept[kept.name] = kept
        self.recount(kept)

    def recount(self, kept: Kept) -> None:
        """Its size has changed. Nothing happens where it is not kept."""
        if self._kept.get(kept.name) is not kept:
            return
        self.num_bytes += kept.size - self._counted.get(kept.name, 0)
        self._counted[kept.name] = kept.size
        while len(self._kept) > self._most or self.num_bytes > self._most_bytes:
            self._forget(next(iter(self._kept)))

    def get(self, caller: str, name: str) -> Kept | None:
        """None where there is none of that caller's."""
        kept = self._kept.get(name)
        if kept is None or kept.caller != caller:
            return None
        self._kept.move_to_end(name)
        return kept

    def drop(self, caller: str, name: str) -> bool:
        """Whether it was there."""
        kept = self.get(caller, name)
        if kept is not None:
            self._forget(name)
        return kept is not None

    def _forget(self, name: str) -> None:
        del self._kept[name]
        self.num_bytes -= self._counted.pop(name)
