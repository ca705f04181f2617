"""Objects that are still being generated: the largest value of the wanted type that the text so far
allows.

A member that is not there yet is None in a dataclass, a named tuple or a pydantic model, and
missing in a dict; a list has the items so far. Strings are there as far as they have come;
everything else that must be complete to mean something (numbers, enums, dates, a union of which the
member is not certain yet) is there once it is. What is closed is a full value, made and checked as
the final one will be. From one piece of text to the next a partial object only grows. Knows types;
how JSON is read piece by piece is `growing`'s.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Final

from lmprog.lang.ops.type_values import (
    MAPPINGS,
    SEQUENCES,
    convert,
    hints_of,
    is_named_tuple,
    is_pydantic,
    unwrapped,
)
from lmprog.lang.streaming.feed import branch_name
from lmprog.lang.streaming.growing_json import (
    Array,
    GrowingJson,
    Node,
    Record,
    SeenJson,
    String,
    plain,
)

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
        return plain(node, seen)
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
        return (
            kind in MAPPINGS
            or dataclasses.is_dataclass(tp)
            or typing.is_typeddict(tp)
            or is_pydantic(tp)
        )
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
    if not (dataclasses.is_dataclass(tp) or typing.is_typeddict(tp)):
        return _MISSING
    hints = hints_of(tp)
    fitted = {key: _fitted(hints[key], value, seen) for key, value in members if key in hints}
    found = {key: value for key, value in fitted.items() if value is not _MISSING}
    if not dataclasses.is_dataclass(tp):
        return found
    made = object.__new__(
        typing.cast("type[Any]", tp)
    )  # its own __init__ may not bear what is missing
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
