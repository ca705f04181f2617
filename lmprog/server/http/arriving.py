"""Bodies that arrive slowly: what is known of one while the rest is waited for.

A body is looked at when its rest has not come for a while, and again when more of it has; one that
comes at once never is. What is there can be closed as JSON where it ends in a value that is a text:
the text goes on with `UNSAID`. So it can be read as any body, and what it asks for is known as far
as it is said. Knows bytes; knows no fields.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from lmprog.wire import UNSAID

LOOKED_AFTER = 0.05
"""Seconds without the rest of a body."""
LEAST_NEW = 256
"""Bytes since it was looked at last ..."""
NEW_PART = 1 / 8
"""... and that part of what was there then: so all looks together cost nine times the last one."""
MOST_LOOKED_AT = 512 * 1024
"""Bytes of a body that is looked at."""
_MARK = re.compile(rb'[{}\[\]:,]|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_HALF_ESCAPE = re.compile(
    rb"(?<!\\)(?:\\\\)*(\\(?:u[0-9a-fA-F]{0,3}"
    rb"|u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?)?)\Z"
)
"""An escape that is not whole, or the first half of a character that two of them spell."""


class LookedAt:
    """One body while it arrives. `look` is given what is there of it."""

    def __init__(self, look: Callable[[bytes], Awaitable[object]]) -> None:
        self._look = look
        self._size = 0
        """Bytes that it had then."""
        self._due: float | None = None

    async def receive(
        self, receive: Callable[[], Awaitable[MutableMapping[str, Any]]], parts: Sequence[bytes]
    ) -> MutableMapping[str, Any]:
        """The next message of the body, of which `parts` are there."""
        loop = asyncio.get_running_loop()
        if self._due is None:
            self._due = loop.time() + LOOKED_AFTER
        waiting = asyncio.ensure_future(receive())
        try:
            await asyncio.wait({waiting}, timeout=max(0.0, self._due - loop.time()))
            if loop.time() >= self._due:
                await self._look_at(parts)
                self._due = loop.time() + LOOKED_AFTER
            return await waiting
        finally:
            waiting.cancel()

    async def _look_at(self, parts: Sequence[bytes]) -> None:
        size = sum(map(len, parts))
        new = size - self._size
        if size > MOST_LOOKED_AT or new < LEAST_NEW or new < NEW_PART * self._size:
            return
        self._size = size
        await self._look(b"".join(parts))


def closed_json(begun: bytes) -> bytes | None:
    """The beginning of a text of JSON, closed behind its last value, which goes on with `UNSAID`;
    None where it ends in anything else than a value that is a text.
    """
    open_in, expects_value, last = list[bytes](), False, b""
    for found in _MARK.finditer(begun):
        last = found[0]
        match last:
            case b"{" | b"[":
                open_in.append(last)
                expects_value = last == b"["
            case b"}" | b"]":
                if not open_in:
                    return None
                open_in.pop()
            case b":":
                expects_value = True
            case b",":
                expects_value = bool(open_in) and open_in[-1] == b"["
            case _ if found.end() == len(begun) and not _is_whole(last):
                if not (expects_value and open_in):
                    return None
                closing = b"".join(b"}" if one == b"{" else b"]" for one in reversed(open_in))
                return _whole_characters(begun) + UNSAID.encode() + b'"' + closing
            case _:
                expects_value = False
    return None


def _is_whole(string: bytes) -> bool:
    """Whether its last quote ends it."""
    if len(string) < 2 or not string.endswith(b'"'):
        return False
    body = string[:-1]
    return (len(body) - len(body.rstrip(b"\\"))) % 2 == 0


def _whole_characters(text: bytes) -> bytes:
    """Without a part of a character, or of an escape, at its end."""
    half = _HALF_ESCAPE.search(text)
    if half is not None:
        return text[: half.start(1)]
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte >= 0xC0:  # the first one of a character
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return text[:-back] if back < length else text
        if byte < 0x80:
            break
    return text
