"""The fields of all messages belong to a protocol version.

    python -m tests.wire.test_protocol      writes the fields down, once PROTOCOL_VERSION was raised

`protocol.json` has the version and a digest of each message: its fields' names in their order,
types, ranges and defaults.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from lmprog import wire
from lmprog.transport.channel import Admission

RECORD = Path(__file__).with_name("protocol.json")
_RANGES = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")


def shape(kind: Any) -> Any:
    """A type as JSON, the same for every spelling of it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        ranges = {
            name: _limit(getattr(note, name))
            for note in arguments[1:]
            if isinstance(note, msgspec.Meta)
            for name in _RANGES
            if getattr(note, name) is not None
        }
        return [shape(arguments[0]), ranges]
    if origin in (Union, UnionType):
        return ["any of", *sorted(map(shape, arguments), key=json.dumps)]
    if origin is Literal:
        return ["one of", *sorted(arguments, key=json.dumps)]
    if origin is not None:
        return [origin.__name__, *(None if one is ... else shape(one) for one in arguments)]
    return kind.__name__


def _limit(limit: Any) -> Any:
    """Of a range. Python keeps one object for types that are equal, and -10 equals -10.0."""
    return float(limit) if isinstance(limit, int | float) else limit


def structs(kinds: Any) -> Iterator[type[msgspec.Struct]]:
    """All messages that a type mentions, each once."""
    found: dict[str, type[msgspec.Struct]] = {}

    def look(kind: Any) -> None:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            if kind.__name__ not in found:
                found[kind.__name__] = kind
                for one in get_type_hints(kind, include_extras=True).values():
                    look(one)
            return
        for one in get_args(kind):
            look(one)

    look(kinds)
    yield from (found[name] for name in sorted(found))


def fields(kind: type[msgspec.Struct]) -> Any:
    hints = get_type_hints(kind, include_extras=True)
    defaults = {field.name: field.default for field in msgspec.structs.fields(kind)}
    return [
        [
            name,
            shape(hints[name]),
            None
            if defaults[name] is msgspec.NODEFAULT
            else msgspec.json.encode(defaults[name]).decode(),
        ]
        for name in kind.__struct_fields__
    ]


def digests() -> dict[str, str]:
    return {
        kind.__name__: hashlib.sha256(json.dumps(fields(kind)).encode()).hexdigest()[:12]
        for kind in structs(wire.Op | wire.Reply)
    }


def changes(record: dict[str, Any], now: dict[str, str], version: int) -> str:
    """What to do about messages that are not those of the record; "" where they are."""
    before = record["messages"]
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if not changed and record["version"] == version:
        return ""
    if not changed:
        return f"version {version} has the messages of version {record['version']}"
    names = ", ".join(changed)
    if record["version"] == version:
        return f"{names} changed: raise PROTOCOL_VERSION in lmprog/wire/frames.py above {version}"
    return f"{names} changed: write version {version} down by python -m tests.wire.test_protocol"


def test_messages_change_only_with_the_version() -> None:
    found = changes(json.loads(RECORD.read_text()), digests(), wire.PROTOCOL_VERSION)
    assert not found, found


def test_a_new_field_is_told_with_what_to_do() -> None:
    class Hello(wire.Hello, frozen=True):
        more: int = 0

    now, version = digests(), wire.PROTOCOL_VERSION
    record = {"version": version, "messages": now}
    assert changes(record, now, version) == ""
    grown = {**now, "Hello": str(fields(Hello))}
    assert changes(record, grown, version).startswith("Hello changed: raise PROTOCOL_VERSION")
    assert "write version" in changes(record, grown, version + 1)
    assert "has the messages of" in changes(record, now, version + 1)


def test_a_digest_has_names_order_types_ranges_and_defaults() -> None:
    def made(*given: Any) -> Any:
        return fields(msgspec.defstruct("Made", list(given)))

    plain = made(("a", int), ("b", str))
    for other in (
        made(("b", str), ("a", int)),
        made(("a", int), ("c", str)),
        made(("a", float), ("b", str)),
        made(("a", int), ("b", str, "x")),
        made(("a", Annotated[int, msgspec.Meta(ge=0)]), ("b", str)),
        made(("a", Literal[1, 2]), ("b", str)),
    ):
        assert other != plain
    assert made(("a", int | None)) == made(("a", Union[None, int]))  # noqa: UP007


def test_a_client_of_another_version_is_told_though_its_messages_cannot_be_read() -> None:
    admission = Admission()
    frame = msgspec.msgpack.encode([["Hello", 99, {"a": "new field"}], ["NewOp", 1]])
    admitted = admission.admit(b"x", frame)
    assert admitted.messages == ()
    assert admitted.refusal is not None
    assert "version 99" in admitted.refusal.message
    assert admission.admit(b"x", frame).refusal is None  # once
    ours = msgspec.msgpack.encode([["Hello", wire.PROTOCOL_VERSION, {}]])
    assert admission.admit(b"y", ours).refusal is None  # merely malformed


if __name__ == "__main__":
    problem = changes(json.loads(RECORD.read_text()), digests(), wire.PROTOCOL_VERSION)
    if "raise PROTOCOL_VERSION" in problem:
        sys.exit(problem)
    made = {"version": wire.PROTOCOL_VERSION, "messages": digests()}
    RECORD.write_text(json.dumps(made, indent=1) + "\n")
