"""Messages as bytes and back: one frame is one msgpack list. Knows how foreign bytes fail."""

from __future__ import annotations

import msgspec

from lmprog.wire.ops import Op
from lmprog.wire.replies import Reply

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 32 * 1024 * 1024


MalformedFrame = msgspec.DecodeError
"""What `decode_*` raises: its subclass `ValidationError` for values out of range. Text that is no
UTF-8 raises Python's own UnicodeDecodeError, and absurd nesting RecursionError: a receiver of
foreign bytes expects these too."""

_encoder = msgspec.msgpack.Encoder()
_ops = msgspec.msgpack.Decoder(tuple[Op, ...])
_replies = msgspec.msgpack.Decoder(tuple[Reply, ...])


def encode(messages: tuple[Op, ...] | tuple[Reply, ...]) -> bytes:
    """One frame."""
    return _encoder.encode(messages)


def decode_ops(frame: bytes | memoryview) -> tuple[Op, ...]:
    """Raises `MalformedFrame` on anything that is not a list of ops within their ranges."""
    return _ops.decode(frame)


def decode_replies(frame: bytes | memoryview) -> tuple[Reply, ...]:
    """Raises `MalformedFrame` on anything that is not a list of replies."""
    return _replies.decode(frame)
