"""Forced bytes -> the tokens that may be appended without asking the model, or none.

Appending is right only if the tokens are those that the tokenizer would have made of the whole text, whatever comes
next. A token at the end of the forced bytes is in doubt while some longer allowed token could swallow it. So the
tokens from the earliest byte on at which an allowed token begins that reaches beyond the forced bytes are held back;
and where that byte lies inside a token, the token before it too, since its boundaries may move. What is left is then
compared with the tokens of the text with each of some possible continuations.

Pure functions of a constraint, a vocabulary and the tokenizer's own encoding. Knows no model and no branch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from lmprog.runtime.fsm.constraint import Constraint
from lmprog.runtime.fsm.vocabulary import Vocabulary

Encode = Callable[[str], Sequence[int]]
"""A tokenizer's canonical encoding of a text, without special tokens."""

_MAX_CANDIDATES = 512
_NUM_CONTINUATIONS = 12


def forced_tokens(
    constraint: Constraint, state: int, vocabulary: Vocabulary, encode: Encode, before: str = ""
) -> tuple[int, ...]:
    """The tokens to append in `state`, after a text that ends with `before`; () where nothing is certain.

    `before` is the end of what stands already, at a token boundary of it and long enough that the tokens after it do
    not depend on what lies further left (the text since the last line break, say, or the last few words).
    """
    forced = constraint.forced(state)
    if not forced:
        return ()
    end = constraint.advance_bytes(state, forced)
    assert end is not None, "forced bytes are always allowed"
    text = forced.decode(errors="ignore") if _is_prefix_of_text(forced) else ""
    standing = list(encode(before))
    tokens = list(encode(before + text))
    if not text or tokens[: len(standing)] != standing:
        return ()
    tokens = tokens[len(standing) :]
    if not constraint.is_done(end) or len(text.encode()) < len(forced):
        tokens = tokens[: _num_certain(constraint, end, forced, tokens, vocabulary)]
        for continuation in _continuations(constraint, end, vocabulary):
            if not tokens:
                break
            other = list(encode(before + text + continuation))[len(standing) :]
            tokens = tokens[: _num_equal(tokens, other)]
    return tuple(tokens) if _spells(tokens, forced, vocabulary) else ()


def _is_prefix_of_text(forced: bytes) -> bool:
    """Whether only the last character may be cut off."""
    try:
        forced.decode()
    except UnicodeDecodeError as error:
        return error.end == len(forced) and error.reason == "unexpected end of data"
    return True


def _num_certain(constraint: Constraint, end: int, forced: bytes, tokens: Sequence[int], vocabulary: Vocabulary) -> int:
    """How many of the tokens end before the doubtful part."""
    doubtful = len(forced)
    for begin in range(max(0, len(forced) - vocabulary.longest), len(forced)):
        if _reaches_beyond(constraint, end, forced[begin:], vocabulary):
            doubtful = begin
            break
    lengths = [len(vocabulary.bytes_of(token) or b"") for token in tokens]
    sure, total = len(tokens), sum(lengths)
    while sure and total > doubtful:
        sure -= 1
        total -= lengths[sure]
    return sure - 1 if sure and total < doubtful else sure


def _reaches_beyond(constraint: Constraint, end: int, suffix: bytes, vocabulary: Vocabulary) -> bool:
    """Whether some token starts with `suffix`, goes on, and goes on as the constraint allows."""
    ordered = vocabulary.ordered
    first = bisect_left(ordered, suffix)
    for i in range(first, len(ordered)):
        token = ordered[i]
        if not token.startswith(suffix):
            return False
        if i - first >= _MAX_CANDIDATES:
            return True  # too many to look at: rather hold back than be wrong
        if len(token) > len(suffix) and constraint.advance_bytes(end, token[len(suffix) :]) is not None:
            return True
    return False


def _continuations(constraint: Constraint, end: int, vocabulary: Vocabulary) -> list[str]:
    """Some texts that may follow: the forced way on, and a spread of allowed tokens."""
    row = constraint.mask(end)
    if row.ids is not None:
        step = max(1, len(row.ids) // _NUM_CONTINUATIONS)
        ids = row.ids[::step].tolist()
    else:
        allowed = [token for token in range(0, len(vocabulary), max(1, len(vocabulary) // 997)) if row.allows(token)]
        ids = allowed[:: max(1, len(allowed) // _NUM_CONTINUATIONS)]
    texts = [vocabulary.bytes_of(token) or b"" for token in ids]
    return [text.decode() for text in texts if text and _is_text(text)]


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _num_equal(left: Sequence[int], right: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _spells(tokens: Sequence[int], forced: bytes, vocabulary: Vocabulary) -> bool:
    """A tokenizer that normalises text may encode other bytes than it was given."""
    return forced.startswith(b"".join(vocabulary.bytes_of(token) or b"\0?" for token in tokens))
