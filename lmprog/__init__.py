"""lmprog runs programs that call a language model, and never computes a prefix twice while its
memory holds it.

Public names are here; importing this imports no torch. The names are loaded when they are first
used, so that a process that only wants the wire, say, does not pay for the language.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError(
        "lmprog runs on Linux and macOS, and not on Windows itself; use it in WSL, which is a "
        "Linux there: `wsl --install`, then `pip install lmprog` in that"
    )

if TYPE_CHECKING:
    from lmprog import grammar as grammar
    from lmprog import ray as ray
    from lmprog.backends.blackbox.anthropic_backend import Anthropic as Anthropic
    from lmprog.backends.blackbox.litellm_backend import LiteLLM as LiteLLM
    from lmprog.backends.blackbox.openai_backend import OpenAI as OpenAI
    from lmprog.backends.connecting.default import set_default_backend as set_default_backend
    from lmprog.backends.connecting.embedded import Runtime as Runtime
    from lmprog.backends.connecting.embedded import connect as connect
    from lmprog.backends.connecting.fleet_backend import Fleet as Fleet
    from lmprog.constrained import constraint as constraint
    from lmprog.errors import LmprogError as LmprogError
    from lmprog.errors import Paused as Paused
    from lmprog.evaluation.comparing import Comparison as Comparison
    from lmprog.evaluation.comparing import Grid as Grid
    from lmprog.evaluation.comparing import compare as compare
    from lmprog.evaluation.comparing import grid as grid
    from lmprog.evaluation.evaluated import Evaluation as Evaluation
    from lmprog.evaluation.evaluated_row import EvaluatedRow as EvaluatedRow
    from lmprog.evaluation.evaluating import aevaluate as aevaluate
    from lmprog.evaluation.evaluating import evaluate as evaluate
    from lmprog.lang.branches.acting import Acted as Acted
    from lmprog.lang.branches.branch import Branch as Branch
    from lmprog.lang.branches.branch import Branches as Branches
    from lmprog.lang.branches.branch_search import SearchPath as SearchPath
    from lmprog.lang.branches.branch_search import search as search
    from lmprog.lang.branches.gen import Gen as Gen
    from lmprog.lang.branches.vote import race as race
    from lmprog.lang.branches.vote import vote as vote
    from lmprog.lang.decorator import function as function
    from lmprog.lang.ops.best_of import Judge as Judge
    from lmprog.lang.ops.best_of import beam as beam
    from lmprog.lang.ops.best_of import best_of as best_of
    from lmprog.lang.ops.meta import Selected as Selected
    from lmprog.lang.ops.sampling import Sampling as Sampling
    from lmprog.lang.ops.spelling import assistant as assistant
    from lmprog.lang.ops.spelling import gen as gen
    from lmprog.lang.ops.spelling import role as role
    from lmprog.lang.ops.spelling import select as select
    from lmprog.lang.ops.spelling import system as system
    from lmprog.lang.ops.spelling import user as user
    from lmprog.lang.ops.tool_calls import ToolCall as ToolCall
    from lmprog.lang.ops.tool_calls import ToolReply as ToolReply
    from lmprog.lang.ops.tool_calls import ToolResult as ToolResult
    from lmprog.lang.ops.tool_calls import ToolResults as ToolResults
    from lmprog.lang.ops.tool_functions import Tool as Tool
    from lmprog.lang.program import AsyncProgram as AsyncProgram
    from lmprog.lang.program import Program as Program
    from lmprog.lang.resuming import aresume as aresume
    from lmprog.lang.resuming import resume as resume
    from lmprog.lang.runs.results import Results as Results
    from lmprog.lang.runs.results import Run as Run
    from lmprog.lang.runs.run_replay import replay as replay
    from lmprog.lang.runs.trace_file import tracing as tracing
    from lmprog.lang.service_calls import flush_cache as flush_cache
    from lmprog.lang.service_calls import get_server_info as get_server_info
    from lmprog.lang.streaming.feed import AskedAgain as AskedAgain
    from lmprog.lang.streaming.feed import Called as Called
    from lmprog.lang.streaming.feed import Done as Done
    from lmprog.lang.streaming.feed import Text as Text
    from lmprog.lang.streaming.feed import Thought as Thought
    from lmprog.lang.streaming.feed import Value as Value
    from lmprog.lang.streaming.partial import Partial as Partial
    from lmprog.lang.streaming.trace_events import TraceEvent as TraceEvent

__version__ = "0.1.0"

_OPS = ("assistant", "gen", "role", "select", "system", "user")
_MOVED = frozenset({
    "Engine", "RuntimeEndpoint", "assistant_begin", "assistant_end", "build_regex_from_object",
    "gen_int", "gen_string", "global_config", "greedy_token_selection", "image",
    "separate_reasoning", "system_begin", "system_end", "token_length_normalized",
    "unconditional_likelihood_normalized", "user_begin", "user_end", "video",
})  # fmt: skip
"""Names of SGLang's frontend that stood here, and are in `lmprog.sglang` now."""

_HOMES = {
    **dict.fromkeys(_OPS, "lmprog.lang.ops.spelling"),
    **dict.fromkeys(
        ("AskedAgain", "Called", "Done", "Text", "Thought", "Value"),
        "lmprog.lang.streaming.feed",
    ),
    **dict.fromkeys(("AsyncProgram", "Program"), "lmprog.lang.program"),
    "function": "lmprog.lang.decorator",
    **dict.fromkeys(("Results", "Run"), "lmprog.lang.runs.results"),
    **dict.fromkeys(("flush_cache", "get_server_info"), "lmprog.lang.service_calls"),
    **dict.fromkeys(("Runtime", "connect"), "lmprog.backends.connecting.embedded"),
    "Anthropic": "lmprog.backends.blackbox.anthropic_backend",
    **dict.fromkeys(
        ("ToolCall", "ToolReply", "ToolResult", "ToolResults"), "lmprog.lang.ops.tool_calls"
    ),
    "Tool": "lmprog.lang.ops.tool_functions",
    "Acted": "lmprog.lang.branches.acting",
    "Branch": "lmprog.lang.branches.branch",
    "Branches": "lmprog.lang.branches.branch",
    "Gen": "lmprog.lang.branches.gen",
    "Judge": "lmprog.lang.ops.best_of",
    **dict.fromkeys(("Comparison", "Grid", "compare", "grid"), "lmprog.evaluation.comparing"),
    "EvaluatedRow": "lmprog.evaluation.evaluated_row",
    "Evaluation": "lmprog.evaluation.evaluated",
    **dict.fromkeys(("aevaluate", "evaluate"), "lmprog.evaluation.evaluating"),
    "Fleet": "lmprog.backends.connecting.fleet_backend",
    "LiteLLM": "lmprog.backends.blackbox.litellm_backend",
    **dict.fromkeys(("LmprogError", "Paused"), "lmprog.errors"),
    "OpenAI": "lmprog.backends.blackbox.openai_backend",
    "constraint": "lmprog.constrained",
    "Partial": "lmprog.lang.streaming.partial",
    "Sampling": "lmprog.lang.ops.sampling",
    "Selected": "lmprog.lang.ops.meta",
    "replay": "lmprog.lang.runs.run_replay",
    **dict.fromkeys(("aresume", "resume"), "lmprog.lang.resuming"),
    "tracing": "lmprog.lang.runs.trace_file",
    "TraceEvent": "lmprog.lang.streaming.trace_events",
    "set_default_backend": "lmprog.backends.connecting.default",
    **dict.fromkeys(("race", "vote"), "lmprog.lang.branches.vote"),
    **dict.fromkeys(("search", "SearchPath"), "lmprog.lang.branches.branch_search"),
    "beam": "lmprog.lang.ops.best_of",
    "best_of": "lmprog.lang.ops.best_of",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in ("grammar", "ray", "sglang"):
        return importlib.import_module(f"lmprog.{name}")
    if name in _MOVED:
        instead = f"lmprog.{name} is now lmprog.sglang.{name} (import lmprog.sglang as sgl)"
        warnings.warn(instead, DeprecationWarning, stacklevel=2)
        return getattr(__getattr__("sglang"), name)
    if name not in _HOMES:
        raise AttributeError(f"module 'lmprog' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
