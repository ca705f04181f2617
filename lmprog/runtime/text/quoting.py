"""Quoted text: text of users never becomes a special token, whatever it spells.

A text has quoted spans, and the name of a special token counts only wholly outside of them. The
text is still tokenised as one piece, so nothing changes for texts that spell no special token.
Where one is spelled in a quoted span, the special tokens outside get secret names, and the text is
encoded by a copy of the tokenizer that knows only those names.

Knows the tokenizers library; does not know which text is quoted.
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

import tokenizers

from lmprog.errors import NotSupported

Span = tuple[int, int]
"""Begin and end, in characters."""


LONG = 16_384
"""Characters of a text whose encoding takes so long that others must be able to compute."""


def encoding_of(tokenizer: tokenizers.Tokenizer, text: str) -> tokenizers.Encoding:
    """Without prefix and suffix. While a long text is encoded, other threads of Python run: the
    library lets them only where it encodes several texts.
    """
    if len(text) > LONG:
        return tokenizer.encode_batch([text], add_special_tokens=False)[0]
    return tokenizer.encode(text, add_special_tokens=False)


def names_pattern(names: Sequence[str]) -> re.Pattern[str] | None:
    """Matches any of `names`, the longest first; None without names."""
    longest_first = sorted(filter(None, names), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def joined(spans: Sequence[Span], span: Span) -> tuple[Span, ...]:
    """`spans` with one after them. Touching spans become one; empty ones are left out."""
    if span[0] >= span[1]:
        return tuple(spans)
    if spans and spans[-1][1] >= span[0]:
        return (*spans[:-1], (spans[-1][0], span[1]))
    return (*spans, span)


def split_spans(spans: Sequence[Span], at: int) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """The spans of both parts of a text that is cut at `at`."""
    first = tuple((begin, min(end, at)) for begin, end in spans if begin < at)
    return first, tuple((max(begin, at) - at, end - at) for begin, end in spans if end > at)


def touches(spans: Sequence[Span], begin: int, end: int) -> bool:
    """Whether a character of [begin, end) is quoted. `spans` are ordered and do not touch."""
    at = bisect_right(spans, (begin, begin)) - 1
    if at >= 0 and spans[at][1] > begin:
        return True
    return at + 1 < len(spans) and spans[at + 1][0] < end


def unquoted_matches(
    pattern: re.Pattern[str], text: str, quoted: Sequence[Span]
) -> Iterator[re.Match[str]]:
    """The matches wholly outside the quoted spans."""
    at = 0
    for begin, end in (*quoted, (len(text), len(text))):
        yield from pattern.finditer(text, at, begin)
        at = end


class Quoting:
    """Encodes texts with quoted spans."""

    def __init__(
        self,
        at_start: tokenizers.Tokenizer,
        later: tokenizers.Tokenizer,
        special: Mapping[int, str],
        unknown: str,
    ) -> None:
        """The tokenizers are for texts at the start of a sequence and for later ones. `special` are
        the special tokens and their names, `unknown` the name of the token for unknown characters.
        """
        self._tokenizers = (later, at_start)
        self._special = special
        self._unknown = unknown
        self._quoters: dict[bool, _Quoter] = {}

    def encode(self, text: str, quoted: Sequence[Span], start: bool) -> list[int]:
        """Raises NotSupported where the tokenizer has no other tokens for a quoted name."""
        found = encoding_of(self._tokenizers[start], text)
        tokens = list(found.ids)
        places = (
            found.token_to_chars(at) for at, token in enumerate(tokens) if token in self._special
        )
        if not any(place is not None and touches(quoted, *place) for place in places):
            return tokens
        if start not in self._quoters:
            ids = {name: token for token, name in self._special.items()}
            self._quoters[start] = _Quoter(self._tokenizers[start], ids, ids.get(self._unknown))
        return self._quoters[start].encode(text, quoted)


class _Quoter:
    """Encodes texts with quoted names of special tokens. Holds a copy of the tokenizer, so it is
    made on first use.
    """

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, special: Mapping[str, int], unknown: int | None
    ) -> None:
        self._special = frozenset(special.values()) - {unknown}
        self._pattern = names_pattern(list(special))
        self._copy = tokenizers.Tokenizer.from_str(tokenizer.to_str())
        self._copy.no_truncation()
        self._copy.no_padding()
        self._copy.encode_special_tokens = True  # as text
        self._secret = secrets.token_hex(16)
        added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
        self._aliases = {
            name: f"{self._secret}x{id_}x" for name, id_ in special.items() if name in added
        }
        self._break = f"{self._secret}xx"
        self._copy.add_tokens(
            [_called(alias, added[name]) for name, alias in self._aliases.items()]
        )
        self._copy.add_tokens([tokenizers.AddedToken(self._break, normalized=False, special=False)])
        self._ids = {
            self._copy.token_to_id(alias): special[name] for name, alias in self._aliases.items()
        }
        self._broken = self._copy.token_to_id(self._break)

    def encode(self, text: str, quoted: Sequence[Span]) -> list[int]:
        """Raises NotSupported where the tokenizer has no other tokens for a quoted name."""
        if self._pattern is None:
            return self._encoded(text)
        special = [
            found
            for found in unquoted_matches(self._pattern, text, quoted)
            if found[0] in self._aliases
        ]
        for breaks in ([], self._breaks(text, {found.start() for found in special})):
            tokens = self._encoded(self._renamed(text, special, breaks))
            if self._special.isdisjoint(tokens):
                return [self._ids.get(token, token) for token in tokens if token != self._broken]
        raise NotSupported(
            "a text spells a special token of this model, and the tokenizer has no other "
            "tokens for it. "
            "Take the token's name out of the text."
        )

    def _encoded(self, text: str) -> list[int]:
        return list(encoding_of(self._copy, text).ids)

    def _breaks(self, text: str, special: set[int]) -> list[int]:
        """Positions inside quoted names: broken there, they are no token of the vocabulary."""
        assert self._pattern is not None
        every = re.compile(f"(?={self._pattern.pattern})")
        return [found.start() + 1 for found in every.finditer(text) if found.start() not in special]

    def _renamed(self, text: str, special: Sequence[re.Match[str]], breaks: Sequence[int]) -> str:
        changes = [(found.start(), found.end(), self._aliases[found[0]]) for found in special]
        whole = [(begin, end) for begin, end, _ in changes]
        inside = [at for at in breaks if not touches(whole, at, at)]
        parts: list[str] = []
        last = 0
        for begin, end, written in sorted([*changes, *((at, at, self._break) for at in inside)]):
            parts += [text[last:begin], written]
            last = end
        return "".join([*parts, text[last:]])


def _called(name: str, token: tokenizers.AddedToken) -> tokenizers.AddedToken:
    """The same token under another name, with its treatment of surrounding spaces."""
    return tokenizers.AddedToken(
        name, lstrip=token.lstrip, rstrip=token.rstrip, normalized=False, special=False
    )
