"""`build_regex_from_object` of SGLang's programs: a regular expression for the JSON of a schema.

It is outlines-core's, as SGLang's is. `gen` of a type or a schema needs no regular expression, and
takes schemas that have none.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import Any

from lmprog.errors import NotSupported, UnsupportedSchema


def build_regex_from_object(
    object: str | type | Mapping[str, Any], whitespace_pattern: str | None = None
) -> str:
    """The regular expression of a JSON schema, as a text or an object, or of a type: for
    `gen(regex=...)`. Raises `UnsupportedSchema` for what outlines-core does not know.
    """
    try:
        library = importlib.import_module("outlines_core.json_schema")
    except ImportError:
        raise NotSupported(
            "build_regex_from_object needs the package outlines-core: pip install outlines-core; "
            "or give gen the type itself, or json_schema="
        ) from None
    try:
        made: str = library.build_regex_from_schema(_schema(object), whitespace_pattern)
    except (ValueError, TypeError) as error:
        raise UnsupportedSchema(f"outlines-core has no regex of this schema: {error}") from None
    return made


def _schema(given: str | type | Mapping[str, Any]) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, Mapping):
        return json.dumps(given)
    from lmprog.lang.ops.type_schemas import schema_of

    return json.dumps(schema_of(given))
