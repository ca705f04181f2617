"""Converts answers in OpenAI's JSON, complete or streamed, to outputs of the wire. Knows no
requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmprog import wire
from lmprog.backends.blackbox.api import TextListener
from lmprog.errors import ProtocolError, RequestRejected, ValidationFailed
from lmprog.tool_calls.writing import as_json

JsonAnswer = Mapping[str, Any]


def usage_of(answer: JsonAnswer) -> wire.Usage:
    """The usage that the service reported. Cached tokens are counted the way the service counts
    them.
    """
    usage = answer.get("usage") or {}
    prompt, generated = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return wire.Usage(
        prompt=prompt, cached=cached, generated=generated, computed=prompt - cached + generated
    )


@dataclass(slots=True)
class _Draft:
    """One of the `n` results under construction."""

    text: str = ""
    finish: str | None = None
    stopped_by: str | int | None = None
    logprobs: list[wire.TokenLogprob] = field(default_factory=list)
    calls: dict[int, wire.SentCall] = field(default_factory=dict)
    """By their place; a stream gives them in pieces."""

    def take_calls(self, given: Sequence[JsonAnswer]) -> None:
        for place, call in enumerate(given):
            function = call.get("function") or {}
            place = call.get("index", place)
            known = self.calls.get(place) or wire.SentCall("", "")
            self.calls[place] = wire.SentCall(
                known.name + (function.get("name") or ""),
                known.arguments + _as_text(function.get("arguments") or ""),
                known.id or call.get("id") or "",
            )


def _as_text(arguments: Any) -> str:
    """Some servers send an object in place of its text."""
    return arguments if isinstance(arguments, str) else as_json(arguments)


class Drafts:
    """All results of one request, streamed or not."""

    def __init__(self, n: int, on_text: TextListener | None = None) -> None:
        self._drafts = [_Draft() for _ in range(n)]
        self._on_text = on_text
        self.usage = wire.Usage()

    def take(self, piece: JsonAnswer) -> None:
        """Applies one chunk, or a complete answer."""
        if piece.get("usage"):
            self.usage = usage_of(piece)
        for choice in piece.get("choices") or ():
            draft = self._drafts[choice.get("index") or 0]
            text = _text(choice)
            draft.text += text
            message = choice.get("message") or choice.get("delta") or {}
            draft.take_calls(message.get("tool_calls") or ())
            draft.finish = choice.get("finish_reason") or draft.finish
            stopped_by = choice.get("stop_reason", choice.get("matched_stop"))
            if stopped_by is not None:
                draft.stopped_by = stopped_by
            logprobs = _logprobs(choice.get("logprobs"))
            draft.logprobs += logprobs
            if self._on_text is not None and text:
                self._on_text(choice.get("index") or 0, text, max(len(logprobs), 1))

    def outputs(self) -> tuple[wire.Output, ...]:
        """Raises if one of the results is incomplete."""
        return tuple(_output(draft) for draft in self._drafts)


_TEXT_PARTS = ("text", "output_text")
"""Kinds of the parts that some services send a content as; others are thoughts, references."""


def _text(choice: JsonAnswer) -> str:
    """The text of a completion, a message, or a chunk of either. Raises `ValidationFailed` for a
    refusal.
    """
    message = choice.get("message") or choice.get("delta")
    if message is None:
        return choice.get("text") or ""
    if message.get("refusal"):
        raise ValidationFailed(f"the model refused: {message['refusal']}", text=message["refusal"])
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content if part.get("type") in _TEXT_PARTS)


def _output(draft: _Draft) -> wire.Output:
    if draft.finish is None:
        raise ProtocolError(
            "the API's answer has no end: a result is missing, or came without a finish_reason"
        )
    if draft.finish == "content_filter":
        raise RequestRejected("the API's content filter ended the answer")
    finish: wire.FinishReason = "length" if draft.finish == "length" else "stop"
    logprobs, calls = tuple(draft.logprobs), tuple(draft.calls.values())
    return wire.Output(draft.text, (), finish, draft.stopped_by, logprobs, calls=calls)


def _logprobs(found: JsonAnswer | None) -> list[wire.TokenLogprob]:
    """From the form of chats (`content`) or of completions (`tokens`). Token ids are unknown:
    -1.
    """
    if not found:
        return []
    if found.get("content") is not None:
        return [
            wire.TokenLogprob(
                -1,
                token["token"],
                token["logprob"],
                tuple(
                    (-1, top["token"], top["logprob"]) for top in token.get("top_logprobs") or ()
                ),
            )
            for token in found["content"]
        ]
    tops: Sequence[Mapping[str, float] | None] = found.get("top_logprobs") or ()
    texts: Sequence[str] = found.get("tokens") or ()
    numbers: Sequence[float | None] = found.get("token_logprobs") or ()
    made: list[wire.TokenLogprob] = []
    for index, (text, logprob) in enumerate(zip(texts, numbers, strict=True)):
        top = (tops[index] if index < len(tops) else None) or {}
        best = tuple(
            (-1, other, number) for other, number in sorted(top.items(), key=lambda item: -item[1])
        )
        made.append(wire.TokenLogprob(-1, text, logprob if logprob is not None else 0.0, best))
    return made


def echoed(choice: JsonAnswer, length: int) -> tuple[float | None, ...]:
    """The log-probabilities of the tokens that spell the last `length` characters of an echoed
    text.

    Counted from the end, since some services insert tokens before the text.
    """
    found = choice.get("logprobs") or {}
    texts: Sequence[str] = found.get("tokens") or ()
    numbers: Sequence[float | None] = found.get("token_logprobs") or ()
    return last_tokens(texts, numbers, length)


def last_tokens(
    texts: Sequence[str], numbers: Sequence[float | None], length: int
) -> tuple[float | None, ...]:
    """The values of the last tokens that together spell `length` characters."""
    begin, covered = len(texts), 0
    while begin > 0 and covered < length:
        begin -= 1
        covered += len(texts[begin])
    return tuple(numbers[begin:])
