"""A constraint looked at by itself, without a model: does it take a text, an example, what is forced, a drawing.

Works on constraints compiled for any vocabulary; `byte_vocabulary()` is one that needs no tokenizer. Examples prefer
letters and short texts, so that people can read them. Knows the constraint's protocol; builds nothing.
"""

from __future__ import annotations

import functools
import random

from lmprog.errors import NotSupported
from lmprog.runtime.fsm.constraint import Constraint
from lmprog.runtime.fsm.regular import RegularConstraint
from lmprog.runtime.fsm.vocabulary import Vocabulary

_EXAMPLE_BYTES = 24
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789 ")


@functools.cache
def byte_vocabulary() -> Vocabulary:
    """End-of-sequence as token 0, and one token per byte."""
    return Vocabulary([None, *(bytes([byte]) for byte in range(256))], [0], use_cache=False)


def accepts(constraint: Constraint, text: str) -> bool:
    """Whether the whole text is a match. Lone surrogates are in no text."""
    state = constraint.advance_bytes(constraint.start, text.encode(errors="surrogatepass"))
    return state is not None and constraint.is_final(state)


def example(constraint: Constraint, vocabulary: Vocabulary, seed: int = 0) -> str:
    """A text that matches: a random way to acceptance, a few bytes longer than the shortest known."""
    rng = random.Random(seed)
    state, out = constraint.start, bytearray()
    for left in range(constraint.distance(state) + _EXAMPLE_BYTES, 0, -1):
        row = constraint.mask(state, left)
        ids = row.ids.tolist() if row.ids is not None else [t for t in range(len(vocabulary)) if row.allows(t)]
        moves = [token for token in ids if vocabulary.bytes_of(token)]
        if not moves or (constraint.is_final(state) and rng.random() < 0.2):
            break
        plain = [token for token in moves if _PLAIN.issuperset(vocabulary.bytes_of(token) or b"\0")]
        token = rng.choice(plain if plain and rng.random() < 0.9 else moves)
        out += vocabulary.bytes_of(token) or b""
        state = constraint.advance(state, token)
    return out.decode()


def forced_share(constraint: Constraint, vocabulary: Vocabulary, samples: int = 8) -> float:
    """Which part of the bytes of some examples the constraint leaves no choice about."""
    forced = total = 0
    for seed in range(samples):
        text = example(constraint, vocabulary, seed).encode()
        total += len(text)
        state: int | None = constraint.start
        at = 0
        while at < len(text) and state is not None:
            known = constraint.forced(state)
            forced += len(known)
            step = known or text[at : at + 1]
            at += len(step)
            state = constraint.advance_bytes(state, step)
    return forced / total if total else 0.0


def drawing(constraint: Constraint, max_states: int = 40) -> str:
    """The automaton as DOT, its first states breadth first. Raises NotSupported for an engine that has no states."""
    if not isinstance(constraint, RegularConstraint):
        raise NotSupported(f"an automaton of the engine {constraint.engine} cannot be drawn")
    lines = ["digraph constraint {", "  rankdir=LR;", '  node [shape=circle, label=""];']
    queue, known = [constraint.start], {constraint.start}
    for count, state in enumerate(queue):  # grows while it is read
        if count >= max_states:
            lines.append(f'  {state} [shape=plaintext, label="..."];')
            continue
        lines.append(f"  {state} [shape={'doublecircle' if constraint.is_final(state) else 'circle'}];")
        labels: dict[int, list[str]] = {}
        for low, high, after in constraint.moves(state):
            labels.setdefault(after, []).append(_byte_range(low, high))
            if after not in known:
                known.add(after)
                queue.append(after)
        lines += [f'  {state} -> {after} [label="{" ".join(parts)}"];' for after, parts in labels.items()]
    return "\n".join([*lines, "}"])


def _byte_range(low: int, high: int) -> str:
    first, last = _byte_name(low), _byte_name(high)
    return first if low == high else f"{first}-{last}"


def _byte_name(byte: int) -> str:
    """As DOT shows it inside a quoted label."""
    if byte in b'"\\':
        return "\\" + chr(byte)
    return chr(byte) if 0x21 <= byte <= 0x7E else f"{byte:02X}"
