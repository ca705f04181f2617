"""Requests of popular clients are answered, each in the shape that its client reads."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from lmprog.server.anthropic import messages
from tests.server.live import Live
from tests.server.recorded_requests import (
    CLAUDE_CODE,
    CODEX,
    CODEX_TOOLS,
    REQUESTS,
    Json,
    Recorded,
    schema,
)


def short(asked: Recorded) -> Json:
    """The same request with an answer that ends soon."""
    path = asked.path.partition("?")[0]
    body = dict(asked.body or {})
    if path.startswith("/api/"):
        return {**body, "options": {**body.get("options", {}), "num_predict": 6}}
    limits = {"max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"}
    if limits & set(body):
        return body
    return {**body, "max_output_tokens" if path == "/v1/responses" else "max_tokens": 6}


def told(live: Live, path: str, body: Json) -> list[Json]:
    """The events of a stream."""
    found = [json.loads(data) for data in live.events(path, **body) if data != "[DONE]"]
    assert found
    return found


def check_responses(events: list[Json]) -> None:
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in ("response.completed", "response.incomplete")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["output"]


def check_messages(events: list[Json]) -> None:
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") > 0
    assert events[-2]["usage"]["output_tokens"] > 0


def check_chats(events: list[Json]) -> None:
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"]]
    assert reasons[-1] in ("stop", "length", "tool_calls")
    assert reasons.count(None) == len(reasons) - 1


def check_ollamas(lines: list[Json]) -> None:
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert all(line["created_at"].endswith("Z") for line in lines)
    assert all(("message" in line) != ("response" in line) for line in lines)
    last = lines[-1]
    assert last["done_reason"] in ("stop", "length")
    assert last["prompt_eval_count"] > 0
    assert last["eval_count"] > 0
    assert last["total_duration"] >= last["eval_duration"] >= 0


def check_llama_cpps(events: list[Json]) -> None:
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["stop_type"] in ("eos", "limit", "word")
    assert events[-1]["tokens_predicted"] > 0


CHECKS = {
    "/v1/chat/completions": check_chats,
    "/v1/responses": check_responses,
    "/v1/messages": check_messages,
    "/api/chat": check_ollamas,
    "/api/generate": check_ollamas,
    "/completion": check_llama_cpps,
}
READ: dict[str, Any] = {
    "/v1/models": lambda answer: answer["data"][0]["id"] == "nano",
    "/api/tags": lambda answer: answer["models"][0]["name"] == "nano",
    "/api/ps": lambda answer: answer["models"][0]["context_length"] == 4096,
    "/api/version": lambda answer: tuple(map(int, answer["version"].split("."))) >= (0, 6, 4),
    "/api/show": lambda answer: {"completion", "tools"} <= set(answer["capabilities"]),
    "/props": lambda answer: answer["default_generation_settings"]["n_ctx"] == 4096,
    "/slots": lambda answer: not answer[0]["is_processing"] and answer[0]["n_ctx"] == 4096,
    "/health": lambda answer: answer == {"status": "ok"},
}
"""What is read of an answer that is no text."""


@pytest.mark.parametrize("asked", REQUESTS, ids=str)
def test_a_clients_request_is_answered_in_its_shape(live: Live, asked: Recorded) -> None:
    path = asked.path.partition("?")[0]
    if path in READ:
        if asked.body is None:
            answer = live.http.get(asked.path)
        else:
            answer = live.post(asked.path, **asked.body)
        assert answer.status_code == 200
        assert READ[path](answer.json())
        return
    body = short(asked)
    if "Workflow" in str(body):  # whose description alone is more than nano's context
        error = live.refused(asked.path, **body)
        assert (error["param"], error["error_code"]) == ("messages", "context_length_exceeded")
        body["tools"] = body["tools"][:1]
    if body.get("stream") is False:
        assert live.ok(asked.path, **body)["choices"][0]["finish_reason"]
    elif path.startswith("/api/"):
        answer = live.post(asked.path, **body)
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert "warning" not in answer.headers or "tool calls" in answer.headers["warning"]
        check_ollamas([json.loads(line) for line in answer.text.splitlines()])
    else:
        CHECKS[path](told(live, asked.path, body))


def calls(live: Live, choice: Any, **more: Any) -> list[Json]:
    """The output of a request that has to call one of Codex' tools."""
    tools = [*CODEX_TOOLS, {"type": "local_shell"}]
    made = live.ok(
        "/v1/responses",
        input="Do it",
        tools=tools,
        tool_choice=choice,
        max_output_tokens=80,
        **more,
    )
    found: list[Json] = made["output"]
    return found


@pytest.mark.parametrize(
    ("choice", "kind", "fields"),
    [
        (
            {"type": "custom", "name": "apply_patch"},
            "custom_tool_call",
            {"name": "apply_patch", "input": str},
        ),
        (
            {"type": "function", "namespace": "multi_agent_v1", "name": "close_agent"},
            "function_call",
            {"name": "close_agent", "namespace": "multi_agent_v1", "arguments": str},
        ),
        ({"type": "local_shell"}, "local_shell_call", {"action": dict}),
        (
            {"type": "function", "name": "write_stdin"},
            "function_call",
            {"name": "write_stdin", "arguments": str},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_tool_that_the_client_runs_is_called_by_an_item_of_its_own_type(
    live: Live, choice: Json, kind: str, fields: Json
) -> None:
    (item,) = calls(live, choice)
    assert item["type"] == kind
    assert item["call_id"]
    assert item["status"] == "completed"
    for name, wanted in fields.items():
        value = item[name]
        assert isinstance(value, wanted) if isinstance(wanted, type) else value == wanted
    if kind == "local_shell_call":
        assert item["action"]["type"] == "exec"
        assert all(isinstance(word, str) for word in item["action"]["command"])


def test_a_free_text_is_streamed_by_events_of_its_own(live: Live) -> None:
    body = {**CODEX, "tool_choice": {"type": "custom", "name": "apply_patch"}}
    events = told(live, "/v1/responses", {**body, "max_output_tokens": 80})
    kinds = [event["type"] for event in events]
    check_responses(events)
    assert kinds[2:6] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
    ]
    assert events[2]["item"]["input"] == ""
    assert events[3]["delta"] == events[4]["input"] == events[5]["item"]["input"]


def test_tools_that_nobody_here_can_run_are_named_in_a_warning_and_not_to_the_model(
    live: Live,
) -> None:
    plain = {"input": "Hello", "max_output_tokens": 1}
    without = live.ok("/v1/responses", **plain)["usage"]["input_tokens"]
    answer = live.post("/v1/responses", **plain, tools=[{"type": "web_search"}])
    assert answer.status_code == 200
    assert answer.json()["usage"]["input_tokens"] == without
    assert "'web_search'" in answer.headers["warning"]
    hello = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    server_tool = {"type": "web_search_20250305", "name": "web_search"}
    answer = live.post("/v1/messages", **hello, tools=[server_tool])
    assert answer.status_code == 200
    assert "'web_search_20250305'" in answer.headers["warning"]
    error = live.refused("/v1/responses", **plain, tool_choice={"type": "web_search"})
    assert error["param"] == "tool_choice"


def test_a_free_texts_grammar_is_told_to_the_model(live: Live) -> None:
    tool = {"type": "custom", "name": "patch"}
    sizes = [
        live.ok("/v1/responses", input="x", max_output_tokens=1, tools=[{**tool, **more}])["usage"]
        for more in ({}, {"format": {"type": "text"}}, {"format": CODEX_TOOLS[3]["format"]})
    ]
    plain, text, grammar = (usage["input_tokens"] for usage in sizes)
    assert plain == text < grammar


def test_more_tokens_than_the_context_has_end_at_its_end_in_messages(live: Live) -> None:
    hello = [{"role": "user", "content": "Hello"}]
    most = live.http.get("/v1/models/nano").json()["max_model_len"]
    made = live.ok("/v1/messages", messages=hello, max_tokens=32_000, ignore_eos=True)
    long = [{"role": "user", "content": "Hello " * 1500}]
    assert live.ok("/v1/messages", messages=long, max_tokens=3000)["content"]
    usage = made["usage"]
    assert made["stop_reason"] == "model_context_window_exceeded"
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"] == most


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "edits[0]"),
        ({"thinking": {"type": "often"}}, "thinking.type"),
        ({"tools": [{"description": "no name"}]}, "tools[0].name"),
    ],
    ids=str,
)
def test_fields_of_claude_code_that_would_change_the_answer_are_refused_by_name(
    live: Live, fields: Json, param: str
) -> None:
    body = {**CLAUDE_CODE, "stream": False, "max_tokens": 4, "tools": [], **fields}
    assert param in live.refused("/v1/messages", **body)["param"]


def test_chats_take_what_openai_takes(live: Live) -> None:
    hello = {"role": "user", "content": "Hello"}
    silent: Json = {"role": "assistant", "content": None}
    name = "t" * 128
    tool = {"type": "function", "function": {"name": name, "parameters": schema()}}
    for more in (
        {"tools": [], "tool_choice": "auto"},
        {"messages": [hello, silent, hello]},
        {"tools": [tool], "tool_choice": "none"},
    ):
        path = "/v1/chat/completions"
        assert live.ok(path, **{"messages": [hello], "max_tokens": 2, **more})["choices"]
    assert live.refused(path, messages=[{"role": "user", "content": None}])


def test_the_list_of_models_is_what_anthropics_clients_read_too(live: Live) -> None:
    listed = live.http.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    (model,) = listed["data"]
    assert (model["type"], model["id"], model["display_name"]) == ("model", "nano", "nano")
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("nano", "nano", False)


def test_effort_and_thinking_reach_a_template_that_has_them_and_no_other() -> None:
    body = msgspec.convert(
        {**CLAUDE_CODE, "output_config": {"effort": "low"}}, messages.MessagesBody
    )
    known = ("enable_thinking", "reasoning_effort")
    chat = messages.chat_of(body, known, "enable_thinking")
    assert chat.reasoning_effort == "low"
    assert chat.chat_template_kwargs == {"enable_thinking": True}
    assert messages.warnings_of(body, known) == ()
    chat = messages.chat_of(body)
    assert (chat.reasoning_effort, chat.chat_template_kwargs) == (None, None)
    (warning,) = messages.warnings_of(body, ())
    assert "output_config.effort" in warning


GREEDY: Json = {"options": {"temperature": 0, "num_predict": 8}, "stream": False}
OLLAMAS: Json = {"model": "nano", "messages": [{"role": "user", "content": "Hello"}], **GREEDY}


def test_ollamas_chat_says_what_openais_says(live: Live) -> None:
    chat = live.ok(
        "/v1/chat/completions", messages=OLLAMAS["messages"], max_tokens=8, temperature=0
    )
    made = live.ok("/api/chat", **OLLAMAS)
    text = chat["choices"][0]["message"]["content"]
    assert made["message"] == {"role": "assistant", "content": text}
    assert made["prompt_eval_count"] == chat["usage"]["prompt_tokens"]
    lines = live.post("/api/chat", **{**OLLAMAS, "stream": True}).text.splitlines()
    assert "".join(json.loads(line)["message"]["content"] for line in lines) == text
    prompted = live.ok("/api/generate", model="nano", prompt="Hello", **GREEDY)
    assert prompted["response"] == text
    raw = live.ok("/api/generate", model="nano", prompt="Hello", raw=True, **GREEDY)
    plain = live.ok("/v1/completions", prompt="Hello", max_tokens=8, temperature=0)
    assert raw["response"] == plain["choices"][0]["text"]


def test_ollamas_format_is_enforced(live: Live) -> None:
    wanted = schema(city={"enum": ["Oslo", "Rome"]})
    for path, more in (("/api/chat", {}), ("/api/generate", {"prompt": "Where?"})):
        body = {**OLLAMAS, **more, "options": {"num_predict": 80}}
        made = live.ok(path, **body, format=wanted)
        text = made["message"]["content"] if "message" in made else made["response"]
        assert json.loads(text)["city"] in ("Oslo", "Rome")
        assert live.ok(path, **body, format="json")
    assert live.post("/api/chat", **OLLAMAS, format="yaml").json()["param"] == "format"


def test_without_a_prompt_ollamas_model_is_there_already(live: Live) -> None:
    loaded = live.ok("/api/chat", model="nano", messages=[])
    assert (loaded["done"], loaded["done_reason"]) == (True, "load")
    assert live.ok("/api/generate", model="nano", keep_alive=0)["response"] == ""


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/api/chat", {**OLLAMAS, "model": "other"}, 404, "model"),
        ("/api/show", {"model": "other:latest"}, 404, "model"),
        ("/api/chat", {**OLLAMAS, "options": {"mirostat": 2}}, 400, "options.mirostat"),
        ("/api/chat", {**OLLAMAS, "options": {"temperature": 9}}, 400, "options.temperature"),
        (
            "/api/chat",
            {**OLLAMAS, "options": {"repeat_penalty": 1.1, "repeat_last_n": 64}},
            400,
            "options.repeat_last_n",
        ),
        (
            "/api/chat",
            {"model": "nano", "messages": [{"role": "user", "content": "", "images": ["x"]}]},
            400,
            "messages[0].images",
        ),
        ("/api/generate", {"model": "nano", "prompt": "x", "context": [1]}, 400, "context"),
        ("/api/pull", {"model": "nano"}, 404, None),
    ],
    ids=str,
)
def test_errors_of_ollamas_routes_have_its_form(
    live: Live, path: str, body: Json, status: int, param: str | None
) -> None:
    answer = live.post(path, **body)
    assert answer.status_code == status
    assert isinstance(answer.json()["error"], str)
    assert answer.json()["param"] == param


def test_llama_cpps_completion_says_what_openais_says(live: Live) -> None:
    plain = live.ok("/v1/completions", prompt="Hello", max_tokens=8, temperature=0, logprobs=2)
    body = {"prompt": "Hello", "n_predict": 8, "temperature": 0, "n_probs": 2}
    made = live.ok("/completion", **body, return_tokens=True)
    assert made["content"] == plain["choices"][0]["text"]
    assert made["tokens_predicted"] == len(made["tokens"]) == plain["usage"]["completion_tokens"]
    likely = [one["logprob"] for one in made["completion_probabilities"]]
    assert likely == plain["choices"][0]["logprobs"]["token_logprobs"]
    token = made["completion_probabilities"][0]["id"]
    other = live.ok("/completion", **body, logit_bias=[[token, False]])
    assert other["completion_probabilities"][0]["id"] != token
    grammar = live.ok("/completion", **body, grammar='root ::= "yes"')
    assert (grammar["content"], grammar["stop_type"]) == ("yes", "eos")
    several = live.ok("/completion", **{**body, "prompt": ["Hello", "Hello"]})
    assert [one["index"] for one in several] == [0, 1]
    assert live.refused("/completion", prompt="x", n_predict=0)["param"] == "n_predict"


def test_a_stored_responses_input_is_listed_with_the_conversation_before(live: Live) -> None:
    call: Json = {"type": "custom_tool_call", "name": "p", "input": "a", "call_id": "c"}
    given = [
        {"role": "user", "content": "Hello"},
        call,
        {"type": "custom_tool_call_output", "call_id": "c", "output": "x"},
    ]
    first = live.ok("/v1/responses", input=given, max_output_tokens=2)
    more: Json = {"input": "And now?", "previous_response_id": first["id"]}
    second = live.ok("/v1/responses", **more, max_output_tokens=2)
    path = f"/v1/responses/{second['id']}/input_items"
    listed = live.http.get(path, params={"order": "asc"}).json()
    kinds = [item["type"] for item in listed["data"]]
    assert kinds == ["message", "function_call", "function_call_output", "message", "message"]
    assert listed["data"][-1]["content"][0]["text"] == "And now?"
    assert listed["data"][1]["call_id"] == "c"
    assert not listed["has_more"]
    newest = live.http.get(path, params={"limit": 2}).json()
    assert newest["has_more"]
    assert newest["data"] == listed["data"][:-3:-1]
    rest = live.http.get(path, params={"after": newest["last_id"]}).json()
    assert rest["data"] == listed["data"][-3::-1]
    for wrong in ({"limit": "0"}, {"order": "up"}):
        answer = live.http.get(path, params=wrong)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(wrong)))


def test_the_tokens_of_an_input_are_counted_without_an_answer(live: Live) -> None:
    asked: Json = {"input": "Hello", "instructions": "Be brief.", "tools": CODEX_TOOLS}
    counted = live.ok("/v1/responses/input_tokens", **asked)
    made = live.ok("/v1/responses", **asked, max_output_tokens=1)
    assert counted["object"] == "response.input_tokens"
    assert counted["input_tokens"] == made["usage"]["input_tokens"]


def test_log_probabilities_name_their_tokens_by_id_where_that_is_asked_for(live: Live) -> None:
    asked: Json = {"max_tokens": 4, "temperature": 0, "return_token_ids": True}
    by_id: Json = {**asked, "return_tokens_as_token_ids": True}
    chat: Json = {
        "messages": [{"role": "user", "content": "Hello"}],
        "logprobs": True,
        "top_logprobs": 1,
    }
    (choice,) = live.ok("/v1/chat/completions", **chat, **by_id)["choices"]
    names = [f"token_id:{token}" for token in choice["token_ids"]]
    entries = choice["logprobs"]["content"]
    assert [one["token"] for one in entries] == names
    assert [one["top_logprobs"][0]["token"] for one in entries] == names  # greedy
    events = told(live, "/v1/chat/completions", {**chat, **by_id, "stream": True})
    parts = [choice["logprobs"] for event in events for choice in event["choices"]]
    assert [one["token"] for part in parts if part for one in part["content"]] == names
    (choice,) = live.ok("/v1/completions", prompt="Hello", logprobs=1, **by_id)["choices"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
    assert live.refused("/v1/completions", prompt="x", logprobs=1, echo=True, **by_id)["param"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/embeddings", "hidden states"),
        ("/api/embed", "hidden states"),
        ("/v1/rerank", "select"),
        ("/v1/batches", "lmprog batch"),
        ("/v1/files/x", "lmprog batch"),
        ("/v1/load_lora_adapter", "--lora"),
        ("/v1/audio/speech", "texts only"),
    ],
)
def test_what_is_not_served_says_why(live: Live, path: str, words: str) -> None:
    answer = live.post(path, model="nano", input="x")
    error = answer.json()["error"]
    code = answer.json()["code"] if isinstance(error, str) else error["code"]
    assert (answer.status_code, code) == (404, "not_supported")
    assert words in (error if isinstance(error, str) else error["message"])
