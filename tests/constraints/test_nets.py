"""Nets, their parts and tables: finished and walked they mean what the oracle says; finishing can be
stopped.
"""

from __future__ import annotations

import json
import random
import weakref
from array import array
from contextlib import suppress
from typing import Any

import pytest

from benchmarks.constraint_cases import generated
from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint, regular_net
from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.finish import finish
from lmprog.constraints.inspect import accepts
from lmprog.constraints.lower import UTF8, all_but, class_leaf
from lmprog.constraints.net import EMPTY, NetBuilder, NetPart, Node, UnfinishedTable
from lmprog.constraints.schema.build import SchemaBuilder
from lmprog.constraints.schema.entry import schema_node
from lmprog.constraints.schema.frequent import SharedParts
from lmprog.constraints.schema.schema_document import Document
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import UnsatisfiableConstraint
from tests.constraints.oracle import Judged, Oracle, TooMany

LIMITS = CompileLimits()


def random_net(rng: random.Random, parts: list[NetPart]) -> tuple[NetBuilder, Node]:
    net = NetBuilder()
    nodes = [EMPTY, *map(net.part, parts)]
    holes = []
    for _ in range(rng.randint(1, 30)):
        some = rng.choices(nodes, k=rng.randint(0, 4))
        match rng.randrange(9):
            case 0 | 1:
                made = net.text(bytes(rng.choices(b"abcdefghxyz0123 ", k=rng.randint(0, 30))))
            case 2:
                low = rng.randint(97, 110)
                ranges = ((low, low + rng.randint(0, 8)),)
                letter, digit = (class_leaf(one, UTF8) for one in (ranges, ((48, 57),)))
                behind = net.optional(net.same_leaf(digit))
                made = net.seq([net.same_leaf(letter), behind])
            case 3:
                letters = rng.choice(["abc ", 'abc é"', "a\0\n\U0001f600/"])
                names = ["".join(rng.choices(letters, k=rng.randint(0, 5))) for _ in range(4)]
                made = all_but(names[: rng.randint(0, 4)], net)
            case 4:
                made = net.seq(some)
            case 5:
                made = net.alt(some)
            case 6:
                low = rng.randint(0, 3)
                high = rng.choice([None, low, low + 5])
                made = net.repeat(rng.choice(nodes), low, high)
            case 7:
                made = net.table(random_table(rng, net))
            case _:  # behind a byte, as a net has no left recursion
                hole = net.hole()
                holes.append(hole)
                made = net.seq([net.text(b"a"), hole])
        nodes.append(made)
    for hole in holes:
        net.fill(hole, rng.choice(nodes))
    return net, rng.choice(nodes)


def random_table(rng: random.Random, net: NetBuilder) -> UnfinishedTable:
    """Some of its states are dead ends, some of its classes cannot be spelled with few bytes."""
    size = rng.randint(1, 6)
    ranges = [((low, low + rng.randint(0, 2)),) for low in rng.choices(range(97, 110), k=4)]
    classes = [net.same_leaf(class_leaf(one, UTF8)) for one in ranges]
    low, high = rng.choice([(0, None), (0, 7), (2, 2), (3, None), (1, 4)])
    starts, targets, nodes = array("i", [0]), array("i"), array("i")
    loops = array("i", [-1]) * size
    final = bytearray(rng.choice([0, 0, 1]) for _ in range(size))
    for state in range(size):
        ends = low == 0 and high is None and rng.random() < 0.2
        count = 1 if ends or (final[state] and rng.random() < 0.5) else rng.randint(0, 3)
        targets.extend([-1] if ends else rng.choices(range(size), k=count))
        nodes.extend([net.text(b"abc")] if ends else rng.choices(classes, k=count))
        starts.append(len(targets))
        if final[state] and count == 1 and targets[-1] == state:
            loops[state] = net.repeat(Node(nodes[-1]), 0, None)
    return UnfinishedTable(low, high, final, loops, starts, targets, nodes)


def walk(net: NetBuilder, root: Node, vocabulary: Vocabulary, rng: random.Random) -> int:
    """Walks it along some texts, byte by byte and by tokens, as far as the oracle can follow;
    returns how far in all.
    """
    try:
        judged = Judged(net, root, vocabulary)
    except UnsatisfiableConstraint:
        assert not Oracle(net, root, vocabulary.alphabet.single).start
        return 0
    begin = judged.here, judged.places
    steps = 0
    for _ in range(3):
        judged.here, judged.places = begin
        with suppress(TooMany):
            for _ in range(12):
                moves = judged.moves()
                tokens = judged.tokens(judged.engine.cost(judged.here) + rng.randint(0, 3))
                if not moves:
                    break
                some = tokens and rng.random() < 0.4
                chosen = vocabulary.bytes_of(rng.choice(tokens)) if some else None
                judged.advance(chosen or bytes([rng.choice(moves)]))
                steps += 1
    return steps


FEW = Vocabulary(
    [None, *(bytes([byte]) for byte in b'abcdef"01234'), b"ab", b"bcd", b"abcdefabcdef", b"01"],
    [0],
    use_cache=False,
)


def test_random_nets_mean_what_the_oracle_says(small: Vocabulary, rng: random.Random) -> None:
    steps = 0
    for _ in range(60):
        parts = [one.sealed(at) for one, at in (random_net(rng, []) for _ in range(3))]
        net, root = random_net(rng, parts[: rng.randint(0, 3)])
        for vocabulary in (small, FEW):
            steps += walk(net, root, vocabulary, rng)
    assert steps > 400


def test_nets_of_schemas_mean_what_the_oracle_says(small: Vocabulary, rng: random.Random) -> None:
    for schema, _ in generated(30, 1):
        net = NetBuilder()
        root = schema_node(wire.JsonSchema(schema), net, LIMITS)
        walk(net, root, small, rng)


class Stopped(Exception):
    pass


def test_finishing_asks_whether_it_may_go_on(small: Vocabulary) -> None:
    may_build = True

    def check() -> None:
        if not may_build:
            raise Stopped

    net = NetBuilder(check=check)
    root = net.seq([net.text(b"abcdefgh" * 5000), net.text(b"x")])
    may_build = False
    with pytest.raises(Stopped):
        finish(net, root, small.alphabet)


def test_what_matches_nothing_is_refused(small: Vocabulary) -> None:
    with pytest.raises(UnsatisfiableConstraint, match="nothing at all"):
        regular_net(wire.Regex(r"a[^\s\S]"), small)


def part_of(text: bytes) -> NetPart:
    net = NetBuilder()
    return net.sealed(net.text(text))


def test_shared_parts_are_made_once_and_stay_within_their_bytes() -> None:
    size = part_of(b"x" * 100).num_bytes
    shared = SharedParts(max_bytes=10 * size)
    first = shared.get(0, lambda: part_of(b"x" * 100))
    for key in range(100):
        shared.get(0, lambda: pytest.fail("made again"))
        shared.get(key, lambda: part_of(b"x" * 100))
        assert shared.num_bytes == len(shared) * size <= 10 * size
    assert shared.get(0, lambda: pytest.fail("the most recently used was dropped")) is first
    assert len(shared) == 10
    shared.get("large", lambda: part_of(b"x" * 200))
    assert shared.get("large", lambda: first) is first, "parts beyond the bound are not kept"


def test_parts_of_other_documents_change_nothing(small: Vocabulary) -> None:
    """Equal keywords under other options, or with other meanings by their place, are kept apart."""
    nested = '{"type": "object", "additionalProperties": %s}'
    for inner, text, fits in (
        ("true", '{"a": [1, 2]}', True),
        ('{"type": "string"}', '{"a": "b"}', True),
        ('{"type": "string", "title": "other"}', '{"a": 1}', False),
        ('{"enum": [1, true]}', '{"a": true}', True),
        ('{"enum": [1, 1]}', '{"a": true}', False),
        ('{"const": 1}', '{"a": true}', False),
        ('{"const": true}', '{"a": true}', True),
    ):
        for whitespace in ("fixed", "compact", "indented"):
            if whitespace == "indented" and inner == "true":
                continue  # its depth is not bounded
            schema = wire.JsonSchema(nested % inner, whitespace)
            value = json.loads(text)
            layout: dict[str, Any] = {
                "fixed": {},
                "compact": {"separators": (",", ":")},
                "indented": {"indent": 2},
            }[whitespace]
            made = compile_constraint(schema, small)
            assert accepts(made, json.dumps(value, **layout)) is fits


def test_parts_are_shared_under_equal_options_only(small: Vocabulary) -> None:
    for pattern in (None, " *", "\n?"):
        schema = wire.JsonSchema('{"items": true}', "compact", whitespace_pattern=pattern)
        made = compile_constraint(schema, small)
        for text, needs in (("[[1,2]]", None), ("[[1, 2]]", " *"), ("[[1,\n2]]", "\n?")):
            assert accepts(made, text) is (needs in (None, pattern)), (pattern, text)


def test_a_builder_of_schemas_is_freed_as_soon_as_it_is_done() -> None:
    """Cycles would keep its nodes until the collector comes, in the midst of a step."""
    spec = wire.JsonSchema('{"oneOf": [{"items": true}, {"minLength": 2}], "properties": {}}')
    builder = SchemaBuilder(Document(spec.schema), spec, NetBuilder(), LIMITS)
    builder.compile([Document(spec.schema).root], 0)
    alive = weakref.ref(builder)
    del builder
    assert alive() is None
