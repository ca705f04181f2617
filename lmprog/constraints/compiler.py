"""Compiles a specification for a vocabulary into a constraint.

Compilation uses no model and waits for no other thread, so it can run on any thread; the result is
then owned by one thread (see `Constraint`). This module alone decides which engine serves a
specification.
"""

from __future__ import annotations

import random

from lmprog import wire
from lmprog.constraints.automaton import DEAD
from lmprog.constraints.choices import choices_node
from lmprog.constraints.constraint import (
    Check,
    CompileLimits,
    Constraint,
    never_stop,
)
from lmprog.constraints.expression import whole
from lmprog.constraints.finish import finish
from lmprog.constraints.free_text import free_text_node
from lmprog.constraints.grammar.read import grammar_node
from lmprog.constraints.grammar.rules import NeedsLlguidance
from lmprog.constraints.llguidance_engine import LlguidanceConstraint
from lmprog.constraints.lower import Lowering
from lmprog.constraints.native_masks import native_engine
from lmprog.constraints.net import NetBuilder, Node
from lmprog.constraints.net_arrays import Net
from lmprog.constraints.pattern import parse_pattern
from lmprog.constraints.regular import RegularConstraint
from lmprog.constraints.schema.contradiction import why_nothing_fits
from lmprog.constraints.schema.entry import schema_node
from lmprog.constraints.unique_items import UniqueItemsConstraint
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.constraints.walk import MaskEngine, PlainEngine
from lmprog.errors import GrammarError, UnsatisfiableConstraint

DEFAULT_LIMITS = CompileLimits()
_PROBE_LIMITS = CompileLimits(max_positions=300_000)
_PROBE_TEXTS, _PROBE_BYTES = 8, 48


def compile_constraint(
    spec: wire.Constraint,
    vocabulary: Vocabulary,
    limits: CompileLimits = DEFAULT_LIMITS,
    check: Check = never_stop,
) -> Constraint:
    """Raises GrammarError, UnsupportedSchema or UnsatisfiableConstraint with the reason and the
    place, and whatever `check` raises, which is called about every ten microseconds.
    """
    vocabulary.prepare()
    builder = NetBuilder(limits, check)
    try:
        net = _net_of(spec, builder, vocabulary, limits)
        if isinstance(spec, wire.Grammar):
            _refuse_where_ambiguous(net, vocabulary, check)
    except NeedsLlguidance as why:
        assert isinstance(spec, wire.Grammar), "only grammars may be left to the other engine"
        return LlguidanceConstraint(spec.text, vocabulary, limits, str(why), check)
    engine = _engine(net, vocabulary, limits)
    made = RegularConstraint(engine, vocabulary, limits, tuple(builder.left_out))
    if not builder.unique_arrays:
        return made
    arrays = {int(net.args[leaf, 0]): one for leaf, one in builder.unique_arrays.items()}
    return UniqueItemsConstraint(made, arrays, vocabulary)


def _engine(net: Net, vocabulary: Vocabulary, limits: CompileLimits) -> MaskEngine:
    return native_engine(net, vocabulary, limits) or PlainEngine(net, vocabulary, limits)


def _refuse_where_ambiguous(net: Net, vocabulary: Vocabulary, check: Check) -> None:
    """Raises NeedsLlguidance if random texts show that the grammar is too ambiguous for this
    automaton.
    """
    rng = random.Random(0)
    try:
        probe = _engine(net, vocabulary, _PROBE_LIMITS)
        for number in range(_PROBE_TEXTS):  # always the first branch, the last, then random
            state = probe.start
            for _ in range(_PROBE_BYTES):
                check()
                following = list(
                    dict.fromkeys(after for after in probe.row(state) if after != DEAD)
                )
                if not following:
                    break
                state = (
                    following[0]
                    if number == 0
                    else following[-1]
                    if number == 1
                    else rng.choice(following)
                )
    except GrammarError as error:
        raise NeedsLlguidance("the grammar is too ambiguous") from error


def regular_net(
    spec: wire.Constraint,
    vocabulary: Vocabulary,
    limits: CompileLimits = DEFAULT_LIMITS,
    check: Check = never_stop,
) -> Net:
    """Raises what `compile_constraint` raises, and NeedsLlguidance for a grammar."""
    return _net_of(spec, NetBuilder(limits, check), vocabulary, limits)


def _net_of(
    spec: wire.Constraint, builder: NetBuilder, vocabulary: Vocabulary, limits: CompileLimits
) -> Net:
    try:
        root = _root(spec, builder, limits)
    except RecursionError as error:
        raise GrammarError("the constraint nests too deeply", position=None) from error
    try:
        return finish(builder, root, vocabulary.alphabet)
    except UnsatisfiableConstraint as error:
        if builder.left_out:
            raise next(iter(builder.left_out.values())) from error
        if isinstance(spec, wire.JsonSchema):
            raise UnsatisfiableConstraint(why_nothing_fits(spec, limits, builder.check)) from error
        raise


def _root(spec: wire.Constraint, builder: NetBuilder, limits: CompileLimits) -> Node:
    if isinstance(spec, wire.Regex):
        return Lowering(builder, json_string=False).lower(
            whole(parse_pattern(spec.pattern, limits))
        )
    if isinstance(spec, wire.Choices):
        return choices_node(spec.texts, builder)
    if isinstance(spec, wire.JsonSchema):
        return schema_node(spec, builder, limits)
    if isinstance(spec, wire.Grammar):
        return grammar_node(spec.text, builder, limits)
    return _composed(spec, builder, limits)


def _composed(spec: wire.Composed, builder: NetBuilder, limits: CompileLimits) -> Node:
    """The nodes of the parts, joined. Raises GrammarError for a part that is a grammar."""

    def part(one: wire.Constraint) -> Node:
        if isinstance(one, wire.Grammar):
            raise GrammarError("a grammar cannot be a part of another constraint", position=None)
        return _root(one, builder, limits)

    if isinstance(spec, wire.FreeText):
        return free_text_node(spec, builder)
    if isinstance(spec, wire.InOrder):
        return builder.seq([part(one) for one in spec.parts])
    if isinstance(spec, wire.AnyOf):
        return builder.alt([part(one) for one in spec.options])
    return builder.repeat(part(spec.item), spec.low, spec.high)
