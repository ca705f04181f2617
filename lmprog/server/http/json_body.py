"""Bodies and answers of routes, as FastAPI's parameters and as its document describes them.

An endpoint's parameter `given: Given[ChatBody]` is a body that has not been read yet: FastAPI
describes it, runs the route's dependencies (keys, admission), and calls the endpoint, which reads
it within the server's limits with `await given.read(settings)`. So nothing is read or parsed for a
request that is refused. `described` says what a route answers.

The structs of msgspec are described by schemas of pydantic's core, with the ranges, defaults and
descriptions of their fields; FastAPI's own generator makes the document of these. Knows no routes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar, get_args

import msgspec
from fastapi import Body, Request
from msgspec import inspect
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from lmprog.server.http.bodies import RequestBody, read_body
from lmprog.server.http.http_errors import OLLAMAS_PATH, speaks_anthropic
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

    async def read(
        self,
        settings: ServerSettings,
        silent: Iterable[str] = (),
        begun: Callable[[Of], object] | None = None,
    ) -> RequestBody[Of]:
        """Reads and checks it; see `read_body`."""
        return await read_body(self._request, self._kind, settings, silent, begun)

    @property
    def caller(self) -> str:
        """A digest of the key that it came with."""
        caller: str = self._request.scope["state"]["caller"]
        return caller

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


class OllamasError(msgspec.Struct, frozen=True):
    """The same where Ollama's clients ask."""

    error: str
    code: str | None
    param: str | None


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
    model: Any = AnswerOf[AnthropicsError] if speaks_anthropic(path) else AnswerOf[Error]
    if path.startswith(OLLAMAS_PATH):
        model = AnswerOf[OllamasError]
    return {"default": {"model": model, "description": "It was refused, or it failed."}}


def described(
    answer: type[msgspec.Struct] | None = None,
    streams: bool = False,
    media: str = "application/json",
    stream_media: str = "text/event-stream",
) -> dict[int | str, dict[str, Any]]:
    """What a route answers with 200: a struct, an object of any shape, or another `media` type; and
    perhaps a stream of `stream_media`.
    """
    content: dict[str, Any] = {}
    if media and answer is None:
        content[media] = {"schema": {"type": "object"}} if media == "application/json" else {}
    if streams:
        content[stream_media] = {}
    made: dict[str, Any] = {"description": "Done.", "content": content}
    if answer is not None:
        made["model"] = AnswerOf[answer]  # type: ignore[valid-type]
    return {200: made}


def schema_of(
    kind: type[msgspec.Struct], around: Callable[[CoreSchema], CoreSchema] = lambda inner: inner
) -> CoreSchema:
    """The description of a struct, with those of the structs in it. `around` makes a schema that
    holds the struct's.
    """
    found, definitions = _described(kind)
    return core_schema.definitions_schema(around(found), list(definitions))


@functools.cache
def _described(kind: type[msgspec.Struct]) -> tuple[CoreSchema, tuple[CoreSchema, ...]]:
    """A struct, and what it refers to: described once, since some routes say it of each other."""
    describing = _Describing()
    found = describing.of(inspect.type_info(kind))
    return found, tuple(describing.definitions.values())


class _Describing:
    """Makes the schemas of one type; each struct's once, by reference from everywhere."""

    def __init__(self) -> None:
        self.definitions: dict[type, CoreSchema] = {}

    def of(self, kind: inspect.Type) -> CoreSchema:
        match kind:
            case inspect.Metadata(type=inner, extra_json_schema=extra):
                made = self.of(inner)
                if extra and made["type"] != "definition-ref":
                    made = {**made, "metadata": {"pydantic_js_updates": dict(extra)}}
                return made
            case inspect.StructType():
                return self._struct(kind)
            case inspect.UnionType(types=types):
                return core_schema.union_schema([self.of(one) for one in types])
            case inspect.LiteralType(values=values):
                return core_schema.literal_schema(list(values))
            case inspect.ListType() | inspect.VarTupleType():
                return core_schema.list_schema(self.of(kind.item_type), **_lengths(kind))
            case inspect.TupleType(item_types=items):
                return core_schema.tuple_schema([self.of(one) for one in items])
            case inspect.DictType():
                return core_schema.dict_schema(
                    self.of(kind.key_type), self.of(kind.value_type), **_lengths(kind)
                )
            case inspect.StrType():
                return core_schema.str_schema(**_lengths(kind))
            case inspect.IntType():
                return core_schema.int_schema(**_range(kind))
            case inspect.FloatType():
                return core_schema.float_schema(**_range(kind))
            case inspect.BoolType():
                return core_schema.bool_schema()
            case inspect.NoneType():
                return core_schema.none_schema()
        return core_schema.any_schema()

    def _struct(self, kind: inspect.StructType) -> CoreSchema:
        ref = f"{kind.cls.__module__}.{kind.cls.__qualname__}:{id(kind.cls)}"
        if kind.cls not in self.definitions:
            self.definitions[kind.cls] = core_schema.any_schema()  # it may hold itself
            fields = {field.encode_name: self._field(field) for field in kind.fields}
            if kind.tag_field is not None:
                tag = core_schema.literal_schema([kind.tag])
                fields[kind.tag_field] = core_schema.typed_dict_field(tag, required=True)
            self.definitions[kind.cls] = core_schema.typed_dict_schema(
                fields, cls=kind.cls, ref=ref
            )
        return core_schema.definition_reference_schema(ref)

    def _field(self, field: inspect.Field) -> core_schema.TypedDictField:
        made = self.of(field.type)
        if field.default not in (None, msgspec.NODEFAULT):
            default = msgspec.to_builtins(field.default)
            made = core_schema.with_default_schema(made, default=default)
        return core_schema.typed_dict_field(made, required=field.required)


def _lengths(kind: Any) -> Mapping[str, Any]:
    found = {"min_length": kind.min_length, "max_length": kind.max_length}
    return {name: value for name, value in found.items() if value is not None}


def _range(kind: Any) -> Mapping[str, Any]:
    found = {name: getattr(kind, name) for name in ("ge", "gt", "le", "lt")}
    return {name: value for name, value in found.items() if value is not None}
