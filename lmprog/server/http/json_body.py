"""Bodies and answers of routes, as FastAPI's parameters.

An endpoint's parameter `given: Given[ChatBody]` is a body that has not been read yet: FastAPI
describes it, runs the route's dependencies (keys, admission), and calls the endpoint, which reads
it within the server's limits with `await given.read(settings)`. So nothing is read or parsed for a
request that is refused. `described` says what a route answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar, get_args

import msgspec
from fastapi import Body, Request
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from lmprog.server.http.bodies import RequestBody, read_body
from lmprog.server.http.http_errors import speaks_anthropic
from lmprog.server.http.struct_schema import schema_of
from lmprog.server.options.server_settings import ServerSettings

Of = TypeVar("Of", bound=msgspec.Struct)


class UnreadRequest(Request):
    """A request whose body FastAPI does not read: it takes the request itself for the body."""

    async def body(self) -> Any:
        return self

    async def json(self) -> Any:
        return self


class JsonBody(Generic[Of]):
    """A body of JSON that is an `Of`."""

    def __init__(self, kind: type[Of], request: Request) -> None:
        self._kind = kind
        self._request = request

    async def read(self, settings: ServerSettings, silent: Iterable[str] = ()) -> RequestBody[Of]:
        """Reads and checks it; see `read_body`."""
        return await read_body(self._request, self._kind, settings, silent)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        (kind,) = get_args(source)

        def unread(inner: CoreSchema) -> CoreSchema:
            return core_schema.no_info_wrap_validator_function(
                lambda request, _: cls(kind, request), inner
            )

        return schema_of(kind, unread)


Given: TypeAlias = Annotated[JsonBody[Of], Body()]
"""The type of an endpoint's parameter."""


class AnswerOf(Generic[Of]):
    """Describes an answer; endpoints encode their structs themselves."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return schema_of(get_args(source)[0])


class ErrorDetails(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    """The field that is wrong."""
    code: str | None


class Error(msgspec.Struct, frozen=True):
    """Every answer that is not 2xx."""

    error: ErrorDetails


class AnthropicsDetails(msgspec.Struct, frozen=True):
    error_code: str | None
    param: str | None


class AnthropicsErrorDetails(msgspec.Struct, frozen=True):
    type: str
    message: str
    details: AnthropicsDetails


class AnthropicsError(msgspec.Struct, frozen=True):
    """The same where Anthropic's clients ask."""

    type: Literal["error"]
    error: AnthropicsErrorDetails
    request_id: str | None


def refusals_of(path: str) -> dict[int | str, dict[str, Any]]:
    """What a route answers where it does not answer with 2xx."""
    model = AnswerOf[AnthropicsError] if speaks_anthropic(path) else AnswerOf[Error]
    return {"default": {"model": model, "description": "It was refused, or it failed."}}


def described(
    answer: type[msgspec.Struct] | None = None,
    streams: bool = False,
    media: str = "application/json",
) -> dict[int | str, dict[str, Any]]:
    """What a route answers with 200: a struct, an object of any shape, or another `media` type; and
    perhaps server-sent events.
    """
    content: dict[str, Any] = {}
    if media and answer is None:
        content[media] = {"schema": {"type": "object"}} if media == "application/json" else {}
    if streams:
        content["text/event-stream"] = {}
    made: dict[str, Any] = {"description": "Done.", "content": content}
    if answer is not None:
        made["model"] = AnswerOf[answer]  # type: ignore[valid-type]
    return {200: made}
