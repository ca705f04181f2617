"""The table of sampling options: one field of `SamplingParams` is one line of it.

A line has a name, a type with its range, a default, and a `SamplingOption`: what it does, how each
HTTP dialect spells it, the range that requests over HTTP have, and which services with OpenAI's API
take it. Bodies of requests, their translation, the limits, the bodies sent to other services and
the documents are made from these lines. Knows no requests and no branches.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from lmprog.wire.message import Message, TokenId

Dialect: TypeAlias = Literal["openai", "responses", "anthropic", "sglang"]
"""How requests spell options: `openai` are chats, completions and the gens of programs."""
DIALECTS: tuple[Dialect, ...] = typing.get_args(Dialect)
Service: TypeAlias = Literal["openai", "anthropic", "vllm", "sglang", "lmprog"]
"""A kind of service that programs can call."""

Role: TypeAlias = Literal["draw", "edit", "prompt", "course"]
"""Of an option: a "draw" says which tokens may be drawn and how likely each is, an "edit" changes
logits before that; every sampler honours both. "prompt" is about the tokens before the result,
"course" about how a result goes on, ends and is told.
"""

_EVERY = frozenset[Service](typing.get_args(Service))
_OPENAI = _EVERY - {"anthropic"}
"""Whoever has OpenAI's API."""
_LOCAL = _OPENAI - {"openai"}
_SGLANG = frozenset[Service](["sglang", "lmprog"])
_LMPROG = frozenset[Service](["lmprog"])
_OWN = frozenset[Service]()

INT31 = 2**31 - 1
INT63 = 2**63 - 1

Temperature: TypeAlias = Annotated[float, Meta(ge=0.0, le=100.0)]
TopP: TypeAlias = Annotated[float, Meta(gt=0.0, le=1.0)]
TopK: TypeAlias = Annotated[int, Meta(ge=-1, le=INT31)]
MinP: TypeAlias = Annotated[float, Meta(ge=0.0, le=1.0)]
Penalty: TypeAlias = Annotated[float, Meta(ge=-2.0, le=2.0)]
RepetitionPenalty: TypeAlias = Annotated[float, Meta(gt=0.0, le=10.0)]
Seed: TypeAlias = Annotated[int, Meta(ge=0, le=INT63)]
TopLogprobs: TypeAlias = Annotated[int, Meta(ge=0, le=100)]
StopText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
Jump: TypeAlias = Literal["canonical", "exact"]
Bias: TypeAlias = Annotated[float, Meta(ge=-100.0, le=100.0)]


class Beams(Message, frozen=True):
    """Beam search in place of sampling: `width` texts go on together, a token in each step, and of
    all their continuations the likeliest `width` are kept. The `n` best texts are the results.

    It decides what `generate(num_beams=width)` of `transformers` decides. A text's score is the sum
    of its tokens' log-probabilities over its number of tokens (its end counts) to the power of
    `length_penalty`. `early_stopping`: true ends the search with the `width`-th complete text,
    false when no text under way would be better if it ended now, "never" when none can become so.
    """

    width: Annotated[int, Meta(ge=1, le=128)]
    length_penalty: Annotated[float, Meta(ge=-10.0, le=10.0)] = 1.0
    early_stopping: bool | Literal["never"] = False


@dataclass(frozen=True, slots=True)
class SamplingOption:
    """What a line of the table says besides name, type, range and default."""

    meaning: str
    services: frozenset[Service] = _OPENAI
    """Who takes it under its own name."""
    unit: str = "number"
    note: str = ""
    """For the table of limits."""
    requests: Meta | None = None
    """The range in requests over HTTP, where it is not that of the type."""
    renamed: Mapping[Dialect, str] = field(default_factory=dict)
    """How a dialect spells it, where it is not its own name."""
    composed: Mapping[Dialect, str] = field(default_factory=dict)
    """Dialects that have no field for it, and from which of their fields it is made; "" where the
    dialect cannot say it.
    """
    role: Role = field(kw_only=True)
    """Which part honours the option. Every line must say it, so that no option is without effect.
    """
    off: tuple[object, ...] = ()
    """Values besides the default that a beam search accepts because they change nothing, the
    preferred one first.
    """

    @property
    def is_for_beams(self) -> bool:
        """Whether a beam search, which compares the model's own log-probabilities, has a place for
        it.
        """
        return self.role == "course"

    def spelling(self, dialect: Dialect, name: str) -> str | None:
        """The dialect's field for the option `name`; None where it has none."""
        return None if dialect in self.composed else self.renamed.get(dialect, name)


class SamplingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How tokens are sampled and when a generation ends. Without `max_tokens`: at the context's
    end.
    """

    temperature: Annotated[
        Temperature,
        SamplingOption(
            "Divides the logits; 0 always takes the likeliest token.",
            _EVERY,
            note="0 is greedy",
            requests=Meta(ge=0.0, le=2.0),
            role="draw",
            off=(0.0,),
        ),
    ] = 1.0
    top_p: Annotated[
        TopP,
        SamplingOption(
            "Only the likeliest tokens that together have this probability.",
            _EVERY,
            requests=Meta(ge=0.0, le=1.0),
            role="draw",
        ),
    ] = 1.0
    top_k: Annotated[
        TopK,
        SamplingOption(
            "Only so many of the likeliest tokens.",
            _LOCAL | {"anthropic"},
            unit="tokens",
            note="-1 and 0 are off",
            role="draw",
        ),
    ] = -1
    min_p: Annotated[
        MinP,
        SamplingOption(
            "Only tokens with at least this share of the best one's.", _LOCAL, role="draw"
        ),
    ] = 0.0
    seed: Annotated[
        Seed | None,
        SamplingOption(
            "Equal seeds draw equal tokens.",
            unit="integer",
            requests=Meta(ge=-INT63 - 1, le=INT63),
            renamed={"sglang": "sampling_seed"},
            role="course",
        ),
    ] = None
    max_tokens: Annotated[
        Annotated[int, Meta(ge=0, le=INT31)] | None,
        SamplingOption(
            "Most tokens of a result; 0 computes the prompt only.",
            _EVERY,
            unit="tokens",
            note="with the prompt at most the context; 0 in /generate and with echo only",
            renamed={"responses": "max_output_tokens", "sglang": "max_new_tokens"},
            role="course",
        ),
    ] = 128
    min_tokens: Annotated[
        Annotated[int, Meta(ge=0, le=INT31)],
        SamplingOption(
            "No end before so many tokens.",
            _LOCAL,
            unit="tokens",
            renamed={"sglang": "min_new_tokens"},
            role="course",
        ),
    ] = 0
    stop: Annotated[
        Annotated[tuple[StopText, ...], Meta(max_length=16)],
        SamplingOption(
            "A result ends before the first of these texts.",
            _EVERY,
            renamed={"anthropic": "stop_sequences"},
            role="course",
        ),
    ] = ()
    stop_token_ids: Annotated[
        Annotated[tuple[TokenId, ...], Meta(max_length=64)],
        SamplingOption(
            "A result ends with one of these tokens.",
            _LOCAL,
            note="below the model's vocabulary",
            role="course",
        ),
    ] = ()
    stop_regex: Annotated[
        Annotated[tuple[StopText, ...], Meta(max_length=4)],
        SamplingOption(
            "A result ends before a match of one of these patterns.", _SGLANG, role="course"
        ),
    ] = ()
    frequency_penalty: Annotated[
        Penalty,
        SamplingOption(
            "Taken from a token's logit for each time that it was generated.", role="edit"
        ),
    ] = 0.0
    presence_penalty: Annotated[
        Penalty, SamplingOption("Taken once from the logits of generated tokens.", role="edit")
    ] = 0.0
    repetition_penalty: Annotated[
        RepetitionPenalty,
        SamplingOption(
            "Divides the logits of tokens of prompt and result.",
            _LOCAL,
            note="1 is off",
            requests=Meta(ge=0.01, le=10.0),
            role="edit",
        ),
    ] = 1.0
    logit_bias: Annotated[
        Annotated[tuple[tuple[TokenId, Bias], ...], Meta(max_length=1024)],
        SamplingOption("Added to the logits of these tokens.", role="edit"),
    ] = ()
    allowed_token_ids: Annotated[
        Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=65_536)] | None,
        SamplingOption(
            "Only these tokens are sampled; the model's own end is one of them only where it is "
            "named, or where a constraint's text is complete.",
            _LOCAL - {"sglang"},
            note="below the model's vocabulary",
            role="course",
        ),
    ] = None
    bad_words: Annotated[
        Annotated[tuple[StopText, ...], Meta(max_length=256)],
        SamplingOption(
            "The tokens that spell one of these texts, with or without a space before it, never "
            "follow each other in a result.",
            _LOCAL - {"sglang"},
            role="course",
        ),
    ] = ()
    ignore_eos: Annotated[
        bool, SamplingOption("The model's own end does not end a result.", _LOCAL, role="course")
    ] = False
    skip_special_tokens: Annotated[
        bool,
        SamplingOption(
            "Special tokens have no text in a result; false: their names. What ends a result is "
            "not part of it.",
            _LOCAL,
            role="course",
        ),
    ] = True
    jump: Annotated[
        Jump,
        SamplingOption(
            "How text that a constraint forces is written: at once in the tokenizer's own tokens "
            "(canonical), or sampled token by token (exact).",
            _LMPROG,
            role="course",
        ),
    ] = "canonical"
    logprobs: Annotated[
        TopLogprobs | None,
        SamplingOption(
            "The log-probability of each token, and so many of the likeliest beside it.",
            composed={
                "openai": "logprobs, top_logprobs",
                "responses": "include, top_logprobs",
                "anthropic": "",
                "sglang": "return_logprob, top_logprobs_num",
            },
            role="course",
        ),
    ] = None
    prompt_logprobs: Annotated[
        TopLogprobs | None,
        SamplingOption(
            "The same of the prompt's tokens.",
            _OWN,
            unit="tokens",
            requests=Meta(ge=0, le=20),
            composed={
                "responses": "",
                "anthropic": "",
                "sglang": "return_logprob, logprob_start_len",
            },
            role="prompt",
        ),
    ] = None
    prompt_logprobs_start: Annotated[
        Annotated[int, Meta(ge=0, le=INT31)],
        SamplingOption(
            "Position of the first prompt token to score; the very first has no log-probability.",
            _OWN,
            composed=dict.fromkeys(("openai", "responses", "anthropic"), "")
            | {"sglang": "logprob_start_len"},
            role="prompt",
        ),
    ] = 0
    n: Annotated[
        Annotated[int, Meta(ge=1, le=128)],
        SamplingOption(
            "Results of one prompt.",
            unit="results",
            composed={"responses": "", "anthropic": ""},
            role="course",
        ),
    ] = 1
    faithful: Annotated[
        Annotated[int, Meta(ge=1, le=128)],
        SamplingOption(
            "So many confined texts are drawn, and one of them is the result: as likely as if the "
            "model had been asked again and again, without a mask, until its text fitted.",
            _LMPROG,
            unit="texts",
            note="1 is off",
            role="course",
        ),
    ] = 1
    beams: Annotated[
        Beams | None,
        SamplingOption(
            "Beam search instead of sampling: the likeliest texts, found token by token.",
            _LMPROG,
            composed={
                "openai": "use_beam_search, beam_width, length_penalty, early_stopping",
                "responses": "",
                "anthropic": "",
                "sglang": "",
            },
            role="course",
        ),
    ] = None

    @property
    def num_sequences(self) -> int:
        """Texts that are under way at once."""
        return max(self.n, self.faithful) if self.beams is None else self.beams.width

    def biased(self, bias: Mapping[int, float]) -> SamplingParams:
        """The same with another bias."""
        return msgspec.structs.replace(self, logit_bias=tuple(bias.items()))

    def scored(self) -> SamplingParams:
        """The same with the log-probability of each sampled token."""
        return self if self.logprobs is not None else msgspec.structs.replace(self, logprobs=0)


class SuggestedSampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """A checkpoint's own default sampling parameters. `None`: it has none."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None


def suggested(found: Mapping[str, object]) -> SuggestedSampling:
    """The known fields of `found`. Raises ValueError for a value of the wrong type or range."""
    try:
        return msgspec.convert(dict(found), SuggestedSampling)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


@dataclass(frozen=True, slots=True)
class OptionLine:
    """A line of the table as values."""

    name: str
    type: Any
    """As declared, with its range."""
    default: Any
    option: SamplingOption

    @property
    def asks_for_nothing(self) -> tuple[object, ...]:
        """Its values that a beam search accepts because they change nothing, the preferred one
        first.
        """
        return (*self.option.off, self.default)

    def spelling(self, dialect: Dialect) -> str | None:
        """The dialect's field for it; None where it has none."""
        return self.option.spelling(dialect, self.name)


def _lines(table: type[msgspec.Struct]) -> Mapping[str, OptionLine]:
    hints = typing.get_type_hints(table, include_extras=True)
    defaults = dict(zip(table.__struct_fields__, table.__struct_defaults__, strict=True))
    found = {}
    for name, default in defaults.items():
        declared, *notes = typing.get_args(hints[name])
        metas = [note for note in notes if isinstance(note, Meta)]
        option = next(note for note in notes if isinstance(note, SamplingOption))
        kind = declared
        for meta in metas:
            kind = Annotated[kind, meta]
        found[name] = OptionLine(name, kind, default, option)
    return found


SAMPLING_OPTIONS = _lines(SamplingParams)
"""Every option by its name."""


def options_of(service: Service) -> frozenset[str]:
    """The options that a service takes under their own names."""
    return frozenset(
        name for name, line in SAMPLING_OPTIONS.items() if service in line.option.services
    )
