"""Values while they are written: JSON read piece by piece, each character once, and what a typed
generation is so far.

`GrowingJson.feed` takes the next piece; `GrowingJson.seen` remembers, in no more room than the JSON
is deep, how far everything has come. What is closed never changes again, and what is open only
grows at its end, so a `SeenJson` is a few lengths. Numbers and words (`true`) are there once they
are complete, strings as far as they have come. Text before the first bracket and after the last is
skipped; where the JSON breaks off into nonsense, it stays as it was before. A `Partial` makes the
largest value of the wanted type out of that when it is read.

A member that is not there yet is None in a dataclass, a named tuple or a pydantic model, and
missing in a dict; a list has the items so far. Strings are there as far as they have come;
everything else that must be complete to mean something (numbers, enums, dates, a union of which the
member is not certain yet) is there once it is. What is closed is a full value, made and checked as
the final one will be. From one piece of text to the next a partial object only grows.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

from lmprog.lang.ops.type_values import (
    MAPPINGS,
    SEQUENCES,
    convert,
    hints_of,
    is_attrs,
    is_named_tuple,
    is_pydantic,
    is_record,
    is_typed_dict,
    record_fields,
    unwrapped,
)
from lmprog.lang.streaming import branch_name
from lmprog.wire.constraints import exact_json

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
Node: TypeAlias = "Container | String | int | Decimal | bool | None"


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
                value: Node = exact_json(self._word)
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
    """The node as `exact_json` would give it, as far as it had come in `seen`; all of it without
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


_MISSING: Final = object()  # nothing can be told yet
_ANYTHING = (Any, object)


class Partial:
    """An event of a stream: what has come of a typed generation; `var` is its name, None for one
    without, and `path` says on which branch it is (see `Text`).

    `value` is made when it is first read, of what had come when the event was made. Do not change
    it: what is complete in it is shared with later events.
    """

    __slots__ = ("_made", "_seen", "_tp", "path", "var")
    __match_args__ = ("var", "value")

    def __init__(
        self, var: str | None, tp: object, seen: SeenJson, path: tuple[int, ...] = ()
    ) -> None:
        self.var = var
        self.path = path
        self._tp = tp
        self._seen = seen
        self._made: tuple[object] | None = None

    @property
    def branch(self) -> str:
        """The branch's name: "root", or "fork0[2]" for the path (0, 2)."""
        return branch_name(self.path)

    @property
    def value(self) -> Any:
        """None as long as nothing can be told (a union whose member is not certain yet)."""
        if self._made is None:
            try:
                found = _fitted(self._tp, self._seen.root, self._seen)
            except RecursionError:  # nested deeper than Python goes: the final value will say so
                found = _MISSING
            self._made = (None if found is _MISSING else found,)
        return self._made[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partial) and (self.var, self.path, self.value) == (
            other.var,
            other.path,
            other.value,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Partial(var={self.var!r}, value={self.value!r})"


class PartialText:
    """Follows the text of one typed generation."""

    def __init__(self, var: str | None, tp: object, path: tuple[int, ...] = ()) -> None:
        self._var = var
        self._tp = tp
        self._path = path
        self._growing = GrowingJson()

    def feed(self, text: str) -> Partial | None:
        """The object after more text; None where there is nothing new of it."""
        seen = self._growing.seen() if self._growing.feed(text) else None
        return None if seen is None else Partial(self._var, self._tp, seen, self._path)


def _fitted(tp: Any, node: Node, seen: SeenJson) -> Any:
    """`node` as a value of `tp`; `_MISSING` where nothing can be told."""
    tp = _bare(tp)
    if id(node) not in seen.open:
        whole = _closed(tp, node)
        if whole is not _MISSING or not isinstance(node, Array | Record):
            return whole
    if typing.get_origin(tp) in (typing.Union, types.UnionType):
        fitting = [arg for arg in typing.get_args(tp) if _may_be(_bare(arg), node)]
        return _fitted(fitting[0], node, seen) if len(fitting) == 1 else _MISSING
    if tp in _ANYTHING:
        return convert(tp, plain(node, seen))
    if isinstance(node, String):
        return node.text(seen.open[id(node)]) if tp is str else _MISSING
    if isinstance(node, Array):
        return _items(tp, node, seen)
    return _members(tp, node, seen) if isinstance(node, Record) else _MISSING


def _closed(tp: Any, node: Node) -> Any:
    """A complete node, checked like a final value; `_MISSING` where it is none. Containers are made
    once.
    """
    if isinstance(node, Array | Record) and node.fitted is not None and node.fitted[0] is tp:
        return node.fitted[1]
    try:
        value = convert(tp, plain(node))
    except (ValueError, TypeError, ArithmeticError):  # as for the final value, which then raises
        value = _MISSING
    if isinstance(node, Array | Record):
        node.fitted = (tp, value)
    return value


def _bare(tp: Any) -> Any:
    tp = unwrapped(tp)
    return _bare(typing.get_args(tp)[0]) if typing.get_origin(tp) is typing.Annotated else tp


def _may_be(tp: Any, node: Node) -> bool:
    """Whether a value of `tp` can begin like `node`, as far as its kind tells."""
    kind = typing.get_origin(tp) or tp
    if kind in (*_ANYTHING, typing.Union, types.UnionType):
        return True
    if isinstance(node, Array):
        return kind in SEQUENCES or kind is tuple or is_named_tuple(tp)
    if isinstance(node, Record):
        return kind in MAPPINGS or is_record(tp) or is_pydantic(tp)
    return (
        kind not in (int, float, bool, None, type(None))
        and not _may_be(tp, Array())
        and not _may_be(tp, Record())
    )


def _items(tp: Any, node: Array, seen: SeenJson) -> Any:
    origin, args = typing.get_origin(tp) or tp, typing.get_args(tp)
    items = node.items[: seen.open.get(id(node))]
    if origin in SEQUENCES or (origin is tuple and (not args or args[1:] == (Ellipsis,))):
        found = _until_missing((args[0] if args else Any for _ in items), items, seen)
        return tuple(found) if origin is tuple else found
    if origin is tuple:
        return tuple(_until_missing(args, items, seen))
    if is_named_tuple(tp):
        found = _until_missing(hints_of(tp).values(), items, seen)
        return tp._make([*found, *[None] * (len(tp._fields) - len(found))])
    return _MISSING


def _until_missing(tps: typing.Iterable[Any], items: list[Node], seen: SeenJson) -> list[Any]:
    found: list[Any] = []
    for tp, item in zip(tps, items, strict=False):
        value = _fitted(tp, item, seen)
        if value is _MISSING:
            break
        found.append(value)
    return found


def _members(tp: Any, node: Record, seen: SeenJson) -> Any:
    members = node.members[: seen.open.get(id(node))]
    origin, args = typing.get_origin(tp) or tp, typing.get_args(tp)
    if origin in MAPPINGS:
        keys, values = args or (str, Any)
        pairs = {convert(keys, key): _fitted(values, value, seen) for key, value in members}
        return {key: value for key, value in pairs.items() if value is not _MISSING}
    if is_pydantic(tp):
        return _model(tp, members, seen)
    if not is_record(tp):
        return _MISSING
    known = record_fields(tp)
    fitted = {key: _fitted(known[key][0], value, seen) for key, value in members if key in known}
    found = {key: value for key, value in fitted.items() if value is not _MISSING}
    if is_typed_dict(tp):
        return found
    made = object.__new__(
        typing.cast("type[Any]", tp)
    )  # its own __init__ may not bear what is missing
    if is_attrs(tp):  # whose fields are named without the underscore that an attribute may have
        for field in tp.__attrs_attrs__:
            object.__setattr__(made, field.name, found.get(field.alias))
        return made
    for field in dataclasses.fields(tp):
        object.__setattr__(made, field.name, found.get(field.name))
    return made


def _model(tp: Any, members: list[tuple[str, Node]], seen: SeenJson) -> Any:
    """A pydantic model without validation, for as long as it is open."""
    names = {field.alias or name: name for name, field in tp.model_fields.items()}
    found: dict[str, Any] = {}
    for key, value in members:
        if key in names:
            fitted = _fitted(tp.model_fields[names[key]].annotation, value, seen)
            if fitted is not _MISSING:
                found[names[key]] = fitted
    made = tp.model_construct(_fields_set=set(found))
    for name in tp.model_fields:
        made.__dict__[name] = found.get(name)
    return made
