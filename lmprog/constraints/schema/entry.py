"""The entry point: compiles a schema's text into one node of a net.

Two readers share the work: the kernel takes what is frequent (`frequent.py`), and asks the one in
Python (`build.py`), which reads everything, for the rest.

A schema that has no instance is compiled again to locate the contradiction, so that the error can
name its path: the search descends from the root through schemas that every instance must satisfy,
and names the deepest one that is unsatisfiable on its own.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from decimal import Decimal

from lmprog import wire
from lmprog.constraints.constraint import Check, CompileLimits, CompileTooLong
from lmprog.constraints.finish import finish
from lmprog.constraints.net import EVERY_BYTE, FAIL, NetBuilder, NetPart, Node
from lmprog.constraints.schema.build import SchemaBuilder
from lmprog.constraints.schema.frequent import FrequentSchemas, PlaceMatters
from lmprog.constraints.schema.schema_document import (
    Document,
    Json,
    Located,
    in_this_draft,
    json_of,
)
from lmprog.errors import UnsatisfiableConstraint, UnsupportedSchema


def schema_node(spec: wire.JsonSchema, net: NetBuilder, limits: CompileLimits) -> Node:
    """Raises UnsupportedSchema (keyword, path), UnsatisfiableConstraint or GrammarError (too
    large).
    """
    net.is_json = True
    try:
        return _root_node(spec.with_schema(in_this_draft(spec.schema)), net, limits)
    finally:
        net.is_json = False


def _root_node(spec: wire.JsonSchema, net: NetBuilder, limits: CompileLimits) -> Node:
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


def plain_strings_node(spec: wire.PlainStrings, net: NetBuilder, limits: CompileLimits) -> Node:
    """Raises like `schema_node`."""
    json_strings = wire.JsonSchema(in_this_draft(spec.schema))
    document = Document(json_strings.schema)
    return SchemaBuilder(document, json_strings, net, limits).plain_strings(spec.end)


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
    own.is_json = True
    value = json_of(schema.decode())
    assert isinstance(value, dict)
    builder = SchemaBuilder(Document("true"), spec, own, limits, shares=False)
    return own.sealed(builder.compile([Located("#", "", value)], 0))


_MAX_LOOKS = 64
"""Schemas that are compiled for one answer."""
_SHOWN = 160
"""Characters of a schema in a message."""


def why_nothing_fits(spec: wire.JsonSchema, limits: CompileLimits, check: Check) -> str:
    """The error message for `spec`, which is known to be unsatisfiable. Where `check` ends the
    search, the place is the deepest one that was found."""
    document = Document(in_this_draft(spec.schema))
    at = document.root
    with contextlib.suppress(CompileTooLong):
        for at in _contradictions(document, spec, limits, check):  # noqa: B007  the last one counts
            pass
    text = json.dumps(at.value, ensure_ascii=False, default=_plain)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return (
        f"nothing at all would match this constraint: no value fits the schema at "
        f"{at.path}, {shown}"
    )


def _contradictions(
    document: Document, spec: wire.JsonSchema, limits: CompileLimits, check: Check
) -> Iterator[Located]:
    """The root, and schemas within schemas that no value fits."""
    at, seen, left = document.root, {document.root.path}, _MAX_LOOKS
    while True:
        yield at
        for inner in _demanded(document, at):
            if left and inner.path not in seen:
                left -= 1
                seen.add(inner.path)
                if _takes_nothing(inner, document, spec, NetBuilder(limits, check)):
                    at = inner
                    break
        else:
            return


def _takes_nothing(
    schema: Located, document: Document, spec: wire.JsonSchema, net: NetBuilder
) -> bool:
    try:
        finish(net, SchemaBuilder(document, spec, net, net.limits).compile([schema], 0), EVERY_BYTE)
    except UnsatisfiableConstraint:
        return True
    except (
        UnsupportedSchema
    ):  # rejected for another reason on its own: not the place; limits end the search
        return False
    return False


def _demanded(document: Document, at: Located) -> Iterator[Located]:
    """The subschemas that every instance of `at`, or some part of it, must satisfy."""
    schema = at.value
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        yield document.resolve(at, schema["$ref"])
    for keyword in ("allOf", "anyOf", "oneOf"):
        members = schema.get(keyword)
        if isinstance(members, list) and (keyword == "allOf" or len(members) == 1):
            yield from (at.child(keyword, number) for number in range(len(members)))
    if schema.get("type") == "object":
        properties = schema.get("properties")
        declared = properties if isinstance(properties, dict) else {}
        for name in _list(schema.get("required")):
            if isinstance(name, str) and name in declared:  # nothing was read here yet
                yield at.child("properties", name)
    if schema.get("type") == "array":
        low = schema.get("minItems")
        first = _list(schema.get("prefixItems"))
        num_needed = low if isinstance(low, int) else 0
        yield from (
            at.child("prefixItems", number) for number in range(min(len(first), num_needed))
        )
        if num_needed > len(first) and isinstance(schema.get("items"), bool | dict):
            yield at.child("items")


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _plain(value: object) -> float:
    assert isinstance(value, Decimal), "the reader makes nothing else that JSON does not know"
    return float(value)
