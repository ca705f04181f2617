"""Specification + vocabulary -> constraint.

Compiling reads no model and waits for nothing, so it can run on any thread, off the engine's loop; what it returns is
then owned by one thread (see `Constraint`). Which engine serves a specification is decided here and nowhere else.
"""

from __future__ import annotations

from lmprog.errors import GrammarError
from lmprog.runtime.fsm.constraint import Choices, Constraint, JsonSchema, Limits, Regex, Spec
from lmprog.runtime.fsm.costs import Net, finish
from lmprog.runtime.fsm.expression import whole
from lmprog.runtime.fsm.lower import Lowering
from lmprog.runtime.fsm.native import native_engine
from lmprog.runtime.fsm.net import NetBuilder, Node
from lmprog.runtime.fsm.pattern import parse_pattern
from lmprog.runtime.fsm.regular import RegularConstraint
from lmprog.runtime.fsm.schema.build import schema_node
from lmprog.runtime.fsm.vocabulary import Vocabulary
from lmprog.runtime.fsm.walk import MaskEngine, PlainEngine

DEFAULT_LIMITS = Limits()


def compile_constraint(spec: Spec, vocabulary: Vocabulary, limits: Limits = DEFAULT_LIMITS) -> Constraint:
    """Raises GrammarError, UnsupportedSchema or UnsatisfiableConstraint, saying where and why."""
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
        return builder.byte_strings(
            [tuple(((byte, byte),) for byte in text.encode()) for text in dict.fromkeys(spec.texts)]
        )
    if isinstance(spec, JsonSchema):
        return schema_node(spec, builder, limits)
    raise GrammarError(f"{type(spec).__name__} is not supported yet", position=None)
