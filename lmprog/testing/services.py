"""Doubles of services: servers on this machine that answer by a script, and what the strict ones
have in common: which answers could be given, and the subsets of JSON Schema as rules.

The rules are independent of what writes schemas for services; only the tables are common. Knows no
service's messages, no models and no tokens: usage counts words.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, TypeAlias

from lmprog.backends.blackbox.api import JsonBody
from lmprog.backends.blackbox.response_schema import OPENAI_SUBSET, SchemaSubset, is_valid
from lmprog.errors import ProgramError


@dataclass(frozen=True, slots=True)
class ServiceFailure:
    """In place of an answer: the service fails with this status."""

    status: int
    message: str = "scripted"
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    breaks_after: int | None = None
    """A stream gives so many pieces, and then this error."""


@dataclass(frozen=True, slots=True)
class Calls:
    """An answer that calls tools: `Calls([("add", {"a": 2, "b": 3})])`, perhaps after a text."""

    calls: Sequence[tuple[str, Mapping[str, Any]]]
    text: str = ""


ServiceAnswer: TypeAlias = str | Calls | ServiceFailure
Told: TypeAlias = "JsonBody | Iterator[JsonBody]"
"""An answer as JSON, or the events of a stream."""


class ServiceRefusal(Exception):
    """A request that the service refuses. `param` and `code` are OpenAI's."""

    def __init__(
        self, message: str, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.fault = ServiceFailure(status, message, code)
        self.param = param


class ServiceDouble:
    """A server on this machine, in its own thread, at `url`; what it answers is said by who derives
    from it. A context manager: leaving it stops the server.
    """

    def __init__(self) -> None:
        self.requests: list[JsonBody] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.faults: list[ServiceFailure] = []
        """Failures of the next requests, before anything is looked at."""
        self.lock = threading.Lock()
        handler = type("Handler", (self.handler,), {"service": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def told(self, path: str, body: JsonBody, headers: Mapping[str, str]) -> Told:
        """The answer to a POST. Raises `ServiceRefusal`."""
        raise ServiceRefusal(f"Unknown request URL: POST {path}.", code="unknown_url", status=404)

    def looked_up(self, path: str) -> JsonBody:
        """The answer to a GET. Raises `ServiceRefusal`."""
        raise ServiceRefusal(f"Unknown request URL: GET {path}.", code="unknown_url", status=404)

    def error(self, fault: ServiceFailure, param: str | None = None) -> JsonBody:
        """The body of a failure."""
        kind = _KIND_OF_STATUS.get(fault.status, "invalid_request_error")
        about = {"message": fault.message, "type": kind, "param": param, "code": fault.code}
        return {"error": about}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    class handler(BaseHTTPRequestHandler):
        """One connection to it."""

        protocol_version = "HTTP/1.1"
        service: ServiceDouble

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            try:
                self.send(200, self.service.looked_up(self.path))
            except ServiceRefusal as refused:
                self.send(refused.fault.status, self.service.error(refused.fault))

        def do_POST(self) -> None:
            service = self.service
            try:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)))
                if not isinstance(body, dict):
                    raise ValueError("a request is an object")
            except ValueError as error:
                unread = ServiceFailure(400, f"The body of the request is no JSON object: {error}.")
                self.send(400, service.error(unread))
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            with service.lock:
                service.requests.append(body)
                service.paths.append(self.path)
                service.headers.append(headers)
                fault = service.faults.pop(0) if service.faults else None
            if not self.waited():
                return
            try:
                if fault is not None and fault.breaks_after is None:
                    self.send(fault.status, service.error(fault), fault.headers)
                    return
                told = service.told(self.path, body, headers)
            except ServiceRefusal as refused:
                self.send(refused.fault.status, service.error(refused.fault, refused.param))
            except (LookupError, TypeError, AttributeError, ValueError) as error:
                wrong = ServiceFailure(400, f"Invalid request: {error!r}")
                self.send(400, service.error(wrong))
            else:
                if isinstance(told, Iterator):
                    self.stream(told, fault)
                else:
                    self.send(200, told)

        def waited(self) -> bool:
            """Called before an answer; False if the client has gone meanwhile."""
            return True

        def stream(self, events: Iterable[JsonBody], fault: ServiceFailure | None) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            for count, event in enumerate(events):
                if fault is not None and count == fault.breaks_after:
                    self.event(self.service.error(fault))
                    return
                self.event(event)
            self.wfile.write(b": a comment\n\ndata: [DONE]\n\n")

        def event(self, event: JsonBody) -> None:
            if "type" in event:
                self.wfile.write(f"event: {event['type']}\n".encode())
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            self.wfile.flush()

        def send(self, status: int, body: object, headers: Mapping[str, str] = {}) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)


_KIND_OF_STATUS = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


# --- what both check


Answers: TypeAlias = "Iterable[ServiceAnswer] | Callable[[JsonBody], ServiceAnswer] | None"


class StrictDouble(ServiceDouble):
    """Answers by a script what it has not refused."""

    def __init__(self, answers: Answers = None) -> None:
        """In the order of the results, or each from the request's JSON; without any: the least
        value of the schema, a call where one is required, or the text "ok".
        """
        super().__init__()
        self._function = answers if callable(answers) else None
        self._script = None if answers is None or callable(answers) else list(answers)

    def check(self) -> None:
        """Raises `ProgramError` if answers are left over."""
        if self._script:
            raise ProgramError(f"{len(self._script)} answers of the script are left")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        if error is None:
            self.check()

    def answer(
        self, body: JsonBody, schema: JsonBody | None, tools: Mapping[str, JsonBody], choice: str
    ) -> Calls:
        """The next answer. Raises `ServiceRefusal` if the service could not give it."""
        with self.lock:
            if self._function is not None:
                given = self._function(body)
            elif self._script is None:
                given = _least_answer(schema, tools, choice)
            elif self._script:
                given = self._script.pop(0)
            else:
                raise ServiceRefusal(f"the script has no more answers, and was asked {body}")
        if isinstance(given, ServiceFailure):
            raise ServiceRefusal(given.message, code=given.code, status=given.status)
        made = given if isinstance(given, Calls) else Calls((), given)
        if schema is not None and not made.calls and not is_valid(json.dumps(schema), made.text):
            raise ServiceRefusal(
                f"the script answers {made.text!r}, which the sent schema does not allow"
            )
        for name, _ in made.calls:
            if name not in tools or choice == "none":
                raise ServiceRefusal(f"the script calls {name!r}, which is no tool of the request")
        if choice == "required" and not made.calls:
            raise ServiceRefusal(f"the script answers {made.text!r}, but a call is required")
        return made


def _least_answer(
    schema: JsonBody | None, tools: Mapping[str, JsonBody], choice: str
) -> ServiceAnswer:
    if choice == "required":
        name, parameters = next(iter(tools.items()))
        return Calls([(name, least(parameters, parameters))])
    return "ok" if schema is None else json.dumps(least(schema, schema))


def num_words(*texts: Any) -> int:
    return sum(len(str(text).split()) for text in texts)


def cut_at(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The text before the first stop, and that stop."""
    found = min(((text.index(stop), stop) for stop in stops if stop in text), default=None)
    return (text, None) if found is None else (text[: found[0]], found[1])


# --- schemas


def least(schema: JsonBody, root: JsonBody) -> Any:
    """The least value of a schema: null, the first option, the fewest items."""
    if "$ref" in schema:
        return least(_definition(schema["$ref"], root) or {}, root)
    if "anyOf" in schema:
        options = schema["anyOf"]
        return None if {"type": "null"} in options else least(options[0], root)
    if "enum" in schema or "const" in schema:
        return schema["enum"][0] if "enum" in schema else schema["const"]
    kind = schema.get("type")
    kind = kind[-1] if isinstance(kind, list) else kind
    if kind == "object":
        parts = schema.get("properties", {})
        return {name: least(parts[name], root) for name in schema.get("required", ())}
    if kind == "array":
        return [least(schema["items"], root) for _ in range(schema.get("minItems", 0))]
    if kind == "string":
        return _TEXTS.get(schema.get("format", ""), "")
    return {"integer": schema.get("minimum", 0), "number": schema.get("minimum", 0)}.get(
        str(kind), False if kind == "boolean" else None
    )


_TEXTS = {
    "date": "2026-11-27",
    "time": "12:00:00",
    "date-time": "2026-11-27T12:00:00Z",
    "duration": "P1D",
    "email": "mia@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "uri": "https://example.com",
}


def _definition(ref: str, root: JsonBody) -> JsonBody | None:
    if ref == "#":
        return root
    place, _, name = ref.removeprefix("#/").partition("/")
    found: JsonBody | None = root.get(place, {}).get(name)
    return found if place in ("$defs", "definitions") else None


Wrong: TypeAlias = tuple[tuple[str, ...], str]
"""A place in a schema, and what is wrong there."""
_ANYWHERE = frozenset(["type", "enum", "const", "anyOf", "description", "title"])


def _wrongs(
    schema: Any, subset: SchemaSubset, root: JsonBody, path: tuple[str, ...] = (),
    within: tuple[str, ...] = (),
) -> Iterator[Wrong]:  # fmt: skip
    """What of a schema is outside of the subset; `within`: the references followed so far."""
    is_openai = subset is OPENAI_SUBSET
    own = {key for key in schema if path or key not in ("$defs", "definitions")}
    if "$ref" in schema:
        ref = schema["$ref"]
        if len(own) > 1:
            yield path, f"$ref cannot have keywords {sorted(own - {'$ref'})}"
        target = _definition(ref, root)
        if target is None:
            yield path, f"reference {ref!r} can only point to definitions of the schema"
        elif ref in within:
            if not subset.recurses:
                yield path, f"Recursive schemas are not supported: {ref}"
        else:
            yield from _wrongs(target, subset, root, (*path, ref), (*within, ref))
        return
    kinds = schema.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not kinds and "anyOf" not in schema and (is_openai or not {"enum", "const"} & own):
        yield path, "schema must have a 'type' key"
    taken = {key for key in own for kind in kinds if subset.takes(kind, key, schema[key])}
    for key in sorted(own - taken - _ANYWHERE - (set() if is_openai else {"default"})):
        about = f"For '{'/'.join(kinds)}' type, property '{key}' is not supported"
        yield path, f"'{key}' is not permitted" if is_openai else about
    if not all(isinstance(one, str | int | float | None) for one in schema.get("enum", ())):
        yield path, "enum values must be strings, numbers, booleans or null"
    if "object" in kinds:
        if schema.get("additionalProperties") is not False:
            closed = "is required to be supplied and to be false"
            about = "For 'object' type, 'additionalProperties' must be explicitly set to false"
            yield path, f"'additionalProperties' {closed}" if is_openai else about
        missing = schema.get("properties", {}).keys() - set(schema.get("required", ()))
        if missing and subset.requires_all:
            yield (
                path,
                "'required' is required to be supplied and to be an array including every key in "
                f"properties. Missing '{min(missing)}'",
            )
    if "array" in kinds and "items" not in schema:
        yield path, "array schema missing items"
    parts: dict[tuple[str, ...], Any]
    parts = {("properties", name): part for name, part in schema.get("properties", {}).items()}
    parts |= {("anyOf", str(at)): part for at, part in enumerate(schema.get("anyOf", ()))}
    if isinstance(schema.get("items"), dict):
        parts["items",] = schema["items"]
    for place, part in parts.items():
        yield from _wrongs(part, subset, root, (*path, *place), within)


def _nodes(node: Any, depth: int = 0) -> Iterator[tuple[JsonBody, int]]:
    """Every schema within one, and in how many others it stands."""
    if isinstance(node, list):
        for part in node:
            yield from _nodes(part, depth)
    elif isinstance(node, dict):
        is_schema = bool(node.keys() & {"type", "anyOf", "$ref", "enum", "const"})
        if is_schema:
            yield node, depth
        for name, part in node.items():
            if name not in ("enum", "const", "required", "default"):
                yield from _nodes(part, depth + (node.get("type") in ("object", "array")))


def _oversizes(schema: JsonBody, subset: SchemaSubset) -> Iterator[Wrong]:
    """The limits of a whole schema."""
    nodes = list(_nodes(schema))
    properties = [(node, name) for node, _ in nodes for name in node.get("properties", ())]
    values = [one for node, _ in nodes for one in node.get("enum", ())]
    names = [name for _, name in properties] + [*schema.get("$defs", ())]
    if subset is OPENAI_SUBSET:
        sizes = {
            "levels of nesting": (max(depth for _, depth in nodes), 10),
            "object properties": (len(properties), 5000),
            "enum values": (len(values), 1000),
            "characters of names and enum values": (
                sum(len(str(x)) for x in names + values),
                120_000,
            ),
        }
    else:
        optional = [name for node, name in properties if name not in node.get("required", ())]
        unions = [
            node for node, _ in nodes if "anyOf" in node or isinstance(node.get("type"), list)
        ]
        sizes = {
            "optional parameters": (len(optional), 24),
            "parameters with union types": (len(unions), 16),
        }
    for what, (size, limit) in sizes.items():
        if size > limit:
            yield (), f"{size} {what} exceeds limit of {limit}"


def first_wrong(schema: JsonBody, subset: SchemaSubset) -> Wrong | None:
    if "$ref" in schema or schema.get("type") != "object":
        kind = schema.get("type")
        return (), f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'"
    return next(_wrongs(schema, subset, schema), next(_oversizes(schema, subset), None))
