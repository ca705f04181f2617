"""The fields that chats, completions and the gens of programs have alike: sampling options, ways to
constrain the text (`output_constraint.py`), ways to stream.

`None` always means that the field was not given. Knows no messages and no answers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from lmprog import wire
from lmprog.server.http.http_errors import refused
from lmprog.server.http.limits import within
from lmprog.server.openai.output_constraint import ConstraintFields

SILENT = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "prediction",
    "request_id",
    "spaces_between_special_tokens",
    "guided_decoding_backend",
)
"""Known fields that cannot change an answer here: no warning is given."""


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class AgentHints(msgspec.Struct, frozen=True):
    """What a harness says of a request, as Dynamo spells it. `osl`: the tokens of the answer."""

    priority: int | None = None
    osl: Annotated[int, within("max_tokens")] | None = None
    strict_priority: int | None = None
    speculative_prefill: bool | None = None
    latency_sensitivity: float | None = None


class Nvext(msgspec.Struct, frozen=True):
    agent_hints: AgentHints | None = None


class GenerationFields(ConstraintFields, kw_only=True):
    """The common fields, besides the sampling options and those that constrain the text."""

    model: Annotated[str, within("model")] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    priority: Annotated[int, within("priority")] | None = None
    cache_salt: Annotated[str, within("cache_salt")] | None = None
    include_stop_str_in_output: bool | None = None

    use_beam_search: bool | None = None
    beam_width: Annotated[int, within("beam_width")] | None = None
    length_penalty: Annotated[float, within("length_penalty")] | None = None
    early_stopping: bool | Literal["never"] | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def beams_of(asked: GenerationFields, width: int) -> wire.Beams | None:
    """The beam search that is asked for, of `width` where no `beam_width` is given. Raises
    HttpError.
    """
    neutral: dict[str, tuple[Any, ...]] = {
        "beam_width": (None,),
        "length_penalty": (None, 1.0),
        "early_stopping": (None, False),
    }
    if not asked.use_beam_search:
        for name, values in neutral.items():
            if getattr(asked, name) not in values:
                raise refused(f"{name} needs use_beam_search=true; leave it out.", name)
        return None
    penalty = 1.0 if asked.length_penalty is None else asked.length_penalty
    return wire.Beams(asked.beam_width or width, penalty, asked.early_stopping or False)


def check_stream(asked: GenerationFields) -> None:
    """Raises HttpError for fields that need a stream, or do not go with one."""
    if asked.stream_options is not None and not asked.stream:
        raise refused(
            "stream_options needs stream=true; leave it out, or stream.", "stream_options"
        )
    if asked.prompt_logprobs is not None and asked.stream:
        raise refused(
            "prompt_logprobs cannot be streamed; leave out stream or prompt_logprobs.",
            "prompt_logprobs",
        )
