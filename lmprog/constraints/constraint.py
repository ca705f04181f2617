"""What the runtime sees of a constraint: the protocol, the mask value, the specifications that can
be compiled.

A *constraint* is an automaton over token ids, compiled once for one vocabulary and shared by all
calls; a *guide* is an integer state in it, so forking a guide is copying an integer. This module
knows no automaton, no tokenizer and no compiler: `compiler.py` makes constraints, `regular.py` and
`llguidance_engine.py` are the two kinds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

NARROW = 512
"""A mask that allows at most this many tokens carries their ids beside its bits."""

Whitespace: TypeAlias = Literal["fixed", "compact", "indented", "flexible"]
Order: TypeAlias = Literal["declared", "any"]


@dataclass(frozen=True, slots=True, eq=False)
class MaskRow:
    """The tokens allowed next. Shared and read-only: whoever wants to change it copies it.

    `bits` has ceil(vocabulary / 32) words; token t is bit t % 32 of word t // 32. `ids` are the
    same tokens in ascending order when there are at most `NARROW` of them, else None.
    """

    bits: NDArray[np.uint32]
    ids: NDArray[np.int32] | None
    count: int

    def allows(self, token: int) -> bool:
        return token >> 5 < len(self.bits) and bool(int(self.bits[token >> 5]) >> (token & 31) & 1)


class Constraint(Protocol):
    """Immutable in meaning and shared; states are small integers handed out as they are met.

    Not thread-safe while masks are computed: one owner, the runtime's loop. Any method may raise
    `GrammarError` when an automaton that is built as it goes exceeds its limits; the call that owns
    the guide fails with it.
    """

    @property
    def engine(self) -> str:
        """ "lmprog" or "llguidance"."""
        ...

    @property
    def start(self) -> int: ...

    def mask(self, state: int, budget: int | None = None) -> MaskRow:
        """The tokens allowed in `state`; the end-of-sequence bits are set exactly in accepting
        states.

        `budget` is the number of tokens that may still be generated, this one included
        (end-of-sequence not counted): only tokens after which acceptance is reachable in `budget -
        1` more are allowed. As long as `budget >= distance(state)` the row is never empty.
        """
        ...

    def advance(self, state: int, token: int) -> int:
        """The state after `token`. Raises ValueError for a token that `mask(state)` forbids,
        end-of-sequence too.
        """
        ...

    def forced(self, state: int) -> bytes:
        """The bytes that every continuation starts with (b"" where there is a choice, or none is
        needed).
        """
        ...

    def is_final(self, state: int) -> bool:
        """What was read so far is a whole match."""
        ...

    def is_done(self, state: int) -> bool:
        """Final, and nothing may follow."""
        ...

    def distance(self, state: int) -> int:
        """A number of tokens, end-of-sequence not counted, within which acceptance is certainly
        reachable.

        An upper bound of the shortest way, consistent with `mask`: some allowed token lowers it by
        one.
        """
        ...

    def advance_bytes(self, state: int, text: bytes) -> int | None:
        """The state after these bytes, or None where they are not allowed."""
        ...


@dataclass(frozen=True, slots=True)
class RegexSpec:
    """A regular expression in the dialect of `pattern.py`; the whole text has to match."""

    pattern: str


@dataclass(frozen=True, slots=True)
class JsonSchemaSpec:
    """`text` is the JSON text of the schema (its order of properties is the order of
    generation).
    """

    text: str
    whitespace: Whitespace = "fixed"
    order: Order = "declared"


@dataclass(frozen=True, slots=True)
class ChoicesSpec:
    """Exactly one of these texts."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A context-free grammar, Lark or GBNF."""

    text: str


@dataclass(frozen=True, slots=True)
class SubstringSpec:
    """Any contiguous run of the document's words, at least one word long."""

    document: str


Spec: TypeAlias = RegexSpec | JsonSchemaSpec | ChoicesSpec | GrammarSpec | SubstringSpec


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """What a stranger's pattern may cost. Exceeding one is a refusal, never a slow process."""

    max_pattern_len: int = 65_536
    max_repeat: int = 1_000_000
    max_nesting: int = 100
    max_nodes: int = 400_000
    max_states: int = 100_000
    max_positions: int = 2_000_000
    max_row_bytes: int = 64 << 20
    max_mask_bytes: int = 64 << 20
