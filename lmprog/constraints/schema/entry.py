"""The entry point: compiles a schema's text into one node of a net.

Two readers share the work: the kernel takes what is frequent (`frequent.py`), and asks the one in
Python (`build.py`), which reads everything, for the rest.
"""

from __future__ import annotations

from lmprog import wire
from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.net import FAIL, NetBuilder, NetPart, Node
from lmprog.constraints.schema.build import SchemaBuilder
from lmprog.constraints.schema.frequent import FrequentSchemas, PlaceMatters
from lmprog.constraints.schema.schema_document import Document, Located, json_of
from lmprog.errors import UnsupportedSchema


def schema_node(spec: wire.JsonSchema, net: NetBuilder, limits: CompileLimits) -> Node:
    """Raises UnsupportedSchema (keyword, path), UnsatisfiableConstraint or GrammarError (too
    large).
    """
    document = Document(spec.schema)
    frequent = FrequentSchemas.of(
        spec, net, limits, lambda said: _part_of_text(said, spec, net, limits)
    )
    try:
        root = None if frequent is None else _shared_work(frequent, document, spec, net, limits)
        if root is None:
            builder = SchemaBuilder(document, spec, net, limits, frequent=frequent)
            root = builder.compile([document.root], 0)
    except PlaceMatters:
        root = SchemaBuilder(document, spec, net, limits).compile([document.root], 0)
    except RecursionError as error:
        raise UnsupportedSchema("the schema nests too deeply", keyword="", path="#") from error
    if root == FAIL and net.left_out:
        raise next(iter(net.left_out.values()))
    return root


def _shared_work(
    frequent: FrequentSchemas,
    document: Document,
    spec: wire.JsonSchema,
    net: NetBuilder,
    limits: CompileLimits,
) -> Node | None:
    """The root as the kernel reads it; None where it does not. Most documents need no other reader:
    it is made when it is first asked."""
    made: list[SchemaBuilder] = []

    def compile_at(path: str) -> Node:
        if not made:
            made.append(SchemaBuilder(document, spec, net, limits, frequent=frequent))
            made[0].open_root()
        return made[0].compile_at(path)

    root = frequent.node("#", compile_at)
    if made and root is not None:
        made[0].close_root(root)
    return root


def _part_of_text(
    schema: bytes, spec: wire.JsonSchema, net: NetBuilder, limits: CompileLimits
) -> NetPart:
    """A schema whose place does not matter, as a net of its own."""
    own = NetBuilder(limits, net.check)
    value = json_of(schema.decode())
    assert isinstance(value, dict)
    builder = SchemaBuilder(Document("true"), spec, own, limits, shares=False)
    return own.sealed(builder.compile([Located("#", "", value)], 0))
