"""How text is generated: constraints and sampling parameters, with their ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from lmprog.wire.message import Message, Penalty, TokenId, Whitespace


class Regex(Message, frozen=True):
    pattern: Annotated[str, Meta(max_length=65_536)]


class JsonSchema(Message, frozen=True):
    """`schema` is JSON text, so that the order of its properties is kept."""

    schema: Annotated[str, Meta(max_length=1_048_576)]
    whitespace: Whitespace = "fixed"
    any_order: bool = False


class Choices(Message, frozen=True):
    texts: Annotated[tuple[str, ...], Meta(min_length=1, max_length=65_536)]


class Grammar(Message, frozen=True):
    """A context-free grammar as text (Lark or GBNF)."""

    text: Annotated[str, Meta(max_length=1_048_576)]


Constraint: TypeAlias = Regex | JsonSchema | Choices | Grammar


class SamplingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How tokens are sampled and when a generation ends. Without `max_tokens`: at the context's
    end.
    """

    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] = 1.0
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = 128
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    stop: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=16)
    ] = ()
    stop_token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=64)] = ()
    stop_regex: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=4)
    ] = ()
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=10.0)] = 1.0
    logit_bias: Annotated[
        tuple[tuple[TokenId, Annotated[float, Meta(ge=-100.0, le=100.0)]], ...],
        Meta(max_length=1024),
    ] = ()
    ignore_eos: bool = False
    logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None
    prompt_logprobs_start: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    """Position of the first token to score; the very first token has no log-probability."""
    n: Annotated[int, Meta(ge=1, le=128)] = 1

    def scored(self) -> SamplingParams:
        """The same with the log-probability of each sampled token."""
        return self if self.logprobs is not None else msgspec.structs.replace(self, logprobs=0)


class SuggestedSampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """A checkpoint's own default sampling parameters. `None`: it has none."""

    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=10.0)] | None = None


def suggested(found: Mapping[str, object]) -> SuggestedSampling:
    """The known fields of `found`. Raises ValueError for a value of the wrong type or range."""
    try:
        return msgspec.convert(dict(found), SuggestedSampling)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
