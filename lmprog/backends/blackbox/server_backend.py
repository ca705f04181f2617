"""A backend on a server over HTTP: lmprog's own, SGLang's, vLLM's, or any other OpenAI-compatible
one.

The kind of server is detected by a request; it determines what a program can do there. On SGLang it
is the server's own route, `/generate`, which takes text and gives text and log-probabilities; a
select takes two requests there: one computes the prompt and returns its token count, the next
scores all choices after it, with the prompt then in the server's cache.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from lmprog import wire
from lmprog.backends.blackbox.api import (
    Api,
    ApiAnswer,
    ApiRequest,
    JsonBody,
    TextListener,
    Transport,
)
from lmprog.backends.blackbox.api_backend import (
    ADDRESS,
    ApiBackend,
    ApiOptions,
    check_options,
    retry_policy_of,
)
from lmprog.backends.blackbox.api_errors import broken_off
from lmprog.backends.blackbox.choice_scores import ChoiceScore, chosen
from lmprog.backends.blackbox.dialects import PLAIN, SGLANG, VLLM
from lmprog.backends.blackbox.http_client import HttpTransport, look
from lmprog.backends.blackbox.openai_answer import last_tokens
from lmprog.backends.blackbox.openai_api import ApiService, OpenAIApi
from lmprog.backends.blackbox.openai_body import json_value, sglang_constraint
from lmprog.backends.blackbox.programs_api import ProgramsApi
from lmprog.backends.blackbox.retry_policy import RetryPolicy
from lmprog.backends.blackbox.transcript import Kind, Prompt, TextPrompt
from lmprog.errors import (
    LmprogError,
    NotSupported,
    ProtocolError,
    RuntimeGone,
    UnknownName,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger("lmprog")

LOST = (
    "it has no route for whole programs, so each generation is a request with all of its text: "
    "forks share what the cache of the server that they meet happens to hold, texts are tokenised "
    "anew each time, a selection takes several requests, and a program does not survive its "
    "server's death. Connect to lmprog's servers themselves, or put lmprog serve --join before "
    "runtimes."
)
"""What a router between programs and servers of lmprog costs."""


class RuntimeEndpoint(ApiBackend):
    """A backend on the server at `base_url`, whose kind is detected.

    On lmprog's server a program has the features of a runtime of its own. On SGLang's, programs of
    plain text use `/generate`, those with turns its chat route; on vLLM's and all others, both use
    OpenAI's API. `kind` is the detected kind; `lost` says what a router that stands before servers
    of lmprog takes from programs, and is None elsewhere.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        model: str | None = None,
        **options: Unpack[ApiOptions],
    ) -> None:
        """`model`: which one, where the server has several; None: its first. Raises UnknownName."""
        check_options("a server over HTTP", options, ApiOptions, {*ADDRESS, "model"})
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._asked = model
        found = ask_what(self.base_url, api_key, model)
        self.kind = found.kind
        self.lost = found.lost
        if self.lost is not None:
            log.warning("%s is a router: %s", self.base_url, self.lost)
        self._api_key = api_key
        self._model = found.model
        retry_policy = retry_policy_of(options)
        api = _api(found, HttpTransport(self.base_url, api_key), retry_policy)
        super().__init__(api, retry_policy, options)
        self.identity = (self.base_url, self.kind)
        if isinstance(api, ProgramsApi):
            api.named = {} if model is None else {"model": model}
            api.when_replaced = lambda: self._ask_again(api)
            self._take(found, api)

    @property
    def model_info(self) -> dict[str, Any]:
        """What the server says of its model, in SGLang's words; asks it. Blocks."""
        for path in ("/model_info", "/get_model_info"):
            said = look(self.base_url, path, self._api_key)
            if said is not None:
                return dict(said)
        return {"model_path": self._model, "is_generation": True}

    def _ask_again(self, api: ProgramsApi) -> None:
        """The server has another model: programs that begin now begin with it. Blocks."""
        with contextlib.suppress(LmprogError):  # the next program finds out
            self._take(ask_what(self.base_url, self._api_key, self._asked), api)

    def _take(self, found: Found, api: ProgramsApi) -> None:
        told = found.fingerprint
        known = {name: told[name] for name in wire.Fingerprint().parts if name in told}
        self.learn(found.context_len, wire.Fingerprint(**known))
        api.fingerprint = str(told.get("digest") or "")

    def speculate(self, branch: int, num_tokens: int) -> None:
        """Sets the speculation of `branch`. Not used where the server caches whole branches."""
        if self.kind != "lmprog":
            super().speculate(branch, num_tokens)


@dataclass(frozen=True, slots=True)
class Found:
    """What a server reported about itself."""

    kind: str
    """"lmprog", "sglang", "vllm" or "plain"."""
    model: str
    context_len: int
    lost: str | None = None
    """See `RuntimeEndpoint`."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """Of the model of a server of lmprog: its parts, and their `digest`."""


def ask_what(url: str, api_key: str | None, asked: str | None = None) -> Found:
    """Detects the kind of a server. Raises `RuntimeGone` if it cannot be reached, `ProtocolError`
    if it is of no known kind, `UnknownName` if it does not serve the model that is `asked` for.
    """
    models = look(url, "/v1/models", api_key)
    cards = (models or {}).get("data") or []
    if asked is not None:
        names = [str(one.get("id")) for one in cards if isinstance(one, Mapping)]
        cards = [one for one, name in zip(cards, names, strict=True) if name == asked]
        if not cards:
            raise UnknownName.of_model(asked, names)
    if cards and isinstance(cards[0], Mapping):
        card: Mapping[str, Any] = cards[0]
        owner = str(card.get("owned_by") or "")
        model, context_len = str(card.get("id") or "default"), int(card.get("max_model_len") or 0)
        if owner in ("lmprog", "sglang", "vllm"):
            fingerprint = card.get("fingerprint") if owner == "lmprog" else None
            return Found(owner, model, context_len, fingerprint=fingerprint or {})
        behind = look(url, "/get_model_info", api_key) or {}
        if behind.get("server") == "lmprog":  # a router forwards this question, and not the other
            return Found("vllm", model, int(behind.get("context_length") or 0), LOST)
        return Found(_by_routes(url, api_key), model, context_len)
    about = look(url, "/get_model_info", api_key) or look(url, "/model_info", api_key)
    if about is not None and about.get("model_path"):
        return Found("sglang", str(about["model_path"]), int(about.get("context_length") or 0))
    raise ProtocolError(
        f"the server at {url} has neither /v1/models nor /get_model_info; is it one for "
        "language models?"
    )


def _by_routes(url: str, api_key: str | None) -> str:
    """Detection by routes, for servers whose model list does not name them as the owner."""
    if (
        look(url, "/get_server_info", api_key) is not None
        or look(url, "/server_info", api_key) is not None
    ):
        return "sglang"
    return "vllm" if look(url, "/version", api_key) is not None else "plain"


def _api(found: Found, transport: HttpTransport, retry_policy: RetryPolicy) -> Api:
    if found.kind == "lmprog":
        return ProgramsApi(found.model, found.context_len, transport, retry_policy)
    dialect = {"sglang": SGLANG, "vllm": VLLM}.get(found.kind, PLAIN)
    both = OpenAIApi(
        ApiService(found.model, "both", dialect, found.context_len, root="/v1"),
        transport,
        retry_policy,
    )
    if found.kind != "sglang":
        return both
    return Either(NativeApi(found.model, found.context_len, transport, retry_policy), both)


class Either:
    """SGLang's server: texts by its own route, chats by OpenAI's. Both use the same transport."""

    kind: Kind = "both"

    def __init__(self, text: NativeApi, chat: OpenAIApi) -> None:
        self.model = chat.model
        self.context_len = chat.context_len
        self.can_prefill = chat.can_prefill
        self._text = text
        self._chat = chat

    def _for(self, prompt: Prompt) -> Api:
        return self._text if isinstance(prompt, TextPrompt) else self._chat

    async def generate(self, request: ApiRequest, on_text: TextListener | None) -> ApiAnswer:
        return await self._for(request.prompt).generate(request, on_text)

    async def select(self, prompt: Prompt, op: wire.Select) -> wire.Chosen | None:
        return await self._for(prompt).select(prompt, op)

    def enforces(self, constraint: wire.Constraint, prompt: Prompt) -> bool:
        return self._for(prompt).enforces(constraint, prompt)

    async def flush(self) -> None:
        await self._text.flush()

    async def close(self) -> None:
        await self._chat.close()


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
