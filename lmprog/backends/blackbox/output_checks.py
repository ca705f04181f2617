"""Validates text afterwards against a constraint that the service did not enforce.

Regular expressions use Python's `re`, choices a comparison, schemas the `jsonschema` library.
Grammars are not supported: the client has no parser for them.
"""

from __future__ import annotations

import json
import re

import msgspec

from lmprog import wire
from lmprog.errors import GrammarError, NotSupported


def can_be_checked(constraint: wire.Constraint) -> bool:
    return constraint.is_portable and constraint.as_grammar() is None


def fits(constraint: wire.Constraint, text: str) -> bool:
    """Whether the whole of `text` satisfies the constraint."""
    choices, schema = constraint.as_choices(), constraint.as_schema()
    if choices is not None:
        return text in choices
    if schema is not None:
        return _is_valid(schema.schema, text)
    pattern = constraint.as_pattern()
    if pattern is None:
        raise NotSupported(
            "a grammar can only be enforced by lmprog's runtime, or by a server that knows it"
        )
    try:
        return re.fullmatch(pattern, text) is not None
    except re.error as error:
        raise GrammarError(f"{pattern!r}: {error}", position=error.pos) from None


def _is_valid(schema: str, text: str) -> bool:
    try:
        import jsonschema
    except ImportError:
        raise NotSupported(
            "to look at JSON afterwards, the package jsonschema is needed: pip install "
            "'lmprog[openai]'"
        ) from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return bool(jsonschema.Draft202012Validator(json.loads(schema)).is_valid(value))


def fitting(constraint: wire.Constraint, output: wire.Output) -> wire.Output | None:
    """The output if its text satisfies the constraint, or does so without surrounding whitespace;
    else None. For choices, the output holds the matching choice, with that choice's own whitespace.
    """
    texts = [output.text, output.text.strip()]
    choices = constraint.as_choices() or ()
    texts += [choice for choice in choices if choice.strip() == texts[1]]
    for text in texts:
        if fits(constraint, text):
            return msgspec.structs.replace(output, text=text)
    return None
