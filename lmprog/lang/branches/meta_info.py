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
    if meta.left_out:
        info["constraint_left_out"] = list(meta.left_out)
    if meta.finish == "select":
        chosen: Selected = gen.value
        info["normalized_prompt_logprobs"] = list(chosen.scores.values())
        info["input_token_logprobs"] = [_triples(chosen, text) for text in chosen.logprobs]
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
    if meta.next_logprobs:
        info["next_token_logprobs"] = [(lp, token, text) for token, text, lp in meta.next_logprobs]
    return info


def _triples(chosen: Selected, text: str) -> list[tuple[float, int | None, str | None]]:
    """The tokens of one option: log-probability, id and text, where they are known."""
    tokens = chosen.tokens[text] or [(None, None)] * len(chosen.logprobs[text])
    return [
        (logprob, token, name)
        for logprob, (token, name) in zip(chosen.logprobs[text], tokens, strict=True)
    ]
