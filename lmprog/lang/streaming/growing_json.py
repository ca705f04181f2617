"""JSON that is still being written: read piece by piece, each character once, and seen as it was
after any piece.

`GrowingJson.feed` takes the next piece; `GrowingJson.seen` remembers, in no more room than the JSON
is deep, how far everything has come. What is closed never changes again, and what is open only
grows at its end, so a `SeenJson` is a few lengths. Numbers and words (`true`) are there once they
are complete, strings as far as they have come. Text before the first bracket and after the last is
skipped; where the JSON breaks off into nonsense, it stays as it was before. Knows no types:
`partial` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

_SPECIAL = re.compile(r'["\\]')
_END_OF_WORD = re.compile(r"[\s,\]}]")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SPACE = " \t\n\r"
_ROOT = re.compile(r"[\[{]")


class String:
    """A string, closed or growing."""

    __slots__ = ("_joined", "parts")

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._joined: tuple[int, str] = (0, "")  # of how many parts, their text

    def text(self, num_parts: int | None = None) -> str:
        """The first parts in one; joining them anew costs only what has come since the last
        time.
        """
        count = len(self.parts) if num_parts is None else num_parts
        done, joined = self._joined
        if done > count:
            return "".join(self.parts[:count])
        joined += "".join(self.parts[done:count])
        self._joined = (count, joined)
        return joined


class Array:
    """Items in their order; only the last one may be open."""

    __slots__ = ("fitted", "items")

    def __init__(self) -> None:
        self.items: list[Node] = []
        self.fitted: tuple[object, object] | None = (
            None  # a type, and this as a value of it, once it is closed
        )


class Record:
    """Members in their order, each from the moment that something of its value can be told."""

    __slots__ = ("fitted", "members")

    def __init__(self) -> None:
        self.members: list[tuple[str, Node]] = []
        self.fitted: tuple[object, object] | None = None


Container: TypeAlias = Array | Record
Node: TypeAlias = "Container | String | int | float | bool | None"


@dataclass(frozen=True, slots=True)
class SeenJson:
    """How far a growing JSON had come: its root, and for everything that was open, how many parts
    it had.
    """

    root: Container
    open: Mapping[int, int]
    """By identity; what is not in it was closed."""


class GrowingJson:
    """A JSON object or array as far as it has come."""

    def __init__(self) -> None:
        self.root: Container | None = None
        self.num_read = 0  # characters looked at; each piece's are looked at once
        self._open: list[Container] = []
        self._string: String | None = None
        self._key: str | None = None
        self._is_key = False
        self._escape = ""
        self._word = ""
        self._grew = False
        self._next: Callable[[str, int], int] | None = self._find_root

    def feed(self, text: str) -> bool:
        """Reads on. Whether more can be seen than before."""
        self._grew = False
        at = 0
        while at < len(text) and self._next is not None:
            at = self._next(text, at)
        self.num_read += at
        return self._grew

    def seen(self) -> SeenJson | None:
        """How far it has come; None before the first bracket."""
        if self.root is None:
            return None
        lengths = {
            id(node): len(node.items if isinstance(node, Array) else node.members)
            for node in self._open
        }
        if self._string is not None and not self._is_key:
            lengths[id(self._string)] = len(self._string.parts)
        return SeenJson(self.root, lengths)

    # --- what may come next; each takes the text and a position, and gives the position after what
    # it took ------------

    def _find_root(self, text: str, at: int) -> int:
        found = _ROOT.search(text, at)
        if found is None:
            return len(text)
        self._begin(found[0])
        return found.end()

    def _value(self, text: str, at: int) -> int:
        char = text[at]
        if char in _SPACE:
            return at + 1
        if char == '"':
            self._is_key = False
            self._string = String()
            self._add(self._string)
            self._next = self._in_string
        elif char in "[{":
            self._begin(char)
        elif char == "]" and isinstance(self._open[-1], Array) and not self._open[-1].items:
            self._end()
        elif char in ",:]}":
            self._next = None
        else:
            self._next = self._in_word
            return at
        return at + 1

    def _member(self, text: str, at: int) -> int:
        """A key, or the end of an empty object."""
        char = text[at]
        if char == '"':
            self._is_key = True
            self._string = String()
            self._next = self._in_string
        elif char == "}" and isinstance(self._open[-1], Record) and not self._open[-1].members:
            self._end()
        elif char not in _SPACE:
            self._next = None
        return at + 1

    def _colon(self, text: str, at: int) -> int:
        if text[at] not in _SPACE:
            self._next = self._value if text[at] == ":" else None
        return at + 1

    def _after(self, text: str, at: int) -> int:
        """Behind a value: another one, or the end of what holds it."""
        char, is_array = text[at], isinstance(self._open[-1], Array)
        if char == ",":
            self._next = self._value if is_array else self._member
        elif char == ("]" if is_array else "}"):
            self._end()
        elif char not in _SPACE:
            self._next = None
        return at + 1

    def _in_word(self, text: str, at: int) -> int:
        """A number, true, false or null: complete when something else follows."""
        found = _END_OF_WORD.search(text, at)
        end = len(text) if found is None else found.start()
        self._word += text[at:end]
        if found is not None:
            try:
                value: Node = json.loads(self._word)
            except ValueError:
                self._next = None
                return end
            self._word = ""
            self._next = self._after
            self._add(value)
        return end

    def _in_string(self, text: str, at: int) -> int:
        assert self._string is not None
        if self._escape:
            return self._in_escape(text, at)
        found = _SPECIAL.search(text, at)
        end = len(text) if found is None else found.start()
        if end > at:
            self._grow(text[at:end])
        if found is None:
            return end
        if found[0] == "\\":
            self._escape = "\\"
        elif self._is_key:
            self._key, self._string, self._next = self._string.text(), None, self._colon
        else:
            self._string, self._next = None, self._after
        return end + 1

    def _in_escape(self, text: str, at: int) -> int:
        """One more character of `\\n`, of `\\u00e9`, or of the two halves `\\ud83d\\ude00`."""
        escape = self._escape + text[at]
        self._escape = escape
        if len(escape) == 2 and escape[1] in _ESCAPES:
            self._take(_ESCAPES[escape[1]])
        elif len(escape) == 7 and escape[6] != "\\":  # the second half does not follow
            self._take(_unit(escape[:6]))
            return at
        elif len(escape) == 8 and escape[7] != "u":
            self._take(_unit(escape[:6]))
            self._escape = "\\"
            return at
        elif len(escape) in (6, 12):
            return self._unicode(escape, at)
        elif len(escape) == 2 and escape[1] != "u":
            self._next = None
        return at + 1

    def _unicode(self, escape: str, at: int) -> int:
        last = escape[-4:]
        if not all(char in "0123456789abcdefABCDEF" for char in last):
            self._next = None
        elif len(escape) == 12 and 0xDC00 <= int(last, 16) < 0xE000:
            high, low = int(escape[2:6], 16) - 0xD800, int(last, 16) - 0xDC00
            self._take(chr(0x10000 + (high << 10) + low))
        elif len(escape) == 12:
            self._take(_unit(escape[:6]))
            self._escape = escape[6:]
            return self._unicode(self._escape, at)
        elif not 0xD800 <= int(last, 16) < 0xDC00:  # else it waits for its second half
            self._take(_unit(escape))
        return at + 1

    # --- what has come

    def _begin(self, bracket: str) -> None:
        made: Container = Array() if bracket == "[" else Record()
        if self.root is None:
            self.root = made
            self._grew = True
        else:
            self._add(made)
        self._open.append(made)
        self._next = self._value if bracket == "[" else self._member

    def _end(self) -> None:
        self._open.pop()
        self._grew = True
        self._next = self._after if self._open else None

    def _add(self, node: Node) -> None:
        self._grew = True
        holder = self._open[-1]
        if isinstance(holder, Array):
            holder.items.append(node)
        else:
            assert self._key is not None
            holder.members.append((self._key, node))

    def _take(self, char: str) -> None:
        """What an escape means."""
        self._escape = ""
        self._grow(char)

    def _grow(self, text: str) -> None:
        assert self._string is not None
        self._string.parts.append(text)
        self._grew = self._grew or not self._is_key


def _unit(escape: str) -> str:
    return chr(int(escape[2:6], 16))


def plain(node: Node, seen: SeenJson | None = None) -> object:
    """The node as `json.loads` would give it, as far as it had come in `seen`; all of it without
    one.
    """
    count = None if seen is None else seen.open.get(id(node))
    if isinstance(node, String):
        return node.text(count)
    if isinstance(node, Array):
        return [plain(item, seen) for item in node.items[:count]]
    if isinstance(node, Record):
        return {key: plain(value, seen) for key, value in node.members[:count]}
    return node
