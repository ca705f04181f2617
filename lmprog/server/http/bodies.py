"""Request bodies: read within limits, parsed as strict JSON, made into msgspec structs with words
for what is wrong.

Strict: no NaN or Infinity, no number beyond a float's range, no key twice, no absurd nesting,
nothing but UTF-8 JSON. A parsed value takes far more memory than its text (`[[],[],...]` grows by a
factor of twenty), so the values of a text are counted before it is parsed. Fields of a body that
its struct does not have are reported, not refused (unless the server is strict).
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import Request

from lmprog.errors import Overloaded
from lmprog.server.fairness.accounts import HeldBytes
from lmprog.server.http.arriving import LookedAt, closed_json
from lmprog.server.http.auth import calling_label, headers_of, label_of
from lmprog.server.http.foreign_fields import check_foreign, unknown_field
from lmprog.server.http.http_errors import (
    ClientGone,
    HttpError,
    Problem,
    problem_of,
    refused,
)
from lmprog.server.http.limits import LIMITS, OPTION_OF_SPELLING, Limit
from lmprog.server.options.server_settings import ServerSettings

log = logging.getLogger("lmprog.server")

Body = TypeVar("Body", bound=msgspec.Struct)
Made = TypeVar("Made")

SMALL = 64 * 1024
"""Bodies up to this many bytes are parsed on the event loop, larger ones in one thread, one at a
time: so at most one large body is in memory as parsed values before it is checked.
"""
_parsing_thread = ThreadPoolExecutor(1, thread_name_prefix="lmprog-parse")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_logged: set[str] = set()
"""Unknown fields that the log has already. At most `_MOST_LOGGED`: clients choose these names."""
_MOST_LOGGED = 1000
PARSED_BYTES = 32
"""What a value of a large body takes beside its text, about."""
MAX_VALUES = 1_500_000
"""Values in one text, nested ones and keys included: prompts of a million token ids still fit."""
MAX_CONTAINERS = 100_000
"""Arrays and objects in one text, the expensive ones among the values ..."""
MAX_NAMES = 200_000
"""... and names in its objects: each takes some 250 bytes while they are read."""
_WIDEST = (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4", b"\\ud", b"\\uD")
"""Begin, or escape, characters with which all of a text take four bytes each in memory."""
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, or an unterminated one up to the end: so that no start is tried twice."""
_OPENING = (b"[", b"{")
_NAMED = b":"
_BETWEEN = (b",", _NAMED)
_CLOSED = {"connection": "close"}
MAX_SHOWN = 60
"""Characters of a value that a message repeats."""
_AT = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_TYPES = {
    str: "str",
    bool: "bool",
    type(None): "null",
    int: "int",
    float: "float",
    dict: "object",
    list: "array",
}
"""What msgspec calls them."""
_EXPECTED = {
    "str": "a string",
    "bool": "a boolean",
    "int": "an integer",
    "float": "a number",
    "object": "an object",
    "array": "an array",
}
"""What messages call msgspec's types. null, which means that a field is left out, is not said."""


class RequestBody(msgspec.Struct, Generic[Body], frozen=True):
    """A body that was understood. `warnings` are for the header of that name; `label` is what
    `label_of` finds.
    """

    body: Body
    warnings: tuple[str, ...] = ()
    label: str = ""
    is_large: bool = False

    async def aside(self, make: Callable[[], Made]) -> Made:
        """What is made of it: in the thread that parses, where it is large."""
        return await _aside(self.is_large, make)


async def read_body(
    request: Request,
    kind: type[Body],
    settings: ServerSettings,
    silent: Iterable[str] = (),
    begun: Callable[[Body], object] | None = None,
) -> RequestBody[Body]:
    """The request's body as a `kind`. Fields in `silent` have no effect, as is known. `begun` is
    told what is known of a body that arrives slowly (`LookedAt`). Raises HttpError, ClientGone.
    """

    async def look(raw: bytes) -> None:
        known = await _aside(len(raw) > SMALL, lambda: _begun(raw, kind))
        if known is not None and begun is not None:
            begun(known)

    raw = await raw_body(request, settings, None if begun is None else look)
    if is_large := len(raw) > SMALL:
        _take(request, _parsed_bytes(raw))
    found = await _aside(is_large, lambda: parse(raw, kind, settings.strict_api, silent))
    found = msgspec.structs.replace(found, is_large=is_large)
    calling_label.set(found.label)
    return found


async def _aside(is_large: bool, make: Callable[[], Made]) -> Made:
    """What is made of a body, in the thread where it is large."""
    if not is_large:
        return make()
    return await asyncio.get_running_loop().run_in_executor(_parsing_thread, make)


def _begun(raw: bytes, kind: type[Body]) -> Body | None:
    """What is known of a body by its beginning; None where that does not say enough."""
    closed = closed_json(raw)
    try:
        return None if closed is None else msgspec.convert(parse_json(closed), kind, strict=True)
    except (HttpError, msgspec.ValidationError):  # the whole body may be right, or is refused
        return None


async def raw_body(
    request: Request,
    settings: ServerSettings,
    look: Callable[[bytes], Awaitable[object]] | None = None,
) -> bytes:
    """All bytes, within size and time. `look` is given what is there while the rest is waited for,
    as `LookedAt` says.
    """
    headers = headers_of(request.scope)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        # Any page may send other types, or none, to another site without that site's consent.
        sent = (
            f"The content-type is {kind[:MAX_SHOWN]!r}" if kind else "The body has no content-type"
        )
        raise refused(
            f"{sent}; send JSON with the header 'content-type: application/json'.",
            code="unsupported_media_type",
            status=415,
        )
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise refused(
            f"The content-encoding is {coding[:MAX_SHOWN]!r}; send the body without compression.",
            code="unsupported_media_type",
            status=415,
        )
    limit = settings.max_body_bytes
    announced = headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise _too_large(limit)
    whole: bytes | None = request.scope.get("state", {}).pop("whole_body", None)
    if whole is not None:
        _take(request, len(whole))
        return whole
    parts: list[bytes] = []
    size, looked_at = 0, None
    try:
        async with asyncio.timeout(settings.body_timeout):
            while True:
                if look is None or not parts:
                    message = await request.receive()
                else:
                    looked_at = looked_at or LookedAt(look)
                    message = await looked_at.receive(request.receive, parts)
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part = message.get("body", b"")
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                _take(request, len(part))
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise refused(
            f"The body did not come within {settings.body_timeout:g} seconds.",
            code="body_timeout",
            status=408,
        ) from None


def _parsed_bytes(raw: bytes) -> int:
    """What a large body takes beside its text when it is parsed, at most, about."""
    width = 1 if raw.isascii() and b"\\u" not in raw else 2
    if width > 1 and any(one in raw for one in _WIDEST):
        width = 4
    return PARSED_BYTES * _count(raw, _BETWEEN) + (width - 1) * len(raw)


def _take(request: Request, count: int) -> None:
    """So many bytes more are held for the request until it ends. Raises HttpError where there is no
    room.
    """
    held: HeldBytes | None = request.scope.get("state", {}).get("held")
    if held is None or not count:
        return
    if count > held.most:
        message = f"The body takes {count:,} bytes; one client may have {held.most:,} under way."
        raise HttpError(Problem(413, message, code="body_too_large", headers=_CLOSED))
    try:
        held.take(count)
    except Overloaded as error:  # the rest of the body is not read
        raise HttpError(replace(problem_of(error), headers=_CLOSED)) from None


def parse(
    raw: bytes, kind: type[Body], strict: bool = False, silent: Iterable[str] = ()
) -> RequestBody[Body]:
    """JSON bytes as a `kind`."""
    value = parse_json(raw)
    if not isinstance(value, dict):
        raise refused(
            f"The body is {kind_of(value)}; it must be a JSON object.", code="invalid_json"
        )
    try:
        body = msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        raise wrong_field(str(error), value) from None
    ignored = []
    for field in _unknown_fields(value, body):
        if field.name in silent:
            continue
        check_foreign(field.path, field.name, field.value, field.valid)
        if strict:
            message = unknown_field(field.path, field.name, field.valid)
            raise refused(
                f"{message} This server was started with --strict-api.", field.path[:MAX_SHOWN]
            )
        ignored.append(_ignored(field.path))
    return RequestBody(body, tuple(ignored[:8]), label_of(value))


@dataclass(frozen=True, slots=True)
class UnknownField:
    """A field that no struct has, and the names of the fields that its struct has."""

    path: str
    name: str
    value: Any
    valid: Sequence[str]


def _unknown_fields(value: Mapping[str, Any], body: msgspec.Struct) -> Iterator[UnknownField]:
    """Of a body and of the objects in it, one level deep: `sampling_params.max_tokens`, say."""
    valid = body.__struct_encode_fields__
    known = _names_of(type(body))
    for name, given in value.items():
        if name not in known:
            yield UnknownField(name, name, given, valid)
        elif isinstance(given, dict) and isinstance(made := getattr(body, name), msgspec.Struct):
            for inner, asked in given.items():
                if inner not in made.__struct_encode_fields__:
                    path = f"{name}.{inner}"
                    yield UnknownField(path, inner, asked, made.__struct_encode_fields__)


@functools.cache
def _names_of(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(kind.__struct_encode_fields__)


def parse_json(raw: bytes) -> Any:
    """Strict JSON. Raises HttpError for anything that another parser might read differently."""
    problem = size_problem(raw)
    if problem is not None:
        raise refused(problem, code="too_many_values", status=413)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise refused(f"The body is not UTF-8 (byte {error.start}).", code="invalid_json") from None
    try:
        value = _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise refused(
            f"The body is not JSON: {error.msg} at character {error.pos}.", code="invalid_json"
        ) from None
    except RecursionError:
        raise _too_deep() from None
    nesting = LIMITS["nesting"].maximum
    if raw.count(b"[") + raw.count(b"{") > nesting and _depth(value) > nesting:
        raise _too_deep()
    if _HALF.search(text):
        _check_characters(value)
    return value


def _check_characters(value: Any) -> None:
    """JSON can spell half a surrogate pair, which is not a character."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise refused(
            f"A text has {half}, which is half of a character.", code="invalid_json"
        ) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise refused(
            f"duplicate key {json.dumps(twice[:MAX_SHOWN])} in one object.",
            twice[:MAX_SHOWN],
            "invalid_json",
        )
    return made


def _no_constant(name: str) -> None:
    raise refused(f"{name} is not JSON; numbers must be finite.", code="invalid_json")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise refused(f"The number {text[:MAX_SHOWN]} is too large.", code="invalid_json")
    return value


def _integer(text: str) -> int:
    if len(text) > 40:  # no field takes more, and converting thousands of digits takes long
        raise refused(
            f"The number {text[:20]}... of {len(text):,} digits is too large.", code="invalid_json"
        )
    return int(text)


_decoder = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_constant=_no_constant,
    parse_float=_finite,
    parse_int=_integer,
)


def _depth(value: Any) -> int:
    """Levels of arrays and objects, counted no further than one beyond what is allowed."""
    level, depth = [value], 0
    while level and depth <= LIMITS["nesting"].maximum:
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        depth += 1
    return depth


def _ignored(name: str) -> str:
    shown = name[:MAX_SHOWN].encode("ascii", "backslashreplace").decode()
    if shown not in _logged and len(_logged) < _MOST_LOGGED:
        _logged.add(shown)
        log.warning("a request has the unknown field %r, which is ignored", shown)
    return f"unknown field {shown!r} is ignored"


def _too_large(limit: int) -> HttpError:
    return HttpError(
        Problem(
            413,
            f"The body is larger than {limit:,} bytes; send less at once.",
            code="body_too_large",
            headers=_CLOSED,
        )
    )


def _too_deep() -> HttpError:
    return refused(
        f"The body is nested deeper than {LIMITS['nesting'].maximum:g} levels; flatten it.",
        code="invalid_json",
    )


def size_problem(text: bytes) -> str | None:
    """Why this text may not be parsed, as a sentence; None where it may."""
    if _is_small(text):  # counted with the strings: quick, and never too low
        return None
    bare = _STRING.sub(b'""', text)
    containers = _count(bare, _OPENING)
    if containers > MAX_CONTAINERS:
        return (
            f"The body has {containers:,} arrays and objects; it may have {MAX_CONTAINERS:,}. "
            "Send less at once."
        )
    names = bare.count(_NAMED)
    if names > MAX_NAMES:
        return (
            f"The objects of the body have {names:,} names; they may have {MAX_NAMES:,}. Send less "
            "at once."
        )
    values = containers + names + bare.count(b",")
    if values > MAX_VALUES:
        return f"The body has {values:,} values; it may have {MAX_VALUES:,}. Send less at once."
    return None


def _is_small(text: bytes) -> bool:
    if len(text) <= MAX_CONTAINERS:
        return True
    containers, names = _count(text, _OPENING), text.count(_NAMED)
    return (
        containers <= MAX_CONTAINERS
        and names <= MAX_NAMES
        and containers + names + text.count(b",") <= MAX_VALUES
    )


def _count(text: bytes, marks: tuple[bytes, ...]) -> int:
    return sum(text.count(mark) for mark in marks)


def wrong_field(said: str, value: Mapping[str, Any]) -> HttpError:
    """msgspec's complaint as a sentence: which field, what was sent, what is allowed."""
    found = _AT.search(said)
    what = said[: found.start()] if found else said
    path = _spelled(found["path"] if found else "", what, value)
    sent = _find(value, path)
    limit = _limit_of(path)
    if limit is not None and limit.unit == "items" and isinstance(sent, str):
        limit = _limit_of(f"{path}[]") or limit
    if limit is not None and (" >= " in what or " <= " in what or "length" in what):
        if "length" in what and isinstance(sent, str | list | dict):
            message = f"{path} has {len(sent):,} {limit.unit}; it may have {limit.words()}."
        else:
            message = f"{path} is {_show(sent)}; it must be {limit.words()}."
    elif what.startswith("Object missing required field"):
        name = what.rpartition("`")[0].rpartition("`")[2]
        path = f"{path}.{name}" if path else name
        message = f"{path} is missing."
    elif what.startswith("Object contains unknown field"):
        name = what.rpartition("`")[0].rpartition("`")[2]
        path = f"{path}.{name}" if path else name
        message = f"unknown field {json.dumps(path[:MAX_SHOWN])}."
    elif what.startswith("Invalid"):
        message = (
            f"{path} is {_show(sent)}, which is none of its values; docs/server.md lists them."
        )
    else:
        expected = (
            what.partition(", got")[0].removeprefix("Expected ").replace("`", "").split(" | ")
        )
        words = " or ".join(_EXPECTED.get(one, one) for one in expected if one != "null")
        message = f"{path or 'The body'} is {_show(sent)}; it must be {words}."
    return refused(message, path or None, "invalid_value")


def _limit_of(path: str) -> Limit | None:
    """`stop[3]` has the limits of `stop[]`; `a.b` those of `b`."""
    last = re.sub(r"\[[^\]]*\]", "[]", path).rpartition(".")[2]
    name, brackets, _ = last.partition("[]")
    last = OPTION_OF_SPELLING.get(name, name) + brackets
    return LIMITS.get(last) or LIMITS.get(last.replace("[]", ""))


def _spelled(path: str, what: str, value: Any) -> str:
    """The path with the key of the object's value that is wrong, where msgspec says `[...]` for
    it.
    """
    before, dots, after = path.partition("[...]")
    inside = _find(value, before)
    if not dots or not isinstance(inside, dict):
        return path
    limit = _limit_of(f"{before}[]")
    for key, one in inside.items():
        is_number = isinstance(one, int | float) and not isinstance(one, bool)
        beyond = is_number and limit is not None and not limit.minimum <= one <= limit.maximum
        if beyond or what.endswith(f"got `{_TYPES.get(type(one))}`"):
            return f"{before}[{key[:MAX_SHOWN]}]{after}"
    return path


def _find(value: Any, path: str) -> Any:
    """The value at msgspec's path; of `[...]`, which names no key, the whole."""
    for key in re.findall(r"[^.\[\]]+", path):
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, ValueError, TypeError):
            return value
    return value


def _show(value: Any) -> str:
    if isinstance(value, dict | list):
        return kind_of(value)
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text):,} characters)"


def kind_of(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"an array of {len(value):,}"
    return {str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")
