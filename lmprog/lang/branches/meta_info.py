"""A result's meta information under the names that SGLang gives it."""

from __future__ import annotations

from typing import Any

from lmprog.lang.branches.gen import Gen
from lmprog.lang.ops.meta import Selected


def meta_info(gen: Gen[Any]) -> dict[str, Any]:
    """A result's meta information under the names that SGLang gives it."""
    meta = gen.meta
    info: dict[str, Any] = {
        "prompt_tokens": meta.usage.prompt,
        "completion_tokens": meta.usage.generated,
        "cached_tokens": meta.usage.cached,
        "forced_tokens": meta.usage.forced,
        "finish_reason": {"type": meta.finish, "matched": meta.stopped_by},
        "output_ids": list(meta.tokens),
    }
    if meta.reasoning_tokens is not None:
        info["reasoning_tokens"] = meta.reasoning_tokens
    if meta.finish == "select":
        chosen: Selected = gen.value
        info["normalized_prompt_logprobs"] = list(chosen.scores.values())
        info["input_token_logprobs"] = [list(logprobs) for logprobs in chosen.logprobs.values()]
    if meta.logprobs:
        info["output_token_logprobs"] = [
            (item.logprob, item.token, item.text) for item in meta.logprobs
        ]
        info["output_top_logprobs"] = [
            [(lp, token, text) for token, text, lp in item.top] for item in meta.logprobs
        ]
    if meta.prompt_logprobs:
        info["input_token_logprobs"] = [
            (item.logprob, item.token, item.text) for item in meta.prompt_logprobs
        ]
        info["input_top_logprobs"] = [
            [(lp, token, text) for token, text, lp in item.top] for item in meta.prompt_logprobs
        ]
    return info
