"""`lmprog.LiteLLM`: programs on the services that the `litellm` package supports; it is imported
when a backend is created.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lmprog.backends.blackbox.api import JsonBody
from lmprog.backends.blackbox.api_backend import (
    ApiBackend,
    ApiOptions,
    check_options,
    retry_policy_of,
)
from lmprog.backends.blackbox.api_errors import failure, unreachable
from lmprog.backends.blackbox.dialects import PLAIN
from lmprog.backends.blackbox.openai_api import ApiService, OpenAIApi
from lmprog.errors import LmprogError, NotSupported

if TYPE_CHECKING:
    from typing_extensions import Unpack


class LiteLLMOptions(ApiOptions, total=False):
    """Options of `LiteLLM` besides the model."""

    is_chat_model: bool
    """False: every call is a completion of a text."""
    parameters: Mapping[str, Any]
    """Passed to litellm with every call: `api_key`, `api_base`, options of the service."""
    module: Any
    """Replaces the package: an object with `acompletion` and `atext_completion`."""


class LiteLLM(ApiBackend):
    """A backend on what `litellm` calls `model`: "mistral/mistral-large-latest", say."""

    def __init__(self, model: str, **options: Unpack[LiteLLMOptions]) -> None:
        check_options("LiteLLM", options, LiteLLMOptions)
        retry_policy = retry_policy_of(options)
        is_chat = options.get("is_chat_model", True)
        service = ApiService(model, "chat" if is_chat else "text", PLAIN)
        transport = LiteLLMTransport(
            options.get("module") or _package(), options.get("parameters", {})
        )
        super().__init__(OpenAIApi(service, transport, retry_policy), retry_policy, options)
        given = sorted(options.get("parameters", {}).items())
        self.identity = (is_chat, [(name, value) for name, value in given if name != "api_key"])


def _package() -> Any:
    try:
        return importlib.import_module("litellm")
    except ImportError:
        raise NotSupported(
            "lmprog.LiteLLM needs the litellm package: pip install litellm"
        ) from None


class LiteLLMTransport:
    """A transport that calls litellm; answers have OpenAI's form."""

    def __init__(self, module: Any, parameters: Mapping[str, Any]) -> None:
        self._module = module
        self._parameters = {"num_retries": 0, "drop_params": False, **parameters}

    async def post(self, path: str, body: JsonBody) -> Mapping[str, Any]:
        with _failures():
            return _plain(await self._call(path, body))

    async def open(self, path: str, body: JsonBody) -> AsyncIterator[Mapping[str, Any]]:
        with _failures():
            return _pieces(await self._call(path, body))

    async def _call(self, path: str, body: JsonBody) -> Any:
        call = (
            self._module.acompletion
            if path == "/chat/completions"
            else self._module.atext_completion
        )
        return await call(**body, **self._parameters)

    async def close(self) -> None:
        pass


async def _pieces(stream: Any) -> AsyncGenerator[Mapping[str, Any], None]:
    with _failures():
        async for piece in stream:
            yield _plain(piece)


def _plain(answer: Any) -> Mapping[str, Any]:
    """Converts litellm's answers, which are pydantic models."""
    found: Mapping[str, Any] = answer if isinstance(answer, Mapping) else answer.model_dump()
    return found


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """litellm's exceptions have the status that the service answered; no common base is
    promised.
    """
    try:
        yield
    except LmprogError:
        raise
    except Exception as error:
        status = getattr(error, "status_code", None)
        if not isinstance(status, int):
            raise
        if status == 0 or type(error).__name__ == "APIConnectionError":
            raise unreachable(error) from None
        headers = getattr(getattr(error, "response", None), "headers", None) or {}
        raise failure(status, {"message": str(error)}, headers) from None
