"""Schemas that say what most do, read without the machinery of alternatives: references and nothing
else, and objects with properties. Says the same as `expand.py`.
"""

from __future__ import annotations

import functools

from lmprog.constraints.schema.expand import APPLICATORS, CLOSING, sorted_keywords
from lmprog.constraints.schema.flat import Flat
from lmprog.constraints.schema.keywords import ANNOTATIONS, properties_of, required_of
from lmprog.constraints.schema.schema_document import Document, Located
from lmprog.errors import UnsupportedSchema

_OBJECT = frozenset(["object"])
_OF_OBJECTS = frozenset(["type", "properties", "required", "additionalProperties"])
_MAX_REFERENCES = 8
"""References to references that are followed at once."""


@functools.lru_cache(maxsize=4096)
def _is_reference(*keywords: str) -> bool:
    """Whether a schema with these keywords says nothing but what its `$ref` does."""
    return "$ref" in keywords and all(one == "$ref" or one in ANNOTATIONS for one in keywords)


def referred(at: Located, document: Document) -> Located:
    """What a schema refers to that is a reference and nothing else, so that it is built once. A
    reference to nowhere stays: that is said, or left out, where it is expanded.
    """
    for _ in range(_MAX_REFERENCES):
        value = at.value
        if isinstance(value, bool) or "$ref" not in value or not _is_reference(*value):
            break
        try:
            at = document.resolve(at, value["$ref"])
        except UnsupportedSchema:
            break
    return at


@functools.lru_cache(maxsize=4096)
def _is_plain(*keywords: str) -> bool:
    refused, asserted = sorted_keywords(*keywords)
    known = _OF_OBJECTS.issuperset(asserted) and CLOSING.isdisjoint(keywords)
    return refused is None and known and APPLICATORS.keys().isdisjoint(keywords)


def plain_object(at: Located) -> Flat | None:
    """The one alternative of an object with properties, further ones and required ones; None where
    the schema says anything else.
    """
    schema = at.value
    if isinstance(schema, bool) or schema.get("type") != "object" or not _is_plain(*schema):
        return None
    facet = properties_of(None, at)
    if "required" in schema:
        facet = facet._replace(required=required_of(schema["required"], at).required)
    return Flat(types=_OBJECT, object=facet, path=at.path)
