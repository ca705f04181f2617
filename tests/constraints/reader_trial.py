"""Tries one specification: what is found wrong with how it is read and walked. For `reader_fuzz.py`."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Iterator
from unittest import mock

import numpy as np

from lmprog import wire
from lmprog.constraints.automaton import Automaton
from lmprog.constraints.compiling.compiler import DEFAULT_LIMITS, compile_constraint, regular_net
from lmprog.constraints.constraint import CompileLimits, CompileTooLong, MaskRow
from lmprog.constraints.grammar.rules import NeedsLlguidance
from lmprog.constraints.net import NetBuilder
from lmprog.constraints.regular import RegularConstraint
from lmprog.constraints.schema.frequent import FrequentSchemas
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import GrammarError, RequestRejected
from tests.constraints.conftest import EOS, make_vocabulary

TIME_OF_A_COMPILE = 0.3
"""Seconds of processor time after which a compile is refused; 2 in the runtime."""
LONGEST = 2.0
"""Seconds of processor time that a compile, or some masks, may take in all: nothing goes on for so
much longer without asking whether it has to stop."""
COMPARED = 0.4
"""The share of schemas that are read by the reader in Python too."""
STEPS, PAIRS = 6, 12
FORGETFUL = CompileLimits(max_states=200, max_positions=4000)
WORDS = ['"a', '": ', '", "', '{"', "true", "null", "abc", "éa", "日本", " a", "12", "]]", "kind"]


@functools.cache
def vocabularies() -> list[Vocabulary]:
    """The last one has no tokens for most bytes."""
    few: list[bytes | None] = [None, *(bytes([byte]) for byte in b'{}[]",: abcn0123')]
    large = make_vocabulary(WORDS).tokens
    symbols = [len(large) - 1, len(large) - 4]  # of words that are in strings, or close one
    made = [
        Vocabulary(large, [EOS], use_cache=False, symbols=symbols),
        Vocabulary(few, [EOS], use_cache=False),
    ]
    for one in made:
        one.prepare()
    return made


def findings(spec: wire.Constraint, rng: random.Random) -> Iterator[str]:
    try:
        yield from _tried(spec, rng)
    except Exception as error:  # noqa: BLE001  whatever it is, it is a finding
        yield f"{type(error).__name__}: {error}"


def _tried(spec: wire.Constraint, rng: random.Random) -> Iterator[str]:
    vocabulary = vocabularies()[rng.random() < 0.15]
    limits = FORGETFUL if rng.random() < 0.1 else DEFAULT_LIMITS
    begin = time.process_time()
    native = _made(spec, vocabulary, limits)
    if (taken := time.process_time() - begin) > LONGEST:
        yield f"compiling takes {taken:.1f} s"
    try:
        if isinstance(native, RegularConstraint):
            begin = time.process_time()
            yield from _walked(native, vocabulary, rng)
            if (taken := time.process_time() - begin) > LONGEST:
                yield f"{STEPS} masks take {taken:.1f} s"
        if isinstance(spec, wire.JsonSchema) and rng.random() < COMPARED:
            with mock.patch.object(FrequentSchemas, "of", return_value=None):
                plain = _made(spec, vocabulary, limits)
            yield from _compared(native, plain, rng)
    except GrammarError:  # one token needs more than there may be
        return


def _made(
    spec: wire.Constraint, vocabulary: Vocabulary, limits: CompileLimits
) -> RegularConstraint | str:
    """The constraint, or why there is none."""
    began, begin = time.perf_counter(), time.process_time()

    def check() -> None:  # the clock first: it is asked often, and the processor's time is slow
        if time.perf_counter() < began + TIME_OF_A_COMPILE:
            return
        if time.process_time() > begin + TIME_OF_A_COMPILE:
            raise CompileTooLong("too long", position=None)

    try:
        if isinstance(
            spec, wire.Grammar
        ):  # without the probe for llguidance, which has no part here
            net = regular_net(spec, vocabulary, limits, NetBuilder(limits, check))
            return RegularConstraint(Automaton(net, vocabulary, limits), vocabulary, limits)
        made = compile_constraint(spec, vocabulary, limits, check)
        return made if isinstance(made, RegularConstraint) else "of another kind"
    except NeedsLlguidance:
        return "llguidance"
    except RequestRejected as error:
        return error.message


def _walked(one: RegularConstraint, vocabulary: Vocabulary, rng: random.Random) -> Iterator[str]:
    state = one.start
    for _ in range(STEPS):
        row = one.mask(state, one.distance(state) + 1 if rng.random() < 0.3 else None)
        if not row.count:
            yield "a mask without a token"
        if row.allows(EOS) != one.is_final(state):
            yield "the end is allowed where a text is not complete, or not where it is"
        one.forced(state)
        allowed = [token for token in _tokens(row) if token != EOS]
        if not allowed:
            return
        state = one.advance(state, rng.choice(allowed))


def _tokens(row: MaskRow) -> list[int]:
    if row.ids is not None:
        return [int(token) for token in row.ids]
    return [
        int(at) for at in np.unpackbits(row.bits.view(np.uint8), bitorder="little").nonzero()[0]
    ]


def _compared(
    native: RegularConstraint | str, plain: RegularConstraint | str, rng: random.Random
) -> Iterator[str]:
    """Both readers refuse, or both take the same texts. Python's stack ends before the kernel's."""
    if "too long" in (native, plain) or (isinstance(plain, str) and "too deeply" in plain):
        return
    if isinstance(native, str) or isinstance(plain, str):
        if isinstance(native, str) != isinstance(plain, str):
            yield f"refused by one reader: {native!s:.300} / {plain!s:.300}"
        return
    one, other = native.start, plain.start
    for _ in range(PAIRS):
        moves = [byte for byte, after in enumerate(native.row(one)) if after]
        theirs = [byte for byte, after in enumerate(plain.row(other)) if after]
        if moves != theirs or native.is_final(one) != plain.is_final(other):
            yield "read differently"
            return
        if not moves:
            return
        byte = bytes([rng.choice(moves)])
        after, other_after = native.advance_bytes(one, byte), plain.advance_bytes(other, byte)
        assert after is not None, "a move leads somewhere"
        assert other_after is not None, "a move leads somewhere"
        one, other = after, other_after
