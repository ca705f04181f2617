"""A router's picture of a cache, made of nothing but the bytes that were published: written from the
messages' schema, with none of our types.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from lmprog.radix import Node, RadixTree

Prefix = tuple[tuple[str, ...], tuple[int, ...]]
"""What separates a block from others, and all tokens up to its end."""


@dataclass
class Mirror:
    blocks: dict[int, Prefix] = field(default_factory=dict)
    adapters: dict[int, str | None] = field(default_factory=dict)
    """The names of adapters, by block."""
    num_stored: int = 0

    def take(self, payload: bytes) -> None:
        stamp, events, rank = msgspec.msgpack.decode(payload)
        assert isinstance(stamp, float)
        assert rank == 0
        for event in events:
            self._apply(event)

    def _apply(self, event: dict[str, Any]) -> None:
        match event.pop("type"):
            case "BlockStored":
                self._store(**event)
            case "BlockRemoved":
                assert event["medium"] == "GPU"
                for block in event["block_hashes"]:
                    del self.blocks[block]
            case "AllBlocksCleared":
                self.blocks.clear()
            case other:
                raise AssertionError(other)

    def _store(
        self,
        *,
        block_hashes: list[int],
        parent_block_hash: int | None,
        token_ids: list[int],
        block_size: int,
        extra_keys: list[list[str] | None] | None = None,
        **rest: Any,
    ) -> None:
        number, name = rest.pop("lora_id"), rest.pop("lora_name")
        assert rest == {"medium": "GPU"}
        assert (number is None) == (name is None)
        for keys_of_block in extra_keys or [None] * len(block_hashes):
            assert name is None or (keys_of_block or [None])[0] == name, "as vLLM's own are"
        self.adapters.update(dict.fromkeys(block_hashes, name))
        assert len(token_ids) == len(block_hashes) * block_size
        assert extra_keys is None or len(extra_keys) == len(block_hashes)
        keys, tokens = ((), ()) if parent_block_hash is None else self.blocks[parent_block_hash]
        for at, block in enumerate(block_hashes):
            assert 0 <= block < 2**63
            assert block not in self.blocks, "stored twice"
            keys += tuple((extra_keys[at] if extra_keys else None) or ())
            tokens += tuple(token_ids[at * block_size : (at + 1) * block_size])
            self.blocks[block] = keys, tokens
        self.num_stored += len(block_hashes)

    @property
    def prefixes(self) -> set[Prefix]:
        assert len(set(self.blocks.values())) == len(self.blocks), "two blocks are one"
        return set(self.blocks.values())


def prefixes_of(tree: RadixTree, ends: Iterable[tuple[Node, int]] | None = None) -> set[Prefix]:
    """All whole blocks of a tree that knows tokens by themselves, by a walk; with `ends`, of the
    paths up to these positions of nodes.
    """
    found: set[Prefix] = set()
    size = tree.page_size
    for node, last in [(one, one.end) for one in tree.walk()] if ends is None else ends:
        tokens = path(node)[:last]
        keys = () if not node.salt else (blake2b(node.salt.encode(), digest_size=8).hexdigest(),)
        for end in range(size, len(tokens) + 1, size):
            found.add((keys, tuple(tokens[:end])))
    return found


def path(node: Node) -> array[int]:
    tokens: array[int] = array("i")
    while node.parent is not None:
        tokens = array("i", node.tokens) + tokens
        node = node.parent
    return tokens
