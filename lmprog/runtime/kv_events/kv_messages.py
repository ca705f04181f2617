"""vLLM's messages of key/value events, as routers read them: a batch is an array, an event in it a
map with its type.

A block is a page of tokens together with everything before it. Its hash is of our own making:
routers take any number that stands for the whole prefix. Positive and below 2^63, so that it means
the same to those who read it with a sign.
"""

from __future__ import annotations

import msgspec

MEDIUM = "GPU"
"""What routers call the memory that attention reads, whatever it is."""

ExtraKeys = list[tuple[str, ...] | None]


class KvEvent(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    """What happened to blocks."""


class BlockStored(KvEvent, frozen=True):
    """Blocks, one after the other, whose first one follows `parent_block_hash`."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: ExtraKeys | None = None
    """What separates a block from others with the same tokens, an entry a block; None: nothing."""


class BlockRemoved(KvEvent, frozen=True):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(KvEvent, frozen=True):
    """Nothing is left of what was stored before."""


class KvEventBatch(msgspec.Struct, frozen=True, array_like=True):
    ts: float
    """Seconds since 1970."""
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None


_encoder = msgspec.msgpack.Encoder()


def encoded(ts: float, events: list[BlockStored | BlockRemoved | AllBlocksCleared]) -> bytes:
    return _encoder.encode(KvEventBatch(ts, events, 0))
