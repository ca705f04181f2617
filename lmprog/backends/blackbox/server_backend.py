"""A backend on a server over HTTP: lmprog's own, SGLang's, vLLM's, or any other OpenAI-compatible
one.

The kind of server is detected by a request; it determines what a program can do there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lmprog import wire
from lmprog.backends.blackbox.api import Api, ApiAnswer, ApiRequest, TextListener
from lmprog.backends.blackbox.api_backend import ApiBackend, ApiOptions, retry_policy_of
from lmprog.backends.blackbox.dialects import PLAIN, SGLANG, VLLM
from lmprog.backends.blackbox.http_client import HttpTransport, look
from lmprog.backends.blackbox.openai_api import ApiService, OpenAIApi
from lmprog.backends.blackbox.programs_api import ProgramsApi
from lmprog.backends.blackbox.retry_policy import RetryPolicy
from lmprog.backends.blackbox.sglang_api import NativeApi
from lmprog.backends.blackbox.transcript import Kind, Prompt, TextPrompt
from lmprog.errors import InvalidParameter, LmprogError, ProtocolError, hint

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
        self, base_url: str, api_key: str | None = None, **options: Unpack[ApiOptions]
    ) -> None:
        known = set(ApiOptions.__annotations__)
        unknown = sorted(set(options) - known)
        if unknown:
            allowed = ", ".join(sorted(known))
            said = hint(unknown[0], {*known, "api_key", "base_url"})
            message = f"a server over HTTP has no option {unknown[0]!r}{said}"
            raise InvalidParameter(message, name=unknown[0], allowed=allowed)
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        found = ask_what(self.base_url, api_key)
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
            self._take(ask_what(self.base_url, self._api_key), api)

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


def ask_what(url: str, api_key: str | None) -> Found:
    """Detects the kind of a server. Raises `RuntimeGone` if it cannot be reached, `ProtocolError`
    if it is of no known kind.
    """
    models = look(url, "/v1/models", api_key)
    cards = (models or {}).get("data") or []
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
