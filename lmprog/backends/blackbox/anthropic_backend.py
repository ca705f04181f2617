"""`lmprog.Anthropic`: programs on Anthropic's API, through the `anthropic` package, which is
imported when a backend is created.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Literal

from lmprog.backends.blackbox.anthropic_api import AnthropicApi
from lmprog.backends.blackbox.api_backend import ApiBackend, ApiOptions, retry_policy_of
from lmprog.backends.blackbox.sdk_transport import SdkTransport
from lmprog.errors import InvalidParameter, NotSupported, RequestRejected, hint

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AnthropicOptions(ApiOptions, total=False):
    """Options of `Anthropic` besides the model and the address."""

    prefill: Literal["none", "message"]
    """"message": prefill the assistant's turn by sending its beginning; older models support this.
    """
    client: Any
    """An unused `AsyncAnthropic` client, in place of `base_url` and `api_key`."""


class Anthropic(ApiBackend):
    """A backend on Anthropic's API. `api_key` defaults to the environment variable
    `ANTHROPIC_API_KEY`.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        **options: Unpack[AnthropicOptions],
    ) -> None:
        known = set(AnthropicOptions.__annotations__)
        unknown = sorted(set(options) - known)
        if unknown:
            allowed = ", ".join(sorted(known))
            said = hint(unknown[0], {*known, "api_key", "base_url"})
            message = f"Anthropic has no option {unknown[0]!r}{said}"
            raise InvalidParameter(message, name=unknown[0], allowed=allowed)
        retry_policy = retry_policy_of(options)
        transport = _transport(options.get("client"), base_url, api_key)
        can_prefill = options.get("prefill", "none") == "message"
        super().__init__(
            AnthropicApi(model, transport, retry_policy, can_prefill=can_prefill),
            retry_policy,
            options,
        )
        given = base_url or getattr(options.get("client"), "base_url", None)
        self.identity = (str(given or os.environ.get("ANTHROPIC_BASE_URL")), can_prefill)


def _transport(client: Any, base_url: str | None, api_key: str | None) -> SdkTransport:
    try:
        anthropic: Any = importlib.import_module("anthropic")
    except ImportError:
        raise NotSupported(
            "lmprog.Anthropic needs the anthropic package: pip install anthropic"
        ) from None
    try:
        return SdkTransport(
            anthropic, client or anthropic.AsyncAnthropic(base_url=base_url, api_key=api_key)
        )
    except anthropic.AnthropicError as error:
        raise RequestRejected(f"{error} (or set ANTHROPIC_API_KEY)") from None
