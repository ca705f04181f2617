"""Fields of other servers that would change an answer and mean nothing here: refused by name, with
what to do instead.

A field at a value that asks for nothing is taken, since clients send these by themselves. Fields
that no server is known to have are not refused, but named in a warning. Knows no routes.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmprog import wire
from lmprog.server.http.http_errors import HttpError, refused


@dataclass(frozen=True, slots=True)
class ForeignField:
    """`neutral` values ask for nothing, as do null, false and what is empty; where something
    `is_off` by false, that asks for it.
    """

    advice: str
    neutral: tuple[Any, ...] = ()
    is_off: bool = False


_LEAVE = "leave it out"
_LORA = "name the adapter as the model"
_REASONING = "it belongs to chats, which tell thoughts apart"
_BEAMS = "it belongs to chats, /v1/completions and /v1/programs"
_THINKING = 'use chat_template_kwargs {"enable_thinking": ...} of chats'
_SAMPLERS = "there is no such sampler; use top_p, top_k and min_p"
_MEDIA = "this server reads and writes text only; leave it out"

FOREIGN_FIELDS: Mapping[str, ForeignField] = {
    "use_beam_search": ForeignField(_BEAMS),
    "length_penalty": ForeignField(_BEAMS, (1,)),
    "early_stopping": ForeignField(_BEAMS),
    "best_of": ForeignField("it belongs to /v1/completions; use n", (1,)),
    "echo": ForeignField("it belongs to /v1/completions"),
    "suffix": ForeignField("it belongs to /v1/completions"),
    "logits_processors": ForeignField("use logit_bias or structured_outputs"),
    "custom_logit_processor": ForeignField("use logit_bias or structured_outputs"),
    "custom_params": ForeignField(_LEAVE),
    "truncate_prompt_tokens": ForeignField("it belongs to chats and /v1/completions"),
    "return_token_ids": ForeignField("chats, /v1/completions and /generate give ids"),
    "return_tokens_as_token_ids": ForeignField("chats and /v1/completions do"),
    "return_hidden_states": ForeignField(_LEAVE),
    "add_special_tokens": ForeignField("chats have those of the model's template; leave it out"),
    "documents": ForeignField("put them into a message"),
    "chat_template": ForeignField("the server's own template is used; leave it out"),
    "mm_processor_kwargs": ForeignField(_MEDIA),
    "media_io_kwargs": ForeignField(_MEDIA),
    "image_data": ForeignField(_MEDIA),
    "audio_data": ForeignField(_MEDIA),
    "video_data": ForeignField(_MEDIA),
    "input_embeds": ForeignField("give text or input_ids"),
    "guided_json_object": ForeignField('use response_format {"type": "json_object"}'),
    "lora_path": ForeignField(_LORA),
    "lora_request": ForeignField(_LORA),
    "session_params": ForeignField("use /v1/programs, whose branches grow"),
    "rid": ForeignField("it belongs to /generate; x-request-id names other requests"),
    "enable_thinking": ForeignField(_THINKING, is_off=True),
    "think": ForeignField(_THINKING, is_off=True),
    "thinking": ForeignField(_THINKING, is_off=True),
    "reasoning": ForeignField(_THINKING, is_off=True),
    "format": ForeignField("use response_format"),
    "no_stop_trim": ForeignField("use include_stop_str_in_output"),
    "include_reasoning": ForeignField(_REASONING, (True,)),
    "separate_reasoning": ForeignField(_REASONING, (True,)),
    "stream_reasoning": ForeignField(_REASONING, (True,)),
    "thinking_token_budget": ForeignField(_REASONING),
    "kv_transfer_params": ForeignField(_LEAVE),
    "vllm_xargs": ForeignField(_LEAVE),
    "verbosity": ForeignField("say in a message how long the answer is to be", ("medium",)),
    "web_search_options": ForeignField("this server has no tools of its own"),
    "mcp_servers": ForeignField("this server has no tools of its own"),
    "container": ForeignField("this server has no tools of its own"),
    "context_management": ForeignField("shorten the conversation yourself"),
    "conversation": ForeignField("use previous_response_id"),
    "truncation": ForeignField("shorten the conversation yourself", ("disabled",)),
    "max_tool_calls": ForeignField("this server has no tools of its own"),
    "typical_p": ForeignField(_SAMPLERS, (1,)),
    "top_a": ForeignField(_SAMPLERS, (0,)),
    "tfs_z": ForeignField(_SAMPLERS, (1,)),
    "mirostat": ForeignField(_SAMPLERS, (0,)),
    "dry_multiplier": ForeignField(_SAMPLERS, (0,)),
    "xtc_probability": ForeignField(_SAMPLERS, (0,)),
    "dynatemp_range": ForeignField(_SAMPLERS, (0,)),
    "repeat_penalty": ForeignField("use repetition_penalty", (1,)),
    "repeat_last_n": ForeignField("repetition_penalty looks at the whole text"),
    "n_predict": ForeignField("use max_tokens"),
    "n_probs": ForeignField("use top_logprobs", (0,)),
}


_SPELLINGS = {
    spelling: line
    for line in wire.SAMPLING_OPTIONS.values()
    for spelling in (line.name, *line.option.renamed.values())
}


def check_foreign(path: str, name: str, value: Any, valid: Sequence[str]) -> None:
    """Refuses the field `name` at `path` where its `value` asks for something that means nothing
    here, or where it is another dialect's spelling of one of the `valid` fields. Raises HttpError.
    """
    if value is None:
        return
    line = _SPELLINGS.get(name)
    ours = [] if line is None else [one for one in valid if _SPELLINGS.get(one) is line]
    if ours:
        raise refused(
            f'unknown field {json.dumps(path)}; did you mean "{ours[0]}"?', path, "unknown_field"
        )
    foreign = FOREIGN_FIELDS.get(name)
    if foreign is None:
        return
    if (value and value not in foreign.neutral) or (value is False and foreign.is_off):
        raise unsupported(path, foreign.advice)


def unknown_field(path: str, name: str, valid: Sequence[str]) -> str:
    """A sentence with the nearest valid field, and all of them."""
    near = difflib.get_close_matches(name, valid, 1)
    guess = f"; did you mean {json.dumps(near[0])}?" if near else ";"
    return f"unknown field {json.dumps(path[:60])}{guess} valid: {', '.join(sorted(valid))}."


def unsupported(name: str, advice: str) -> HttpError:
    """A field that is known, and has no meaning here."""
    return refused(f"{name} is not supported: {advice}.", name, "not_supported")


def markdown() -> str:
    """The list of docs/server.md."""
    return ", ".join(f"`{name}`" for name in sorted(FOREIGN_FIELDS)) + "\n"
