"""Builds the nodes of whole texts: a choice among texts, and a text that is free except for where
certain texts occur.

Choices that begin alike share their beginning, so that a text is not read by each of them. Knows
characters and nets; knows nothing of what comes after the text.
"""

from __future__ import annotations

from collections.abc import Sequence

from lmprog import wire
from lmprog.constraints import charset
from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.expression import ANYTHING, Chars, Expression, Repeat, alt, seq
from lmprog.constraints.expression import text as expression_of
from lmprog.constraints.lower import Lowering
from lmprog.constraints.net import NetBuilder, Node
from lmprog.constraints.text_set import TextSet, lower_text_set
from lmprog.errors import GrammarError, UnsatisfiableConstraint

_MANY = 32
"""Choices from which common beginnings are looked for."""
_DEEPEST = 30
"""Beginnings within beginnings; the net nests as deeply."""
_TEXTS_PER_CHECK = 512


def choices_node(spec: wire.Choices, builder: NetBuilder, _: CompileLimits) -> Node:
    texts = spec.texts
    if not texts:
        raise UnsatisfiableConstraint(
            "there are no choices, so nothing at all would match; give at least one"
        )
    for text in texts:
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            raise GrammarError(
                f"the choice {text!r} has half of a surrogate pair, which no text can have",
                position=None,
            )
    if len(texts) <= _MANY:
        return builder.alt(builder.text(text.encode()) for text in texts)
    return _sharing_beginnings(list(dict.fromkeys(texts)), builder, _DEEPEST)


def _sharing_beginnings(texts: Sequence[str], builder: NetBuilder, depth: int) -> Node:
    """Not by sorting: a single call that sorts a hundred thousand texts cannot be paused."""
    if len(texts) <= _MANY or not depth:
        return builder.alt(builder.text(text.encode()) for text in texts)
    by_letter: dict[str, list[str]] = {}
    for number, text in enumerate(texts):
        if number % _TEXTS_PER_CHECK == 0:
            builder.check()
        by_letter.setdefault(text[:1], []).append(text)
    ways = []
    for alike in by_letter.values():
        shared = _shared_beginning(min(alike), max(alike))
        rest = [text[len(shared) :] for text in alike]
        common = builder.text(shared.encode())
        ways.append(builder.seq([common, _sharing_beginnings(rest, builder, depth - 1)]))
    return builder.alt(ways)


def _shared_beginning(first: str, last: str) -> str:
    """What two texts have in common, and all texts between them in order."""
    for place, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return first[:place]
    return first


_MORE = Repeat(Chars(charset.ALL), 1, None)


def free_text_node(spec: wire.FreeText, net: NetBuilder, _: CompileLimits) -> Node:
    """Raises GrammarError if the texts to watch for are too many."""
    texts = Lowering(net, json_string=False)
    if spec.end is None:
        if not spec.avoided:
            return texts.lower(ANYTHING)
        return lower_text_set(TextSet(outside=(_somewhere(spec.avoided, ANYTHING),)), net, texts)
    ending = seq([ANYTHING, _literal(spec.end)])
    # What is avoided may end where the text ends: it is then the beginning of what follows.
    earlier = _somewhere((*spec.avoided, spec.end), _MORE)
    return lower_text_set(TextSet((ending,), (earlier,)), net, texts)


def _somewhere(watched: tuple[str, ...], then: Expression) -> Expression:
    return seq([ANYTHING, alt(map(_literal, watched)), then])


def _literal(text: str) -> Expression:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise GrammarError(
            f"{text!r} has half of a surrogate pair, which no text can have", position=None
        )
    return expression_of(text)
