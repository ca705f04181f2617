"""Every message survives its encoding, whatever its values: drawn from the declared types
themselves.
"""

from __future__ import annotations

import functools
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmprog import wire


def drawn(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a declared type, within its ranges."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        metas = [note for note in arguments[1:] if isinstance(note, msgspec.Meta)]
        return _within(arguments[0], metas[0]) if metas else drawn(arguments[0])
    if origin in (Union, UnionType):
        return st.one_of(*map(drawn, arguments))
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[1:] == (...,):
        return st.lists(drawn(arguments[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*map(drawn, arguments))
    if origin is dict:
        return st.dictionaries(*map(drawn, arguments), max_size=4)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return struct_of(kind)
    return _within(kind, msgspec.Meta())


@functools.cache
def struct_of(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """A message with all of its fields drawn; later, since constraints hold constraints."""
    hints = get_type_hints(kind, include_extras=True)
    return st.deferred(
        lambda: st.builds(kind, **{name: drawn(hints[name]) for name in kind.__struct_fields__})
    )


def _within(kind: Any, meta: msgspec.Meta) -> st.SearchStrategy[Any]:
    """The type's values that a `Meta` allows; sequences and texts stay short."""
    if get_origin(kind) is tuple:
        low, high = meta.min_length or 0, min(meta.max_length or 4, 4)
        items = st.lists(drawn(get_args(kind)[0]), min_size=low, max_size=max(low, high))
        return items.map(tuple)
    low, high = meta.ge if meta.gt is None else meta.gt, meta.le
    if kind is float:
        finite = {"allow_nan": False, "allow_infinity": False}
        return st.floats(low, high, exclude_min=meta.gt is not None, **finite)
    if kind is int:
        return st.integers(-(2**63) if low is None else low, 2**63 - 1 if high is None else high)
    if kind is str:
        letters = st.characters(exclude_categories=["Cs"])
        return st.text(letters, min_size=meta.min_length or 0, max_size=20)
    return st.booleans() if kind is bool else st.none()


OPS: dict[type[Any], st.SearchStrategy[Any]] = {kind: drawn(kind) for kind in get_args(wire.Op)}
REPLIES: dict[type[Any], st.SearchStrategy[Any]] = {
    kind: drawn(kind) for kind in get_args(wire.Reply)
}


@given(st.lists(st.one_of(*OPS.values()), max_size=5).map(tuple))
def test_ops_survive_their_encoding(ops: tuple[wire.Op, ...]) -> None:
    assert wire.decode_ops(wire.encode(ops)) == ops


@given(st.lists(st.one_of(*REPLIES.values()), max_size=5).map(tuple))
def test_replies_survive_their_encoding(replies: tuple[wire.Reply, ...]) -> None:
    assert wire.decode_replies(wire.encode(replies)) == replies


@pytest.mark.parametrize("kind", [*OPS, *REPLIES])
def test_messages_cannot_be_changed(kind: type[Any]) -> None:
    name = kind.__struct_fields__[0]
    values = dict.fromkeys(kind.__struct_fields__, 1)
    with pytest.raises(AttributeError):
        setattr(kind(**values), name, 2)
