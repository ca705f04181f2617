"""A cheap, sufficient test that two schemas exclude each other.

It compares types, constants, and properties that both require. It saves building
the conjunction; a negative answer means only "not known". Works on raw schemas.
"""

from __future__ import annotations

from lmprog.constraints.constraint import Check
from lmprog.constraints.schema.keywords import ANNOTATIONS
from lmprog.constraints.schema.schema_document import Document, Json, Located, json_key

_MAX_DEPTH = 4


def target(at: Located, document: Document) -> Located:
    """Follows a schema that consists of a reference only."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(at.value, dict) or at.value.keys() - ANNOTATIONS != {"$ref"}:
            break
        at = document.resolve(at, at.value["$ref"])
    return at


def beside(branch: Located, at: Located) -> Located:
    """The branch with the type and the required names that the schema `at`, which has it, says."""
    if not isinstance(branch.value, dict) or not isinstance(at.value, dict):
        return branch
    names = [*_names(branch.value.get("required")), *_names(at.value.get("required"))]
    also: dict[str, Json] = {"required": list[Json](dict.fromkeys(names))} if names else {}
    if "type" in at.value:
        also["type"] = branch.value.get("type", at.value["type"])
    return branch.sibling(branch.path, {**branch.value, **also})


def _names(value: Json) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def plainly_disjoint(
    left: Located, right: Located, document: Document, check: Check, depth: int = 0
) -> bool:
    """Calls `check` for each pair: schemas that many names share are compared again and again."""
    check()
    if not isinstance(left.value, dict) or not isinstance(right.value, dict):
        return left.value is False or right.value is False
    types = _types(left.value), _types(right.value)
    if types[0] is not None and types[1] is not None and not types[0] & types[1]:
        return True
    values = _values(left.value), _values(right.value)
    if values[0] is not None and values[1] is not None:
        return set(map(json_key, values[0])).isdisjoint(map(json_key, values[1]))
    if depth == _MAX_DEPTH or {"object"} not in types:
        return False
    return any(
        plainly_disjoint(
            target(left.child("properties", name), document),
            target(right.child("properties", name), document),
            document,
            check,
            depth + 1,
        )
        for name in _told_apart_by(left.value, right.value)
    )


def _types(schema: dict[str, Json]) -> set[str] | None:
    """The declared types, with integers as numbers; None if no type is declared."""
    kind = schema.get("type")
    if kind is None:
        return None
    names = kind if isinstance(kind, list) else [kind]
    return {"number" if name == "integer" else str(name) for name in names}


def _values(schema: dict[str, Json]) -> list[Json] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _told_apart_by(left: dict[str, Json], right: dict[str, Json]) -> list[str]:
    """The properties that both schemas require and describe."""
    described, others = left.get("properties"), right.get("properties")
    if not isinstance(described, dict) or not isinstance(others, dict):
        return []
    names = described.keys() & others.keys() & {*_names(right.get("required"))}
    return [name for name in _names(left.get("required")) if name in names]
