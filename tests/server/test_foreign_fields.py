"""Known fields of OpenAI's, Anthropic's and other servers: honoured, or refused by name; never
dropped in silence.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lmprog import wire
from lmprog.server.anthropic import messages
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.http import foreign_fields
from lmprog.server.http.foreign_fields import FOREIGN_FIELDS
from lmprog.server.openai import chat_completions
from lmprog.server.openai.chat_completions import ChatBody, ChatCompletions
from lmprog.server.responses import responses_body
from tests.server.fake_runtime import Fake, asking
from tests.server.test_answers_are_whole import Answering, asked

Json = dict[str, Any]
MESSAGES = [{"role": "user", "content": "x"}]
CHAT: Json = {"messages": MESSAGES, "max_tokens": 4}
SCHEMA: Json = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def tool(name: str) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def runtime() -> Iterator[Fake]:
    with Fake() as fake:
        yield fake


def posted(runtime: Fake, path: str, body: Json) -> tuple[int, Json, str]:
    """Status, answer, and the `warning` header."""

    async def run() -> tuple[int, Json, str]:
        async with asking(runtime) as (client, _):
            answer = await client.post(path, json=body)
            return answer.status_code, answer.json(), answer.headers.get("warning", "")

    return asyncio.run(run())


def understood(runtime: Fake, body: ChatBody) -> ChatCompletions:
    def read(gateway: Gateway) -> ChatCompletions:
        return chat_completions.understood(gateway, body)

    async def run() -> ChatCompletions:
        async with asking(runtime) as (_, gateway):
            return read(gateway)

    return asyncio.run(run())


def chat(runtime: Fake, **fields: Any) -> ChatCompletions:
    return understood(runtime, msgspec.convert({**CHAT, **fields}, ChatBody))


def test_every_foreign_field_is_refused_by_name_with_advice(runtime: Fake) -> None:
    async def run() -> None:
        async with asking(runtime) as (client, _):
            for name, foreign in FOREIGN_FIELDS.items():
                value = "zzz" if True in foreign.neutral else True
                value = 17 if 1 in foreign.neutral else value
                body = ("/v1/chat/completions", CHAT)
                if name in ChatBody.__struct_fields__:
                    body = ("/v1/responses", {"input": "x"})
                if name in responses_body.ResponsesBody.__struct_fields__:
                    body = ("/v1/completions", {"prompt": "x"})
                answer = await client.post(body[0], json={**body[1], name: value})
                assert answer.status_code == 400, name
                error = answer.json()["error"]
                assert (error["param"], error["code"]) == (name, "not_supported")
                assert foreign.advice in error["message"]

    asyncio.run(run())


def test_a_foreign_field_that_asks_for_nothing_is_taken(runtime: Fake) -> None:
    neutral: Json = {"use_beam_search": False, "length_penalty": 1.0, "bad_words": []}
    neutral |= {"documents": None, "skip_special_tokens": True, "echo": False}
    status, _, _ = posted(runtime, "/v1/chat/completions", {**CHAT, **neutral})
    assert status == 200


def test_inside_of_sampling_params_foreign_fields_are_refused_too(runtime: Fake) -> None:
    body = {"text": "x", "sampling_params": {"documents": ["y"]}}
    status, answer, _ = posted(runtime, "/generate", body)
    assert status == 400
    assert answer["error"]["param"] == "sampling_params.documents"


@pytest.mark.parametrize(
    ("path", "body", "field", "ours"),
    [
        (
            "/generate",
            {"text": "x", "sampling_params": {"max_tokens": 3}},
            "sampling_params.max_tokens",
            "max_new_tokens",
        ),
        ("/v1/chat/completions", {**CHAT, "max_new_tokens": 3}, "max_new_tokens", "max_tokens"),
        ("/v1/messages", {**CHAT, "stop": "x"}, "stop", "stop_sequences"),
    ],
)
def test_another_dialects_spelling_of_an_option_is_refused_with_ours(
    runtime: Fake, path: str, body: Json, field: str, ours: str
) -> None:
    status, answer, _ = posted(runtime, path, body)
    assert status == 400
    assert answer["error"]["message"] == f'unknown field "{field}"; did you mean "{ours}"?'
    error = answer["error"]
    assert error.get("details", error)["param"] == field  # Anthropic's form has it in there


def test_a_field_that_no_server_is_known_to_have_gives_a_warning(runtime: Fake) -> None:
    status, _, warning = posted(runtime, "/v1/chat/completions", {**CHAT, "tempratur": 1})
    assert status == 200
    assert "tempratur" in warning


def test_a_strict_server_names_the_nearest_field_and_all_valid_ones(runtime: Fake) -> None:
    async def run() -> Json:
        async with asking(runtime, strict_api=True) as (client, _):
            answer = await client.post("/v1/chat/completions", json={**CHAT, "tempratur": 1})
            error: Json = answer.json()["error"]
            return error

    error = asyncio.run(run())
    assert 'unknown field "tempratur"; did you mean "temperature"? valid: ' in error["message"]
    assert error["param"] == "tempratur"


def test_json_object_with_a_schema_enforces_the_schema(runtime: Fake) -> None:
    made = chat(runtime, response_format={"type": "json_object", "schema": SCHEMA})
    assert isinstance(made.prompt.constraint, wire.JsonSchema)
    assert json.loads(made.prompt.constraint.schema) == SCHEMA


def test_choices_at_the_documented_limit_are_taken_and_beyond_it_refused(runtime: Fake) -> None:
    """1,024 texts of 384 characters compile within the runtime's time for a constraint."""
    texts = [f"{number:04}" + "abcd" * 95 for number in range(1024)]
    path = "/v1/chat/completions"
    body: Json = {**CHAT, "max_tokens": 400, "structured_outputs": {"choice": texts}}
    status, answer, _ = posted(runtime, path, body)
    assert status == 200, answer
    body["structured_outputs"] = {"choice": [*texts[1:], "x" * 385]}
    status, answer, _ = posted(runtime, path, body)
    assert status == 400
    assert answer["error"]["param"] == "structured_outputs.choice"
    assert "393,217 characters in all" in answer["error"]["message"]


def test_llama_cpps_grammar_is_a_constraint(runtime: Fake) -> None:
    made = chat(runtime, grammar='root ::= "a"')
    assert made.prompt.constraint == wire.Grammar('root ::= "a"')


@pytest.mark.parametrize(
    "fields",
    [
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
    ],
)
def test_anthropics_schema_is_enforced(runtime: Fake, fields: Json) -> None:
    body = msgspec.convert({**CHAT, **fields}, messages.MessagesBody)
    constraint = understood(runtime, messages.chat_of(body)).prompt.constraint
    assert isinstance(constraint, wire.JsonSchema)
    assert json.loads(constraint.schema) == SCHEMA


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format"),
        ({"container": {"id": "x"}}, "container"),
    ],
)
def test_anthropics_fields_without_a_meaning_here_are_refused(
    runtime: Fake, fields: Json, param: str
) -> None:
    status, answer, _ = posted(runtime, "/v1/messages", {**CHAT, **fields})
    assert status == 400
    assert answer["error"]["details"]["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"include": ["message.output_text.logprob"]}, "include"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"truncation": "auto"}, "truncation"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
    ],
)
def test_fields_of_responses_without_a_meaning_here_are_refused(
    runtime: Fake, fields: Json, param: str
) -> None:
    status, answer, _ = posted(runtime, "/v1/responses", {"input": "x", **fields})
    assert status == 400
    assert answer["error"]["param"] == param


def test_what_a_response_may_include_is_taken(runtime: Fake) -> None:
    body = {"input": "x", "max_output_tokens": 4, "include": list(responses_body.INCLUDABLE)}
    status, answer, _ = posted(runtime, "/v1/responses", body)
    assert status == 200
    assert answer["output"][0]["content"][0]["logprobs"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        (
            {"add_generation_prompt": True, "continue_final_message": True},
            "add_generation_prompt",
        ),
    ],
)
def test_what_the_template_cannot_do_is_refused(runtime: Fake, fields: Json, param: str) -> None:
    status, answer, _ = posted(runtime, "/v1/chat/completions", {**CHAT, **fields})
    assert status == 400
    assert answer["error"]["param"] == param


def test_variables_of_the_template_travel_with_the_conversation(runtime: Fake) -> None:
    made = chat(runtime, chat_template_kwargs={"thinking": True}, reasoning_effort="none")
    (conversation,) = made.prompt.pieces
    assert isinstance(conversation, wire.Conversation)
    assert json.loads(conversation.variables) == {"thinking": True, "enable_thinking": False}


def test_a_stop_text_is_included_where_that_is_asked_for() -> None:
    answering = Answering()
    try:
        for path, more in (("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "x"})):
            body = {**more, "stop": "halt", "include_stop_str_in_output": True}
            (choice,) = asked(answering, path, body)["choices"]
            text = choice["message"]["content"] if "message" in choice else choice["text"]
            assert text == "a texthalt"
    finally:
        answering.end()


TOOLS = [tool("add"), tool("sub")]
ANSWER: Json = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}


CALL = '<tool_call>\n{"name": "%s", "arguments": {"a": 1}}\n</tool_call>'


def calls_of(made: ChatCompletions, text: str) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in made.box.read(wire.Output(text, (), "stop"))[1]]


def test_tools_and_a_schema_make_a_call_or_an_answer(runtime: Fake) -> None:
    made = chat(runtime, tools=TOOLS, response_format=ANSWER)
    assert isinstance(made.prompt.constraint, wire.AnyOf)
    answer, _ = made.prompt.constraint.options
    assert isinstance(answer, wire.JsonSchema)
    assert json.loads(answer.schema) == SCHEMA
    assert made.box.read(wire.Output('{"a": 1}', (), "stop")) == ('{"a": 1}', [], "")
    assert calls_of(made, CALL % "sub") == [("sub", '{"a": 1}')]
    assert calls_of(made, CALL % "sub" + "\n" + CALL % "sub") == [("sub", '{"a": 1}')] * 2


def test_an_answer_of_the_schema_is_streamed_as_it_comes(runtime: Fake) -> None:
    reader = chat(runtime, tools=TOOLS, response_format=ANSWER).box.reader()
    assert reader.feed("{") == ["{"]
    assert reader.feed('"a": ') == ['"a":']  # white space waits: a call could follow
    assert reader.feed("1}") == [" 1}"]
    assert reader.finish() == []


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_call_that_must_be_made_leaves_no_answer_to_constrain(runtime: Fake, choice: Any) -> None:
    plain = chat(runtime, tools=TOOLS, tool_choice=choice)
    both = chat(runtime, tools=TOOLS, tool_choice=choice, response_format=ANSWER)
    assert both.prompt.constraint == plain.prompt.constraint


def test_tools_and_a_pattern_make_a_call_or_a_match(runtime: Fake) -> None:
    made = chat(runtime, tools=TOOLS, regex="a+")
    assert isinstance(made.prompt.constraint, wire.AnyOf)
    assert made.prompt.constraint.options[0] == wire.Regex("a+")


def test_tools_and_a_grammar_contradict_each_other(runtime: Fake) -> None:
    status, answer, _ = posted(
        runtime, "/v1/chat/completions", {**CHAT, "tools": TOOLS, "ebnf": 'root ::= "a"'}
    )
    assert status == 400
    assert answer["error"]["param"] == "tool_choice"


def test_a_call_or_an_answer_is_made_under_the_constraint(runtime: Fake) -> None:
    body = {**CHAT, "max_tokens": 200, "tools": TOOLS, "response_format": ANSWER}
    body["response_format"]["json_schema"]["schema"] = {**SCHEMA, "additionalProperties": False}
    for seed in range(4):
        status, answer, _ = posted(runtime, "/v1/chat/completions", {**body, "seed": seed})
        assert status == 200
        message = answer["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        for call in calls:
            assert call["function"]["name"] in ("add", "sub")
        if not calls and answer["choices"][0]["finish_reason"] == "stop":
            assert set(json.loads(message["content"])) == {"a"}


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_called_and_all_are_shown(runtime: Fake, mode: str) -> None:
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "sub"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    made = chat(runtime, tools=TOOLS, tool_choice=choice)
    assert [tool.name for tool in made.box.shown] == ["add", "sub"]
    begin = len("<tool_call>\n") if mode == "required" else 0
    assert calls_of(made, (CALL % "sub")[begin:]) == [("sub", '{"a": 1}')]
    assert calls_of(made, (CALL % "add")[begin:]) == []


def test_allowed_tools_that_are_not_there_are_refused(runtime: Fake) -> None:
    for allowed in ({"mode": "auto", "tools": []}, {"mode": "any", "tools": [{"function": None}]}):
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        body = {**CHAT, "tools": TOOLS, "tool_choice": choice}
        status, _, _ = posted(runtime, "/v1/chat/completions", body)
        assert status == 400


def test_responses_take_allowed_tools_in_their_flat_form(runtime: Fake) -> None:
    flat = [{"type": "function", "name": name, "parameters": SCHEMA} for name in ("add", "sub")]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [flat[1]]}
    body = msgspec.convert(
        {"input": "x", "tools": flat, "tool_choice": choice}, responses_body.ResponsesBody
    )
    asks = responses_body.chat_of(
        body, responses_body.messages_of(body.input), responses_body.ServedTools(body.tools)
    )
    box = understood(runtime, asks).box
    assert (box.choice, [one.name for one in box.tools]) == ("required", ["sub"])


def test_the_documentation_lists_the_foreign_fields() -> None:
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    found = re.search(r"<!-- foreign -->\n(.*?)<!-- /foreign -->", page, re.DOTALL)
    assert found is not None
    assert found[1] == foreign_fields.markdown()


def test_requests_of_a_harness_are_turns_of_the_session_that_they_name() -> None:
    """The second one comes behind the end of the first one, on the same connection."""
    headers, longer = {"session-id": "s"}, [*MESSAGES, *MESSAGES, *MESSAGES]

    async def run(runtime: Fake) -> None:
        async with asking(runtime) as (client, _):
            for messages in (MESSAGES, longer):
                body = {**CHAT, "messages": messages, "prompt_cache_key": "k"}
                answer = await client.post("/v1/chat/completions", json=body, headers=headers)
                assert (answer.status_code, answer.headers.get("warning")) == (200, None)

    with Fake() as runtime:
        asyncio.run(run(runtime))
        kinds = runtime.scheduler.sessions.kinds
    assert kinds
    assert all(kind.is_named for kind in kinds)


@pytest.mark.parametrize(
    ("field", "value"),
    [("think", False), ("enable_thinking", False), ("format", "json"), ("no_stop_trim", True)],
)
def test_what_other_servers_call_a_field_of_ours_is_refused_with_our_name(
    runtime: Fake, field: str, value: Any
) -> None:
    status, answer, _ = posted(runtime, "/v1/chat/completions", {**CHAT, field: value})
    assert (status, answer["error"]["param"]) == (400, field)
    assert "use " in answer["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/v1/responses", "/generate"])
@pytest.mark.parametrize(
    ("field", "value"),
    [("thinking", {"type": "disabled"}), ("thinking", False), ("reasoning", {"effort": "none"})],
)
def test_thoughts_are_turned_off_where_that_is_known_and_refused_elsewhere(
    runtime: Fake, path: str, field: str, value: Any
) -> None:
    prompt: dict[str, Json] = {
        "/v1/completions": {"prompt": "x", "max_tokens": 1},
        "/v1/messages": {"messages": CHAT["messages"], "max_tokens": 1, "model": "fake"},
        "/v1/responses": {"input": "x", "max_output_tokens": 1},
        "/generate": {"text": "x", "sampling_params": {"max_new_tokens": 1}},
    }
    assert posted(runtime, path, prompt[path])[0] == 200
    status, answer, _ = posted(runtime, path, {**prompt[path], field: value})
    if (path, field) == ("/v1/messages", "thinking") and isinstance(value, dict):
        assert status == 200, "Anthropic's own field"
    else:
        assert status == 400
        assert field in json.dumps(answer)
