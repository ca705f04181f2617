"""A response while it is written: the items of its output, and the events that tell of each step,
in OpenAI's order.

Without a stream the events are dropped. Knows shapes; knows no connections and no store.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from lmprog import wire
from lmprog.server.http.http_errors import Problem
from lmprog.server.http.sse import event
from lmprog.server.openai import answers
from lmprog.server.openai.tools import AnswerPart
from lmprog.server.responses.responses_body import ResponsesBody, ServedTools
from lmprog.tool_calls.reading import ParsedCall

Json = dict[str, Any]
_CALLS = {
    "function_call": ("fc", "arguments", "function_call_arguments"),
    "custom_tool_call": ("ctc", "input", "custom_tool_call_input"),
    "local_shell_call": ("lsh", "", ""),
}
"""Of each type of call: how its id begins, its field of text, and the events of that."""


class Writer:
    """One response. `state` is its JSON so far, `told` every event so far where these are kept."""

    def __init__(self, body: ResponsesBody, model: str, created: int, tools: ServedTools) -> None:
        self.state = opened(body, model, created)
        self.told: list[bytes] | None = [] if body.background and body.stream else None
        self.is_silent = False
        """Nobody reads its events."""
        self._tools = tools
        self._sequence = 0
        self._output: list[Json] = self.state["output"]
        self._message: Json | None = None
        """The message item that is open."""
        self._part: Json = {}
        self._thought: Json | None = None
        """The item of thoughts that is open."""

    def begin(self) -> bytes:
        self.state["status"] = "in_progress"
        if self.is_silent:
            return b""
        begun = msgspec.Raw(msgspec.json.encode(self.state))
        kinds = "response.created", "response.in_progress"
        return b"".join([self._tell(kind, response=begun) for kind in kinds])

    def add(self, parts: Sequence[AnswerPart]) -> bytes:
        """More text, more thoughts, or whole calls."""
        return b"".join(map(self._add, parts))

    def _add(self, part: AnswerPart) -> bytes:
        if isinstance(part, ParsedCall):
            return self._call(part)
        return self._text(part) if isinstance(part, str) else self._think(part.text)

    def end(self, done: wire.CallDone, logprobs: bytes | None, usage: answers.UsageBody) -> bytes:
        """The text is complete. `logprobs`: the list of them, as JSON."""
        cut = done.outputs[0].finish == "length"
        if logprobs is not None and self._message is not None:
            self._part["logprobs"] = msgspec.Raw(logprobs)
        status = "incomplete" if cut else "completed"
        events = self._close_message(status)
        self.state["status"] = status
        self.state["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        self.state["usage"] = _usage(usage)
        if done.left_out:
            self.state["constraint_left_out"] = done.left_out
        return events + self._tell(f"response.{status}", response=self.state)

    def fail(self, problem: Problem) -> bytes:
        """It ends without a result. OpenAI's clients raise at the last event, for its `error`;
        the other fields are those that the event has by its documentation.
        """
        events = b"" if self._sequence else self.begin()
        events += self._close_message("incomplete")
        error = problem.error()
        known = {name: error[name] for name in ("code", "message", "param")}
        self.state["status"] = "failed"
        self.state["error"] = {name: known[name] for name in ("code", "message")}
        return (
            events
            + self._tell("response.failed", response=self.state)
            + self._tell("error", **known, error=error)
        )

    def cancel(self) -> None:
        """It ends because its client wants that."""
        self._close_message("incomplete")
        self.state["status"], self.state["error"] = "cancelled", None

    def _text(self, text: str) -> bytes:
        events = self._close_thought("completed")
        if self._message is None:
            self._part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            self._message = {
                "id": f"msg_{secrets.token_hex(12)}",
                "type": "message",
                "role": "assistant",
                "status": "in_progress",
                "content": [],
            }
            events += self._open(self._message)
            self._message["content"] = [self._part]
            events += self._tell(
                "response.content_part.added", **self._where(self._message), part=self._part
            )
        self._part["text"] += text
        return events + self._tell(
            "response.output_text.delta", **self._where(self._message), delta=text, logprobs=[]
        )

    def _think(self, text: str) -> bytes:
        events = self._close_message("completed")
        if self._thought is None:
            self._thought = {
                "id": f"rs_{secrets.token_hex(12)}",
                "type": "reasoning",
                "status": "in_progress",
                "summary": [],
                "content": [],
            }
            events += self._open(self._thought)
            self._thought["content"] = [{"type": "reasoning_text", "text": ""}]
        self._thought["content"][0]["text"] += text
        where = self._where(self._thought)
        return events + self._tell("response.reasoning_text.delta", **where, delta=text)

    def _close_thought(self, status: str) -> bytes:
        thought, self._thought = self._thought, None
        if thought is None:
            return b""
        thought["status"], where = status, self._where(thought)
        text = thought["content"][0]["text"]
        events = self._tell("response.reasoning_text.done", **where, text=text)
        return events + self._tell(
            "response.output_item.done", output_index=where["output_index"], item=thought
        )

    def _close_message(self, status: str) -> bytes:
        """Closes what is open: a message, or thoughts."""
        if self._message is None:
            return self._close_thought(status)
        self._message["status"] = status
        where = self._where(self._message)
        events = self._tell(
            "response.output_text.done",
            **where,
            text=self._part["text"],
            logprobs=self._part["logprobs"],
        )
        events += self._tell("response.content_part.done", **where, part=self._part)
        events += self._tell(
            "response.output_item.done", output_index=where["output_index"], item=self._message
        )
        self._message = None
        return events

    def _call(self, call: ParsedCall) -> bytes:
        events = self._close_message("completed")
        said = self._tools.called(call)
        prefix, text, told = _CALLS[said["type"]]
        item: Json = {"id": f"{prefix}_{secrets.token_hex(12)}", **said, "status": "in_progress"}
        if text:
            item[text] = ""
        events += self._open(item)
        item |= {**said, "status": "completed"}
        where = {"item_id": item["id"], "output_index": len(self._output) - 1}
        if text:
            done = {text: said[text], "name": said["name"]}
            events += self._tell(f"response.{told}.delta", **where, delta=said[text])
            events += self._tell(f"response.{told}.done", **where, **done)
        return events + self._tell(
            "response.output_item.done", output_index=where["output_index"], item=item
        )

    def _open(self, item: Json) -> bytes:
        self._output.append(item)
        return self._tell(
            "response.output_item.added", output_index=len(self._output) - 1, item=item
        )

    def _where(self, item: Json) -> Json:
        return {
            "item_id": item["id"],
            "output_index": len(self._output) - 1,
            "content_index": 0,
        }

    def _tell(self, kind: str, **fields: Any) -> bytes:
        """One event, encoded at once: what it shows goes on changing."""
        if self.is_silent:
            return b""
        made = event({"type": kind, "sequence_number": self._sequence, **fields}, kind)
        self._sequence += 1
        if self.told is not None:
            self.told.append(made)
        return made


def opened(body: ResponsesBody, model: str, created: int) -> Json:
    """A response of which nothing is written yet."""
    choice = msgspec.to_builtins(body.tool_choice)
    text = body.text.format if body.text is not None else None
    return {
        "id": f"resp_{secrets.token_hex(16)}",
        "object": "response",
        "created_at": created,
        "status": "queued",
        "background": bool(body.background),
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": None},
        "store": body.keeps,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": {"type": "text"} if text is None else msgspec.to_builtins(text)},
        "tool_choice": choice or ("auto" if body.tools else "none"),
        "tools": msgspec.Raw(msgspec.json.encode(body.tools or [])),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def _usage(usage: answers.UsageBody) -> Json:
    cached = usage.prompt_tokens_details.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": cached,
            "cache_write_tokens": usage.prompt_tokens - cached,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": msgspec.to_builtins(usage.completion_tokens_details),
        "total_tokens": usage.total_tokens,
    }
