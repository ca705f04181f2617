"""Doubles of OpenAI's and Anthropic's APIs that refuse what the real ones are documented to refuse.

The rules are those of their references and of their Python packages, as of November 2026: which
parameters there are, and their ranges; the order of messages; calls of tools and their results; the
subset of JSON Schema. Statuses and the shape of errors are the services' own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lmprog.backends.blackbox.anthropic_backend import Anthropic
from lmprog.backends.blackbox.api import JsonBody
from lmprog.backends.blackbox.openai_backend import OpenAI
from lmprog.backends.blackbox.response_schema import ANTHROPIC_SUBSET, OPENAI_SUBSET
from lmprog.testing.services import (
    Answers,
    Calls,
    ServiceFailure,
    ServiceRefusal,
    StrictDouble,
    Told,
    cut_at,
    first_wrong,
    num_words,
)

# --- OpenAI


_COMMON = (
    "model frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream "
    "stream_options temperature top_p user "
)
_CHAT = _COMMON + (
    "messages audio function_call functions max_completion_tokens metadata modalities moderation "
    "parallel_tool_calls prediction prompt_cache_key prompt_cache_options prompt_cache_retention "
    "reasoning_effort response_format safety_identifier service_tier store tool_choice tools "
    "top_logprobs verbosity web_search_options"
)
_COMPLETION = _COMMON + "prompt best_of echo suffix"
_RANGES = {
    "temperature": (0, 2), "top_p": (0, 1), "frequency_penalty": (-2, 2), "n": (1, 128),
    "presence_penalty": (-2, 2), "top_logprobs": (0, 20), "max_tokens": (0, 10**6),
    "max_completion_tokens": (1, 10**6), "best_of": (1, 20), "seed": (-(2**63), 2**63 - 1),
}  # fmt: skip
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class StrictOpenAI(StrictDouble):
    """OpenAI's chat completions and completions."""

    @property
    def base_url(self) -> str:
        return self.url + "/v1"

    def connect(self, **options: Any) -> OpenAI:
        """A backend on it: a chat model, unless `is_chat_model=False`."""
        given = {"dialect": "openai", "is_chat_model": True, **options}
        return OpenAI("strict", base_url=self.base_url, api_key="test", **given)

    def looked_up(self, path: str) -> JsonBody:
        if path != "/v1/models":
            return super().looked_up(path)
        card = {"id": "strict", "object": "model", "created": 0, "owned_by": "openai"}
        return {"object": "list", "data": [card]}

    def told(self, path: str, body: JsonBody, headers: Mapping[str, str]) -> Told:
        if not headers.get("authorization", "").startswith("Bearer "):
            raise ServiceRefusal("You didn't provide an API key.", status=401)
        is_chat = path == "/v1/chat/completions"
        if not is_chat and path != "/v1/completions":
            return super().told(path, body, headers)
        _hold_to_openai(body, is_chat)
        schema = None if not is_chat else _openai_schema(body)
        tools = _openai_tools(body)
        choice = body.get("tool_choice", "auto")
        texts = [body["prompt"]] if isinstance(body.get("prompt"), str) else body.get("prompt", [0])
        made = [
            self.answer(body, schema, tools, choice if isinstance(choice, str) else "required")
            for _ in range(len(texts) * body.get("n", 1))
        ]
        stops = body.get("stop") or ()
        stops = [stops] if isinstance(stops, str) else stops
        number = len(self.requests)
        choices = [_openai_choice((number, at), one, stops, is_chat) for at, one in enumerate(made)]
        prompt, generated = num_words(body.get("messages"), body.get("prompt")), num_words(*made)
        usage = {"prompt_tokens": prompt, "completion_tokens": generated}
        usage["total_tokens"] = prompt + generated
        kind = "chat.completion" if is_chat else "text_completion"
        whole = {"id": "cmpl-1", "object": kind, "created": 0, "model": body["model"]}
        if body.get("stream"):
            return _openai_chunks(whole, choices, usage, is_chat)
        return {**whole, "choices": choices, "usage": usage}


def _openai_choice(
    place: tuple[int, int], made: Calls, stops: Sequence[str], is_chat: bool
) -> JsonBody:
    """The result at a place: the number of the request, and of the result in it."""
    number, at = place
    text, _ = cut_at(made.text, stops)
    if not is_chat:
        return {"index": at, "text": text, "finish_reason": "stop", "logprobs": None}
    message: JsonBody = {"role": "assistant", "content": text or None, "refusal": None}
    if made.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{at}_{nth}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for nth, (name, arguments) in enumerate(made.calls)
        ]
    reason = "tool_calls" if made.calls else "stop"
    return {"index": at, "message": message, "finish_reason": reason, "logprobs": None}


def _openai_chunks(
    whole: JsonBody, choices: Sequence[JsonBody], usage: JsonBody, is_chat: bool
) -> Iterator[JsonBody]:
    """Each result whole in one piece, and its end in another."""
    for one in choices:
        text = {"delta": dict(one["message"])} if is_chat else {"text": one["text"]}
        for place, call in enumerate(text.get("delta", {}).get("tool_calls", ())):
            call["index"] = place
        end: JsonBody = {"delta": {}} if is_chat else {"text": ""}
        yield {**whole, "choices": [{"index": one["index"], "finish_reason": None, **text}]}
        reason = one["finish_reason"]
        yield {**whole, "choices": [{"index": one["index"], "finish_reason": reason, **end}]}
    yield {**whole, "choices": [], "usage": usage}


def _hold_to_openai(body: JsonBody, is_chat: bool) -> None:
    known = (_CHAT if is_chat else _COMPLETION).split()
    for name in body:
        if name not in known:
            raise ServiceRefusal(f"Unknown parameter: '{name}'.", name, "unknown_parameter")
    for name in ("model", "messages" if is_chat else "model"):
        if not body.get(name):
            raise ServiceRefusal(
                f"Missing required parameter: '{name}'.", name, "missing_required_parameter"
            )
    for name, (low, high) in _RANGES.items():
        if (value := body.get(name)) is not None and not low <= value <= high:
            about = (
                f"Invalid '{name}': expected a value from {low} to {high}, but got {value} instead."
            )
            raise ServiceRefusal(about, name, "invalid_value")
    stops = body.get("stop") or ()
    if isinstance(stops, list) and len(stops) > 4:
        about = (
            "array too long. Expected an array with maximum length 4, but got an array with length"
        )
        raise ServiceRefusal(
            f"Invalid 'stop': {about} {len(stops)} instead.", "stop", "array_above_max_length"
        )
    if "stream_options" in body and not body.get("stream"):
        raise ServiceRefusal(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        )
    if "max_tokens" in body and "max_completion_tokens" in body:
        raise ServiceRefusal(
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        )
    if is_chat and body.get("top_logprobs") is not None and not body.get("logprobs"):
        raise ServiceRefusal(
            "The 'logprobs' parameter must be enabled to use 'top_logprobs'.", "top_logprobs"
        )
    if not is_chat and body.get("echo") and body.get("logprobs") is not None:
        about = "Setting 'echo' and 'logprobs' at the same time is not supported for this model."
        raise ServiceRefusal(about, "logprobs")
    if not is_chat and (body.get("logprobs") or 0) > 5:
        raise ServiceRefusal(
            "Invalid 'logprobs': expected a value <= 5.", "logprobs", "invalid_value"
        )
    waiting: list[str] = []
    for at, message in enumerate(body["messages"] if is_chat else ()):
        waiting = _hold_to_openai_message(at, message, waiting)
    if waiting:
        raise ServiceRefusal(_OPEN_CALLS + ", ".join(waiting), "messages")


_OPEN_CALLS = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
    "'tool_call_id'. The following tool_call_ids did not have response messages: "
)


def _hold_to_openai_message(at: int, message: JsonBody, waiting: list[str]) -> list[str]:
    """The ids of calls without results behind this message, of those before it."""
    role, content, place = message.get("role"), message.get("content"), f"messages[{at}]"
    if role not in ("developer", "system", "user", "assistant", "tool"):
        about = (
            f"Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user', 'tool'."
        )
        raise ServiceRefusal(about, f"{place}.role", "invalid_value")
    calls = message.get("tool_calls")
    if not isinstance(content, str | list) and not calls:
        about = f"Invalid value for 'content': expected a string, got {json.dumps(content)}."
        raise ServiceRefusal(about, f"{place}.content")
    if role == "tool":
        id_ = message.get("tool_call_id")
        if id_ not in waiting:
            raise ServiceRefusal(
                "Invalid parameter: messages with role 'tool' must be a response to a preceeding "
                f"message with 'tool_calls' ({id_!r} is none of its ids).", f"{place}.role",
            )  # fmt: skip
        return [one for one in waiting if one != id_]
    if waiting:
        raise ServiceRefusal(_OPEN_CALLS + ", ".join(waiting), f"{place}.role")
    if calls is None:
        return []
    if role != "assistant" or not calls:
        raise ServiceRefusal(f"Invalid '{place}.tool_calls'.", f"{place}.tool_calls", "empty_array")
    for call in calls:
        function = call.get("function", {})
        if call.get("type") != "function" or not _NAME.fullmatch(function.get("name", "")):
            raise ServiceRefusal(f"Invalid '{place}.tool_calls': no function is named.", place)
        if not isinstance(function.get("arguments"), str):
            raise ServiceRefusal(
                f"Invalid type for '{place}.tool_calls.function.arguments'.", place
            )
        if not 0 < len(call.get("id") or "") <= 40:
            about = "Expected a string with maximum length 40"
            raise ServiceRefusal(
                f"Invalid '{place}.tool_calls.id': {about}.", place, "string_above_max_length"
            )
    ids = [call["id"] for call in calls]
    if len(set(ids)) < len(ids):
        raise ServiceRefusal(
            f"Duplicate value for 'tool_call_id' in {place}.", f"{place}.tool_calls"
        )
    return ids


def _openai_schema(body: JsonBody) -> JsonBody | None:
    asked = body.get("response_format") or {"type": "text"}
    if asked["type"] == "json_object" and "json" not in json.dumps(body["messages"]).lower():
        about = (
            "'messages' must contain the word 'json' in some form, to use 'response_format' of type"
        )
        raise ServiceRefusal(f"{about} 'json_object'.", "messages")
    if asked["type"] != "json_schema":
        return None
    inner = asked["json_schema"]
    if not _NAME.fullmatch(inner.get("name", "")):
        raise ServiceRefusal(
            "Invalid 'response_format.json_schema.name'.", "response_format.json_schema.name"
        )
    schema: JsonBody = inner["schema"]
    if inner.get("strict") and (wrong := first_wrong(schema, OPENAI_SUBSET)) is not None:
        about = f"In context={wrong[0]}, {wrong[1]}."
        raise ServiceRefusal(
            f"Invalid schema for response_format '{inner['name']}': {about}", "response_format"
        )
    return schema


def _openai_tools(body: JsonBody) -> dict[str, JsonBody]:
    tools = body.get("tools")
    for name in ("tool_choice", "parallel_tool_calls"):
        if name in body and tools is None:
            raise ServiceRefusal(f"'{name}' is only allowed when 'tools' are specified.", name)
    if tools is None:
        return {}
    if not 0 < len(tools) <= 128:
        raise ServiceRefusal(
            f"Invalid 'tools': an array of length {len(tools)}.", "tools", "empty_array"
        )
    found: dict[str, JsonBody] = {}
    for at, tool in enumerate(tools):
        function = tool["function"]
        name, parameters = function["name"], function.get("parameters") or {"type": "object"}
        if not _NAME.fullmatch(name):
            about = (
                "string does not match pattern. Expected a string that matches '^[a-zA-Z0-9_-]+$'."
            )
            raise ServiceRefusal(
                f"Invalid 'tools[{at}].function.name': {about}", f"tools[{at}].function.name"
            )
        wrong = first_wrong(parameters, OPENAI_SUBSET) if function.get("strict") else None
        if parameters.get("type") != "object":
            wrong = (), "schema must be a JSON Schema of 'type: \"object\"'"
        if wrong is not None:
            about = f"In context={wrong[0]}, {wrong[1]}."
            raise ServiceRefusal(
                f"Invalid schema for function '{name}': {about}",
                f"tools[{at}].function.parameters", "invalid_function_parameters",
            )  # fmt: skip
        found[name] = parameters
    return found


# --- Anthropic


_MESSAGE = (
    "max_tokens messages model cache_control container diagnostics inference_geo metadata "
    "output_config service_tier speed stop_sequences stream system thinking tool_choice tools "
)
_SAMPLING = ("temperature", "top_p", "top_k")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


class StrictAnthropic(StrictDouble):
    """Anthropic's messages. `most_tokens` is what the model can write; `prefills` whether it goes
    on in a begun turn, which newer ones refuse.
    """

    def __init__(
        self, answers: Answers = None, *, most_tokens: int = 64_000, prefills: bool = False
    ) -> None:
        super().__init__(answers)
        self.most_tokens = most_tokens
        self.prefills = prefills

    def connect(self, **options: Any) -> Anthropic:
        """A backend on it."""
        return Anthropic("strict", base_url=self.url, api_key="test", **options)

    def error(self, fault: ServiceFailure, param: str | None = None) -> JsonBody:
        about = super().error(fault)["error"]
        inner = {"type": about["type"], "message": about["message"]}
        return {"type": "error", "error": inner, "request_id": "req_1"}

    def told(self, path: str, body: JsonBody, headers: Mapping[str, str]) -> Told:
        if path.partition("?")[0] != "/v1/messages":
            return super().told(path, body, headers)
        if "x-api-key" not in headers and "authorization" not in headers:
            raise ServiceRefusal("x-api-key header is required", status=401)
        version = headers.get("anthropic-version")
        if version is None:
            raise ServiceRefusal("anthropic-version: header is required")
        known = _MESSAGE.split() + list(_SAMPLING if version < "2026-10-21" else ())
        schema = self._hold(body, known)
        tools = {tool["name"]: tool["input_schema"] for tool in body.get("tools", ())}
        choice = body.get("tool_choice", {}).get("type", "auto")
        choice = {"any": "required", "tool": "required"}.get(choice, choice)
        made = self.answer(body, schema, tools, choice)
        text, stop = cut_at(made.text, body.get("stop_sequences", ()))
        blocks: list[JsonBody] = [{"type": "text", "text": text}] if text else []
        blocks += [
            {
                "type": "tool_use",
                "id": f"toolu_{len(self.requests)}_{at}",
                "name": name,
                "input": given,
            }
            for at, (name, given) in enumerate(made.calls)
        ]
        reason = "stop_sequence" if stop is not None else "tool_use" if made.calls else "end_turn"
        usage = {"input_tokens": num_words(body["messages"]), "output_tokens": num_words(made)}
        message = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": body["model"],
            "content": blocks, "stop_reason": reason, "stop_sequence": stop, "usage": usage,
        }  # fmt: skip
        return _anthropic_events(message) if body.get("stream") else message

    def _hold(self, body: JsonBody, known: Sequence[str]) -> JsonBody | None:
        """Raises `ServiceRefusal`, or gives the schema of the answer."""
        for name in body:
            if name not in known:
                raise ServiceRefusal(f"{name}: Extra inputs are not permitted")
        for name in ("model", "max_tokens", "messages"):
            if name not in body:
                raise ServiceRefusal(f"{name}: Field required")
        if not 0 <= body["max_tokens"] <= self.most_tokens:
            about = "which is the maximum allowed number of output tokens for"
            raise ServiceRefusal(
                f"max_tokens: {body['max_tokens']} > {self.most_tokens}, {about} {body['model']}"
            )
        for name in ("temperature", "top_p"):
            if not 0 <= body.get(name, 0) <= 1:
                raise ServiceRefusal(f"{name}: range: 0..1")
        if "temperature" in body and "top_p" in body:
            raise ServiceRefusal(
                "`temperature` and `top_p` cannot both be specified for this model."
            )
        if not all(stop.strip() for stop in body.get("stop_sequences", ())):
            raise ServiceRefusal("stop_sequences: each stop sequence must contain non-whitespace")
        _hold_to_anthropic_tools(body)
        for block in body["system"] if isinstance(body.get("system"), list) else ():
            if not block.get("text"):
                raise ServiceRefusal("system: text content blocks must be non-empty")
        messages = body["messages"]
        if not messages or messages[0]["role"] != "user":
            raise ServiceRefusal('messages: first message must use the "user" role')
        waiting: list[str] = []
        used: set[str] = set()
        for at, message in enumerate(messages):
            is_end = at == len(messages) - 1
            waiting = _hold_to_anthropic_message(at, message, waiting, used, is_end)
        asked = body.get("output_config", {}).get("format")
        if messages[-1]["role"] == "assistant" and (not self.prefills or asked is not None):
            about = "The conversation must end with a user message."
            raise ServiceRefusal(f"This model does not support assistant message prefill. {about}")
        if asked is None:
            return None
        schema: JsonBody = asked["schema"]
        wrong = first_wrong(schema, ANTHROPIC_SUBSET)
        if wrong is not None:
            place = ".".join(["output_config.format.schema", *wrong[0]])
            raise ServiceRefusal(f"{place}: {wrong[1]}")
        return schema


def _hold_to_anthropic_tools(body: JsonBody) -> None:
    tools = body.get("tools", ())
    names = [tool.get("name") for tool in tools]
    if len(set(names)) < len(names):
        raise ServiceRefusal("tools: Tool names must be unique.")
    for at, tool in enumerate(tools):
        if not _TOOL_NAME.fullmatch(tool.get("name", "")):
            about = "String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"
            raise ServiceRefusal(f"tools.{at}.custom.name: {about}")
        if tool.get("input_schema", {}).get("type") != "object":
            raise ServiceRefusal(f"tools.{at}.custom.input_schema.type: Field required")
        wrong = first_wrong(tool["input_schema"], ANTHROPIC_SUBSET) if tool.get("strict") else None
        if wrong is not None:
            raise ServiceRefusal(f"tools.{at}.custom: {wrong[1]}")
    if not tools and "tool_choice" in body:
        raise ServiceRefusal("tool_choice may only be specified while providing tools")
    blocks = [
        block for message in body["messages"] if isinstance(message.get("content"), list)
        for block in message["content"]
    ]  # fmt: skip
    if not tools and any(block["type"] in ("tool_use", "tool_result") for block in blocks):
        raise ServiceRefusal(
            "Requests which include `tool_use` or `tool_result` blocks must define tools"
        )


def _hold_to_anthropic_message(
    at: int, message: JsonBody, waiting: list[str], used: set[str], is_end: bool
) -> list[str]:
    """The ids of its calls, which the next message must answer: those of `waiting` are answered."""
    role, content = message.get("role"), message.get("content") or ""
    if role not in ("user", "assistant"):
        about = "The Messages API accepts a top-level `system` parameter"
        raise ServiceRefusal(f'messages: Unexpected role "{role}". {about}')
    if not content and (role == "user" or not is_end):
        about = "must have non-empty content except for the optional final assistant message"
        raise ServiceRefusal(f"messages.{at}: all messages {about}")
    as_blocks = [{"type": "text", "text": content}] if content else []
    blocks: list[JsonBody] = as_blocks if isinstance(content, str) else content
    results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    leading = [block["type"] for block in blocks[: len(results)]]
    for id_ in results:
        if id_ not in waiting:
            raise ServiceRefusal(
                f"messages.{at}: unexpected `tool_use_id` found in `tool_result` blocks: {id_}"
            )
    if len(set(results)) < len(results):
        raise ServiceRefusal(f"messages.{at}: each tool_use must have a single result")
    left = [id_ for id_ in waiting if id_ not in results]
    if left or any(kind != "tool_result" for kind in leading):
        about = "`tool_use` ids were found without `tool_result` blocks immediately after"
        raise ServiceRefusal(f"messages.{at - 1}: {about}: {', '.join(left or results)}")
    for block in blocks:
        if block["type"] == "text" and not block["text"].strip():
            raise ServiceRefusal("messages: text content blocks must contain non-whitespace text")
        if block["type"] == "tool_use":
            place = f"messages.{at}.content.tool_use"
            if role != "assistant" or not re.fullmatch("[a-zA-Z0-9_-]+", block["id"]):
                raise ServiceRefusal(f"{place}.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
            if not isinstance(block["input"], dict):
                raise ServiceRefusal(f"{place}.input: Input should be a valid dictionary")
            if block["id"] in used:
                raise ServiceRefusal(f"messages.{at}: `tool_use` ids must be unique")
            used.add(block["id"])
    last = blocks[-1].get("text", "") if blocks else ""
    if is_end and role == "assistant" and last != last.rstrip():
        raise ServiceRefusal(
            "messages: final assistant content cannot end with trailing whitespace"
        )
    return [block["id"] for block in blocks if block["type"] == "tool_use"]


def _anthropic_events(message: JsonBody) -> Iterator[JsonBody]:
    end = {key: message[key] for key in ("stop_reason", "stop_sequence")}
    begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": begun}
    for at, block in enumerate(message["content"]):
        is_text = block["type"] == "text"
        empty: JsonBody = {"text": ""} if is_text else {"input": {}}
        yield {"type": "content_block_start", "index": at, "content_block": {**block, **empty}}
        delta = (
            {"type": "text_delta", "text": block["text"]} if is_text
            else {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        )  # fmt: skip
        yield {"type": "content_block_delta", "index": at, "delta": delta}
        yield {"type": "content_block_stop", "index": at}
    yield {"type": "message_delta", "delta": end, "usage": message["usage"]}
    yield {"type": "message_stop"}
