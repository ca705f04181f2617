"""The names of SGLang's frontend: `import lmprog.sglang as sgl`, and its programs run.

Every name of `lmprog` is here too; those that only SGLang's programs need are nowhere else. Loaded
when they are first used, as those of `lmprog` are.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import lmprog

if TYPE_CHECKING:
    from lmprog import Anthropic as Anthropic
    from lmprog import Branch as Branch
    from lmprog import LiteLLM as LiteLLM
    from lmprog import OpenAI as OpenAI
    from lmprog import Runtime as Runtime
    from lmprog import assistant as assistant
    from lmprog import flush_cache as flush_cache
    from lmprog import function as function
    from lmprog import gen as gen
    from lmprog import get_server_info as get_server_info
    from lmprog import role as role
    from lmprog import select as select
    from lmprog import set_default_backend as set_default_backend
    from lmprog import system as system
    from lmprog import user as user
    from lmprog.backends.blackbox.server_backend import RuntimeEndpoint as RuntimeEndpoint
    from lmprog.lang.ops.expressions import greedy_token_selection as greedy_token_selection
    from lmprog.lang.ops.expressions import token_length_normalized as token_length_normalized
    from lmprog.lang.ops.expressions import (
        unconditional_likelihood_normalized as unconditional_likelihood_normalized,
    )
    from lmprog.lang.ops.spelling import assistant_begin as assistant_begin
    from lmprog.lang.ops.spelling import assistant_end as assistant_end
    from lmprog.lang.ops.spelling import gen_int as gen_int
    from lmprog.lang.ops.spelling import gen_string as gen_string
    from lmprog.lang.ops.spelling import image as image
    from lmprog.lang.ops.spelling import separate_reasoning as separate_reasoning
    from lmprog.lang.ops.spelling import system_begin as system_begin
    from lmprog.lang.ops.spelling import system_end as system_end
    from lmprog.lang.ops.spelling import user_begin as user_begin
    from lmprog.lang.ops.spelling import user_end as user_end
    from lmprog.lang.ops.spelling import video as video
    from lmprog.lang.sglang_engine import Engine as Engine
    from lmprog.lang.sglang_engine import build_regex_from_object as build_regex_from_object
    from lmprog.lang.sglang_engine import global_config as global_config

_OPS = (
    "assistant_begin", "assistant_end", "gen_int", "gen_string", "image", "separate_reasoning",
    "system_begin", "system_end", "user_begin", "user_end", "video",
)  # fmt: skip
_CHOICES = (
    "greedy_token_selection",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
)
_HOMES = {
    **dict.fromkeys(_OPS, "lmprog.lang.ops.spelling"),
    **dict.fromkeys(_CHOICES, "lmprog.lang.ops.expressions"),
    "Engine": "lmprog.lang.sglang_engine",
    "RuntimeEndpoint": "lmprog.backends.blackbox.server_backend",
    "build_regex_from_object": "lmprog.lang.sglang_engine",
    "global_config": "lmprog.lang.sglang_engine",
}

__all__ = sorted({*_HOMES, *lmprog.__all__})


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in lmprog.__all__:
        value = getattr(lmprog, name)
    else:
        raise AttributeError(f"module 'lmprog.sglang' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
