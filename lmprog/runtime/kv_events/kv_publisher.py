"""Tells routers of the cache with each turn of the loop: which blocks the prefix tree has, kept by
its nodes, changed as the tree changes; vLLM's messages of that, as routers read them: a batch is
an array, an event in it a map with its type; and the channel that sends them.

A block is a page of tokens together with everything before it. Its hash is of our own making:
routers take any number that stands for the whole prefix. Positive and below 2^63, so that it
means the same to those who read it with a sign. Hashes are chained along the path; the model, the
adapter's content and the salt are in the first one. As with vLLM, an adapter's name is in the extra
keys of each of its blocks, the salt in those of the first, as a digest: salts may be secrets.

A node has the blocks that end in it, so that splits move blocks and change none. Knows tokens,
nodes, turns and addresses.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from lmprog import wire
from lmprog.config import RuntimeConfig
from lmprog.radix.node import TOKEN_BYTES, Node
from lmprog.radix.references import TreeWatcher
from lmprog.radix.tree import RadixTree
from lmprog.transport import ClientId, EventSocket, Received, RuntimeChannel

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


_POSITIVE = (1 << 63) - 1

BlockEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class BlockRecord:
    """A `TreeWatcher`; from the moment it watches `tree`, which must be empty then.

    `token` gives the token that the tree knows by a negative key: where a namespace begins that
    shares what is above it. Its block has the key's digest among its extra keys.
    """

    def __init__(
        self,
        tree: RadixTree,
        token: Callable[[int], int],
        made_by: str = "",
        origin: Callable[[str], tuple[int, str, str]] | None = None,
    ) -> None:
        """`made_by` names the model: blocks of another one have other hashes. `origin` tells what
        the name of a root was made of: an adapter's number and name (0 and "" for none), and a
        salt. None: of a salt alone.
        """
        assert not tree.num_nodes, "what is in the tree already would be missed"
        self._tree = tree
        self._size = tree.page_size
        self._token = token
        self._origin = origin or (lambda root: (0, "", root))
        self._made_by = _digest(made_by)
        self._blocks: dict[Node, list[int]] = {}
        self._events: list[BlockEvent] = []
        tree.watcher = self

    def take_events(self) -> list[BlockEvent]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def all_events(self) -> list[BlockEvent]:
        """What makes a record of nothing equal to this one."""
        stored = [self._stored(node, self._told(node)) for node in self._tree.walk()]
        return [AllBlocksCleared(), *(event for event in stored if event is not None)]

    def hashes(self) -> list[int]:
        """Of all blocks that were told, in no particular order."""
        return [block for node in self._blocks for block in self._told(node)]

    def _told(self, node: Node) -> list[int]:
        return self._blocks[node]

    # -- as the tree changes

    def added(self, leaf: Node) -> None:
        self._add(leaf)
        event = self._stored(leaf, self._blocks[leaf])
        if event is not None:
            self._events.append(event)

    def _add(self, leaf: Node) -> None:
        key, parent = self._path_key(leaf), self._parent_hash(leaf)
        if parent is None:
            parent_bytes = self._made_by + _digest(leaf.salt)
        else:
            parent_bytes = parent.to_bytes(8, "little")
        step = self._size * TOKEN_BYTES
        blocks = []
        for at in range(0, len(key) - step + 1, step):
            found = hashlib.blake2b(parent_bytes + key[at : at + step], digest_size=8).digest()
            block = int.from_bytes(found, "little") & _POSITIVE
            parent_bytes = block.to_bytes(8, "little")
            blocks.append(block)
        self._blocks[leaf] = blocks

    def was_split(self, upper: Node, lower: Node) -> None:
        blocks = self._blocks[lower]
        own = upper.end // self._size - upper.begin // self._size
        self._blocks[upper], self._blocks[lower] = blocks[:own], blocks[own:]

    def shortened(self, node: Node) -> None:
        blocks = self._blocks[node]
        kept = node.end // self._size - node.begin // self._size
        self._remove(blocks[kept:])
        del blocks[kept:]

    def removed(self, node: Node) -> None:
        self._remove(self._blocks.pop(node))

    def _remove(self, blocks: list[int]) -> None:
        if not blocks:
            return
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockRemoved):
            last.block_hashes.extend(blocks)
        else:
            self._events.append(BlockRemoved(list(blocks), MEDIUM))

    # -- from nodes to blocks

    def _stored(self, node: Node, blocks: list[int], first: int = 0) -> BlockStored | None:
        """The event of `blocks`, a node's from number `first` on; None where there are none."""
        if not blocks:
            return None
        key, size = self._path_key(node), self._size
        tokens = memoryview(key).cast("i")[first * size : (first + len(blocks)) * size].tolist()
        parent = self._blocks[node][first - 1] if first else self._parent_hash(node)
        number, adapter, salt = self._origin(node.salt)
        extra: ExtraKeys = [(adapter,) if adapter else None] * len(blocks)
        if parent is None and salt:
            extra[0] = (*(extra[0] or ()), _digest(salt).hex())
        if min(tokens) < 0:
            for at, token in enumerate(tokens):
                if token < 0:
                    name = _digest(str(token)).hex()
                    extra[at // self._size] = (*(extra[at // self._size] or ()), name)
                    tokens[at] = self._token(token)
        has_extra = any(one is not None for one in extra)
        return BlockStored(
            block_hashes=list(blocks),
            parent_block_hash=parent,
            token_ids=tokens,
            block_size=self._size,
            lora_id=number or None,
            medium=MEDIUM,
            lora_name=adapter or None,
            extra_keys=extra if has_extra else None,
        )

    def _path_key(self, node: Node) -> bytes:
        """The node's tokens, after those since the last end of a block above it."""
        missing = node.begin % self._size * TOKEN_BYTES
        parts = [node.key]
        above = node.parent
        while missing and above is not None:
            part = above.key[-missing:]
            missing -= len(part)
            parts.append(part)
            above = above.parent
        return b"".join(reversed(parts))

    def _parent_hash(self, node: Node) -> int | None:
        """Of the last block that ends at or above the node's begin; None: there is none."""
        above = node.parent
        while above is not None and above.parent is not None:
            if blocks := self._blocks[above]:
                return blocks[-1]
            above = above.parent
        return None


class GoingOn(TreeWatcher, Protocol):
    """Where paths of a tree can be gone on from."""

    on_change: Callable[[Node], object] | None
    """Told of a node that has one place more, or one less."""

    def end_in(self, node: Node) -> int:
        """The last such position of a node; 0: it has none."""


class UsableBlocks(BlockRecord):
    """The same of a model with recurrent layers, whose states are kept in `snapshots`, or with
    windows, which are kept in `WindowEnds`: blocks behind the last place of every path that can be
    gone on from are not told.

    Whoever parts from a path before that place goes on from one before it, and leaves one where it
    parted.
    """

    def __init__(
        self,
        tree: RadixTree,
        snapshots: GoingOn,
        token: Callable[[int], int],
        made_by: str = "",
        origin: Callable[[str], tuple[int, str, str]] | None = None,
    ) -> None:
        """`snapshots` are told of the tree's changes by this record from now on."""
        super().__init__(tree, token, made_by, origin)
        self._snapshots = snapshots
        self._reach: dict[Node, int] = {}
        """Up to which position of a node somebody can go on from it or from below it."""
        snapshots.on_change = self._changed

    def added(self, leaf: Node) -> None:
        self._snapshots.added(leaf)
        self._add(leaf)

    def was_split(self, upper: Node, lower: Node) -> None:
        self._snapshots.was_split(upper, lower)
        super().was_split(upper, lower)
        if reach := self._reach.pop(lower, 0):
            self._reach[upper] = min(reach, upper.end)
            if reach > upper.end:
                self._reach[lower] = reach

    def shortened(self, node: Node) -> None:
        self._snapshots.shortened(node)
        del self._blocks[node][node.end // self._size - node.begin // self._size :]

    def removed(self, node: Node) -> None:
        self._snapshots.removed(node)
        self._remove(self._told(node))
        del self._blocks[node]
        if self._reach.pop(node, 0) and node.parent is not None:
            self._changed(node.parent)

    def _told(self, node: Node) -> list[int]:
        return self._blocks[node][: self._num_told(node, self._reach.get(node, 0))]

    def _num_told(self, node: Node, reach: int) -> int:
        return max(0, reach // self._size - node.begin // self._size)

    def _changed(self, node: Node) -> None:
        """A snapshot of `node`, or a child, came or went."""
        more: list[tuple[Node, int]] = []
        walk: Node | None = node
        while walk is not None and walk in self._blocks:
            before = self._reach.get(walk, 0)
            is_passed = any(child in self._reach for child in walk.children.values())
            reach = walk.end if is_passed else self._snapshots.end_in(walk)
            if reach == before:
                break
            first, count = self._num_told(walk, before), self._num_told(walk, reach)
            self._remove(self._blocks[walk][count:first])
            more.append((walk, first))
            self._reach[walk] = reach
            if not reach:
                del self._reach[walk]
            walk = walk.parent
        for one, first in reversed(more):
            event = self._stored(one, self._told(one)[first:], first)
            if event is not None:
                self._events.append(event)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


class PublishingChannel:
    """See `RuntimeChannel`. Events begin with a clearing: a runtime begins with an empty cache.

    A channel around the runtime's own: what the loop sends at the end of a turn goes out first,
    then what the turn changed in the tree.
    """

    def __init__(self, channel: RuntimeChannel, record: BlockRecord, events: EventSocket) -> None:
        self._channel = channel
        self._record = record
        self.events = events
        self.counters = channel.counters
        events.publish(encoded(time.time(), [AllBlocksCleared()]))

    def receive(self, wait: float) -> Sequence[tuple[ClientId, Received]]:
        return self._channel.receive(wait)

    def send(self, replies: Sequence[tuple[ClientId, wire.Reply]]) -> None:
        self._channel.send(replies)
        if happened := self._record.take_events():
            self.events.publish(encoded(time.time(), happened))
        self.events.serve_replays(lambda: encoded(time.time(), self._record.all_events()))

    def close(self) -> None:
        self.events.close()
        self._channel.close()


def publishing(
    config: RuntimeConfig, channel: RuntimeChannel, record: Callable[[], BlockRecord]
) -> RuntimeChannel:
    """`channel`, publishing where `config` asks for it; only there the tree gets a `record`. Raises
    InvalidParameter where nothing can be published there.
    """
    if config.kv_events is None:
        return channel
    socket = EventSocket(
        config.kv_events,
        config.kv_events_replay,
        config.kv_events_topic,
        is_open=config.kv_events_open,
        connects=config.kv_events_connect,
    )
    return PublishingChannel(channel, record(), socket)
