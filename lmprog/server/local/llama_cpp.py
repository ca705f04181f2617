"""llama.cpp's own routes: `/completion`, `/props`, `/slots`.

A completion is one of OpenAI's older dialect with other names and another answer. Knows both
bodies, and how completions reach the runtime.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lmprog import wire
from lmprog.server.gateway.gateway import Gateway, version
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.http.http_errors import refused
from lmprog.server.http.json_body import Given, described
from lmprog.server.http.limits import within
from lmprog.server.http.sse import EventStream, event, until_gone
from lmprog.server.openai import answers
from lmprog.server.openai.completions import (
    CompletionBody,
    Completions,
    last_prompt,
    understood,
)
from lmprog.server.openai.running_request import fitted, read_prompt, running, warned

Json = dict[str, Any]
SILENT = ("cache_prompt", "id_slot", "n_keep", "n_indent", "timings_per_token", "return_progress")
"""Known fields that cannot change an answer here: no warning is given."""
_StopText = Annotated[str, within("stop[]")]


class LlamaOptions(msgspec.Struct, kw_only=True):
    """The sampling options that llama.cpp and Ollama spell alike."""

    temperature: Annotated[float, within("temperature")] | None = None
    top_p: Annotated[float, within("top_p")] | None = None
    top_k: Annotated[int, within("top_k")] | None = None
    min_p: Annotated[float, within("min_p")] | None = None
    seed: Annotated[int, within("seed")] | None = None
    stop: _StopText | Annotated[list[_StopText], within("stop")] | None = None
    repeat_penalty: Annotated[float, within("repetition_penalty")] | None = None
    repeat_last_n: int | None = None
    presence_penalty: Annotated[float, within("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, within("frequency_penalty")] | None = None

    def sampling(self, at: str = "") -> Json:
        """The same by OpenAI's names. Raises HttpError for a penalty of the last tokens only."""
        penalty, last = self.repeat_penalty, self.repeat_last_n
        if penalty not in (None, 1) and last not in (None, -1):
            raise refused(
                f"{at}repeat_last_n is {last}; {at}repeat_penalty looks at the whole text here: "
                "leave it out, or say -1.",
                f"{at}repeat_last_n",
                "not_supported",
            )
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "seed": None if self.seed == -1 else self.seed,
            "stop": self.stop,
            "repetition_penalty": None if last == 0 else penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }


class LlamaCompletion(LlamaOptions, kw_only=True):
    """`n_predict` -1: up to the context's end."""

    prompt: str | list[str | int | list[int]]
    model: Annotated[str, within("model")] | None = None
    stream: bool | None = None
    n_predict: Annotated[int, Meta(ge=-2)] | None = None
    n_probs: Annotated[int, within("logprobs")] | None = None
    ignore_eos: bool | None = None
    return_tokens: bool | None = None
    grammar: Annotated[str, Meta(max_length=65_536)] | None = None
    json_schema: dict[str, Any] | None = None
    logit_bias: dict[str, Any] | list[list[Any]] | None = None


def completion_of(body: LlamaCompletion) -> CompletionBody:
    """The same as OpenAI has it. Raises HttpError."""
    if body.n_predict == 0:
        raise refused("n_predict is 0; it must be at least 1, or -1.", "n_predict", "invalid_value")
    options = {
        **body.sampling(),
        "ignore_eos": body.ignore_eos,
        "logit_bias": _biases(body.logit_bias),
    }
    return CompletionBody(
        prompt=body.prompt,
        model=body.model,
        stream=body.stream,
        logprobs=body.n_probs or None,
        grammar=body.grammar or None,
        json_schema=body.json_schema,
        **options,
    )


def _biases(given: dict[str, Any] | list[list[Any]] | None) -> dict[str, float] | None:
    """By token id; `false` forbids a token. Raises HttpError for texts."""
    pairs = given.items() if isinstance(given, dict) else given or ()
    made = {}
    for pair in pairs:
        token, bias = (*pair, None, None)[:2]
        is_id = isinstance(token, int) or (isinstance(token, str) and token.isdecimal())
        if not is_id or not isinstance(bias, int | float):
            raise refused(
                "logit_bias has pairs of a token id and a number, or false.",
                "logit_bias",
                "invalid_value",
            )
        made[str(token)] = -100.0 if bias is False else float(bias)
    return made or None


def router(gateway: Gateway) -> GatewayRouter:
    made = GatewayRouter(gateway, "llama.cpp")

    async def complete(request: Request, given: Given[LlamaCompletion]) -> Response:
        read = await read_prompt(
            gateway, given, lambda body: (last_prompt(gateway, completion_of(body)), None), SILENT
        )
        body = read.body
        asked = await read.aside(lambda: understood(gateway, completion_of(body), read.warnings))
        request.state.names = {**asked.names, "max_tokens": "n_predict"}
        asked = await until_gone(request, _fitted(gateway, asked, body.n_predict))
        headers = warned(asked.warnings)
        if body.stream:
            stream = _events(gateway, request, asked, body)
            return await EventStream.begin(request, stream, gateway.settings, headers)
        with running(gateway, request, asked.prompts, False, None) as run:
            dones = await until_gone(request, run.dones())
        found = [_whole(asked, body, place, done) for place, done in enumerate(dones)]
        return JSONResponse(found if len(found) > 1 else found[0], headers=headers)

    for path in ("/completion", "/completions"):
        made.post(
            path,
            dependencies=[made.guards.generating],
            summary="llama.cpp's completions.",
            responses=described(streams=True),
        )(complete)

    @made.get("/props", dependencies=[made.guards.user], summary="What llama.cpp says of itself.")
    async def props() -> Response:
        info = gateway.info
        context = {"n_ctx": info.context_len}
        return JSONResponse(
            {
                "default_generation_settings": {**context, "params": {}},
                "total_slots": gateway.settings.max_running,
                "model_alias": gateway.model_name,
                "model_path": info.model,
                "modalities": {"vision": False, "audio": False},
                "build_info": f"lmprog {version()}",
            }
        )

    @made.get("/slots", dependencies=[made.guards.user], summary="llama.cpp's slots: what runs.")
    async def slots() -> Response:
        busy = gateway.open_results
        context = gateway.info.context_len
        number = range(gateway.settings.max_running)
        found = [{"id": at, "n_ctx": context, "is_processing": at < busy} for at in number]
        return JSONResponse(found)

    return made


async def _fitted(gateway: Gateway, asked: Completions, most: int | None) -> Completions:
    """With so many tokens at most, as far as the context goes."""
    wanted = most if most is not None and most > 0 else None
    made = []
    for prompt in asked.prompts:
        sampling = replace(prompt.sampling, max_tokens=wanted)
        made.append((await fitted(gateway, replace(prompt, sampling=sampling)))[0])
    return replace(asked, prompts=tuple(made))


def _whole(asked: Completions, body: LlamaCompletion, place: int, done: wire.CallDone) -> Json:
    output = done.outputs[0]
    made = {"content": output.text, **_end(asked, body, place, done)}
    if body.n_probs:
        made["completion_probabilities"] = _probabilities(output.logprobs)
    return made


def _end(asked: Completions, body: LlamaCompletion, place: int, done: wire.CallDone) -> Json:
    output, usage = done.outputs[0], done.usage
    word = answers.stop_reason_of(output, asked.prompts[place].sampling)
    kind = "limit" if output.finish == "length" else "eos" if word is None else "word"
    decode, prefill = usage.decode_ms, usage.prefill_ms
    return {
        "index": place,
        "id_slot": -1,
        "stop": True,
        "model": asked.head.model,
        "tokens": list(output.tokens) if body.return_tokens else [],
        "tokens_predicted": usage.generated,
        "tokens_evaluated": usage.prompt,
        "tokens_cached": usage.cached,
        "truncated": False,
        "stop_type": kind,
        "stopping_word": word if isinstance(word, str) else "",
        "timings": {
            "prompt_n": usage.prompt - usage.cached,
            "prompt_ms": prefill,
            "predicted_n": usage.generated,
            "predicted_ms": decode,
            "predicted_per_second": 1e3 * usage.generated / decode if decode else 0.0,
        },
    }


def _probabilities(given: tuple[wire.TokenLogprob, ...]) -> list[Json]:
    return [
        {
            "id": one.token,
            "token": one.text,
            "logprob": one.logprob,
            "top_logprobs": [
                {"id": token, "token": text, "logprob": logprob} for token, text, logprob in one.top
            ],
        }
        for one in given
    ]


async def _events(
    gateway: Gateway, request: Request, asked: Completions, body: LlamaCompletion
) -> AsyncGenerator[bytes, None]:
    with running(gateway, request, asked.prompts, True, None) as run:
        async for piece in run.pieces():
            if piece.done is not None:
                yield event({"content": "", **_end(asked, body, piece.prompt, piece.done)})
                continue
            told: Json = {"index": piece.prompt, "content": piece.text, "tokens": []}
            if body.n_probs:
                told["completion_probabilities"] = _probabilities(piece.logprobs)
            yield event({**told, "id_slot": -1, "stop": False})
