"""lmprog runs programs that call a language model, and never computes a prefix twice while its memory holds it.

Public names are here; importing this imports no torch. The names are loaded when they are first used, so that a
process that only wants the wire, say, does not pay for the language.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmprog.constrained import constraint as constraint
    from lmprog.errors import LmprogError as LmprogError
    from lmprog.lang.backends.anthropic import Anthropic as Anthropic
    from lmprog.lang.backends.default import set_default_backend as set_default_backend
    from lmprog.lang.backends.embedded import Runtime as Runtime
    from lmprog.lang.backends.embedded import connect as connect
    from lmprog.lang.backends.endpoint import RuntimeEndpoint as RuntimeEndpoint
    from lmprog.lang.backends.engine import Engine as Engine
    from lmprog.lang.backends.litellm import LiteLLM as LiteLLM
    from lmprog.lang.backends.openai import OpenAI as OpenAI
    from lmprog.lang.choices import greedy_token_selection as greedy_token_selection
    from lmprog.lang.choices import token_length_normalized as token_length_normalized
    from lmprog.lang.choices import unconditional_likelihood_normalized as unconditional_likelihood_normalized
    from lmprog.lang.feed import Done as Done
    from lmprog.lang.feed import Text as Text
    from lmprog.lang.feed import Thought as Thought
    from lmprog.lang.feed import Value as Value
    from lmprog.lang.fork import Branches as Branches
    from lmprog.lang.global_config import global_config as global_config
    from lmprog.lang.keeping import Judge as Judge
    from lmprog.lang.meta import Selected as Selected
    from lmprog.lang.ops import assistant as assistant
    from lmprog.lang.ops import assistant_begin as assistant_begin
    from lmprog.lang.ops import assistant_end as assistant_end
    from lmprog.lang.ops import gen as gen
    from lmprog.lang.ops import gen_int as gen_int
    from lmprog.lang.ops import gen_string as gen_string
    from lmprog.lang.ops import image as image
    from lmprog.lang.ops import role as role
    from lmprog.lang.ops import select as select
    from lmprog.lang.ops import separate_reasoning as separate_reasoning
    from lmprog.lang.ops import system as system
    from lmprog.lang.ops import system_begin as system_begin
    from lmprog.lang.ops import system_end as system_end
    from lmprog.lang.ops import user as user
    from lmprog.lang.ops import user_begin as user_begin
    from lmprog.lang.ops import user_end as user_end
    from lmprog.lang.ops import video as video
    from lmprog.lang.partial import Partial as Partial
    from lmprog.lang.program import AsyncProgram as AsyncProgram
    from lmprog.lang.program import Program as Program
    from lmprog.lang.program import function as function
    from lmprog.lang.replay import replay as replay
    from lmprog.lang.results import Results as Results
    from lmprog.lang.results import Run as Run
    from lmprog.lang.sampling import Sampling as Sampling
    from lmprog.lang.service import flush_cache as flush_cache
    from lmprog.lang.service import get_server_info as get_server_info
    from lmprog.lang.state import Branch as Branch
    from lmprog.lang.values import Gen as Gen
    from lmprog.lang.vote import best_of as best_of
    from lmprog.lang.vote import race as race
    from lmprog.lang.vote import vote as vote

__version__ = "0.1.0"

_OPS = (
    "assistant", "assistant_begin", "assistant_end", "gen", "gen_int", "gen_string", "image", "role",
    "select", "separate_reasoning", "system", "system_begin", "system_end", "user", "user_begin", "user_end", "video",
)  # fmt: skip
_CHOICES = ("greedy_token_selection", "token_length_normalized", "unconditional_likelihood_normalized")

_HOMES = {
    **dict.fromkeys(_OPS, "lmprog.lang.ops"),
    **dict.fromkeys(_CHOICES, "lmprog.lang.choices"),
    **dict.fromkeys(("Done", "Text", "Thought", "Value"), "lmprog.lang.feed"),
    **dict.fromkeys(("AsyncProgram", "Program", "function"), "lmprog.lang.program"),
    **dict.fromkeys(("Results", "Run"), "lmprog.lang.results"),
    **dict.fromkeys(("flush_cache", "get_server_info"), "lmprog.lang.service"),
    **dict.fromkeys(("Runtime", "connect"), "lmprog.lang.backends.embedded"),
    "Anthropic": "lmprog.lang.backends.anthropic",
    "Branch": "lmprog.lang.state",
    "Branches": "lmprog.lang.fork",
    "Gen": "lmprog.lang.values",
    "Engine": "lmprog.lang.backends.engine",
    "Judge": "lmprog.lang.keeping",
    "LiteLLM": "lmprog.lang.backends.litellm",
    "LmprogError": "lmprog.errors",
    "OpenAI": "lmprog.lang.backends.openai",
    "RuntimeEndpoint": "lmprog.lang.backends.endpoint",
    "global_config": "lmprog.lang.global_config",
    "constraint": "lmprog.constrained",
    "Partial": "lmprog.lang.partial",
    "Sampling": "lmprog.lang.sampling",
    "Selected": "lmprog.lang.meta",
    "replay": "lmprog.lang.replay",
    "set_default_backend": "lmprog.lang.backends.default",
    **dict.fromkeys(("best_of", "race", "vote"), "lmprog.lang.vote"),
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lmprog' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
