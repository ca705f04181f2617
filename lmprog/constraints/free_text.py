"""The node of a text that is free except for where certain texts occur.

Knows characters and nets; knows nothing of what comes after the text.
"""

from __future__ import annotations

from lmprog import wire
from lmprog.constraints import charset
from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.expression import ANYTHING, Chars, Expression, Repeat, alt, seq
from lmprog.constraints.expression import text as expression_of
from lmprog.constraints.lower import Lowering
from lmprog.constraints.net import NetBuilder, Node
from lmprog.constraints.text_set import TextSet
from lmprog.constraints.textset import lower_text_set
from lmprog.errors import GrammarError

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
