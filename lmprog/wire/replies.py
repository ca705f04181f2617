"""What a runtime answers. Every call gets exactly one last reply; `Delta`s come only before it."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from lmprog.wire.base import FinishReason, Id, Message


class Welcome(Message, frozen=True):
    version: int
    model: str
    context_len: int
    vocab_size: int
    page_size: int
    num_pages: int
    pid: int


class TokenLogprob(Message, frozen=True):
    """One position: the token that stands there, its log-probability, and the most likely ones instead."""

    token: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()


class Usage(Message, frozen=True):
    """The work of one call. `prompt` counts its prompt once; `cached` and `computed` are sums over its lanes (the `n`
    results of a gen, the options of a select), which share the prompt."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    forced: int = 0
    computed: int = 0
    preemptions: int = 0
    queued_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0


class Output(Message, frozen=True):
    text: str
    tokens: tuple[int, ...]
    finish: FinishReason
    stopped_by: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


class Delta(Message, frozen=True):
    """More text of a running generation. Joined in order, an output's deltas are its text."""

    call: Id
    index: int
    text: str
    num_tokens: int


class Done(Message, frozen=True):
    call: Id
    outputs: tuple[Output, ...]
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


class Choice(Message, frozen=True):
    """One option of a select: its score under the method, its probability among the options, its tokens' logprobs."""

    score: float
    probability: float
    logprobs: tuple[float, ...] = ()
    baseline: tuple[float, ...] = ()


class Chosen(Message, frozen=True):
    call: Id
    index: int
    options: tuple[Choice, ...]
    usage: Usage


class TextIs(Message, frozen=True):
    call: Id
    text: str
    num_tokens: int


class TokensAre(Message, frozen=True):
    call: Id
    tokens: tuple[int, ...]


class Described(Message, frozen=True):
    call: Id
    figures: dict[str, float]


class Failed(Message, frozen=True):
    """The last reply of a call that did not end well. `code` and `details` are those of `lmprog.errors`."""

    call: Id | None
    code: str
    message: str
    details: dict[str, str | int | float | bool | None] = msgspec.field(default_factory=dict)


Reply: TypeAlias = Welcome | Delta | Done | Chosen | TextIs | TokensAre | Described | Failed
