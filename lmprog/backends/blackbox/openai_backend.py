"""`lmprog.OpenAI`: programs on OpenAI's API, or on any compatible service, through the `openai`
package.

The only module that uses that package; it is imported when a backend is created.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lmprog.backends.blackbox.api_backend import (
    ADDRESS,
    ApiBackend,
    ApiOptions,
    check_options,
    retry_policy_of,
)
from lmprog.backends.blackbox.dialects import DIALECTS, OPENAI, PLAIN, ApiDialect, Prefill
from lmprog.backends.blackbox.http_client import look
from lmprog.backends.blackbox.openai_api import ApiService, OpenAIApi
from lmprog.backends.blackbox.sdk_transport import SdkTransport
from lmprog.backends.blackbox.transcript import Kind
from lmprog.errors import InvalidParameter, LmprogError, NotSupported, RequestRejected

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from typing_extensions import Unpack

_PATIENCE = 10.0
"""Seconds for the list of models."""
_COMPLETION_MODEL = re.compile(r"(davinci|babbage|curie|ada)(-|$)|-instruct")


class OpenAIOptions(ApiOptions, total=False):
    """Options of `OpenAI` besides the model and the address."""

    is_chat_model: bool | None
    """True: every call is a chat; False: a completion; None: guessed, see `OpenAI`."""
    dialect: str
    """How the service differs from OpenAI's: "openai", "plain", "vllm", "sglang", "lmprog". With a
    `base_url` it is by default found out from the service's list of models, and "plain" where that
    does not say.
    """
    prefill: Prefill
    """How a chat continues within the assistant's turn; "none" if the service cannot do that."""
    echo: bool
    """Whether `/completions` returns the log-probabilities of an echoed prompt, which selects need.
    """
    extra_body: Mapping[str, Any]
    """Fields added to every request."""
    leave_out: Collection[str]
    """Fields that the service rejects, so that they are never sent: for example `("seed",)`."""
    client: AsyncOpenAI
    """An unused client of the `openai` package, in place of `base_url` and `api_key`."""


class OpenAI(ApiBackend):
    """A backend on an OpenAI-compatible API.

    Without `base_url` it is OpenAI's own, whose models are chats but for those with `instruct`,
    `davinci` or `babbage` in their names. With a `base_url` the program decides: one with turns is
    a chat, one without is a completion. `api_key` is by default that of the environment,
    `OPENAI_API_KEY`.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        **options: Unpack[OpenAIOptions],
    ) -> None:
        check_options("OpenAI", options, OpenAIOptions, ADDRESS)
        client = options.get("client")
        is_own = base_url is None and client is None
        dialect = _dialect(options, is_own)
        service = ApiService(
            model,
            kind_of(model, options.get("is_chat_model"), is_own),
            dialect,
            extra_body=options.get("extra_body"),
            leave_out=frozenset(options.get("leave_out", ())),
        )
        transport = _transport(client, base_url, api_key)
        if base_url is not None and "dialect" not in options:
            key = transport.api_key
            service = replace(service, find=lambda: _found(base_url, key, options))
        retry_policy = retry_policy_of(options)
        super().__init__(
            OpenAIApi(service, transport, retry_policy),
            retry_policy,
            options,
        )
        address = base_url or getattr(client, "base_url", None) or os.environ.get("OPENAI_BASE_URL")
        extra = sorted((service.extra_body or {}).items())
        self.identity = (str(address), service.kind, extra, sorted(service.leave_out))


def kind_of(model: str, is_chat_model: bool | None, is_own: bool) -> Kind:
    """The kind of prompt that the model takes."""
    if is_chat_model is not None:
        return "chat" if is_chat_model else "text"
    if not is_own:
        return "both"
    return "text" if _COMPLETION_MODEL.search(model) else "chat"


def _dialect(options: OpenAIOptions, is_own: bool) -> ApiDialect:
    name = options.get("dialect")
    if name is not None and name not in DIALECTS:
        allowed = ", ".join(DIALECTS)
        message = f"there is no dialect {name!r}; there are {allowed}"
        raise InvalidParameter(message, name="dialect", value=name, allowed=allowed)
    return _with_options(
        DIALECTS[name] if name is not None else OPENAI if is_own else PLAIN, options
    )


def _found(base_url: str, api_key: str | None, options: OpenAIOptions) -> ApiDialect | None:
    """The dialect of the server that the list of models names; None where there is none."""
    try:
        models = look(base_url, "/models", api_key, timeout=_PATIENCE) or {}
    except LmprogError:
        return None  # whatever is wrong there, the request itself tells
    cards = models.get("data")
    card = cards[0] if isinstance(cards, list) and cards else None
    owner = card.get("owned_by") if isinstance(card, Mapping) else None
    own = DIALECTS[owner] if owner in ("lmprog", "sglang", "vllm") else PLAIN
    return _with_options(own, options)


def _with_options(dialect: ApiDialect, options: OpenAIOptions) -> ApiDialect:
    prefill = options.get("prefill", dialect.prefill)
    if prefill not in ("none", "continue", "message"):
        allowed = "'none', 'continue' or 'message'"
        message = f"prefill={prefill!r} is not allowed; give {allowed}"
        raise InvalidParameter(message, name="prefill", value=prefill, allowed=allowed)
    return replace(dialect, prefill=prefill, scores=options.get("echo", dialect.scores))


def _transport(
    client: AsyncOpenAI | None, base_url: str | None, api_key: str | None
) -> SdkTransport:
    try:
        import openai
    except ImportError:
        raise NotSupported(
            "lmprog.OpenAI needs the openai package: pip install 'lmprog[openai]'"
        ) from None
    if api_key is None and base_url is not None and not os.environ.get("OPENAI_API_KEY"):
        api_key = "none"  # local servers need no key, but the package does
    try:
        return SdkTransport(
            openai, client or openai.AsyncOpenAI(base_url=base_url, api_key=api_key)
        )
    except openai.OpenAIError as error:
        raise RequestRejected(f"{error} (or set OPENAI_API_KEY)") from None
