"""A mirror made of published events equals the tree, whatever happens to it."""

from __future__ import annotations

import random
import time
from array import array
from hashlib import blake2b

import pytest

from lmprog.config import SchedulerConfig
from lmprog.radix import PageAllocator, RadixTree
from lmprog.radix.frames import WindowPool
from lmprog.radix.snapshots import StateSnapshots
from lmprog.runtime.kv_events.kv_publisher import (
    BlockRecord,
    BlockStored,
    UsableBlocks,
    encoded,
)
from lmprog.runtime.scheduling.namespaces import AdapterNames, Namespaces, origin_of
from lmprog.runtime.tier.stored_states import above
from lmprog.wire import SHARES_PUBLIC
from tests.kv_events.mirror import Mirror, prefixes_of
from tests.radix.simulated_sequences import Sequences, ints
from tests.radix.test_radix_sequences import Life
from tests.runtime.rig import Rig


def turn(record: BlockRecord, mirror: Mirror) -> None:
    if events := record.take_events():
        mirror.take(encoded(time.time(), events))


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("seed", range(6))
def test_a_mirror_equals_the_tree_after_each_step_of_any_life(page_size: int, seed: int) -> None:
    dice = random.Random(seed)
    life = Life(page_size)
    record, mirror = BlockRecord(life.it.tree, lambda key: key), Mirror()

    def number() -> int:
        return dice.randrange(2**16)

    def more() -> list[int]:
        return [dice.randrange(3) for _ in range(dice.randrange(1, 7))]

    verbs = {
        lambda: life.start(number(), number(), more(), number(), dice.random() < 0.7): 4,
        lambda: life.extend(number(), more()): 4,
        lambda: life.keep(number(), dice.random() < 0.5, dice.random() < 0.5): 4,
        lambda: life.drop(number(), dice.random() < 0.5): 2,
        lambda: life.fail(number(), number(), dice.random() < 0.5): 1,
        lambda: life.evict(number()): 1,
        life.clear: 0.1,
    }
    for _ in range(120):
        dice.choices([*verbs], [*verbs.values()])[0]()
        turn(record, mirror)
        assert mirror.prefixes == prefixes_of(life.it.tree)
        assert sorted(record.hashes()) == sorted(mirror.blocks)
        late = Mirror()
        late.take(encoded(0.0, record.all_events()))
        assert late.blocks == mirror.blocks, "who comes late gets all of it"
    assert mirror.num_stored > 20
    life.end()
    turn(record, mirror)
    assert not mirror.blocks


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_of_a_model_with_states_only_blocks_are_told_from_which_somebody_can_go_on(
    page_size: int, seed: int
) -> None:
    dice = random.Random(seed)
    life = Life(page_size)
    tree = life.it.tree
    snapshots = StateSnapshots(PageAllocator(5))
    record, mirror = UsableBlocks(tree, snapshots, lambda key: key), Mirror()

    def number() -> int:
        return dice.randrange(2**16)

    def more() -> list[int]:
        return [dice.randrange(3) for _ in range(dice.randrange(1, 7))]

    def leave() -> None:
        if nodes := [*tree.walk()]:
            node = dice.choice(nodes)
            position = dice.randint(node.begin + 1, node.end)
            if snapshots.ending_at(node, position) is None:
                slot = snapshots.take_slot()
                assert slot is not None
                snapshots.put(node, position, slot)

    verbs = {
        lambda: life.start(number(), number(), more(), number(), dice.random() < 0.7): 4,
        lambda: life.extend(number(), more()): 4,
        lambda: life.keep(number(), dice.random() < 0.5, dice.random() < 0.5): 4,
        lambda: life.drop(number(), dice.random() < 0.5): 2,
        lambda: life.fail(number(), number(), dice.random() < 0.5): 1,
        lambda: life.evict(number()): 1,
        leave: 4,
    }
    for _ in range(120):
        dice.choices([*verbs], [*verbs.values()])[0]()
        turn(record, mirror)
        kept = [one for root in tree.roots() for one in snapshots.below(root)]
        assert mirror.prefixes == prefixes_of(tree, [(one.node, one.position) for one in kept])
        late = Mirror()
        late.take(encoded(0.0, record.all_events()))
        assert late.blocks == mirror.blocks
        assert sorted(record.hashes()) == sorted(mirror.blocks)
        snapshots.check(())
    assert mirror.num_stored > 8


@pytest.mark.parametrize("seed", range(2))
def test_of_a_model_with_windows_only_blocks_are_told_before_one_that_is_kept(seed: int) -> None:
    dice, num_told = random.Random(seed), 0
    config = SchedulerConfig(page_size=4, num_pages=30, speculation="off")
    rig = Rig(config, preempt_every=7, windows=WindowPool(8, 30, 1, 5))
    tree, windows = rig.scheduler.tree, rig.scheduler.tables.windows
    assert windows is not None
    record, mirror = UsableBlocks(tree, windows.ends(), lambda key: key), Mirror()
    base = [dice.randrange(90) for _ in range(80)]
    for _ in range(16):
        more = [dice.randrange(90) for _ in range(dice.randrange(1, 9))]
        rig.gen([*base[: dice.choice([0, 9, 24, 41, 80])], *more], dice.randrange(1, 20))
        for _ in range(dice.choice([1, 5, 30])):
            rig.step()
            turn(record, mirror)
            kept = [one for one in windows.pages._stretches if one.node]
            ends = [above(one.node, one.position) for one in kept]
            assert mirror.prefixes == prefixes_of(tree, [one for one in ends if one[0].alive])
            late = Mirror()
            late.take(encoded(0.0, record.all_events()))
            assert late.blocks == mirror.blocks
            assert sorted(record.hashes()) == sorted(mirror.blocks)
            num_told = max(num_told, len(mirror.blocks))
    assert num_told > 20


def test_what_comes_and_goes_within_a_turn_is_told_in_order() -> None:
    it = Sequences(2, 8)
    record, mirror = BlockRecord(it.tree, lambda key: key), Mirror()
    sequence = it.start(ints(1, 2, 3, 4, 5))
    assert sequence is not None
    it.drop(sequence)
    it.evict(8)
    assert it.start(ints(1, 2, 7)) is not None
    turn(record, mirror)
    assert mirror.num_stored == 3
    assert [tokens for _, tokens in mirror.blocks.values()] == [(1, 2)]


def test_blocks_below_a_public_prefix_are_told_by_real_tokens_and_kept_apart_by_their_keys() -> (
    None
):
    pages = PageAllocator(40)
    tree = RadixTree(4, pages)
    namespaces = Namespaces(100, [[1, 2, 3, 4, 5]])
    record, mirror = BlockRecord(tree, namespaces.token), Mirror()
    tokens = array("i", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
    for salt in ("a", "b"):
        namespace = namespaces.of(tokens, SHARES_PUBLIC + salt)
        match = tree.match(namespace.keys(tokens), namespace.root)
        taken = pages.allocate(3)
        assert taken is not None
        assert match.length == (0 if salt == "a" else 5)
        tree.insert(namespace.keys(tokens), taken, namespace.root)
    turn(record, mirror)
    found = sorted(mirror.blocks.values(), key=lambda prefix: len(prefix[1]))
    assert [list(prefix[1]) for prefix in found] == [
        list(tokens[:end]) for end in (4, 8, 8, 12, 12)
    ]
    assert found[0][0] == (), "the public prefix is everybody's"
    assert len({keys for keys, _ in found}) == 3


def test_blocks_of_an_adapter_are_told_by_its_name_and_those_of_the_base_by_none() -> None:
    """In each block's extra keys too, before the salt, which is in the first."""
    pages = PageAllocator(40)
    tree = RadixTree(4, pages)
    adapters = AdapterNames({"poet": "d1", "clerk": "d2", "clerk's double": "d2"})
    namespaces = Namespaces(100)
    record = BlockRecord(tree, namespaces.token, "", lambda root: origin_of(root, adapters))
    mirror = Mirror()
    tokens = array("i", range(1, 9))
    told: dict[tuple[str, str], BlockStored] = {}
    for name in ("", "poet", "clerk"):
        for salt in ("", "a:b", "\0s"):
            taken = pages.allocate(2)
            assert taken is not None
            tree.insert(tokens, taken, namespaces.of(tokens, salt, adapters.find(name)).root)
            [event] = record.take_events()
            assert isinstance(event, BlockStored)
            told[name, salt] = event
            mirror.take(encoded(0.0, [event]))
    numbers = {(one.lora_name, one.lora_id) for one in told.values()}
    assert numbers == {(None, None), ("poet", 1), ("clerk", 2)}
    assert told["", ""].extra_keys is None
    assert told["poet", ""].extra_keys == [("poet",), ("poet",)]
    digest = blake2b(b"a:b", digest_size=8).hexdigest()
    assert told["", "a:b"].extra_keys == [(digest,), None]
    assert told["clerk", "a:b"].extra_keys == [("clerk", digest), ("clerk",)]
    assert len(mirror.prefixes) == 18, "none is taken for another"
    late = Mirror()
    late.take(encoded(0.0, record.all_events()))
    assert late.adapters == mirror.adapters


def test_a_salt_is_never_told_itself() -> None:
    it = Sequences(2, 8)
    record = BlockRecord(it.tree, lambda key: key)
    it.start(ints(1, 2, 3, 4), "a secret name")
    payload = encoded(0.0, record.take_events())
    assert b"secret" not in payload
    assert b"extra_keys" in payload


def test_a_block_costs_little() -> None:
    """The bar is 30 us; `python -m benchmarks.cache events` measures. Here it is ten times as much."""
    pages = PageAllocator(4000)
    tree = RadixTree(16, pages)
    record = BlockRecord(tree, lambda key: key)
    spent = 0.0
    for start in range(4):
        tokens = array("i", range(start, start + 16_000))
        taken = pages.allocate(1000)
        assert taken is not None
        before = time.process_time()
        tree.insert(tokens, taken)
        encoded(0.0, record.take_events())
        tree.clear()
        encoded(0.0, record.take_events())
        spent += time.process_time() - before
    assert spent / 4000 < 300e-6
