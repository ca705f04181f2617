"""The entry point: compiles a schema's text into one node of a net.

Two readers share the work: the kernel takes what is frequent where it does (`native_reader.py`),
and asks the one in Python (`build.py`), which reads everything, for the rest.
"""

from __future__ import annotations

from lmprog import wire
from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.net import FAIL, NetBuilder, Node
from lmprog.constraints.schema.build import PlaceMatters, SchemaBuilder
from lmprog.constraints.schema.layout import SEPARATORS
from lmprog.constraints.schema.native_reader import NativeReader
from lmprog.constraints.schema.schema_document import Document
from lmprog.errors import UnsupportedSchema


def schema_node(spec: wire.JsonSchema, net: NetBuilder, limits: CompileLimits) -> Node:
    """Raises UnsupportedSchema (keyword, path), UnsatisfiableConstraint or GrammarError (too
    large).
    """
    document = Document(spec.schema)
    reader = frequent_reader(spec)
    try:
        try:
            root = SchemaBuilder(document, spec, net, limits, reader=reader).compile_document()
        except PlaceMatters:
            root = SchemaBuilder(document, spec, net, limits).compile_document()
    except RecursionError as error:
        raise UnsupportedSchema("the schema nests too deeply", keyword="", path="#") from error
    if root == FAIL and net.left_out:
        raise next(iter(net.left_out.values()))
    return root


def frequent_reader(spec: wire.JsonSchema) -> NativeReader | None:
    """The kernel that reads what is frequent, where it does as the schema is to be read."""
    separators = SEPARATORS.get(spec.whitespace)
    is_usual = spec.strict and not spec.any_order and spec.whitespace_pattern is None
    if separators is None or not is_usual:
        return None
    return NativeReader.of(spec.schema, *separators)
