"""Encodes and decodes frames: one frame is one msgpack list of messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, get_args

import msgspec

from lmprog.wire.ops import Op
from lmprog.wire.replies import Reply

PROTOCOL_VERSION = 18
"""Both sides must have the same. It is raised with every change of a message; a test knows the
fields of each version.
"""
MAX_FRAME_BYTES = 32 * 1024 * 1024
MAX_FRAME_OPS = 128
"""A runtime decodes a frame at once, and takes one of each client in turn, while others wait."""


MalformedFrame = msgspec.DecodeError
"""What `decode_*` raises: its subclass `ValidationError` for values out of range. Invalid UTF-8
raises Python's own UnicodeDecodeError, and deep nesting RecursionError: a receiver of foreign bytes
must expect these too."""

_encoder = msgspec.msgpack.Encoder()
_Limit = msgspec.Meta(max_length=MAX_FRAME_OPS)
_ops: msgspec.msgpack.Decoder[tuple[Op, ...]] = msgspec.msgpack.Decoder(
    Annotated[tuple[Op, ...], _Limit]
)
_any_ops: msgspec.msgpack.Decoder[tuple[list[Any], ...]] = msgspec.msgpack.Decoder(
    Annotated[tuple[list[Any], ...], _Limit]
)
_replies = msgspec.msgpack.Decoder(tuple[Reply, ...])


encode: Callable[[tuple[Op, ...] | tuple[Reply, ...]], bytes] = _encoder.encode
"""One frame."""
decode_ops: Callable[[bytes | memoryview], tuple[Op, ...]] = _ops.decode
"""Raises `MalformedFrame` on anything but a list of ops within their ranges."""
decode_replies: Callable[[bytes | memoryview], tuple[Reply, ...]] = _replies.decode
"""Raises `MalformedFrame` on anything but a list of replies."""


_NAMED = {
    kind.__name__: {
        name: 1 + kind.__struct_fields__.index(name)  # after the tag
        for name in ("call", "branch")
        if name in kind.__struct_fields__
    }
    for kind in get_args(Op)
}
_NAMED["Cancel"] = _NAMED["Suspend"] = {}  # they name another op's call


def named_in(frame: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The calls made, and the branches changed otherwise, by the ops of a frame whose values are
    not all within their ranges. Raises `MalformedFrame` on anything but a list of lists.
    """
    calls: list[int] = []
    branches: list[int] = []
    for op in _any_ops.decode(frame):
        places = _NAMED.get(op[0], {}) if op and isinstance(op[0], str) else {}
        found, name = (calls, "call") if "call" in places else (branches, "branch")
        at = places.get(name, len(op))
        if at < len(op) and type(op[at]) is int and 0 <= op[at] <= 2**53:
            found.append(op[at])
    return tuple(calls), tuple(branches)


def version_in(frame: bytes) -> int | None:
    """The protocol version that a frame's greeting names, also where another version's messages
    cannot be decoded; None where it begins with no greeting. Raises like `decode_ops`.
    """
    ops = _any_ops.decode(frame)
    first = ops[0] if ops else []
    is_hello = len(first) > 1 and first[0] == "Hello" and type(first[1]) is int
    return first[1] if is_hello else None
