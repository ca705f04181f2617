"""The interface between constraints and the runtime: protocol, mask value and compile limits.

A *constraint* is an automaton over token ids, compiled once per vocabulary and shared by all calls.
A *guide* is one of its `State`s, so forking a guide copies a reference. A constraint keeps the
states that are referenced and may discard all others, so its memory is bounded. This module knows
no automaton, tokenizer or compiler: `compiling/compiler.py` makes constraints; `regular.py` and
`compiling/llguidance_engine.py` implement them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from lmprog.errors import GrammarError

NARROW = 512
"""A mask that allows at most this many tokens carries their ids beside its bits."""


class MaskRow:
    """The tokens allowed next. Shared and read-only: copy before modifying.

    `bits` has ceil(vocabulary / 32) words; token t is bit t % 32 of word t // 32. `ids` are the
    same tokens in ascending order if there are at most `NARROW` of them, else None.
    """

    __slots__ = ("__weakref__", "_bits", "count", "ids", "num_words")

    def __init__(self, bits: NDArray[np.uint32], ids: NDArray[np.int32] | None, count: int) -> None:
        self._bits: NDArray[np.uint32] | None = bits
        self.ids = ids
        self.count = count
        self.num_words = len(bits)

    @classmethod
    def narrow(cls, ids: NDArray[np.int32], num_words: int) -> MaskRow:
        """Of few tokens, in ascending order. Its bits are made when they are first asked for: most
        never are.
        """
        made = cls.__new__(cls)
        made._bits, made.ids, made.count, made.num_words = None, ids, len(ids), num_words
        return made

    @property
    def bits(self) -> NDArray[np.uint32]:
        if self._bits is None:
            assert self.ids is not None, "a row has its bits or its ids"
            self._bits = bit_row(self.ids, self.num_words)
            self._bits.flags.writeable = False
        return self._bits

    @property
    def tokens(self) -> NDArray[np.int32]:
        """All of them, in ascending order."""
        if self.ids is not None:
            return self.ids
        is_allowed = np.unpackbits(self.bits.view(np.uint8), bitorder="little")
        return np.flatnonzero(is_allowed).astype(np.int32)

    def allows(self, token: int) -> bool:
        if self.ids is not None:
            at = int(self.ids.searchsorted(token))
            return at < self.count and int(self.ids[at]) == token
        bits = self.bits
        return token >> 5 < len(bits) and bool(int(bits[token >> 5]) >> (token & 31) & 1)


def bit_row(ids: Sequence[int] | NDArray[np.int32], num_words: int) -> NDArray[np.uint32]:
    row = np.zeros(num_words, np.uint32)
    where = np.asarray(ids, np.int64)
    np.bitwise_or.at(
        row, where >> 5, (np.uint32(1) << (where & 31).astype(np.uint32)).astype(np.uint32)
    )
    return row


Check: TypeAlias = Callable[[], None]
"""Called again and again while a constraint is compiled. It may wait, and raises where compiling
has to stop."""


class CompileTooLong(GrammarError):
    """What a `Check` raises: nothing goes on without the rest, whatever may be left out."""


def never_stop() -> None:
    """The check of a compile without a limit."""


class Doubt(NamedTuple):
    """A token that may begin within forced bytes and end beyond them."""

    begin: int
    size: int
    """Bytes of the token; 0: there are too many to look at, or the last one."""
    texts: tuple[bytes, ...]
    """Some of those that may begin there, of which each starts with the token."""


class Doubts:
    """All that there are in a state, by their beginnings; the last one has what may follow."""

    __slots__ = ("all", "certain")

    def __init__(self, found: tuple[Doubt, ...]) -> None:
        self.all = found
        self.certain: dict[int, tuple[list[int], int]] = {}
        """By places far before the first of them: the tokens from there on, and how many of these
        are certain."""


class State:
    """A guide's position in a constraint. Valid as long as it is referenced.

    Opaque to all but the constraint that made it, which caches results about the state here. While
    a state is referenced, there is only one object for it.
    """

    __slots__ = (
        "__weakref__",
        "done",
        "doubts",
        "final",
        "forced",
        "forced_tokens",
        "number",
        "row",
        "worst",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        """The constraint's own name of it, which changes when the constraint forgets states."""
        self.row: MaskRow | None = None
        self.worst = 0
        """With `row`: the highest distance after a token that it allows."""
        self.forced: bytes | None = None
        self.doubts: Doubts | None = None
        self.final: bool | None = None
        self.done: bool | None = None
        self.forced_tokens: dict[str, tuple[int, ...]] | None = None
        """By the text before it; see `forced.forced_tokens`."""


NO_STATE = State(0)
"""The guide of a generation without a constraint."""


class Constraint(Protocol):
    """Logically immutable and shared; states are created lazily.

    Not thread-safe: one owner, the runtime's loop. Any method may raise
    `GrammarError` when a single step exceeds the limits; only the call that owns the guide fails.
    """

    left_out: tuple[str, ...]
    """What of a schema that need not be enforced exactly it does not take; one reason each."""

    @property
    def engine(self) -> str:
        """ "lmprog" or "llguidance"."""
        ...

    @property
    def start(self) -> State: ...

    def mask(self, state: State, budget: int | None = None) -> MaskRow:
        """The tokens allowed in `state`; the end-of-sequence bits are set exactly in accepting
        states.

        `budget` is the number of tokens that may still be generated, this one included
        (end-of-sequence not counted): only tokens after which acceptance is reachable in `budget -
        1` more are allowed. As long as `budget >= distance(state)` the row is never empty.
        """
        ...

    def advance(self, state: State, token: int) -> State:
        """The state after `token`. Raises ValueError for a token outside `mask(state)`, and for
        end-of-sequence.
        """
        ...

    def forced(self, state: State) -> bytes:
        """The common prefix of all continuations, as bytes; b"" if there is a choice or the state
        is final.
        """
        ...

    def is_final(self, state: State) -> bool:
        """Whether the text so far is a complete match."""
        ...

    def is_done(self, state: State) -> bool:
        """Whether the state is final and has no continuation."""
        ...

    def distance(self, state: State) -> int:
        """An upper bound on the number of tokens to acceptance, end-of-sequence not counted.

        Consistent with `mask`: some allowed token lowers it by one.
        """
        ...

    def advance_bytes(self, state: State, text: bytes) -> State | None:
        """The state after these bytes, or None if they are not allowed."""
        ...


class MaskWork(Protocol):
    """Where masks are made that take too long for a step of the runtime."""

    left: int
    """The work that masks may still take in this step, in steps of five to ten nanoseconds."""

    def begin(self, job: Callable[[], None]) -> bool:
        """Runs a job in another thread. False: too many wait there already."""
        ...


class Forcible(Protocol):
    """A constraint that knows by itself what tokens of a forced text depend on."""

    def doubts(self, state: State) -> Doubts:
        """What may stand across the end of `forced(state)`, and behind it."""
        ...

    def follow(self, state: State, tokens: Sequence[int], left: int) -> tuple[int, State]:
        """As `followed`, at once."""
        ...


def forcible(constraint: Constraint) -> Forcible | None:
    """The constraint, where it is that."""
    return cast(Forcible, constraint) if hasattr(constraint, "doubts") else None


def followed(
    constraint: Constraint, state: State, tokens: Sequence[int], left: int
) -> tuple[int, State]:
    """How many of the tokens may be taken so that the rest fits into `left` tokens with them, and
    the state behind them.
    """
    at_once = forcible(constraint)
    if at_once is not None:
        return at_once.follow(state, tokens, left)
    return one_by_one(constraint, state, tokens, left)


def one_by_one(
    constraint: Constraint, state: State, tokens: Sequence[int], left: int
) -> tuple[int, State]:
    """The same for any constraint."""
    for taken, token in enumerate(tokens):
        after = constraint.advance(state, token)
        if constraint.distance(after) >= left - taken:
            return taken, state
        state = after
    return len(tokens), state


class LateMasks(Protocol):
    """A constraint whose masks may be late. The texts are the same, however late they are."""

    work: MaskWork | None
    """None: `mask` makes them all, and all are ready."""

    def is_ready(self, state: State, budget: int | None = None) -> bool:
        """Whether `mask` has the mask at hand, perhaps because it was made now. Else it is being
        made in another thread, or waits for that: ask again in the next step.
        """
        ...


def with_late_masks(constraint: Constraint) -> LateMasks | None:
    """The constraint, where its masks may be late."""
    return cast(LateMasks, constraint) if hasattr(constraint, "is_ready") else None


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """Limits for untrusted patterns; exceeding one is an error instead of a slow process.

    The last four bound what a constraint holds at a time (unreferenced states are discarded beyond
    them) and what one mask or one token may add.
    """

    max_pattern_len: int = 65_536
    max_repeat: int = 1_000_000
    max_nesting: int = 100
    max_nodes: int = 400_000
    max_states: int = 100_000
    max_positions: int = 2_000_000
    max_row_bytes: int = 64 << 20
    max_mask_bytes: int = 64 << 20


def too_large(limits: CompileLimits) -> GrammarError:
    return GrammarError(
        "one token of this generation needs too much of its constraint: more than "
        f"{limits.max_states:,} states or {limits.max_positions:,} positions; other generations "
        "are not affected. Use smaller repetition counts or fewer alternatives.",
        position=None,
    )
