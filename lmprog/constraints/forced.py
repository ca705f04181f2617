"""Tokens for forced bytes, which can be appended without running the model.

Appending is correct only if the tokens are those that the tokenizer would produce for the whole
text, whatever follows. Uncertain is every place where an allowed token could start within the
forced bytes and extend beyond them. For each such token, the text up to its end and somewhat
further is encoded; if the tokenizer really produces the token there, only the tokens before it are
kept. For byte-pair encodings this is exact except for a pre-tokenizer's look-ahead, since the text
before the token's end is encoded as if nothing followed. For all other tokenizers, the remaining
tokens are compared with encodings of the text with some possible continuations.

Pure functions of a constraint, a vocabulary and the tokenizer's encoding. Knows no model and no
branch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from lmprog.constraints.constraint import Constraint, State
from lmprog.constraints.vocabulary import Vocabulary

Encode = Callable[[str], Sequence[int]]
"""A tokenizer's canonical encoding of a text, without special tokens."""

_MAX_CANDIDATES = 512
_MAX_TRIED = 64
"""Tokens tried that begin at one place, and in all of them twice as many."""
_NUM_CONTINUATIONS = 12
_FURTHER_BYTES = 40


def forced_tokens(
    constraint: Constraint, state: State, vocabulary: Vocabulary, encode: Encode, before: str = ""
) -> tuple[int, ...]:
    """The tokens to append in `state`, after a text that ends with `before`; () if none is certain.

    `before` is the end of the existing text. It starts at a token boundary and is long enough that
    later tokens do not depend on earlier text (the text since the last line break, for instance, or
    the last few words).
    """
    forced = constraint.forced(state)
    if not forced:
        return ()
    text = _whole_characters(forced)
    if not text:
        return ()
    standing = list(encode(before))
    tokens = list(encode(before + text))
    if tokens[: len(standing)] != standing:
        return ()
    tokens = tokens[len(standing) :]
    end = constraint.advance_bytes(state, forced)
    assert end is not None, "forced bytes are always allowed"
    if not constraint.is_done(end) or len(text.encode()) < len(forced):
        doubts = _Doubts(
            constraint,
            state,
            vocabulary,
            forced,
            lambda more: list(encode(before + more)),
            standing,
        )
        for other in doubts.encodings():
            tokens = tokens[: _num_equal(tokens, other)]
            if not tokens:
                return ()
        for continuation in _continuations(constraint, end, vocabulary):
            other = list(encode(before + text + continuation))[len(standing) :]
            tokens = tokens[: _num_equal(tokens, other)]
    return tuple(tokens) if _spells(tokens, forced, vocabulary) else ()


class _Doubts:
    """The tokens that may start within the forced bytes and extend beyond them."""

    def __init__(
        self,
        constraint: Constraint,
        state: State,
        vocabulary: Vocabulary,
        forced: bytes,
        encode: Callable[[str], list[int]],
        standing: list[int],
    ) -> None:
        """`encode` takes the text that follows `before` and returns the tokens of both."""
        self._constraint = constraint
        self._state = state
        self._vocabulary = vocabulary
        self._forced = forced
        self._encode = encode
        self._standing = standing
        self._end = self._after(forced)

    def encodings(self) -> Iterator[list[int]]:
        """Encodings of texts that start with the forced bytes, or part of them, up to
        such a token.
        """
        left = 2 * _MAX_TRIED
        for begin in range(max(0, len(self._forced) - self._vocabulary.longest), len(self._forced)):
            most = min(left, _MAX_TRIED)
            candidates = self._candidates(begin, most)
            if candidates is None or len(candidates) > most:
                yield self._up_to(begin)  # too many candidates: be conservative
                continue
            left -= len(candidates)
            for token in candidates:
                found = self._with(token, begin)
                if found is not None:
                    yield found

    def _candidates(self, begin: int, most: int) -> list[bytes] | None:
        """The candidates that start at `begin`; perhaps None if there are more than `most`."""
        suffix, ordered = self._forced[begin:], self._vocabulary.ordered
        first = bisect_left(ordered, suffix)
        found: list[bytes] = []
        for i in range(first, min(len(ordered), first + _MAX_CANDIDATES)):
            token = ordered[i]
            if not token.startswith(suffix):
                return found
            if (
                len(token) > len(suffix)
                and self._constraint.advance_bytes(self._end, token[len(suffix) :]) is not None
            ):
                found.append(token)
                if len(found) > most:
                    return None
        if first + _MAX_CANDIDATES >= len(ordered):
            return found
        row = self._constraint.mask(self._after(self._forced[:begin]))
        if row.ids is None:
            return None
        texts = {self._vocabulary.bytes_of(token) or b"" for token in row.ids.tolist()}
        return sorted(text for text in texts if len(text) > len(suffix))

    def _after(self, text: bytes) -> State:
        state = self._constraint.advance_bytes(self._state, text)
        assert state is not None, "forced bytes, and a candidate behind them, are allowed"
        return state

    def _up_to(self, begin: int) -> list[int]:
        """The tokens as if the text ended there."""
        return self._encode(_whole_characters(self._forced[:begin]))[len(self._standing) :]

    def _with(self, token: bytes, begin: int) -> list[int] | None:
        """Tokens that include this one at its place; None if the tokenizer never produces
        it there.
        """
        spelled = self._forced[:begin] + token
        after = self._after(spelled)
        further = self._constraint.forced(after)[:_FURTHER_BYTES]
        some = [] if further else _continuations(self._constraint, after, self._vocabulary)[::4]
        texts = [
            _whole_characters(spelled + more)
            for more in (b"", further, *(text.encode() for text in some))
        ]
        texts = [text for text in dict.fromkeys(texts) if len(text.encode()) >= len(spelled)]
        if not texts:  # it ends within a character, and the next bytes are unknown
            return self._up_to(begin)
        for text in texts:
            found = self._encode(text)
            if found[: len(self._standing)] != self._standing:
                return self._up_to(begin)
            found = found[len(self._standing) :]
            if self._stands(token, found, begin):
                return found
        return None

    def _stands(self, token: bytes, tokens: Sequence[int], begin: int) -> bool:
        at = 0
        for one in tokens:
            text = self._vocabulary.bytes_of(one) or b""
            if at >= begin:
                return at == begin and text == token
            at += len(text)
        return False


def _whole_characters(data: bytes) -> str:
    """The text without an incomplete last character; "" if it is not a prefix of valid UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        is_cut = error.end == len(data) and error.reason == "unexpected end of data"
        return data[: error.start].decode() if is_cut else ""


def _continuations(constraint: Constraint, end: State, vocabulary: Vocabulary) -> list[str]:
    """Some possible continuations: the forced one, and a sample of allowed tokens."""
    row = constraint.mask(end)
    if row.ids is not None:
        step = max(1, len(row.ids) // _NUM_CONTINUATIONS)
        ids = row.ids[::step].tolist()
    else:
        allowed = [
            token
            for token in range(0, len(vocabulary), max(1, len(vocabulary) // 997))
            if row.allows(token)
        ]
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
    return next(
        (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
        min(len(left), len(right)),
    )


def _spells(tokens: Sequence[int], forced: bytes, vocabulary: Vocabulary) -> bool:
    """Whether the tokens spell the forced bytes: a normalising tokenizer may encode other bytes."""
    return forced.startswith(b"".join(vocabulary.bytes_of(token) or b"\0?" for token in tokens))
