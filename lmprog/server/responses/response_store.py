"""Responses that may be asked for again, by whom they belong to: in memory, bounded, the oldest
forgotten first.

Knows neither requests nor runtimes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from lmprog.server.openai.messages import ChatMessage

MOST_KEPT = 4096
"""Responses."""
MOST_CHARS = 64 * 1024 * 1024
"""Characters of all conversations kept, each counted with its history."""


@dataclass(eq=False, slots=True)
class Kept:
    """A response and the conversation that it ends, without instructions."""

    caller: str
    state: dict[str, Any]
    messages: list[ChatMessage]
    size: int
    task: asyncio.Task[None] | None = None
    """What still writes it in the background."""


class Store:
    """Forgets what was not used for longest when there is too much."""

    def __init__(self, most: int = MOST_KEPT, most_chars: int = MOST_CHARS) -> None:
        self._most = most
        self._most_chars = most_chars
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._chars = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, kept: Kept) -> None:
        """Keeps one more. One that still runs is forgotten like any other; it runs on."""
        self._kept[kept.state["id"]] = kept
        self._chars += kept.size
        while len(self._kept) > self._most or (
            self._chars > self._most_chars and len(self._kept) > 1
        ):
            _, old = self._kept.popitem(last=False)
            self._chars -= old.size

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
            del self._kept[name]
            self._chars -= kept.size
        return kept is not None


def size_of(messages: list[ChatMessage]) -> int:
    """Characters, roughly."""
    total = 0
    for message in messages:
        total += 64 + (len(message.content) if isinstance(message.content, str) else 0)
        total += sum(len(call.function.arguments) for call in message.tool_calls or ())
    return total
