"""The strict doubles of OpenAI's and Anthropic's APIs: what they refuse, and that they take what our
backends send.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import lmprog
from lmprog.backends.blackbox.http_client import HttpTransport
from lmprog.errors import LmprogError, Overloaded, ProgramError, RequestRejected
from lmprog.testing import Calls, ServiceFailure, StrictAnthropic, StrictOpenAI

pytest.importorskip("openai")
pytest.importorskip("anthropic")
Service = StrictOpenAI | StrictAnthropic
SERVICES: dict[str, Callable[..., Service]] = {"openai": StrictOpenAI, "anthropic": StrictAnthropic}
each_service = pytest.mark.parametrize("make", SERVICES.values(), ids=SERVICES)


@lmprog.function
def typed(s: lmprog.Branch, tp: Any) -> Any:
    s.user("Which?")
    return s.gen(tp).value


# --- what they refuse

USER = {"role": "user", "content": "Hello"}


def openai_call(id_: str = "a") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": "add", "arguments": "{}"}}


def calling(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [*map(openai_call, ids)]}


def result(id_: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": "5"}


def formatted(schema: Mapping[str, Any], strict: bool = True) -> dict[str, Any]:
    inner = {"name": "answer", "schema": schema, "strict": strict}
    return {"response_format": {"type": "json_schema", "json_schema": inner}}


def closed(**properties: object) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def nested(depth: int) -> dict[str, Any]:
    return closed(a=nested(depth - 1) if depth else {"type": "string"})


OPTIONAL = {**closed(a={"type": "string"}), "required": []}
DEFINED = {"$defs": {"A": closed(a={"type": "string"})}}
RECURSIVE = {**closed(a={"$ref": "#/$defs/B"}), "$defs": {"B": closed(b={"$ref": "#/$defs/B"})}}
OPENAI_SCHEMAS: dict[str, tuple[dict[str, Any], str]] = {
    "a reference at the root": ({"$ref": "#/$defs/A", **DEFINED}, 'got \'type: "None"'),
    "no object at the root": (
        {"type": "array", "items": {"type": "string"}},
        'got \'type: "array"',
    ),
    "an open object": (
        {**closed(a={"type": "string"}), "additionalProperties": True},
        "'additionalProperties' is required to be supplied and to be false",
    ),
    "an optional field": (OPTIONAL, "Missing 'a'"),
    "oneOf": (closed(a={"oneOf": [{"type": "string"}]}), "'type' key"),
    "allOf": (closed(a={"type": "string", "allOf": []}), "'allOf' is not permitted"),
    "a default": (closed(a={"type": "string", "default": "x"}), "'default' is not permitted"),
    "a discriminator": (
        closed(a={"anyOf": [{"type": "string"}], "discriminator": {}}),
        "'discriminator' is not permitted",
    ),
    "a reference with a description": (
        {**closed(a={"$ref": "#/$defs/A", "description": "x"}), **DEFINED},
        "$ref cannot have keywords ['description']",
    ),
    "a reference to nothing": (closed(a={"$ref": "#/$defs/B"}), "can only point to definitions"),
    "lengths of texts": (closed(a={"type": "string", "minLength": 1}), "'minLength'"),
    "unique items": (
        closed(a={"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
        "'uniqueItems' is not permitted",
    ),
    "a list of anything": (closed(a={"type": "array"}), "array schema missing items"),
    "any value": (closed(a={}), "schema must have a 'type' key"),
    "an unknown format": (closed(a={"type": "string", "format": "binary"}), "'format'"),
    "deep nesting": (nested(11), "levels of nesting exceeds limit of 10"),
    "many options": (
        closed(a={"type": "string", "enum": [str(i) for i in range(1001)]}),
        "1001 enum values exceeds limit of 1000",
    ),
}
OPENAI_REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown parameter": ({"top_k": 5}, "Unknown parameter: 'top_k'"),
    "no messages": ({"messages": []}, "Missing required parameter: 'messages'"),
    "five stops": ({"stop": ["a", "b", "c", "d", "e"]}, "maximum length 4"),
    "a temperature of another type": ({"temperature": "high"}, "Invalid request"),
    "a high temperature": ({"temperature": 3}, "'temperature'"),
    "an unknown role": ({"messages": [{"role": "tools", "content": ""}]}, "Invalid value: 'tools'"),
    "no content": (
        {"messages": [{"role": "user", "content": None}]},
        "expected a string, got null",
    ),
    "a result without a call": ({"messages": [USER, result("a")]}, "must be a response to a prec"),
    "a result of another call": (
        {"messages": [USER, calling("a"), result("b")]},
        "must be a response to a preceeding message",
    ),
    "a second result": (
        {"messages": [USER, calling("a"), result("a"), result("a")]},
        "must be a response to a preceeding message",
    ),
    "a call without a result": ({"messages": [USER, calling("a", "b"), result("a"), USER]}, ": b"),
    "calls without results at the end": ({"messages": [USER, calling("a")]}, ": a"),
    "the same id twice": ({"messages": [USER, calling("a", "a")]}, "Duplicate value"),
    "a long id": ({"messages": [USER, calling("a" * 41)]}, "maximum length 40"),
    "no tools": ({"tools": []}, "Invalid 'tools'"),
    "a choice without tools": ({"tool_choice": "none"}, "only allowed when 'tools'"),
    "parameters that are no object": (
        {
            "tools": [
                {"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}
            ]
        },
        "Invalid schema for function 'f'",
    ),
    "a name with a dot": (
        {"tools": [{"type": "function", "function": {"name": "a.b"}}]},
        "does not match pattern",
    ),
    "options of a stream": ({"stream_options": {}}, "only allowed when 'stream'"),
    "json without the word": ({"response_format": {"type": "json_object"}}, "the word 'json'"),
    **{name: (formatted(schema), about) for name, (schema, about) in OPENAI_SCHEMAS.items()},
}
ONE = {"type": "tool_use", "id": "a", "name": "add", "input": {}}
DONE = {"type": "tool_result", "tool_use_id": "a", "content": "5"}
TOOLS = {"tools": [{"name": "add", "input_schema": {"type": "object"}}]}


def called(*blocks: object, after: object = (DONE,)) -> dict[str, Any]:
    turns = [USER, {"role": "assistant", "content": [*blocks]}, {"role": "user", "content": after}]
    return {**TOOLS, "messages": turns}


def output(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


ANTHROPIC_SCHEMAS: dict[str, tuple[dict[str, Any], str]] = {
    "bounds": (
        closed(a={"type": "integer", "minimum": 1}),
        "For 'integer' type, property 'minimum' is not supported",
    ),
    "an open object": ({"type": "object", "properties": {}}, "must be explicitly set to false"),
    "oneOf": (closed(a={"oneOf": [{"type": "string"}]}), "'type' key"),
    "two items at least": (
        closed(a={"type": "array", "items": {"type": "string"}, "minItems": 2}),
        "property 'minItems' is not supported",
    ),
    "recursion": (RECURSIVE, "Recursive schemas are not supported"),
    "many optional fields": (
        {**closed(**{f"a{i}": {"type": "string"} for i in range(25)}), "required": []},
        "25 optional parameters exceeds limit of 24",
    ),
}
ANTHROPIC_REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "no limit": ({"max_tokens": None}, "max_tokens: Field required"),
    "a limit beyond the model's": ({"max_tokens": 64_001}, "64001 > 64000"),
    "an unknown parameter": ({"seed": 1}, "seed: Extra inputs are not permitted"),
    "a blank stop": ({"stop_sequences": ["\n"]}, "must contain non-whitespace"),
    "a system turn among the messages": (
        {"messages": [{"role": "system", "content": "x"}, USER]},
        'first message must use the "user" role',
    ),
    "an empty message": (
        {"messages": [USER, {"role": "assistant", "content": ""}, USER]},
        "must have non-empty content",
    ),
    "a blank text": ({"messages": [{"role": "user", "content": " "}]}, "non-whitespace text"),
    "a begun turn": (
        {"messages": [USER, {"role": "assistant", "content": "The"}]},
        "does not support assistant message prefill",
    ),
    "a result without a call": (
        {**TOOLS, "messages": [{"role": "user", "content": [DONE]}]},
        "unexpected `tool_use_id`",
    ),
    "a call without a result": (called(ONE, after="Well?"), "without `tool_result` blocks"),
    "a text before the result": (
        called(ONE, after=[{"type": "text", "text": "Well?"}, DONE]),
        "without `tool_result` blocks",
    ),
    "a second result": (called(ONE, after=[DONE, DONE]), "must have a single result"),
    "the same id twice": (called(ONE, ONE), "ids must be unique"),
    "an id with a dot": (called({**ONE, "id": "a.b"}), "String should match pattern"),
    "blocks of tools without tools": ({"messages": called(ONE)["messages"]}, "must define tools"),
    "a choice without tools": ({"tool_choice": {"type": "any"}}, "while providing tools"),
    **{name: (output(schema), about) for name, (schema, about) in ANTHROPIC_SCHEMAS.items()},
}


async def _refusal(service: Service, path: str, body: Mapping[str, Any]) -> str:
    transport = HttpTransport(service.url, "k")
    try:
        await transport.post(path, dict(body))
    except LmprogError as error:
        return str(error)
    finally:
        await transport.close()
    return "nothing was refused"


def refusal(service: Service, path: str, body: Mapping[str, Any]) -> str:
    return asyncio.run(_refusal(service, path, body))


@pytest.mark.parametrize("name", OPENAI_REQUESTS)
def test_openai_refuses(name: str) -> None:
    body, about = OPENAI_REQUESTS[name]
    with StrictOpenAI() as service:
        whole = {"model": "m", "messages": [USER], **body}
        found = refusal(service, "/v1/chat/completions", whole)
    assert found.startswith("the API refused (400)"), found
    assert about in found


@pytest.mark.parametrize("name", ANTHROPIC_REQUESTS)
def test_anthropic_refuses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, about = ANTHROPIC_REQUESTS[name]
    whole = {"model": "m", "max_tokens": 5, "messages": [USER], **body}
    whole = {name: value for name, value in whole.items() if value is not None}
    with StrictAnthropic() as service:
        told = service.told
        monkeypatch.setattr(
            service,
            "told",
            lambda path, body, headers: told(
                path, body, {**headers, "anthropic-version": "2023-06-01"}
            ),
        )
        found = refusal(service, "/v1/messages", whole)
    assert found.startswith("the API refused (400)"), found
    assert about in found


def test_a_schema_that_is_not_strict_is_openais_to_follow_or_not() -> None:
    with StrictOpenAI(['{"a": "x"}']) as service:
        body = {"model": "m", "messages": [USER], **formatted(OPTIONAL, strict=False)}
        assert refusal(service, "/v1/chat/completions", body) == "nothing was refused"


def test_completions_have_no_log_probabilities_of_what_they_echo() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("Yes or")
        return s.select(" no", " yes").value

    with StrictOpenAI([]) as service:
        options = {"is_chat_model": False, "echo": True}
        with service.connect(**options) as backend, pytest.raises(RequestRejected, match="echo"):
            program.using(backend=backend).run()


# --- the script


@each_service
def test_an_answer_that_the_schema_does_not_allow_is_refused(make: Callable[..., Service]) -> None:
    with (
        make(['{"value": "x"}']) as service,
        service.connect() as backend,
        pytest.raises(RequestRejected, match="the script answers"),
    ):
        typed.using(backend=backend).run(int)


@each_service
def test_answers_that_are_left_over_or_missing_are_told(make: Callable[..., Service]) -> None:
    with pytest.raises(ProgramError, match="1 answers of the script are left"), make(["a"]):
        pass
    with (
        make([]) as service,
        service.connect() as backend,
        pytest.raises(RequestRejected, match="no more answers"),
    ):
        typed.using(backend=backend).run(str)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff"])
@pytest.mark.parametrize("make", [StrictOpenAI, StrictAnthropic])
def test_a_body_that_is_no_json_object_is_refused(
    make: Callable[..., Service], body: bytes
) -> None:
    with make([]) as service:
        asked = urllib.request.Request(f"{service.url}/v1/messages", data=body, method="POST")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked)
        assert refused.value.code == 400
        assert "no JSON object" in json.loads(refused.value.read())["error"]["message"]
        assert service.requests == []


@each_service
def test_a_fault_is_the_services_failure(make: Callable[..., Service]) -> None:
    faults = [ServiceFailure(429, "slow down"), "fine", ServiceFailure(401, "wrong key")]
    with make(faults) as service, service.connect() as backend:
        assert typed.using(backend=backend).run(str).value == "fine"
        with pytest.raises(RequestRejected, match="wrong key"):
            typed.using(backend=backend).run(str)
    with (
        make(lambda body: ServiceFailure(529)) as service,
        service.connect(retries=0) as backend,
        pytest.raises(Overloaded),
    ):
        typed.using(backend=backend).run(str)


# --- programs


def add(a: int, b: int = 1) -> int:
    """Adds."""
    return a + b


@lmprog.function
async def agent(s: lmprog.Branch) -> list[Any]:
    s.system("You are a clerk.")
    s.user("How much is 2 + 3?")
    acted = await s.act([add])
    s.user("Is that much?")
    much = await s.gen(bool)
    s.user("")
    s.user("Which?")
    chosen = await s.select("one", "two")
    s.assistant("")
    s.user("Thanks.")
    async with s.fork(2) as branches:
        last = await branches.map(lambda b: b.gen(max_tokens=50, stop=["\n"]))
    return [acted.text, much, str(chosen), *last]


AGENT = [
    Calls([("add", {"a": 2, "b": 3}), ("add", {"a": 5})], "I add."),
    "5 and 6.",
    '{"value": false}',
    '{"value": "two"}',
    "Bye.\nAnd more.",
    "Bye.\nAnd more.",
]


@each_service
@pytest.mark.parametrize("streams", [False, True])
def test_a_chat_with_tools_types_and_forks_is_taken(
    make: Callable[..., Service], streams: bool
) -> None:
    with make(AGENT) as service, service.connect() as backend:
        program = agent.using(backend=backend, temperature=0.5)
        value = list(program.stream())[-1].value if streams else program.run().value  # type: ignore[union-attr]
    assert value == ["5 and 6.", False, "two", "Bye.", "Bye."]
    assert len(service.requests) == 6


@each_service
def test_a_call_that_writes_nothing_knows_the_tools_of_its_messages(
    make: Callable[..., Service],
) -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.user("How much is 2 + 3?")
        await s.act([add])
        s.user("Well?")
        return await s.gen(max_tokens=0)

    with make([Calls([("add", {"a": 2})]), "3", "!"]) as service, service.connect() as backend:
        assert program.using(backend=backend).run().value == ""


def test_the_version_of_anthropics_api_is_the_one_that_has_temperatures() -> None:
    with StrictAnthropic(["a"]) as service, service.connect() as backend:
        assert typed.using(backend=backend, temperature=0.5).run(str).value == "a"
        assert service.headers[0]["anthropic-version"] == "2023-06-01"
        assert service.requests[0]["temperature"] == 0.5
