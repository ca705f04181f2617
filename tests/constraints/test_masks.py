"""Masks: exactly the tokens that keep acceptance reachable, closing within any budget."""

from __future__ import annotations

import json
import random
import time

import numpy as np
import pytest

from lmprog import wire
from lmprog.constraints.automaton import Automaton
from lmprog.constraints.compiling.compiler import ConstraintCache, compile_constraint, regular_net
from lmprog.constraints.constraint import CompileLimits, Constraint, State
from lmprog.constraints.net import UNREACHABLE
from lmprog.constraints.regular import RegularConstraint
from lmprog.constraints.seam import Pieces, Stops
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import GrammarError, UnsatisfiableConstraint
from tests.constraints.conftest import EOS, make_vocabulary
from tests.constraints.oracle import Judged
from tests.constraints.random_patterns import random_pattern

JSON_STRING = r'"([^"\\\x00-\x1f]|\\.){1,40}"'


def allowed(
    constraint: Constraint, state: int, vocabulary: Vocabulary, budget: int | None = None
) -> list[int]:
    row = constraint.mask(state, budget)
    ids = [token for token in range(len(vocabulary)) if row.allows(token)]
    assert row.count == len(ids)
    assert row.ids is None or row.ids.tolist() == ids
    return ids


def compiled(patterns: list[str], vocabulary: Vocabulary, rng: random.Random) -> list[Constraint]:
    out: list[Constraint] = []
    for pattern in [*patterns, *(random_pattern(rng) for _ in range(40))]:
        try:
            out.append(compile_constraint(wire.Regex(pattern), vocabulary))
        except UnsatisfiableConstraint:
            continue
    return out


def test_a_mask_allows_a_token_exactly_if_its_bytes_are_allowed(
    small: Vocabulary, rng: random.Random
) -> None:
    for constraint in compiled([JSON_STRING, "(ab|abc|é)*日?", "a{3,7}b"], small, rng):
        state = constraint.start
        for _ in range(6):
            ids = allowed(constraint, state, small)
            assert ids, "no mask is ever empty"
            for token in range(len(small)):
                text = small.bytes_of(token)
                fits = (
                    constraint.is_final(state)
                    if token == EOS
                    else constraint.advance_bytes(state, text or b"")
                )
                assert (token in ids) == bool(fits)
            moves = [token for token in ids if token != EOS]
            if not moves:
                assert constraint.is_done(state)
                break
            state = constraint.advance(state, rng.choice(moves))


def test_masks_of_a_real_vocabulary_are_what_the_oracle_says(
    real: Vocabulary, rng: random.Random
) -> None:
    some = rng.sample(range(len(real)), 5000)
    for pattern in [
        JSON_STRING,
        r"\w{1,16}",
        "(ab|abc|é)*日?",
        r".{1,20}",
        r"[a-z]+( [a-z]+)*",
        r"(\w+\s?){1,200}",
    ]:
        judged = Judged.of(wire.Regex(pattern), real, some)
        text = '"héllo wörld and 日本 so on' if pattern == JSON_STRING else "ab"
        for more in (b"", text[:1].encode(), text[1:].encode()):
            judged.advance(more)
            cost = judged.engine.cost(judged.here)
            for most in (UNREACHABLE, cost, cost + 1):
                judged.tokens(most)


def test_forced_bytes_are_those_without_a_choice(small: Vocabulary) -> None:
    for pattern, forced in (
        ("abc(d|e)", b"abc"),
        ("x", b"x"),
        ("a?b", b""),
        ("日+", "日".encode()),
    ):
        judged = Judged.of(wire.Regex(pattern), small)
        assert judged.engine.forced(judged.here, 100) == forced


PIECES = [
    "a",
    "b",
    "c",
    "A",
    "Z",
    "é",
    "日",
    "Ж",
    "·",
    "“",
    "0",
    "7",
    "_",
    " ",
    " ",
    "\n",
    "\t",
    ".",
    "-",
    "@",
    '"',
    "\\",
]
SHAPES = [
    r"[\w\s]{1,9}",
    r"(\w+\s?){1,20}x?",
    r"[A-Z][a-z]*( [a-z]+){2,20}\.",
    r"[\w.+-]{1,7}@[a-c0-9-]{1,5}",
    r"[^\n]{1,12}",
]


def random_words(rng: random.Random, count: int) -> list[bytes | None]:
    """Tokens of all groups of characters, whole and cut, short and very long."""
    out: list[bytes | None] = []
    for _ in range(count):
        chosen = rng.sample(PIECES, rng.choice([1, 1, 2, 3]))
        word = rng.choice(["", " "]) + "".join(
            rng.choices(chosen, k=rng.choice([1, 2, 3, 4, 6, 9, 12, 40]))
        )
        data = word.encode()
        out.append(
            data[rng.choice([0, 0, 0, 0, 1]) : len(data) - rng.choice([0, 0, 0, 0, 1])] or None
        )
    return out


def test_buckets_taken_whole_are_what_a_walk_would_find(rng: random.Random) -> None:
    single: list[bytes | None] = [None, *(bytes([byte]) for byte in range(256))]
    vocabulary = Vocabulary([*single, *random_words(rng, 1500)], [EOS], use_cache=False)
    compared = 0
    for pattern in [*SHAPES, JSON_STRING, *(random_pattern(rng) for _ in range(30))]:
        try:
            judged = Judged.of(wire.Regex(pattern), vocabulary)
        except UnsatisfiableConstraint:
            continue
        for _ in range(5):
            cost = judged.engine.cost(judged.here)
            for most in (cost, cost + 2, UNREACHABLE):
                tokens = judged.tokens(most)
                compared += 1
            if not tokens:
                break
            judged.advance(vocabulary.bytes_of(rng.choice(tokens)) or b"")
    assert compared > 150


def finish(
    constraint: Constraint, budget: int, rng: random.Random, vocabulary: Vocabulary
) -> bytes:
    """What a model with random wishes writes that only stops when it must."""
    state, out = constraint.start, b""
    for left in range(budget, 0, -1):
        moves = [token for token in allowed(constraint, state, vocabulary, left) if token != EOS]
        if not moves:
            break
        token = rng.choice(moves)
        out += vocabulary.bytes_of(token) or b""
        state = constraint.advance(state, token)
    assert constraint.is_final(state), "the budget is spent in an accepting state"
    return out


def test_a_budget_that_holds_the_shortest_text_always_closes(
    small: Vocabulary, rng: random.Random
) -> None:
    for constraint in compiled(
        [JSON_STRING, "a{5,}b", '(\\{"name": )+"é*"\\}+', "x(日本)+"], small, rng
    ):
        shortest = constraint.distance(constraint.start)
        for budget in (shortest, shortest + 1, shortest + 5):
            finish(constraint, budget, rng, small)


def test_some_allowed_token_lowers_the_distance_by_one(
    small: Vocabulary, rng: random.Random
) -> None:
    for constraint in compiled(
        [JSON_STRING, "(hello|a{9}) world", "[0-9]{4}-[0-9]{2}"], small, rng
    ):
        state = constraint.start
        while (distance := constraint.distance(state)) > 0:
            nearer = [t for t in allowed(constraint, state, small, distance) if t != EOS]
            assert nearer
            state = constraint.advance(state, rng.choice(nearer))
            assert constraint.distance(state) <= distance - 1


def test_a_text_costs_its_fewest_tokens(small: Vocabulary) -> None:
    constraint = compile_constraint(wire.Regex("hello world"), small)
    assert constraint.distance(constraint.start) == 2


def test_end_of_sequence_is_allowed_exactly_in_accepting_states(small: Vocabulary) -> None:
    constraint = compile_constraint(wire.Regex("ab?"), small)
    state = constraint.advance(constraint.start, 1 + ord("a"))
    assert not constraint.mask(constraint.start).allows(EOS)
    assert constraint.mask(state).allows(EOS)
    done = constraint.advance(state, 1 + ord("b"))
    assert allowed(constraint, done, small) == [EOS]
    assert constraint.is_done(done)
    assert not constraint.is_done(state)


def test_a_forbidden_token_raises(small: Vocabulary) -> None:
    constraint = compile_constraint(wire.Regex("ab?"), small)
    for token in (EOS, 1 + ord("b"), len(small), -1):
        with pytest.raises(ValueError, match="not allowed"):
            constraint.advance(constraint.start, token)


def test_the_ids_and_the_bits_of_a_mask_say_the_same(real: Vocabulary) -> None:
    """Narrow masks have ids, and bits only when they are asked for; wide ones have bits. They come
    in turn here, since the kernel makes all of a thread's masks in one place."""
    seen = set()
    texts = [b"", b"{", b'{"a": "', b'{"a": "b', b'{"a": "b"', b'{"a": "b", "c": ', b'{"a": "b"']
    for _ in range(2):
        constraint = compile_constraint(wire.JsonSchema('{"type": "object"}'), real)
        for text in texts:
            state = constraint.advance_bytes(constraint.start, text)
            assert state is not None
            row = constraint.mask(state)
            allowed = np.nonzero(np.unpackbits(row.bits.view(np.uint8), bitorder="little"))[0]
            assert len(allowed) == row.count
            assert row.ids is None or np.array_equal(allowed, row.ids)
            assert not row.bits.flags.writeable
            some = {*allowed[::97].tolist(), *range(0, len(real) + 64, 997)}
            known = set(allowed.tolist())
            assert all(row.allows(token) == (token in known) for token in some)
            seen.add(row.ids is None)
    assert seen == {True, False}


def test_masks_are_shared_and_read_only(small: Vocabulary) -> None:
    constraint = compile_constraint(wire.Regex("a*"), small)
    row = constraint.mask(constraint.start)
    assert constraint.mask(constraint.start) is row
    with pytest.raises(ValueError, match="read-only"):
        row.bits[0] = 1


def test_equal_masks_of_different_constraints_are_one_object(real: Vocabulary) -> None:
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in "ab"}}
    rows = []
    for required in (["a"], ["a", "b"]):
        spec = wire.JsonSchema(json.dumps({**schema, "required": required}))
        constraint = compile_constraint(spec, real)
        for text in (b'{"a": "', b'{"a": "b", "b": "'):
            state = constraint.advance_bytes(constraint.start, text)
            assert state is not None
            rows.append((constraint.mask(constraint.start), constraint.mask(state)))
    begins, insides = zip(*rows, strict=True)
    assert len(set(map(id, begins))) == 1
    # Behind "b" no name follows, behind "a" one may: some tokens span the quote and the comma.
    assert 1 < len(set(map(id, insides))) < len(insides)
    for one in insides:
        for other in insides:
            assert (one is other) == np.array_equal(one.bits, other.bits)


def test_forgotten_masks_and_rows_are_made_anew(small: Vocabulary, rng: random.Random) -> None:
    roomy = compile_constraint(wire.Regex(JSON_STRING), small)
    tight = compile_constraint(
        wire.Regex(JSON_STRING), small, CompileLimits(max_mask_bytes=1, max_row_bytes=1)
    )
    text = b'"' + b"abc hello" * 4
    for length in (*range(len(text)), *range(len(text))):
        ours = tight.mask(tight.advance_bytes(tight.start, text[:length]) or 0)
        theirs = roomy.mask(roomy.advance_bytes(roomy.start, text[:length]) or 0)
        assert np.array_equal(ours.bits, theirs.bits)


def test_an_automaton_that_outgrows_its_limits_refuses(small: Vocabulary) -> None:
    limits = CompileLimits(max_states=50)
    engine = Automaton(regular_net(wire.Regex(".*a.{24}"), small), small, limits)
    with pytest.raises(GrammarError, match="too much of its constraint"):
        engine.run(engine.start, b"abaabbaaababbabaabbbabab" * 4)


def test_a_vocabulary_without_some_bytes_meets_no_dead_end(rng: random.Random) -> None:
    whole = make_vocabulary(["ab", "é"])
    letters = [
        token if token and token.isascii() and token.isalpha() else None for token in whole.tokens
    ]
    vocabulary = Vocabulary(letters, [EOS], use_cache=False)
    constraint = compile_constraint(wire.Regex("(a|é|1)+(b|日)"), vocabulary)
    for _ in range(20):
        text = finish(constraint, 6, rng, vocabulary)
        assert set(text) <= set(b"ab")
    with pytest.raises(UnsatisfiableConstraint):
        compile_constraint(wire.Regex("a1"), vocabulary)


def test_equal_specifications_share_one_constraint(small: Vocabulary) -> None:
    cache = ConstraintCache()
    first = cache.get(wire.Regex("a+"), small)
    assert cache.get(wire.Regex("a+"), small) is first
    assert cache.get(wire.Regex("b+"), small) is not first
    assert cache.get(wire.Regex("a+"), make_vocabulary(["x"])) is not first


def test_the_cache_forgets_the_least_recently_used_beyond_its_bytes(small: Vocabulary) -> None:
    alone = ConstraintCache()
    alone.get(wire.Regex("a"), small)
    cache = ConstraintCache(max_bytes=4 * alone.num_bytes)
    specs: list[wire.Constraint] = [wire.Regex("a" * n) for n in range(1, 12)]
    for spec in specs:
        cache.get(spec, small)
        assert cache.num_bytes <= 6 * alone.num_bytes
    assert cache.peek(specs[0], small) is None
    assert cache.peek(specs[-1], small) is not None


@pytest.mark.parametrize(
    "pattern",
    [
        "[ab]*a[ab]{24}",
        r"(\w+\s?){1,200}",
        ".{1,100000}",
        "((a{1,30}){1,30}){1,30}",
        "a{1000000000}",
        r"(.*a.{24}){3}",
        "(a?){500}a{500}",
        r"(\w{1,100}){1,100}",
        "(((a*)*)*)*",
        "(.|.?|..){1,1000}x",
        r"(\d+,?)*(\w+;?)*[^z]{100,5000}",
        "(a|aa){1,1000}(b|bb){1,1000}",
        "(a|b|ab)*c" * 50,
        r"[\w\s]{1,1000}[\W\d]{1,1000}",
        "(x+x+)+y",
        "((((a{1,100}){1,100}){1,100}){1,100}){1,100}",
        "|".join(f"a{i}b*" for i in range(3000)),
        ".*" + ".*".join("abcdefgh"),
        "(" * 99 + "a" + ")*" * 99,
    ],
)
@pytest.mark.usefixtures("frozen_heap")
@pytest.mark.timeout(20)
def test_bombs_are_decided_or_refused_quickly_and_in_little_memory(
    pattern: str, real: Vocabulary
) -> None:
    real.prepare()
    begin = time.thread_time()  # other tests may have left threads at work
    try:
        constraint = compile_constraint(wire.Regex(pattern), real)
        state = constraint.start
        rng = random.Random(7)
        for _ in range(8):
            row = constraint.mask(state)
            ids = (
                row.ids.tolist()
                if row.ids is not None
                else [t for t in range(1000, 5000) if row.allows(t)]
            )
            moves = [token for token in ids if token not in real.eos_ids]
            if not moves:
                break
            state = constraint.advance(state, rng.choice(moves))
        assert isinstance(constraint, RegularConstraint)
        assert constraint.num_bytes < 256 << 20
    except GrammarError:
        pass
    assert time.thread_time() - begin < 2


def test_stops_inside_of_many_tokens_cost_no_more_than_some() -> None:
    """Where the text may not end all of them are left out, and else none; few are looked at."""

    class Counting(RegularConstraint):
        looks = 0

        def advance_bytes(self, state: State, text: bytes) -> State | None:
            self.looks += 1
            return super().advance_bytes(state, text)

    texts = [b"%d,%d" % (number, number) for number in range(2000)]
    texts += [bytes([byte]) for byte in b"0123456789,\n"]
    vocabulary = Vocabulary([*texts, None], [len(texts)])
    limits = CompileLimits()
    for pattern, is_left_out in ((r"[0-9,]*\n", True), (r"[0-9,]*", False)):
        net = regular_net(wire.Regex(pattern), vocabulary)
        made = Counting(Automaton(net, vocabulary, limits), vocabulary, limits)
        stops = Stops((b",",), (), Pieces([*texts, None]))
        row = made.mask(made.start)
        found = stops.avoided(row, (), made, made.start)
        assert (row.count - found.count >= 2000) == is_left_out
        assert made.looks <= 512
