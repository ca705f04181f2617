"""Specification + vocabulary -> constraint.

Compiling reads no model and waits for nothing, so it can run on any thread, off the engine's loop; what it returns is
then owned by one thread (see `Constraint`). Which engine serves a specification is decided here and nowhere else.
"""

from __future__ import annotations

import re

from lmprog.errors import GrammarError
from lmprog.runtime.fsm.constraint import Choices, Constraint, Grammar, JsonSchema, Limits, Regex, Spec, Substring
from lmprog.runtime.fsm.costs import Net, finish
from lmprog.runtime.fsm.expression import whole
from lmprog.runtime.fsm.llguidance_engine import LlguidanceConstraint
from lmprog.runtime.fsm.lower import Lowering
from lmprog.runtime.fsm.native import native_engine
from lmprog.runtime.fsm.net import EMPTY, NetBuilder, Node
from lmprog.runtime.fsm.pattern import parse_pattern
from lmprog.runtime.fsm.regular import RegularConstraint
from lmprog.runtime.fsm.schema.build import schema_node
from lmprog.runtime.fsm.vocabulary import Vocabulary
from lmprog.runtime.fsm.walk import MaskEngine, PlainEngine

DEFAULT_LIMITS = Limits()


def compile_constraint(spec: Spec, vocabulary: Vocabulary, limits: Limits = DEFAULT_LIMITS) -> Constraint:
    """Raises GrammarError, UnsupportedSchema or UnsatisfiableConstraint, saying where and why."""
    vocabulary.prepare()
    if isinstance(spec, Grammar):
        return LlguidanceConstraint(spec.text, vocabulary, limits)
    net = regular_net(spec, vocabulary, limits)
    engine: MaskEngine | None = native_engine(net, vocabulary, limits)
    return RegularConstraint(engine or PlainEngine(net, vocabulary, limits), vocabulary, limits)


def regular_net(spec: Spec, vocabulary: Vocabulary, limits: Limits = DEFAULT_LIMITS) -> Net:
    builder = NetBuilder(limits)
    return finish(builder, _root(spec, builder, limits), vocabulary.alphabet)


def _root(spec: Spec, builder: NetBuilder, limits: Limits) -> Node:
    if isinstance(spec, Regex):
        return Lowering(builder, json_string=False).lower(whole(parse_pattern(spec.pattern, limits)))
    if isinstance(spec, Choices):
        return builder.alt(builder.text(text.encode()) for text in spec.texts)
    if isinstance(spec, JsonSchema):
        return schema_node(spec, builder, limits)
    if isinstance(spec, Substring):
        return _substring(spec.document, builder)
    raise GrammarError("a context-free grammar is not regular", position=None)


def _substring(document: str, builder: NetBuilder) -> Node:
    """Any run of words, with the white space that stands between them."""
    pieces = re.findall(r"\s*\S+", document)
    following, starts = EMPTY, list[Node]()
    for piece in reversed(pieces):
        starts.append(builder.seq([builder.text(piece.lstrip().encode()), following]))
        following = builder.optional(builder.seq([builder.text(piece.encode()), following]))
    return builder.alt(starts)
