"""Foreign bytes: whatever comes, it is understood or refused, and nothing else happens."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers

from lmprog.backends.blackbox import http_client
from lmprog.errors import InvalidParameter
from lmprog.server.anthropic.messages import MessagesBody
from lmprog.server.http import bodies
from lmprog.server.http.auth import ServedSites, given_key
from lmprog.server.http.bodies import parse, parse_json
from lmprog.server.http.http_errors import HttpError
from lmprog.server.http.sse import event
from lmprog.server.openai.chat_completions import ChatBody
from lmprog.server.openai.completions import CompletionBody
from lmprog.server.options.api_keys import keys_of
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.programs.program_body import ProgramBody
from lmprog.server.responses.responses_body import ResponsesBody
from lmprog.server.sglang.generate_body import GenerateRequest
from tests.server.conftest import Served

BODIES = (ChatBody, CompletionBody, MessagesBody, ResponsesBody, ProgramBody, GenerateRequest)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
JSON_PIECES = st.lists(
    st.sampled_from(
        [b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\ud800", b"\\u0041", b"1", b"-", b"1e9",
         b"1e999", b"NaN", b"Infinity", b"true", b"null", b" ", b"\n", b"\xff", b"\xc3\xa4", b'"a"']
    ),
    max_size=40,
).map(b"".join)  # fmt: skip


def check_refusal(error: HttpError, *statuses: int) -> None:
    """It has a reason, and can be sent."""
    assert error.problem.status in statuses
    assert json.loads(error.problem.body())["error"]["message"]


@given(st.binary(max_size=200) | JSON_PIECES)
@example(b"\xef\xbb\xbf{}")
@example(b'{"a":1,"a":1}')
def test_any_bytes_are_json_as_the_standard_has_it_or_are_refused(body: bytes) -> None:
    try:
        value = parse_json(body)
    except HttpError as error:
        check_refusal(error, 400, 413)
        return
    assert json.loads(body) == value
    assert msgspec.json.decode(json.dumps(value)) == value


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_value_of_any_field_is_understood_or_refused(
    kind: type[msgspec.Struct], data: st.DataObject
) -> None:
    fields = st.sampled_from(kind.__struct_encode_fields__)
    value = data.draw(st.dictionaries(fields, VALUES, max_size=4) | VALUES)
    try:
        read = parse(json.dumps(value).encode(), kind)
    except HttpError as error:
        check_refusal(error, 400)
        return
    assert isinstance(read.body, kind)


def count(value: Any) -> tuple[int, int]:
    """Containers; and all values but the first of each container, with containers and keys."""
    if isinstance(value, dict):
        parts = [count(inner) for inner in value.values()]
        own = 2 * len(value) - 1 if value else 0
    elif isinstance(value, list):
        parts = [count(inner) for inner in value]
        own = max(0, len(value) - 1)
    else:
        return 0, 0
    containers = 1 + sum(part[0] for part in parts)
    return containers, 1 + own + sum(part[1] for part in parts)


@given(VALUES, st.integers(0, 12), st.integers(0, 30), st.sampled_from([None, 1]))
def test_the_size_of_a_text_is_that_of_its_value(
    value: Any, containers: int, values: int, indent: int | None
) -> None:
    text = json.dumps(value, indent=indent).encode()
    found = count(value)
    limits = pytest.MonkeyPatch()
    with limits.context() as patch:
        patch.setattr(bodies, "MAX_CONTAINERS", containers)
        patch.setattr(bodies, "MAX_VALUES", values)
        is_refused = bodies.size_problem(text) is not None
    is_short = len(text) <= containers
    assert is_refused == (not is_short and (found[0] > containers or found[1] > values))


@given(st.binary(max_size=100))
def test_counting_the_values_of_any_bytes_ends(body: bytes) -> None:
    limits = pytest.MonkeyPatch()
    with limits.context() as patch:
        patch.setattr(bodies, "MAX_CONTAINERS", 0)
        bodies.size_problem(body)


@given(st.text(max_size=40), st.sampled_from(["", ":80", ":", ".:8000", "]"]))
def test_no_name_but_ours_is_served(name: str, port: str) -> None:
    sites = ServedSites(ServerSettings(allowed_hosts=("models.example",)))
    if sites.serves(name + port):
        bare = (name + port).rsplit(":", 1)[0] if ":" in port else name + port
        bare = bare.lower().removesuffix(".")
        is_digits = bool(set(bare) <= set("0123456789abcdef.:[]%")) or bare.startswith("[")
        assert bare in ("localhost", "models.example", "127.0.0.1") or is_digits


@given(st.text(max_size=40))
def test_no_origin_but_that_of_the_host_is_allowed(origin: str) -> None:
    sites = ServedSites(ServerSettings())
    assert not sites.allows(origin, "") or not origin
    if sites.allows(origin, "localhost:8000"):
        assert origin.lower().endswith("://localhost:8000")


@given(st.dictionaries(st.sampled_from(["authorization", "x-api-key"]), st.binary(max_size=60)))
def test_any_credentials_are_read_or_none(headers: dict[str, bytes]) -> None:
    raw = [(name.encode(), value) for name, value in headers.items()]
    key, _ = given_key(Headers(raw=raw))
    assert key is None or isinstance(key, str)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=80) | st.just('[a]\nkey = "x"\nweight = 1e400\n'))
def test_any_file_of_keys_is_read_or_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text, encoding="utf-8", errors="replace")
    with contextlib.suppress(InvalidParameter):
        assert all(key.weight > 0 for key in keys_of(ServerSettings(api_key_file=str(path))))


# --- server-sent events


def as_a_browser_reads(stream: bytes) -> Iterator[tuple[str, str]]:
    """Names and data of events, as the standard for EventSource says."""
    name, data = "message", list[str]()
    for line in io.TextIOWrapper(io.BytesIO(stream), encoding="utf-8", newline=None):
        line = line.rstrip("\n")
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line and data:
            yield name, "\n".join(data)
            name, data = "message", []
        elif field == "event":
            name = value
        elif field == "data":
            data.append(value)


@given(st.lists(VALUES, min_size=1, max_size=4), st.sampled_from([None, "delta"]))
@example([{"text": "a\u2028b\u2029c\u0085d\x1ce\r\n\n"}], None)
def test_any_value_is_one_event_whoever_reads_it(values: Sequence[Any], name: str | None) -> None:
    """Browsers, and clients that split lines as Python's `str.splitlines` does."""
    stream = b"".join(event(value, name) for value in values)
    read = list(as_a_browser_reads(stream))
    assert [found for found, _ in read] == [name or "message"] * len(values)
    assert [json.loads(data) for _, data in read] == list(values)
    lines = [line for line in stream.decode().splitlines() if line.startswith("data: ")]
    assert [json.loads(line.removeprefix("data: ")) for line in lines] == list(values)


@given(st.lists(st.dictionaries(st.text(), SCALARS, max_size=3), max_size=4))
@example([{"text": "a\u2028b\u0085c"}])
def test_our_own_client_reads_what_our_server_and_others_write(
    values: list[dict[str, Any]],
) -> None:
    ours = b"".join(event(value) for value in values)
    others = b"".join(  # which leave the ends of lines as they are
        b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\r\n\r\n" for value in values
    )

    async def run(stream: bytes) -> list[Any]:
        response = httpx2.Response(200, content=stream + b": keep-alive\n\ndata: [DONE]\n\n")
        return [dict(found) async for found in http_client._events(response)]

    assert asyncio.run(run(ours)) == values
    assert asyncio.run(run(others)) == values


# --- HTTP


def exchanged(server: Served, sent: bytes) -> bytes:
    """What the server answers until it closes, or has nothing more to say."""
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=60) as client:
        said = b""
        try:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            while more := client.recv(65_536):
                said += more
        except (BrokenPipeError, ConnectionResetError):
            pass
        return said


REQUEST = b"POST /v1/tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    at=st.integers(0, len(REQUEST)),
    cut=st.integers(0, 6),
    junk=st.binary(max_size=12) | st.sampled_from([b"\r\n", b"\x00", b" ", b":", b"\r\n\r\n"]),
)
def test_a_damaged_request_is_answered_or_cut_off_and_the_server_goes_on(
    server: Served, at: int, cut: int, junk: bytes
) -> None:
    sent = REQUEST[:at] + junk + REQUEST[at + cut :] + b"content-length: 2\r\n\r\n{}"
    said = exchanged(server, sent)
    if said:
        assert said.startswith(b"HTTP/1.1 ")
        assert said[9:12] != b"500"
    assert b"200 OK" in exchanged(server, b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
