"""Inspects a constraint without a model: what it accepts, forces and allows next, and as a diagram.

`lmprog.constraint(...)` takes the constraint keywords of `gen` and compiles them as the runtime
would, over single bytes. Knows automata and vocabularies; knows no runtime process and no torch.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.constraint import Constraint, State
from lmprog.constraints.diagram import to_svg
from lmprog.constraints.token_bytes import vocabulary_of_tokenizer
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import InvalidParameter
from lmprog.lang.ops import typed
from lmprog.lang.ops.keywords import (
    CONSTRAINT_NAMES,
    ConstraintOptions,
    constraint_of,
    with_layout,
)
from lmprog.lang.ops.outlines_terms import constraint_of_term, is_term
from lmprog.lang.ops.sampling import unknown_option
from lmprog.runtime.programs.call_constraints import MAX_COMPILE_SECONDS, vocabulary_of
from lmprog.runtime.programs.compile_pool import TimeLimit, never_pause

EXAMPLE_BYTES = 160
"""An example is drawn to its end within so many bytes, or within the fewest that any instance
needs.
"""
_EOS = 256
_STOP_AT = 0.5
"""Probability with which an example ends where it may."""


@functools.cache
def _bytes() -> Vocabulary:
    """256 tokens of one byte, and end-of-sequence."""
    return Vocabulary([*(bytes([byte]) for byte in range(256)), None], [_EOS], use_cache=False)


def _compiled(asked: wire.Constraint, vocabulary: Vocabulary) -> Constraint:
    """Within the runtime's limit, so that it takes no more here and is refused with the same
    words."""
    vocabulary.prepare()  # of which the runtime has done its own before
    return compile_constraint(asked, vocabulary, check=TimeLimit(MAX_COMPILE_SECONDS, never_pause))


class Constrained:
    """One compiled constraint; create it with `lmprog.constraint`."""

    def __init__(self, asked: wire.Constraint) -> None:
        self._asked = asked
        self._constraint = _compiled(asked, _bytes())
        self._over_tokens: dict[object, tuple[Constraint, int, object]] = {}
        """The constraint over a tokenizer's tokens, how many there are, and the tokenizer, so that
        its id stays its.
        """

    @property
    def engine(self) -> str:
        """ "lmprog", or "llguidance" for the grammars that docs/constraints.md lists."""
        return self._constraint.engine

    @property
    def left_out(self) -> tuple[str, ...]:
        """What of the schema is never written, where `strict=False`; one reason each."""
        return self._constraint.left_out

    def accepts(self, text: str) -> bool:
        """Whether `text` is a complete match."""
        state = self._constraint.advance_bytes(
            self._constraint.start, text.encode(errors="surrogatepass")
        )
        return state is not None and self._constraint.is_final(state)

    def example(self, seed: int = 0) -> str:
        """A random match; printable letters are preferred."""
        constraint, rng = self._constraint, random.Random(seed)
        state = constraint.start
        left = max(EXAMPLE_BYTES, constraint.distance(state))
        text = bytearray()
        while left and not constraint.is_done(state):
            if constraint.is_final(state) and rng.random() < _STOP_AT:
                break
            byte = _drawn(constraint, state, left, rng)
            state = constraint.advance(state, byte)
            text.append(byte)
            left -= 1
        return text.decode()

    def forced_share(self, num_examples: int = 20) -> float:
        """The mean fraction of a match's bytes that the constraint forces, over examples."""
        constraint, num_forced, num_bytes = self._constraint, 0, 0
        for seed in range(num_examples):
            text, state, at = self.example(seed).encode(), constraint.start, 0
            while at < len(text):
                step = max(1, len(constraint.forced(state)))
                num_forced += step if constraint.forced(state) else 0
                after = constraint.advance_bytes(state, text[at : at + step])
                assert after is not None, "an example is an instance"
                state, at = after, at + step
            num_bytes += len(text)
        return num_forced / num_bytes if num_bytes else 0.0

    def mask(self, prefix_tokens: Sequence[int], tokenizer: Any) -> tuple[int, ...]:
        """The tokens allowed after `prefix_tokens`, ascending; end-of-sequence included in a final
        state.

        `tokenizer` is one of `lmprog.runtime.text.tokenizer`, a `tokenizers.Tokenizer`, or the path
        of a tokenizer's file. Raises ValueError if the prefix itself is not allowed.
        """
        constraint, size = self._over(tokenizer)
        state = constraint.start
        for token in prefix_tokens:
            state = constraint.advance(state, token)
        row = constraint.mask(state)
        if row.ids is not None:
            return tuple(row.ids.tolist())
        return tuple(token for token in range(size) if row.allows(token))

    def _over(self, tokenizer: Any) -> tuple[Constraint, int]:
        key: object = str(tokenizer) if isinstance(tokenizer, str | Path) else id(tokenizer)
        found = self._over_tokens.get(key)
        if found is None:
            own = hasattr(tokenizer, "token_bytes")
            vocabulary = vocabulary_of(tokenizer) if own else vocabulary_of_tokenizer(tokenizer)
            made = _compiled(self._asked, vocabulary)
            found = self._over_tokens[key] = (made, len(vocabulary), tokenizer)
        return found[0], found[1]

    def states(self, most: int = 2000) -> dict[int, dict[int, int]]:
        """At most `most` reachable states, each with its moves (byte -> state), breadth first from
        the start state 0.
        """
        return self._explored(most)[0]

    def _explored(self, most: int) -> tuple[dict[int, dict[int, int]], set[int]]:
        """The moves, and the accepting states."""
        constraint = self._constraint
        numbers = {constraint.start: 0}
        met = [constraint.start]
        moves: dict[int, dict[int, int]] = {}
        for number, state in enumerate(met):  # appended to while iterated
            if number >= most:
                break
            row = constraint.mask(state)
            moves[number] = {}
            for byte in range(256):
                if row.allows(byte):
                    after = constraint.advance(state, byte)
                    if after not in numbers:
                        numbers[after] = len(met)
                        met.append(after)
                    moves[number][byte] = numbers[after]
        return moves, {number for number in moves if constraint.is_final(met[number])}

    def dot(self, most: int = 60) -> str:
        """The first `most` states of the automaton in DOT; accepting states have a double
        circle.
        """
        moves, finals = self._labelled(most)
        lines = ["digraph constraint {", "  rankdir=LR;", '  node [shape=circle, label=""];']
        for state, labels in moves.items():
            if state in finals:
                lines.append(f"  {state} [shape=doublecircle];")
            for after, label in labels.items():
                dashed = "" if after in moves else ", style=dashed"
                lines.append(
                    f"  {state} -> {after} [label={json.dumps(label, ensure_ascii=False)}{dashed}];"
                )
        return "\n".join([*lines, "}"]) + "\n"

    def svg(self, most: int = 60) -> str:
        """The same as SVG, which needs no other program; chains without a choice are one edge."""
        moves, finals = self._labelled(most)
        return to_svg(moves, finals, 0)

    def _labelled(self, most: int) -> tuple[dict[int, dict[int, str]], set[int]]:
        """State -> next state -> label of the bytes that lead there; and the accepting states."""
        found: dict[int, dict[int, str]] = {}
        explored, finals = self._explored(most)
        for state, moves in explored.items():
            labels: dict[int, list[int]] = {}
            for byte, after in moves.items():
                labels.setdefault(after, []).append(byte)
            found[state] = {after: _ranges(label) for after, label in labels.items()}
        return found, finals


class ConstraintKeywords(ConstraintOptions, total=False):
    """The constraint keywords of `gen`, of which one is given, or a type, and the JSON layout."""

    type: object


_NAMES = (*(one for one in CONSTRAINT_NAMES if one in ConstraintKeywords.__annotations__), "type")
_FIRST = "the first argument"


def constraint(what: object = None, /, **options: Unpack[ConstraintKeywords]) -> Constrained:
    """The constraint that `gen` would use for the same keywords; exactly one of regex, schema,
    choices, grammar and type is given. A type or an Outlines term may be positional. `whitespace`
    and `order` set the layout of JSON.

    Raises RequestRejected if it is malformed, unsupported or unsatisfiable, or takes longer to
    compile than the runtime lets it.
    """
    rest: dict[str, Any] = {**options}
    given = {_FIRST: what, **{name: rest.pop(name, None) for name in _NAMES}}
    said = [name for name, value in given.items() if value is not None]
    if len(said) != 1:
        raise InvalidParameter(
            f"{' and '.join(said) or 'nothing'} was given; give one of {', '.join(_NAMES)}",
            name=" and ".join(said),
            allowed="exactly one",
        )
    name, value = said[0], given[said[0]]
    asked = constraint_of(name, value) if name in CONSTRAINT_NAMES else _of_type(value)
    asked = with_layout(asked, rest)
    if rest:
        raise unknown_option(next(iter(rest)), ConstraintKeywords.__annotations__)
    return Constrained(asked or wire.Regex("(?s:.*)"))


def _of_type(value: object) -> wire.Constraint | None:
    return constraint_of_term(value) if is_term(value) else typed.constraint_of(value)


def _drawn(constraint: Constraint, state: State, left: int, rng: random.Random) -> int:
    row = constraint.mask(state, left)
    allowed = [byte for byte in range(256) if row.allows(byte)]
    plain = [byte for byte in allowed if chr(byte).isascii() and chr(byte).isalnum()]
    ascii_bytes = [byte for byte in allowed if 32 <= byte < 127]
    for some, chance in ((plain, 0.8), (ascii_bytes, 0.95)):
        if some and rng.random() < chance:
            return rng.choice(some)
    return rng.choice(allowed)


def _ranges(found: list[int]) -> str:
    """`a-z 0x80-0xbf` for these bytes."""
    parts: list[str] = []
    first = before = found[0]
    for byte in [*found[1:], -1]:
        if byte != before + 1:
            parts.append(_shown(first) if first == before else f"{_shown(first)}-{_shown(before)}")
            first = byte
        before = byte
    return " ".join(parts)


def _shown(byte: int) -> str:
    return "␣" if byte == 32 else chr(byte) if 33 <= byte < 127 else f"0x{byte:02x}"
