"""Compiles a grammar's text into one node, or raises NeedsLlguidance. Detects the format from the
text.
"""

from __future__ import annotations

from lmprog import wire
from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.grammar import gbnf, lark
from lmprog.constraints.grammar.lexing import refuse_where_greed_matters, with_ignored
from lmprog.constraints.grammar.rules import (
    NeedsLlguidance,
    RuleLowering,
    reachable,
    without_left_recursion,
)
from lmprog.constraints.net import NetBuilder, Node


def is_gbnf(text: str) -> bool:
    return "::=" in text


def grammar_node(spec: wire.Grammar, net: NetBuilder, limits: CompileLimits) -> Node:
    """Raises NeedsLlguidance if the grammar is not supported here (Lark: also if it is malformed),
    GrammarError if it is malformed GBNF or too large.
    """
    text = spec.text
    if len(text) > limits.max_pattern_len:
        raise NeedsLlguidance(
            f"the grammar has {len(text)} characters; the limit is {limits.max_pattern_len}"
        )
    try:
        if is_gbnf(text):
            start = gbnf.START
            rules = reachable(gbnf.read_gbnf(text, limits), start)
        else:
            start = lark.START
            found = lark.read_lark(text, limits)
            rules = reachable(found.rules, start)
            refuse_where_greed_matters(rules, start, found.ignored, found.priorities, net.check)
            if found.ignored:
                rules = with_ignored(rules, start, found.ignored)
        return RuleLowering(net, without_left_recursion(rules, net.check)).rule(start)
    except RecursionError as error:
        raise NeedsLlguidance("the grammar nests too deeply") from error
