"""The constraint of a request's text, in any of the spellings of OpenAI, SGLang and vLLM.

Knows the fields of a request and their ranges; whether a pattern or schema can be enforced is the
runtime's to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec

from lmprog import wire
from lmprog.server.http.http_errors import refused
from lmprog.server.http.limits import LIMITS, within
from lmprog.server.http.option_fields import OpenAIOptions
from lmprog.tool_calls.structural_tags import TagError, structural_tag

OBJECT = wire.JsonSchema('{"type":"object"}')
"""`json_object`: any object."""


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's way to constrain a text: one of these."""

    json: dict[str, Any] | str | bool | None = None
    regex: Annotated[str, within("regex")] | None = None
    choice: Annotated[list[Annotated[str, within("choice[]")]], within("choice")] | None = None
    grammar: Annotated[str, within("grammar")] | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None
    whitespace_pattern: Annotated[str, within("whitespace_pattern")] | None = None
    schemas: dict[str, dict[str, Any] | bool] | None = None


class NamedSchema(msgspec.Struct, frozen=True):
    """`schemas`: others by their URIs, to which references may point."""

    name: Annotated[str, within("name")]
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    description: str | None = None
    schemas: dict[str, dict[str, Any] | bool] | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """`schema` is how llama.cpp and others say it beside `json_object`. `structures` and `triggers`
    belong to `structural_tag`, or `format`.
    """

    type: str
    json_schema: NamedSchema | None = None
    schema: dict[str, Any] | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None


class ConstraintFields(OpenAIOptions, kw_only=True):
    """All spellings, besides the sampling options. None: not given."""

    response_format: ResponseFormat | None = None
    regex: Annotated[str, within("regex")] | None = None
    ebnf: Annotated[str, within("grammar")] | None = None
    grammar: Annotated[str, within("grammar")] | None = None
    json_schema: dict[str, Any] | str | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: Annotated[str, within("regex")] | None = None
    guided_choice: Annotated[list[Annotated[str, within("choice[]")]], within("choice")] | None = (
        None
    )
    guided_grammar: Annotated[str, within("grammar")] | None = None
    structural_tag: dict[str, Any] | str | None = None
    guided_whitespace_pattern: Annotated[str, within("whitespace_pattern")] | None = None

    whitespace: wire.Whitespace | None = None
    whitespace_pattern: Annotated[str, within("whitespace_pattern")] | None = None
    order: Literal["declared", "any"] | None = None
    strict: bool | None = None
    """False: what of the schema cannot be enforced exactly is never written, instead of refused."""


class OutputConstraint(msgspec.Struct, frozen=True):
    """At most one constraint, the field that it came from, and warnings about old spellings."""

    constraint: wire.Constraint | None = None
    field: str | None = None
    warnings: tuple[str, ...] = ()


_NOTHING = OutputConstraint()
_OWN_FIELDS = {*ConstraintFields.__struct_fields__} - {*OpenAIOptions.__struct_fields__}
_FIELDS, _NONE = attrgetter(*_OWN_FIELDS), (None,) * len(_OWN_FIELDS)


def constraint_of(asked: ConstraintFields) -> OutputConstraint:
    """Raises HttpError for two constraints, or one that makes no sense."""
    if _FIELDS(asked) == _NONE:  # as most requests have it
        return _NOTHING
    found = list(_all(asked))
    if len(found) > 1:
        names = " and ".join(name for name, _ in found)
        raise refused(
            f"{names} both constrain the text; give one of them.", found[1][0], "conflicting_fields"
        )
    warnings = tuple(
        f"{name} is the old spelling of structured_outputs.{name.removeprefix('guided_')}"
        for name, _ in found
        if name.startswith("guided_")
    )
    field, constraint = found[0] if found else (None, None)
    constraint = laid_out(constraint, layout_of(asked))
    return OutputConstraint(constraint, field, warnings)


def _all(asked: ConstraintFields) -> Iterator[tuple[str, wire.Constraint]]:
    if asked.response_format is not None:
        yield from _format(asked.response_format)
    if asked.structured_outputs is not None:
        yield from _structured(asked.structured_outputs)
    for name in ("regex", "guided_regex"):
        pattern = getattr(asked, name)
        if pattern is not None:
            yield name, wire.Regex(pattern)
    for name in ("ebnf", "grammar", "guided_grammar"):
        grammar = getattr(asked, name)
        if grammar is not None:
            yield name, wire.Grammar(grammar)
    for name in ("json_schema", "guided_json"):
        schema = getattr(asked, name)
        if schema is not None:
            yield name, schema_of(schema, name)
    if asked.structural_tag is not None:
        yield "structural_tag", tags_of(asked.structural_tag, "structural_tag")
    if asked.guided_choice is not None:
        yield "guided_choice", choices_of(asked.guided_choice, "guided_choice")


def _format(given: ResponseFormat) -> Iterator[tuple[str, wire.Constraint]]:
    match given.type:
        case "text":
            return
        case "json_object" if given.schema is not None:
            yield "response_format", schema_of(given.schema, "response_format.schema")
        case "json_object":
            yield "response_format", OBJECT
        case "json_schema":
            if given.json_schema is None or given.json_schema.schema is None:
                raise refused(
                    "response_format.json_schema.schema is missing; give the schema, or type "
                    "'json_object'.",
                    "response_format.json_schema.schema",
                )
            yield (
                "response_format",
                schema_of(
                    given.json_schema.schema,
                    "response_format.json_schema.schema",
                    given.json_schema.strict is not False,
                    given.json_schema.schemas,
                ),
            )
        case "structural_tag":
            said = {"structures": given.structures, "triggers": given.triggers}
            tag = said if given.format is None else {**said, "format": given.format}
            kept = {name: value for name, value in tag.items() if value is not None}
            yield "response_format", tags_of(kept, "response_format")
        case other:
            raise refused(
                f"response_format.type is {other[:60]!r}; it must be text, json_object, "
                "json_schema or structural_tag.",
                "response_format.type",
                "invalid_value",
            )


def _structured(given: StructuredOutputs) -> Iterator[tuple[str, wire.Constraint]]:
    at = "structured_outputs."
    if given.structural_tag is not None:
        yield at + "structural_tag", tags_of(given.structural_tag, at + "structural_tag")
    if isinstance(given.json, dict | str):
        yield at + "json", schema_of(given.json, at + "json", others=given.schemas)
    elif given.json or given.json_object:
        yield at + "json", OBJECT
    if given.regex is not None:
        yield at + "regex", wire.Regex(given.regex)
    if given.choice is not None:
        yield at + "choice", choices_of(given.choice, at + "choice")
    if given.grammar is not None:
        yield at + "grammar", wire.Grammar(given.grammar)


@dataclass(frozen=True, slots=True)
class JsonFields:
    """What a request says of how JSON is written, by the field that says it, and whether the
    schema has to be enforced whole.
    """

    whitespace: wire.Whitespace | None = None
    order: str | None = None
    patterns: tuple[tuple[str, str], ...] = ()
    """Fields with a pattern of white space."""
    strict: bool | None = None


def layout_of(asked: ConstraintFields) -> JsonFields:
    """The fields of chats, completions and the gens of programs."""
    given = asked.structured_outputs
    patterns = {
        "whitespace_pattern": asked.whitespace_pattern,
        "guided_whitespace_pattern": asked.guided_whitespace_pattern,
        "structured_outputs.whitespace_pattern": None
        if given is None
        else given.whitespace_pattern,
    }
    said = tuple((name, text) for name, text in patterns.items() if text is not None)
    return JsonFields(asked.whitespace, asked.order, said, asked.strict)


def laid_out(constraint: wire.Constraint | None, fields: JsonFields) -> wire.Constraint | None:
    """The constraint, written as the fields say. Raises HttpError where they do not go together,
    or where the text is not confined to JSON.
    """
    spelled = [name for name, _ in fields.patterns]
    spelled += ["whitespace"] if fields.whitespace is not None else []
    if len(spelled) > 1:
        raise refused(
            f"{' and '.join(spelled)} both say how white space is written; give one of them.",
            spelled[1],
            "conflicting_fields",
        )
    spelled += ["order"] if fields.order is not None else []
    spelled += ["strict"] if fields.strict is not None else []
    if not spelled:
        return constraint
    schema = None if constraint is None else constraint.as_schema()
    if schema is None:
        raise refused(f"{spelled[0]} says how JSON is written; give a JSON schema too.", spelled[0])
    return msgspec.structs.replace(
        schema,
        whitespace=fields.whitespace or "fixed",
        any_order=fields.order == "any",
        whitespace_pattern=fields.patterns[0][1] if fields.patterns else None,
        strict=schema.strict if fields.strict is None else fields.strict,
    )


def choices_of(texts: Sequence[str], field: str) -> wire.Choices:
    """Raises HttpError for texts that are too long together to be compiled in time."""
    size, limit = sum(map(len, texts)), LIMITS["choices"]
    if size > limit.maximum:
        raise refused(
            f"{field} has {size:,} characters in all; it may have {limit.words()}.",
            field,
            "invalid_value",
        )
    return wire.Choices(tuple(texts))


def tags_of(given: dict[str, Any] | str, field: str) -> wire.Constraint:
    """Free text with confined regions. Raises HttpError for the field of the tag that is wrong."""
    limit = LIMITS["schema"]
    size = len(given) if isinstance(given, str) else len(msgspec.json.encode(given))
    if size > limit.maximum:
        raise refused(
            f"{field} has {size:,} characters as JSON; it may have {limit.words()}.",
            field,
            "invalid_value",
        )
    try:
        return structural_tag(given)
    except TagError as error:
        place = f"{field}.{error.field}" if error.field else field
        raise refused(f"{field}: {error}.", place, "invalid_value") from None


def schema_of(
    schema: dict[str, Any] | str | bool,
    field: str,
    strict: bool = True,
    others: dict[str, dict[str, Any] | bool] | None = None,
) -> wire.JsonSchema:
    """The schema as its text, in the order in which it was given, with `others` that it may refer
    to. Raises HttpError for one that is too large, and for others that are none.
    """
    text = schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
    if others:
        try:
            text = wire.JsonSchema(text).with_others(others).schema
        except (ValueError, RecursionError) as error:
            place = f"{field.rpartition('.')[0]}.schemas"
            raise refused(f"{place}: {error}.", place, "invalid_value") from None
    limit = LIMITS["schema"]
    if not limit.minimum <= len(text) <= limit.maximum:
        raise refused(
            f"{field} has {len(text):,} characters as JSON; it may have {limit.words()}.",
            field,
            "invalid_value",
        )
    return wire.JsonSchema(text, strict=strict)
