"""Tokens for forced bytes, which can be appended without running the model.

Appending is correct only if the tokens are those that the tokenizer would produce for the whole
text, whatever follows. Uncertain is every place where an allowed token could start within the
forced bytes and extend beyond them. For each such place, texts that go on with such a token are
encoded; if the tokenizer really produces it there, only the tokens before it are kept. For
byte-pair encodings this is exact except for a pre-tokenizer's look-ahead, since the text before the
token's end is encoded as if nothing followed. For all other tokenizers, the remaining tokens are
compared with encodings of the text with some possible continuations.

The constraint finds such tokens and texts, once for a state; what is encoded is bounded by a count,
so that the tokens never depend on time. Pure functions of a constraint, a vocabulary and the
tokenizer's encoding. Knows no model and no branch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from lmprog.constraints.constraint import Constraint, Doubt, Doubts, State, forcible
from lmprog.constraints.vocabulary import Vocabulary

Encode = Callable[[str], Sequence[int]]
"""A tokenizer's canonical encoding of a text, without special tokens."""

CONTEXT_TOKENS = 12
"""Tokens before a text with which it is encoded, as it would be in its place."""
_MOST_ENCODED = 48
"""Texts that go on; beyond, all tokens that may stand across the end count as if they did."""


def forced_tokens(
    constraint: Constraint, state: State, vocabulary: Vocabulary, encode: Encode, before: str = ""
) -> tuple[int, ...]:
    """The tokens to append in `state`, after a text that ends with `before`; () if none is certain.

    `before` is the end of the existing text. It starts at a token boundary and is long enough that
    later tokens do not depend on earlier text (the text since the last line break, for instance, or
    the last few words).
    """
    forced = constraint.forced(state)
    text = _whole_characters(forced)
    if not text:
        return ()
    standing = list(encode(before))
    tokens = list(encode(before + text))
    if tokens[: len(standing)] != standing:
        return ()
    tokens = tokens[len(standing) :]
    pieces = [vocabulary.bytes_of(token) or b"\0?" for token in tokens]
    at_once = forcible(constraint)
    if at_once is not None:
        doubts = at_once.doubts(state)
    else:
        doubts = _unasked(constraint, state, forced, vocabulary)
    spelled = [0, *accumulate(map(len, pieces))]
    skipped = bisect_right(spelled, doubts.all[0].begin) - 1 - CONTEXT_TOKENS
    num: int | None = None
    if skipped > 0 and len(text) == spelled[-1]:  # what stands before makes no difference there
        begin = spelled[skipped]
        known = doubts.certain.get(begin)
        if known is None:
            own = list(encode(text[begin:]))
            found = _num_certain(own, doubts, forced, begin, "", encode, vocabulary)
            known = doubts.certain[begin] = own, found
        if known[0] == tokens[skipped:]:
            num = skipped + known[1]
    if num is None:
        num = _num_certain(tokens, doubts, forced, 0, before, encode, vocabulary)
    # a normalising tokenizer may encode other bytes
    return tuple(tokens[:num]) if forced.startswith(b"".join(pieces[:num])) else ()


def without_symbols(
    constraint: Constraint, state: State, tokens: tuple[int, ...], vocabulary: Vocabulary
) -> tuple[int, ...]:
    """Those before the first that means something else than its text and has no place there."""
    if vocabulary.symbol_set.isdisjoint(tokens):
        return tokens
    for number, token in enumerate(tokens):
        if token in vocabulary.symbol_set and not constraint.mask(state).allows(token):
            return tokens[:number]
        state = constraint.advance(state, token)
    return tokens


def _num_certain(
    tokens: Sequence[int],
    doubts: Doubts,
    forced: bytes,
    at: int,
    before: str,
    encode: Encode,
    vocabulary: Vocabulary,
) -> int:
    """How many of the tokens are certain, which spell the forced bytes from `at` on."""
    num, left, settled = len(tokens), _MOST_ENCODED, -1
    standing = list(encode(before))
    for doubt in doubts.all:
        if doubt.begin == settled:
            continue
        text, end, size = forced[at : doubt.begin], doubt.begin - at, doubt.size
        found = [_whole_characters(text + more) for more in doubt.texts]
        texts = [one for one in found if len(one.encode()) >= end + size]
        if doubt is not doubts.all[-1] and (not texts or len(texts) > left):
            texts, size, settled = [_whole_characters(text)], 0, doubt.begin  # as if it ended there
        for one in texts:
            left -= 1
            others = list(encode(before + one))
            if others[: len(standing)] != standing:
                return 0
            others = others[len(standing) :]
            if not size or _stands(others, end, size, vocabulary):
                num = _num_equal(tokens[:num], others)
                if not num:
                    return 0
                if size:  # of all that stand there, the tokens before are the same
                    settled = doubt.begin
                    break
    return num


def _stands(tokens: Sequence[int], begin: int, size: int, vocabulary: Vocabulary) -> bool:
    """Whether one of the tokens begins there and has so many bytes."""
    at = 0
    for one in tokens:
        length = len(vocabulary.bytes_of(one) or b"")
        if at >= begin:
            return at == begin and length == size
        at += length
    return False


def _unasked(constraint: Constraint, state: State, forced: bytes, vocabulary: Vocabulary) -> Doubts:
    """For a constraint that tells of none: wherever any longer token may begin."""
    ordered, found = vocabulary.ordered, []
    end = constraint.advance_bytes(state, forced)
    if end is None or not constraint.is_done(end):
        for begin in range(max(0, len(forced) - vocabulary.longest), len(forced)):
            place = bisect_right(ordered, forced[begin:])
            if place < len(ordered) and ordered[place].startswith(forced[begin:]):
                found.append(Doubt(begin, 0, ()))
    return Doubts((*found, Doubt(len(forced), 0, ())))


def _whole_characters(data: bytes) -> str:
    """The text without an incomplete last character; "" if it is not a prefix of valid UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        is_cut = error.end == len(data) and error.reason == "unexpected end of data"
        return data[: error.start].decode() if is_cut else ""


def _num_equal(left: Sequence[int], right: Sequence[int]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
        min(len(left), len(right)),
    )
