"""Locates the contradiction in an unsatisfiable schema, so that the error can name its path.

Used only after a schema was found to have no instance. The search descends from the root through
schemas that every instance must satisfy, and names the deepest one that is unsatisfiable on its
own. Knows which keywords are mandatory; compiles with the ordinary compiler.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from decimal import Decimal

from lmprog import wire
from lmprog.constraints.constraint import Check, CompileLimits, CompileTooLong
from lmprog.constraints.finish import finish
from lmprog.constraints.net import NetBuilder
from lmprog.constraints.net_arrays import EVERY_BYTE
from lmprog.constraints.schema.build import SchemaBuilder
from lmprog.constraints.schema.schema_document import Document, Json, Located
from lmprog.errors import UnsatisfiableConstraint, UnsupportedSchema

_MAX_LOOKS = 64
"""Schemas that are compiled for one answer."""
_SHOWN = 160
"""Characters of a schema in a message."""


def why_nothing_fits(spec: wire.JsonSchema, limits: CompileLimits, check: Check) -> str:
    """The error message for `spec`, which is known to be unsatisfiable. Where `check` ends the
    search, the place is the deepest one that was found."""
    document = Document(spec.schema)
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
