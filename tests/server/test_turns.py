"""A whole turn: what the model thinks, then text in which strict calls are confined, or an answer in
its format. What each dialect makes of it, and what the runtime is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import jsonschema
import pytest

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.inspect import accepts, byte_vocabulary
from tests.server.live import Live
from tests.server.test_channels import Saying, answered, chat, events, walked

Json = dict[str, Any]

THINKS = wire.ThoughtForm("<think>", "</think>", "free", "enable_thinking", "open", "closed")
SCHEMA: Json = {
    "type": "object",
    "properties": {
        "town": {"type": "string", "maxLength": 12, "pattern": "^[a-z]+$"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["town", "days"],
    "additionalProperties": False,
}
FUNCTION: Json = {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA}
STRICT: Json = {"type": "function", "function": {**FUNCTION, "strict": True}}
CALL = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"town": "oslo", "days": 3}}\n</tool_call>'
)
BROKEN = CALL.replace("oslo", "Oslo")
QUESTIONS = ("How is the weather in Oslo?", "I travel to Rome. How is the weather?", "Hello")
VERDICT: Json = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
FORMAT: Json = {"type": "json_schema", "json_schema": {"name": "v", "schema": VERDICT}}


def arguments_of(found: Any) -> list[Any]:
    """Of all calls of an answer, in whatever dialect."""
    named = [one for one in walked(found) if one.get("name") == "get_weather"]
    return [
        one["input"] if "input" in one else json.loads(one["arguments"])
        for one in named
        if "input" in one or one.get("arguments")
    ]


def test_strict_tools_have_valid_arguments_in_every_dialect(live: Live) -> None:
    """nano calls by itself, and knows no `days`: unconfined, each of these would be invalid."""
    found = []
    for seed, text in enumerate(QUESTIONS):
        turns: Json = {"messages": [{"role": "user", "content": text}], "max_tokens": 80}
        turns["temperature"] = 0.5
        asked = turns | {"tools": [STRICT], "seed": seed}
        found += arguments_of(live.ok("/v1/chat/completions", **asked))
        flat = {"type": "function", **FUNCTION, "strict": True}
        found += arguments_of(live.ok("/v1/responses", input=text, tools=[flat]))
        tool = {"name": "get_weather", "input_schema": SCHEMA, "strict": True}
        found += arguments_of(live.ok("/v1/messages", **turns, tools=[tool]))
    assert found
    for arguments in found:
        jsonschema.validate(arguments, SCHEMA)


@pytest.mark.parametrize("most", [1, 9, 24, 25, 26, 40])
def test_a_call_is_begun_only_where_its_end_has_room(live: Live, most: int) -> None:
    asked = {"messages": [{"role": "user", "content": QUESTIONS[0]}], "max_tokens": most}
    (choice,) = live.ok("/v1/chat/completions", **asked, tools=[STRICT])["choices"]
    assert "<tool_call>" not in (choice["message"]["content"] or "")
    for arguments in arguments_of(choice):
        jsonschema.validate(arguments, SCHEMA)


@pytest.fixture
def saying() -> Iterator[Saying]:
    runtime = Saying()
    try:
        yield runtime
    finally:
        runtime.end()


@pytest.fixture
def thinking(saying: Saying) -> Saying:
    saying.support = wire.ToolSupport(lists_tools=True, writes_calls=True, thought=THINKS)
    return saying


def constraint_of(runtime: Saying) -> Any:
    asked = runtime.asked().constraint
    assert asked is not None
    made = compile_constraint(asked, byte_vocabulary())
    return lambda text: accepts(made, text)


def on(**more: Any) -> Json:
    return {"chat_template_kwargs": {"enable_thinking": True}, **more}


def test_a_thought_is_told_apart_by_every_name_that_clients_know(thinking: Saying) -> None:
    message = chat(thinking, "Hm.\n</think>\n\nYes.", **on())["message"]
    assert (message["content"], message["reasoning_content"]) == ("Yes.", "Hm.")
    assert message["reasoning"] == "Hm."
    assert chat(thinking, "<think>Hm.</think>Yes.")["message"]["reasoning"] == "Hm."
    off = chat(thinking, "<think>Yes.", chat_template_kwargs={"enable_thinking": False})
    assert off["message"]["content"] == "<think>Yes."


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_thought_is_told_apart_in_streams_of_every_dialect(thinking: Saying, path: str) -> None:
    asked: Json = {"messages": [{"role": "user", "content": "?"}], "max_tokens": 64}
    if path == "/v1/responses":
        asked = {"input": "?"}
    body = asked | on(stream=True, model="gpt-oss")
    if path == "/v1/messages":
        body["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    found = events(answered(thinking, path, "Hm, so.\n</think>\n\nYes, <b>.", body))
    kinds = ("thinking_delta", "response.reasoning_text.delta")
    thoughts, texts = "", ""
    for one in found:
        for part in walked(one) if path != "/v1/responses" else [one]:
            if part.get("type") in kinds or "reasoning_content" in part:
                thoughts += part.get("thinking") or part.get("delta") or part["reasoning_content"]
            elif part.get("type") in ("text_delta", "response.output_text.delta"):
                texts += part.get("text") or part["delta"]
            elif "content" in part and "index" not in part and path.endswith("completions"):
                texts += part["content"] or ""
    assert (thoughts, texts) == ("Hm, so.", "Yes, <b>.")


def test_thoughts_are_left_in_or_out_as_is_asked(thinking: Saying) -> None:
    text = "Hm.</think>Yes."
    left = chat(thinking, text, **on(separate_reasoning=False))["message"]
    assert left["content"] == text
    for out in ({"include_reasoning": False}, {"reasoning": {"exclude": True}}):
        message = chat(thinking, text, **on(**out))["message"]
        assert message["content"] == "Yes."
        assert "reasoning" not in message


def test_a_named_tool_is_called_once_behind_a_thought_as_without_one(thinking: Saying) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    chat(thinking, f"Hm.</think>{CALL}", **on(tools=[STRICT], tool_choice=named))
    fits = constraint_of(thinking)
    assert fits(f"Hm.</think>{CALL}")
    assert not fits(f"Hm.</think>{CALL}\n{CALL}")


@pytest.mark.parametrize("stream", [False, True])
def test_a_confined_call_is_read_as_one_whatever_its_strings_spell(
    thinking: Saying, stream: bool
) -> None:
    """A string of the arguments may have the tag that ends calls, and the text before it quotes."""
    schema: Json = {"type": "object", "properties": {"text": {"type": "string"}}}
    tool: Json = {"type": "function", "function": {"name": "say", "parameters": schema}}
    tool["function"]["strict"] = True
    said = {"text": "a </tool_call> b"}
    call = CALL.replace("get_weather", "say")
    call = call.replace('{"town": "oslo", "days": 3}', json.dumps(said))
    body: Json = {"messages": [{"role": "user", "content": "?"}], "tools": [tool], **on()}
    text = f'Hm.</think>I "quote <think> it: {call}'
    answer = answered(thinking, "/v1/chat/completions", text, body | {"stream": stream})
    assert constraint_of(thinking)(text)
    found = events(answer) if stream else [answer.json()]
    calls = [one for part in walked(found) for one in part.get("tool_calls") or ()]
    assert "".join(one["function"]["arguments"] for one in calls) == json.dumps(said)


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"reasoning_effort": "none"}, False),
        ({"reasoning": {"enabled": True}}, True),
        ({"reasoning": {"enabled": False}}, False),
        ({"thinking": {"type": "disabled"}}, False),
    ],
)
def test_thoughts_are_turned_on_and_off_in_every_spelling(
    thinking: Saying, fields: Json, value: bool
) -> None:
    chat(thinking, "Yes.", **fields)
    (conversation,) = thinking.pieces()
    assert isinstance(conversation, wire.Conversation)
    assert json.loads(conversation.variables) == {"enable_thinking": value}


@pytest.mark.parametrize("value", [True, False])
def test_a_response_has_thoughts_turned_on_and_off_and_limited(
    thinking: Saying, value: bool
) -> None:
    asked = {"input": "?", "model": "gpt-oss", "reasoning": {"enabled": value, "max_tokens": 9}}
    answered(thinking, "/v1/responses", "Hm.</think>Yes.", asked)
    (conversation,) = thinking.pieces()
    assert isinstance(conversation, wire.Conversation)
    assert json.loads(conversation.variables) == {"enable_thinking": value}
    limit = thinking.asked().thought
    assert (limit is not None and limit.most == 9) is value


def test_a_format_holds_behind_the_thought(thinking: Saying) -> None:
    chat(thinking, 'Hm.</think>{"ok": true}', **on(response_format=FORMAT))
    fits = constraint_of(thinking)
    assert fits('I think {"ok": 3} is it.\n</think>\n\n{"ok": true}')
    assert not fits('{"ok": true}')
    assert not fits('Hm.</think>{"ok": 3}')


def test_a_format_may_follow_a_thought_or_none_where_the_model_opens_it(thinking: Saying) -> None:
    chat(thinking, '{"ok": true}', response_format=FORMAT)
    fits = constraint_of(thinking)
    assert fits('{"ok": true}')
    assert fits('<think>Hm.</think>{"ok": true}')
    assert not fits('<think>{"ok": true}')


def test_an_answer_that_goes_on_goes_on_inside_of_its_format(thinking: Saying) -> None:
    begun = [{"role": "user", "content": "?"}, {"role": "assistant", "content": '{"ok": '}]
    more: Json = {"messages": begun, "continue_final_message": True, "response_format": FORMAT}
    message = chat(thinking, "true}", **on(**more))["message"]
    assert message["content"] == "true}"
    fits = constraint_of(thinking)
    assert fits("true}")
    assert not fits('{"ok": true}')


def test_calls_are_held_to_their_schemas_behind_a_thought_that_may_quote_them(
    thinking: Saying,
) -> None:
    choice = chat(thinking, f"Not {BROKEN}.</think>\n{CALL}", **on(tools=[STRICT]))
    assert arguments_of(choice) == [{"town": "oslo", "days": 3}]
    fits = constraint_of(thinking)
    assert fits(f"Not {BROKEN}.</think>\n{CALL}")
    assert fits("Hm.</think>It rains.")
    assert fits("cut in the tho")
    assert not fits(f"Hm.</think>\n{BROKEN}")


def test_a_call_a_format_and_a_thought_go_together(thinking: Saying) -> None:
    chat(thinking, f"Hm.</think>{CALL}", **on(tools=[STRICT], response_format=FORMAT))
    fits = constraint_of(thinking)
    assert fits(f"Hm.</think>{CALL}")
    assert fits('Hm.</think>{"ok": false}')
    assert not fits("Hm.</think>It rains.")


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_a_call_that_must_be_made_comes_behind_the_thought(thinking: Saying, choice: Any) -> None:
    made = chat(thinking, f"Hm.</think>{CALL}", **on(tools=[STRICT], tool_choice=choice))
    assert arguments_of(made) == [{"town": "oslo", "days": 3}]
    assert made["message"]["reasoning"] == "Hm."
    assert constraint_of(thinking)(f"Hm.</think>{CALL}")


@pytest.mark.parametrize(
    "fields",
    [{"thinking_token_budget": 9}, {"reasoning": {"max_tokens": 9}}],
)
def test_a_budget_of_thoughts_reaches_the_runtime(thinking: Saying, fields: Json) -> None:
    chat(thinking, "Hm.</think>Yes.", **on(**fields))
    assert thinking.asked().thought == wire.ThoughtLimit("", "</think>", "\n</think>\n\n", 9)


def test_what_is_confined_is_whole_and_has_no_stop_in_it(live: Live) -> None:
    item: Json = {"type": "array", "items": {"type": "string", "minLength": 9}, "minItems": 2}
    schema: Json = {"type": "object", "properties": {"x": item}, "required": ["x"]}
    function: Json = {"name": "w", "parameters": schema | {"additionalProperties": False}}
    tool: Json = {"type": "function", "function": function | {"strict": True}}
    named = {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "w"}}}
    form = {"type": "json_schema", "json_schema": {"name": "v", "schema": schema}}
    stops = ["a", "e", "i", "th"]
    confined: list[Json] = [named, {"response_format": form}]
    for seed, fields in enumerate(confined * 2):
        turns: Json = {"messages": [{"role": "user", "content": QUESTIONS[0]}], "max_tokens": 60}
        found = live.ok("/v1/chat/completions", **turns, **fields, stop=stops, seed=seed)
        message = found["choices"][0]["message"]
        calls = message.get("tool_calls")
        text = calls[0]["function"]["arguments"] if calls else message["content"]
        jsonschema.validate(json.loads(text), schema)
        assert not [stop for stop in stops if stop in text], text


PATHS = ("/v1/chat/completions", "/v1/responses")


def told_tokens(runtime: Saying, path: str, tokens: list[str], **more: Any) -> Any:
    """The details of usage of an answer in these tokens."""
    runtime.ends = tuple(accumulate(map(len, tokens)))
    asked = {"input": "?"} if path == PATHS[1] else {"messages": [{"role": "user", "content": "?"}]}
    usage = {"stream_options": {"include_usage": True}} if more.get("stream") else {}
    answer = answered(
        runtime, path, "".join(tokens), asked | (usage if path == PATHS[0] else {}) | more
    )
    (*_, found) = events(answer) if more.get("stream") else [answer.json()]
    used = (found.get("response") or found)["usage"]
    (details,) = (used[name] for name in used if name in _DETAILS)
    return details["reasoning_tokens"]


_DETAILS = ("completion_tokens_details", "output_tokens_details")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("tokens", "count"),
    [
        (["I", " think", ".", "</think>", "\n\n", "Yes", "."], 4),
        (["I", " think", ".</", "think>\n\nY", "es", "."], 4),
        (["I", " think", ".", "<", "/think", "x>"], 6),
        (["", "Hm", "", "</think>", "", "Yes"], 4),
    ],
    ids=["a tag", "a token spans the end", "no end", "parts of characters"],
)
def test_usage_says_how_many_tokens_the_thought_took(
    thinking: Saying, path: str, stream: bool, tokens: list[str], count: int
) -> None:
    assert told_tokens(thinking, path, tokens, **on(stream=stream)) == count


def test_thoughts_that_are_not_shown_are_counted_and_answers_without_one_have_none(
    thinking: Saying,
) -> None:
    tokens = ["<think>", "Hm", "</think>", "Yes"]
    for hidden in ({"include_reasoning": False}, {"separate_reasoning": False}):
        assert told_tokens(thinking, PATHS[0], tokens, **hidden) == 3
    assert told_tokens(thinking, PATHS[0], ["Yes", ".</think>"]) == 0
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert told_tokens(thinking, PATHS[0], tokens, **off) == 0
    last = [op for op in thinking.ops if isinstance(op, wire.Generate)][-1]
    assert not last.with_ends, "it costs nothing where nothing is thought"


def test_all_thoughts_in_channels_are_counted_with_their_marks(saying: Saying) -> None:
    analysis = ["<|channel|>", "analysis", "<|message|>", "Hm", ".", "<|end|>"]
    head = ["<|start|>", "assistant"]
    said = ["<|channel|>", "commentary", "<|message|>", "Wait", "<|end|>"]
    final = ["<|channel|>", "final", "<|message|>", "Yes"]
    tokens = [*analysis, *head, *said, *head, *analysis, *head, *final]
    assert told_tokens(saying, PATHS[0], tokens) == 2 * len(analysis) + len(head)
    assert told_tokens(saying, PATHS[0], analysis[:-1]) == len(analysis) - 1


def test_schemas_that_cannot_be_enforced_are_left_out_unless_a_tool_is_strict(
    saying: Saying,
) -> None:
    saying.support = wire.ToolSupport(dialect="", writes_calls=True)
    odd: Json = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"(.)\1"}}}
    odd["required"] = ["a"]
    tool: Json = {"type": "function", "function": {"name": "odd", "parameters": odd}}
    chat(saying, "Hello.", tools=[tool, STRICT])
    fits = constraint_of(saying)
    assert fits(CALL)
    assert not fits(BROKEN)
    assert fits('<tool_call>\n{"name": "odd", "arguments": {"a": 1}}\n</tool_call>')


def test_a_strict_schema_that_the_models_form_cannot_hold_is_refused(saying: Saying) -> None:
    around = wire.KeyedValue("<k>", "</k><v>", "</v>")
    keyed = wire.KeyedArguments(around, around)
    form = wire.CallForm(("<call>", "", "</call>"), ("name", "arguments"), keyed=keyed)
    saying.support = wire.ToolSupport(form)
    parameters = {**SCHEMA, "minProperties": 1}
    for strict, status in ((True, 400), (False, 200)):
        function = {**FUNCTION, "parameters": parameters, "strict": strict}
        body = {"messages": [{"role": "user", "content": "?"}]}
        body["tools"] = [{"type": "function", "function": function}]
        answer = answered(saying, "/v1/chat/completions", "Hello.", body)
        assert answer.status_code == status, answer.text
    assert (
        "minProperties"
        in answered(saying, "/v1/chat/completions", "", {**body, "tool_choice": "required"}).text
    )


def test_calls_are_confined_where_the_template_writes_them_and_else_where_a_tool_is_strict(
    saying: Saying,
) -> None:
    loose: Json = {"type": "function", "function": FUNCTION}
    asked: Iterator[tuple[str, Json, bool]] = iter(
        [("", loose, True), ("hermes", loose, False), ("hermes", STRICT, True)]
    )
    for dialect, tool, is_confined in asked:
        saying.ops.clear()
        saying.support = wire.ToolSupport(dialect=dialect)
        chat(saying, "Hello.", tools=[tool])
        assert (saying.asked().constraint is not None) is is_confined
