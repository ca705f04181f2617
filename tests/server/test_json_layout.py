"""How confined JSON is written, as requests ask for it: white space, and the order of properties."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lmprog import wire
from lmprog.server.http.http_errors import HttpError
from lmprog.server.openai.completions import CompletionBody
from lmprog.server.openai.output_constraint import constraint_of
from lmprog.server.sglang.generate_body import GenerateSampling

SCHEMA: dict[str, Any] = {"type": "object"}
TEXT = '{"type":"object"}'


def asked(**fields: Any) -> wire.Constraint | None:
    return constraint_of(msgspec.convert({"prompt": "x", **fields}, CompletionBody)).constraint


@pytest.mark.parametrize(
    "given",
    [
        {"json_schema": SCHEMA},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA}},
        {"guided_json": SCHEMA},
    ],
    ids=lambda given: next(iter(given)),
)
def test_the_layout_holds_for_a_schema_in_every_spelling(given: dict[str, Any]) -> None:
    assert asked(**given) == wire.JsonSchema(TEXT)
    compact = asked(**given, whitespace="compact", order="any")
    assert compact == wire.JsonSchema(TEXT, whitespace="compact", any_order=True)
    spaced = asked(**given, whitespace_pattern=" ?")
    assert spaced == wire.JsonSchema(TEXT, whitespace_pattern=" ?")
    assert asked(**given, guided_whitespace_pattern=" ?") == spaced


def test_vllm_says_the_pattern_beside_the_schema() -> None:
    given = {"json": SCHEMA, "whitespace_pattern": ""}
    assert asked(structured_outputs=given) == wire.JsonSchema(TEXT, whitespace_pattern="")


def test_sglang_says_it_among_the_sampling_parameters() -> None:
    given = {"json_schema": TEXT, "whitespace_pattern": " ", "order": "any"}
    made = msgspec.convert(given, GenerateSampling).constraint()
    assert made == wire.JsonSchema(TEXT, any_order=True, whitespace_pattern=" ")


def test_a_schema_that_need_not_be_enforced_whole_says_so_in_every_spelling() -> None:
    lenient = wire.JsonSchema(TEXT, strict=False)
    assert asked(json_schema=SCHEMA, strict=False) == lenient
    named = {"name": "x", "schema": SCHEMA, "strict": False}
    assert asked(response_format={"type": "json_schema", "json_schema": named}) == lenient
    said = msgspec.convert({"json_schema": TEXT, "strict": False}, GenerateSampling)
    assert said.constraint() == lenient
    for strict in (True, None):
        named = {"name": "x", "schema": SCHEMA, "strict": strict}
        format_ = {"type": "json_schema", "json_schema": named}
        assert asked(response_format=format_) == wire.JsonSchema(TEXT)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"regex": "a", "strict": False}, "strict"),
        ({"whitespace": "compact"}, "whitespace"),
        ({"regex": "a", "order": "any"}, "order"),
        ({"json_schema": SCHEMA, "whitespace": "compact", "whitespace_pattern": ""}, "whitespace"),
        (
            {"guided_json": SCHEMA, "whitespace_pattern": "", "guided_whitespace_pattern": ""},
            "guided_whitespace_pattern",
        ),
    ],
    ids=str,
)
def test_a_layout_without_json_or_two_layouts_are_refused(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(HttpError) as caught:
        asked(**fields)
    assert caught.value.problem.param == param


def test_schemas_to_refer_to_stand_beside_the_schema() -> None:
    pointing, others = {"$ref": "http://x/a"}, {"http://x/a": {"type": "integer"}}
    wanted = wire.JsonSchema('{"$ref":"http://x/a"}').with_others(others)
    named = {"name": "x", "schema": pointing, "schemas": others}
    assert asked(response_format={"type": "json_schema", "json_schema": named}) == wanted
    assert asked(structured_outputs={"json": pointing, "schemas": others}) == wanted
    with pytest.raises(HttpError, match="no absolute URI"):
        asked(structured_outputs={"json": pointing, "schemas": {"a": {}}})
