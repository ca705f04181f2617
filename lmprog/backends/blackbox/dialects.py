"""Differences between services with an OpenAI-compatible API, as values: field names, options,
constraints, prefilled turns.

Each follows the documentation of its service; the options table says which sampling options it
takes. Knows no requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from lmprog import wire

Confines: TypeAlias = Literal["response_format", "structured_outputs", "sglang"]
Prefill: TypeAlias = Literal["none", "continue", "message"]
"""How a chat model continues a turn: not at all; with `continue_final_message`; or by sending the
partial turn as the last message, which some services continue without a flag.
"""


@dataclass(frozen=True, slots=True)
class ApiDialect:
    """One kind of service."""

    name: str
    options: frozenset[str] = frozenset()
    """Sampling options that it accepts under their own names."""
    confines: Confines = "response_format"
    prefill: Prefill = "none"
    max_tokens: str = "max_tokens"
    """The field of chat requests that limits the length of results."""
    max_stops: int = 4
    """Maximum number of stop strings in a request; further ones are applied to the answer."""
    sends_defaults: bool = False
    """Whether temperature and the like are sent even if they are 1, because the server's defaults
    come from the checkpoint.
    """
    scores: bool = False
    """Whether `/completions` returns log-probabilities of an echoed prompt, which selects need."""


OPENAI = ApiDialect("openai", wire.options_of("openai"), max_tokens="max_completion_tokens")
PLAIN = ApiDialect("plain", wire.options_of("openai"))
"""An unknown OpenAI-compatible service: no extensions are assumed."""
VLLM = ApiDialect(
    "vllm",
    wire.options_of("vllm"),
    "structured_outputs",
    "continue",
    max_stops=64,
    sends_defaults=True,
    scores=True,
)
SGLANG = ApiDialect(
    "sglang",
    wire.options_of("sglang"),
    "sglang",
    "continue",
    max_stops=64,
    sends_defaults=True,
    scores=True,
)
LMPROG = ApiDialect(
    "lmprog",
    wire.options_of("lmprog"),
    "structured_outputs",
    "continue",
    max_stops=16,
    sends_defaults=True,
    scores=True,
)
DIALECTS = {dialect.name: dialect for dialect in (OPENAI, PLAIN, VLLM, SGLANG, LMPROG)}
