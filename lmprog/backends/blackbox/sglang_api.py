"""An `Api` on SGLang's own route, `/generate`: sends text, receives text and log-probabilities.

A select takes two requests: one computes the prompt and returns its token count; the next scores
all choices after it, with the prompt then in the server's cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

from lmprog import wire
from lmprog.backends.blackbox.api import ApiAnswer, ApiRequest, JsonBody, TextListener, Transport
from lmprog.backends.blackbox.api_errors import broken_off
from lmprog.backends.blackbox.choice_scores import ChoiceScore, chosen
from lmprog.backends.blackbox.openai_answer import last_tokens
from lmprog.backends.blackbox.openai_body import json_value, sglang_constraint
from lmprog.backends.blackbox.retry_policy import RetryPolicy
from lmprog.backends.blackbox.transcript import Kind, Prompt, TextPrompt
from lmprog.errors import NotSupported, ProtocolError, RuntimeGone


class NativeApi:
    """SGLang's `/generate`. Owns its transport."""

    kind: Kind = "text"
    can_prefill = False

    def __init__(
        self, model: str, context_len: int, transport: Transport, retry_policy: RetryPolicy
    ) -> None:
        self.model = model
        self.context_len = context_len
        self._transport = transport
        self._retry_policy = retry_policy

    async def generate(self, request: ApiRequest, on_text: TextListener | None) -> ApiAnswer:
        sampling = request.sampling
        if sampling.prompt_logprobs is not None:
            raise NotSupported("prompt_logprobs cannot be asked of this server; leave it out")
        body: JsonBody = {
            "text": _text(request.prompt),
            "sampling_params": _params(sampling, request.constraint),
        }
        if sampling.logprobs is not None:
            body.update(_logprobs_of(sampling.logprobs))
        if on_text is None or sampling.n > 1:
            found = _results(await self._post(body))
            if on_text is not None:
                for index, one in enumerate(found):
                    on_text(index, one["text"], 1)
        else:
            found = [await self._stream(body, on_text)]
        if len(found) != sampling.n:
            raise ProtocolError(f"asked for {sampling.n} results, the server gave {len(found)}")
        return ApiAnswer(
            tuple(_output(one) for one in found), _usage([one["meta_info"] for one in found])
        )

    async def _post(self, body: JsonBody) -> Mapping[str, Any]:
        return await self._retry_policy.run(lambda: self._transport.post("/generate", body))

    async def _stream(self, body: JsonBody, on_text: TextListener) -> Mapping[str, Any]:
        """Each piece holds the whole text so far."""
        stream = await self._retry_policy.run(
            lambda: self._transport.open("/generate", {**body, "stream": True})
        )
        last: Mapping[str, Any] = {"text": "", "meta_info": {}}
        async with contextlib.aclosing(cast("Any", stream)):
            pieces: AsyncIterator[Mapping[str, Any]] = self._retry_policy.pieces(stream)
            async for piece in pieces:
                if piece.get("error"):
                    raise broken_off(piece)
                new = piece["text"][len(last["text"]) :]
                if new:
                    on_text(0, new, 1)
                last = piece
        return last

    # --- selections

    async def select(self, prompt: Prompt, op: wire.Select) -> wire.Chosen | None:
        text = _text(prompt)
        begin = 0
        if text:
            [warmed] = _results(await self._post({"text": text, "sampling_params": _NOTHING}))
            begin = max(
                warmed["meta_info"]["prompt_tokens"] - 2, 0
            )  # the last tokens may merge with a choice's
        scored, usage = await self._score(
            [text + choice for choice in op.choices], op.choices, begin
        )
        alone: tuple[tuple[float, ...], ...] = ()
        if op.method == "unconditional_likelihood_normalized":
            alone, more = await self._score(list(op.choices), op.choices, 0)
            usage = wire.Usage(prompt=usage.prompt + more.prompt, cached=usage.cached + more.cached)
        return chosen(op, ChoiceScore(scored, alone, usage))

    async def _score(
        self, texts: list[str], choices: Sequence[str], begin: int
    ) -> tuple[tuple[tuple[float, ...], ...], wire.Usage]:
        body: JsonBody = {
            "text": texts,
            "sampling_params": _NOTHING,
            "logprob_start_len": begin,
            **_logprobs_of(0),
        }
        found = _results(await self._post(body))
        if len(found) != len(choices):
            raise ProtocolError(
                f"asked to score {len(choices)} choices, the server answered {len(found)}"
            )
        scored = tuple(
            _tail(one["meta_info"], choice) for one, choice in zip(found, choices, strict=True)
        )
        return scored, _usage([one["meta_info"] for one in found])

    def enforces(self, constraint: wire.Constraint, prompt: Prompt) -> bool:
        return constraint.is_portable

    async def flush(self) -> None:
        await self._retry_policy.run(lambda: self._transport.post("/flush_cache", {}))

    async def close(self) -> None:
        await self._transport.close()


_NOTHING: Mapping[str, object] = {"max_new_tokens": 0, "temperature": 0.0}


def _text(prompt: Prompt) -> str:
    assert isinstance(prompt, TextPrompt)
    return prompt.text


def _params(sampling: wire.SamplingParams, constraint: wire.Constraint | None) -> JsonBody:
    """The parameters under SGLang's names. All are sent, since the server's defaults come from the
    checkpoint.
    """
    params: JsonBody = {}
    for name, line in wire.SAMPLING_OPTIONS.items():
        spelling, value = line.spelling("sglang"), getattr(sampling, name)
        is_set = value is not None or name == "max_tokens"
        cannot_say = line.option.composed.get("sglang") == ""
        if "sglang" not in line.option.services and (spelling is not None or cannot_say):
            if value != line.default:
                raise NotSupported(f"{name}={value!r} cannot be asked of this server; leave it out")
            continue
        if spelling is not None and is_set and value != ():
            params[spelling] = json_value(value)
    return {**params, **(sglang_constraint(constraint) if constraint is not None else {})}


def _logprobs_of(top: int) -> JsonBody:
    return {"return_logprob": True, "top_logprobs_num": top, "return_text_in_logprobs": True}


def _results(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The results as a list; a single one is not sent as a list."""
    return list(answer["items"]) if "items" in answer else [answer]


def _output(result: Mapping[str, Any]) -> wire.Output:
    meta = result["meta_info"]
    finish = meta.get("finish_reason")
    kind = finish.get("type") if isinstance(finish, Mapping) else finish
    if kind not in ("stop", "length"):
        why = finish.get("message") if isinstance(finish, Mapping) else finish
        raise RuntimeGone(f"the server ended the text early: {why or 'it did not say why'}")
    stopped_by = finish.get("matched") if isinstance(finish, Mapping) else None
    rows, tops = meta.get("output_token_logprobs") or (), meta.get("output_top_logprobs") or ()
    logprobs = tuple(
        wire.TokenLogprob(
            token,
            text or "",
            number,
            tuple((id_, name or "", one) for one, id_, name in _at(tops, index)),
        )
        for index, (number, token, text) in enumerate(rows)
    )
    tokens = tuple(result.get("output_ids") or ())
    return wire.Output(
        result["text"], tokens, "length" if kind == "length" else "stop", stopped_by, logprobs
    )


def _at(tops: Sequence[Any], index: int) -> Sequence[Any]:
    return (tops[index] or ()) if index < len(tops) else ()


def _tail(meta: Mapping[str, Any], choice: str) -> tuple[float, ...]:
    """The log-probabilities of the tokens that spell the choice at the end of a text."""
    rows = meta.get("input_token_logprobs") or ()
    numbers = last_tokens([row[2] or "" for row in rows], [row[0] for row in rows], len(choice))
    if not numbers or any(number is None for number in numbers):
        raise NotSupported(
            f"the server does not tell the likelihood of all tokens of {choice!r}: a text's "
            "first token has none"
        )
    return tuple(number for number in numbers if number is not None)


def _usage(metas: Sequence[Mapping[str, Any]]) -> wire.Usage:
    """The total usage; a prompt shared by several results counts once."""
    prompt = max((meta.get("prompt_tokens") or 0 for meta in metas), default=0)
    cached = sum(meta.get("cached_tokens") or 0 for meta in metas)
    generated = sum(meta.get("completion_tokens") or 0 for meta in metas)
    return wire.Usage(
        prompt=prompt,
        cached=cached,
        generated=generated,
        computed=max(prompt - cached, 0) + generated,
    )
