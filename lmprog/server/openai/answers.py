"""The bodies of answers and chunks, as structs that encode to what OpenAI's clients read. Knows
shapes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from lmprog import wire

LeftOut: TypeAlias = Sequence[str] | UnsetType
"""What of its schema a text never has, where the schema is not `strict`; one reason each."""


class CachedTokens(msgspec.Struct, frozen=True):
    cached_tokens: int


class ReasoningTokens(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class UsageBody(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens = ReasoningTokens()


class Likely(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None


class LogprobEntry(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[Likely]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[LogprobEntry]
    refusal: None = None


class Function(msgspec.Struct, frozen=True):
    arguments: str
    name: str | UnsetType = UNSET


class AnsweredCall(msgspec.Struct, frozen=True):
    """Whole, or a part of one in a stream: then `index` says of which."""

    function: Function
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    index: int | UnsetType = UNSET


class AnswerMessage(msgspec.Struct, frozen=True):
    role: str
    content: str | None
    refusal: None = None
    tool_calls: Sequence[AnsweredCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    """What the model thought before it answered."""
    reasoning: str | UnsetType = UNSET
    """The same, as others call it."""


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    stop_reason: str | int | None = None
    token_ids: Sequence[int] | UnsetType = UNSET
    constraint_left_out: LeftOut = UNSET
    score: float | UnsetType = UNSET
    """Of a beam search: what its texts were compared by."""


class PromptLogprob(msgspec.Struct, frozen=True):
    """A token of the prompt, or a likely one at its position, in vLLM's shape."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs: TypeAlias = Sequence[dict[str, PromptLogprob] | None]
"""By token id, for each position; None for the prompt's first token."""


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: Sequence[ChatChoice]
    usage: UsageBody
    system_fingerprint: str
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: Sequence[AnsweredCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: ChatDelta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET
    """Of the whole result, in its last chunk."""
    constraint_left_out: LeftOut = UNSET
    score: float | UnsetType = UNSET


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: Sequence[ChunkChoice]
    system_fingerprint: str
    usage: UsageBody | UnsetType | None = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET


class TextLogprobs(msgspec.Struct, frozen=True):
    """Of the old completions: parallel lists."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    finish_reason: str | None = None
    logprobs: TextLogprobs | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    constraint_left_out: LeftOut = UNSET
    score: float | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Whole, or a chunk of one."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: Sequence[TextChoice]
    system_fingerprint: str
    usage: UsageBody | UnsetType | None = UNSET


def usage_of(dones: Sequence[wire.CallDone], thought: int = 0) -> UsageBody:
    """The sum over calls; `cached` are the prompts' tokens that were found in the cache, `thought`
    those of the answers that are thoughts.
    """
    prompt = generated = cached = 0
    for done in dones:
        prompt += done.usage.prompt
        generated += done.usage.generated
        cached += done.usage.cached
    all_ = prompt + generated
    return UsageBody(prompt, generated, all_, CachedTokens(cached), ReasoningTokens(thought))


def left_out_of(done: wire.CallDone) -> LeftOut:
    return done.left_out or UNSET


def finish_of(output: wire.Output) -> str:
    """A text that its constraint completed has stopped."""
    return "length" if output.finish == "length" else "stop"


def score_of(output: wire.Output) -> float | UnsetType:
    """Of a beam search's text."""
    return UNSET if output.score is None else output.score


def stop_reason_of(output: wire.Output, sampling: wire.SamplingParams) -> str | int | None:
    """The stop text or stop token id that was asked for and ended it; None where it ended by
    itself.
    """
    by = output.stopped_by
    return by if isinstance(by, str) or by in sampling.stop_token_ids else None


def chat_logprobs(given: Sequence[wire.TokenLogprob]) -> ChatLogprobs:
    return ChatLogprobs([_logprob(one) for one in given])


def _logprob(one: wire.TokenLogprob) -> LogprobEntry:
    top = [Likely(text, _finite(logprob), _bytes(text)) for _, text, logprob in one.top]
    return LogprobEntry(one.text, _finite(one.logprob), _bytes(one.text), top)


def _bytes(text: str) -> list[int] | None:
    """None for a part of a character, whose bytes the text does not show."""
    return None if "\ufffd" in text else list(text.encode("utf-8", "replace"))


def _finite(logprob: float) -> float:
    """JSON has no infinity: what cannot be is as good as this."""
    return max(logprob, -9999.0)


def text_logprobs(
    given: Sequence[wire.TokenLogprob | None], first: str = "", offset: int = 0
) -> TextLogprobs:
    """Parallel lists; None is for a prompt's first token, whose text is `first`. `offset` of
    the first text.
    """
    made = TextLogprobs([], [], [], [])
    for one in given:
        text = first if one is None else one.text
        made.tokens.append(text)
        made.token_logprobs.append(None if one is None else _finite(one.logprob))
        made.top_logprobs.append(
            None if one is None else {t: _finite(p) for _, t, p in one.top} or None
        )
        made.text_offset.append(offset)
        offset += len(text)
    return made


def prompt_logprobs(done: wire.CallDone, wanted: int | None) -> PromptLogprobs | UnsetType:
    """Those of the prompt, where they were asked for."""
    if wanted is None:
        return UNSET
    return [None, *(_prompt_logprob(one) for one in done.prompt_logprobs)]


def _prompt_logprob(one: wire.TokenLogprob) -> dict[str, PromptLogprob]:
    found = {
        str(token): PromptLogprob(_finite(logprob), rank, text)
        for rank, (token, text, logprob) in enumerate(one.top, 1)
    }
    found.setdefault(str(one.token), PromptLogprob(_finite(one.logprob), None, one.text))
    return found
