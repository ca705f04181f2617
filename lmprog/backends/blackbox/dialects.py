"""What services that speak OpenAI's API differ in, as values: names of fields, options,
constraints, prefilled turns.

Each is what that service documents; which sampling options it takes stands in the table of these
options. Knows no requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from lmprog import wire

Confines: TypeAlias = Literal["response_format", "structured_outputs", "sglang"]
Prefill: TypeAlias = Literal["none", "continue", "message"]
"""How a chat model is asked to go on in a turn: not at all; with `continue_final_message`; or by
sending the begun turn as the last message, which some services go on from without being told."""


@dataclass(frozen=True, slots=True)
class ApiDialect:
    """One kind of service."""

    name: str
    options: frozenset[str] = frozenset()
    """Sampling options that it takes under their own names."""
    confines: Confines = "response_format"
    prefill: Prefill = "none"
    max_tokens: str = "max_tokens"
    """The field of chat requests that limits their results."""
    max_stops: int = 4
    """Further stop strings are looked for here, after the answer."""
    always_says: bool = False
    """Sends temperature and the like also where they are 1, since the server's own defaults are the
    checkpoint's.
    """
    scores: bool = False
    """Whether `/completions` gives the log-probabilities of an echoed prompt, which is what a
    select needs.
    """


OPENAI = ApiDialect("openai", wire.options_of("openai"), max_tokens="max_completion_tokens")
PLAIN = ApiDialect("plain", wire.options_of("openai"))
"""An unknown service with OpenAI's API: nothing beyond it is taken for granted."""
VLLM = ApiDialect(
    "vllm",
    wire.options_of("vllm"),
    "structured_outputs",
    "continue",
    max_stops=64,
    always_says=True,
    scores=True,
)
SGLANG = ApiDialect(
    "sglang",
    wire.options_of("sglang"),
    "sglang",
    "continue",
    max_stops=64,
    always_says=True,
    scores=True,
)
LMPROG = ApiDialect(
    "lmprog",
    wire.options_of("lmprog"),
    "structured_outputs",
    "continue",
    max_stops=16,
    always_says=True,
    scores=True,
)
DIALECTS = {dialect.name: dialect for dialect in (OPENAI, PLAIN, VLLM, SGLANG, LMPROG)}
