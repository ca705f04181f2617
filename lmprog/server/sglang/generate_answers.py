"""What `/generate` answers: `text`, `output_ids` and `meta_info`, as SGLang shapes them.

Two things differ. The first position whose log-probability is asked for has one, unless it is the
prompt's very first token, which nothing precedes: there it is always null. And a request that
generates nothing and asks for log-probabilities gets those of its prompt without saying where they
begin: it can mean no others.

Knows replies of the wire; knows no connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmprog import wire
from lmprog.server.sglang.generate_body import GeneratePrompt

ENTRIES_A_CHUNK = 1024
"""With so many log-probabilities, at most, every delta is a chunk."""
Row = tuple[float | None, int, str | None]
"""One position: log-probability, token, text."""


class GenerateStream:
    """One result while it is streamed: everything it has said so far, since SGLang's chunks are
    whole texts.
    """

    def __init__(self) -> None:
        self.text = ""
        self.num_tokens = 0
        self._logprobs: list[wire.TokenLogprob] = []
        self.entries = 0
        """Log-probabilities so far."""
        self._told = 0

    def take(self, delta: wire.Delta) -> bool:
        """Whether a chunk is worth its bytes: it has everything, so that chunks of many
        log-probabilities come only as these grow by an eighth.
        """
        self.text += delta.text
        self.num_tokens += delta.num_tokens
        self._logprobs += delta.logprobs
        self.entries += wire.count_logprobs(delta)
        if self.entries > ENTRIES_A_CHUNK and self.entries < self._told + self._told // 8:
            return False
        self._told = self.entries
        return True

    def chunk(self, prompt: GeneratePrompt, num_prompt: int | None) -> dict[str, Any]:
        """What is known now. The prompt's length is known before the end only where the prompt came
        as tokens.
        """
        meta: dict[str, Any] = {
            "id": prompt.rid,
            "finish_reason": None,
            "completion_tokens": self.num_tokens,
        }
        if num_prompt is not None:
            meta["prompt_tokens"] = num_prompt
        if prompt.logprobs is not None:
            _add_generated(meta, prompt, self._logprobs)
        return {"text": self.text, "meta_info": meta}


def results(
    prompt: GeneratePrompt, done: wire.CallDone, first: Row | None, seconds: float
) -> list[dict[str, Any]]:
    """The `n` results of one prompt. `first`: the prompt's first token, where its log-probabilities
    begin there.
    """
    count = len(done.outputs)
    made = []
    for index, output in enumerate(done.outputs):
        rid = prompt.rid if count == 1 else f"{prompt.rid}_{index}"
        meta: dict[str, Any] = {
            "id": rid,
            "finish_reason": finish_reason(output),
            "prompt_tokens": done.usage.prompt,
            "completion_tokens": len(output.tokens),
            "cached_tokens": done.usage.cached,
            "e2e_latency": seconds,
        }
        if done.left_out:
            meta["constraint_left_out"] = done.left_out
        if prompt.logprobs is not None:
            _add_logprobs(meta, prompt, done, output.logprobs, first)
        kept = output.stopped_by if prompt.params.no_stop_trim else ""
        text = output.text + (kept if isinstance(kept, str) else "")
        made.append({"text": text, "output_ids": output.tokens, "meta_info": meta})
    return made


def aborted(prompt: GeneratePrompt, said: Sequence[GenerateStream]) -> list[dict[str, Any]]:
    """The results of a prompt that `/abort_request` ended: what had been streamed."""
    finish = {
        "type": "abort",
        "message": "Aborted by /abort_request.",
        "status_code": None,
        "err_type": None,
    }
    return [
        {
            "text": one.text,
            "output_ids": (),
            "meta_info": {
                "id": prompt.rid,
                "finish_reason": finish,
                "completion_tokens": one.num_tokens,
            },
        }
        for one in said
    ]


def finish_reason(output: wire.Output) -> dict[str, Any]:
    if output.finish == "length":
        return {"type": "length", "length": len(output.tokens)}
    return {"type": "stop", "matched": output.stopped_by}


def _add_logprobs(
    meta: dict[str, Any],
    prompt: GeneratePrompt,
    done: wire.CallDone,
    generated: Sequence[wire.TokenLogprob],
    first: Row | None,
) -> None:
    scored = [] if prompt.start < 0 else [_row(one, prompt.texts) for one in done.prompt_logprobs]
    tops: list[Any] = (
        [] if prompt.start < 0 else [_top(one, prompt.texts) for one in done.prompt_logprobs]
    )
    if first is not None:
        scored.insert(0, first)
        tops.insert(0, None)
    meta["input_token_logprobs"] = scored
    if prompt.logprobs:
        meta["input_top_logprobs"] = tops
    if done.next_logprobs:
        meta["next_token_logprobs"] = _likely(done.next_logprobs, prompt.texts)
    _add_generated(meta, prompt, generated)


def _add_generated(
    meta: dict[str, Any], prompt: GeneratePrompt, generated: Sequence[wire.TokenLogprob]
) -> None:
    meta["output_token_logprobs"] = [_row(one, prompt.texts) for one in generated]
    meta["output_token_logprobs_length"] = len(generated)
    if prompt.logprobs:
        meta["output_top_logprobs"] = [_top(one, prompt.texts) for one in generated]


def _row(one: wire.TokenLogprob, with_text: bool) -> Row:
    return (one.logprob, one.token, one.text if with_text else None)


def _top(one: wire.TokenLogprob, with_text: bool) -> list[Row]:
    return _likely(one.top, with_text)


def _likely(given: Sequence[tuple[int, str, float]], with_text: bool) -> list[Row]:
    return [(logprob, token, text if with_text else None) for token, text, logprob in given]
