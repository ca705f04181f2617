"""What is no proper request is refused with its reason, whatever the route."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest

from lmprog.server.http.bodies import (
    MAX_CONTAINERS,
    MAX_NAMES,
    MAX_VALUES,
    parse,
    parse_json,
    size_problem,
)
from lmprog.server.http.http_errors import HttpError
from lmprog.server.openai.chat_completions import ChatBody
from lmprog.server.sglang.generate_body import GenerateRequest
from tests.server.fake_runtime import Fake, asking

WRONG = {
    b"": "The body is not JSON",
    b"{": "The body is not JSON",
    b'{"a": 1} x': "The body is not JSON",
    b'\xef\xbb\xbf{"a": 1}': "The body is not JSON",
    b'{"a": "\xff"}': "not UTF-8 (byte 7)",
    b'{"a": NaN}': "NaN is not JSON",
    b'{"a": Infinity}': "Infinity is not JSON",
    b'{"a": -Infinity}': "-Infinity is not JSON",
    b'{"a": 1e999}': "The number 1e999 is too large",
    b'{"a": ' + b"9" * 5000 + b"}": "of 5,000 digits is too large",
    b'{"a": 1, "b": {"c": 1, "c": 2}}': 'duplicate key "c"',
    b'{"a": "\\ud800"}': "half of a character",
    b'{"a": ' * 65 + b"1" + b"}" * 65: "deeper than 64 levels",
    b"[" * 100_000: "deeper than 64 levels",
    b'{"a": ' * 100_000 + b"1" + b"}" * 100_000: "deeper than 64 levels",
}


@pytest.mark.parametrize("body", WRONG, ids=[str(number) for number in range(len(WRONG))])
def test_json_that_another_parser_might_read_differently_is_refused(body: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        parse_json(body)
    assert caught.value.problem.status == 400
    assert WRONG[body] in caught.value.problem.message


def test_proper_json_is_read_as_it_is() -> None:
    value: Any = {"a": [1, 2.5, -3, True, None, "ä\U0001f600"], "b": {"c": {}}}
    assert parse_json(json.dumps(value).encode()) == value
    deep: Any = 1
    for _ in range(64):
        deep = [deep]
    assert parse_json(json.dumps(deep).encode()) == deep


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "messages", "messages is missing."),
        ({"messages": []}, "messages", "messages has 0 items; it may have 1 to 4,096 items."),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "messages[0].role is missing."),
        (
            {"messages": [{"role": 5}]},
            "messages[0].role",
            "messages[0].role is 5; it must be a string.",
        ),
        ({"messages": "x"}, "messages", 'messages is "x"; it must be an array.'),
        ({"messages": [{"role": "user"}], "n": 500}, "n", "n is 500; it must be from 1 to 128."),
        ({"messages": [{"role": "user"}], "n": True}, "n", "n is true; it must be an integer."),
        (
            {"messages": [{"role": "user"}], "logit_bias": {"3": 1, "5": 101}},
            "logit_bias[5]",
            "logit_bias[5] is 101; it must be from -100 to 100.",
        ),
        (
            {"messages": [{"role": "user"}], "logit_bias": {"3": 1, "5": "x"}},
            "logit_bias[5]",
            'logit_bias[5] is "x"; it must be a number.',
        ),
        (
            {"messages": [{"role": "user"}], "logit_bias": {"5": True}},
            "logit_bias[5]",
            "logit_bias[5] is true; ",
        ),
        (
            {"messages": [{"role": "user"}], "stop": ["a", ""]},
            "stop[1]",
            "stop[1] has 0 characters",
        ),
    ],
)
def test_a_wrong_field_is_named_with_what_was_sent_and_what_is_allowed(
    body: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(HttpError) as caught:
        parse(json.dumps(body).encode(), ChatBody)
    assert caught.value.problem.param == param
    assert message in caught.value.problem.message


def test_a_strict_server_refuses_unknown_fields_and_another_names_them() -> None:
    body = b'{"messages": [{"role": "user", "content": "x"}], "colour": 1, "user": "me"}'
    assert parse(body, ChatBody, silent=("user",)).warnings == (
        "unknown field 'colour' is ignored",
    )
    with pytest.raises(HttpError, match='unknown field "colour"; valid: add_gen'):
        parse(body, ChatBody, strict=True, silent=("user",))


def test_unknown_fields_of_inner_objects_are_named_too() -> None:
    body = b'{"text": "x", "sampling_params": {"colour": 5, "n": 1}}'
    assert parse(body, GenerateRequest).warnings == (
        "unknown field 'sampling_params.colour' is ignored",
    )
    with pytest.raises(HttpError, match=r'unknown field "sampling_params\.colour"; valid: allo'):
        parse(body, GenerateRequest, strict=True)


def test_what_is_too_large_or_no_json_by_its_headers_is_refused_unread(fake: Fake) -> None:
    async def endless() -> Any:
        while True:
            yield b" " * 65_536

    async def run() -> None:
        async with asking(fake, max_body_bytes=100_000) as (client, _):
            for content, headers, status in (
                (b"{}", {"content-type": "text/plain"}, 415),
                (b"{}", {"content-type": "application/x-www-form-urlencoded"}, 415),
                (b"{}", {"content-type": "application/json", "content-encoding": "gzip"}, 415),
                (b" " * 100_001, {"content-type": "application/json"}, 413),
                (endless(), {"content-type": "application/json"}, 413),
                (b" " * 99_000 + b"{}", {"content-type": "application/json; charset=utf-8"}, 400),
            ):
                reply = await client.post("/v1/chat/completions", content=content, headers=headers)
                assert reply.status_code == status
                assert set(reply.json()["error"]) == {"message", "type", "param", "code"}

    asyncio.run(run())


def test_every_answer_has_a_request_id_the_clients_own_where_it_is_harmless(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake) as (client, _):
            for path in ("/health", "/nowhere", "/v1/models"):
                own = await client.get(path, headers={"x-request-id": "mine-1"})
                assert own.headers["x-request-id"] == "mine-1"
                new = await client.get(path, headers={"x-request-id": "no blanks, please"})
                assert len(new.headers["x-request-id"]) == 32

    asyncio.run(run())


def test_a_fault_of_ours_is_a_500_in_the_same_form(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with asking(fake) as (client, gateway):
            monkeypatch.setattr(gateway, "check_model", None)
            reply = await client.post("/v1/completions", json={"prompt": "x"})
            assert reply.status_code == 500
            assert reply.json()["error"]["type"] == "server_error"
            assert reply.headers["x-request-id"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[" + b"[]," * MAX_CONTAINERS + b"[]]", "arrays and objects"),
        (b'{"x": [' + b"{}," * MAX_CONTAINERS + b"{}]}", "arrays and objects"),
        (b"[" + b"1," * MAX_VALUES + b"1]", "values"),
        (b"{" + b'"":1,' * MAX_NAMES + b'"":1}', "names"),
        (b'["' + b"x" * 200_000 + b'",' + b"[]," * MAX_CONTAINERS + b"[]]", "arrays and objects"),
    ],
    ids=["arrays", "objects", "numbers", "names", "behind a string"],
)
def test_a_small_text_that_would_become_a_huge_value_is_refused_before_it_is_parsed(
    body: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "lmprog.server.http.bodies.json.loads", lambda *_, **__: pytest.fail("it was parsed")
    )
    with pytest.raises(HttpError) as caught:
        parse_json(body)
    assert caught.value.problem.status == 413
    assert reason in caught.value.problem.message


@pytest.mark.parametrize(
    "text",
    [
        "[{," * MAX_CONTAINERS,
        '["\\' * MAX_CONTAINERS,
        "Well, yes: " * MAX_VALUES,
        ":" * 2 * MAX_NAMES,
    ],
)
def test_brackets_and_commas_inside_of_strings_do_not_count(text: str) -> None:
    assert size_problem(json.dumps({"prompt": text}).encode()) is None


def test_the_values_of_a_text_are_counted_once_over_it_whatever_its_quotes() -> None:
    """An unterminated string full of escaped quotes would be searched again from each of them."""
    body = b'"' + b'[\\"' * 500_000 + b"\\"
    began = time.thread_time()
    size_problem(body)
    assert time.thread_time() - began < 5.0  # once over: 20 ms; from each quote: an hour


def test_large_bodies_are_parsed_one_at_a_time_and_off_the_event_loop(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsing, most, threads = 0, 0, set()

    def counting(*given: Any) -> Any:
        nonlocal parsing, most
        parsing += 1
        most = max(most, parsing)
        threads.add(threading.current_thread())
        time.sleep(0.01)
        try:
            return parse(*given)
        finally:
            parsing -= 1

    monkeypatch.setattr("lmprog.server.http.bodies.parse", counting)

    async def run() -> list[int]:
        async with asking(fake) as (client, _):
            body = {"prompt": "x" * 100_000, "max_tokens": 1}
            answers = [client.post("/v1/completions", json=body) for _ in range(8)]
            return [answer.status_code for answer in await asyncio.gather(*answers)]

    assert asyncio.run(run()) == [400] * 8  # longer than the context
    assert most == 1
    assert threading.main_thread() not in threads


def large_tools(kind: str) -> dict[str, Any]:
    """A body of some 4 MB with tools, as this route has them."""
    properties = {f"p{at}": {"type": "string", "description": "x" * 900} for at in range(60)}
    about = {"parameters": {"type": "object", "properties": properties}}
    tools = [{"type": "function", "name": f"tool{at}", **about} for at in range(60)]
    limits = {"max_output_tokens": 3} if kind == "/v1/responses" else {"max_tokens": 3}
    if kind == "/v1/responses":
        return {"input": "a", "tools": tools, "tool_choice": "none", **limits}
    chat = [{"type": "function", "function": {"name": one["name"], **about}} for one in tools]
    return {"messages": [{"role": "user", "content": "a"}], "tools": chat, **limits}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
def test_what_a_large_body_asks_for_is_found_off_the_event_loop(fake: Fake, path: str) -> None:
    raw = json.dumps(large_tools(path)).encode()
    assert len(raw) > 3_000_000

    async def run() -> float:
        """The longest turn of the loop, of all processor time."""
        async with asking(fake) as (client, _):
            began, turns, last = time.process_time(), list[float](), time.thread_time()
            headers = {"content-type": "application/json"}
            sent = asyncio.ensure_future(client.post(path, content=raw, headers=headers))
            while not sent.done():
                await asyncio.sleep(0)
                now = time.thread_time()
                turns.append(now - last)
                last = now
            assert sent.result().status_code in (200, 400)  # or longer than the context
            return max(turns) / (time.process_time() - began)

    assert min(asyncio.run(run()) for _ in range(3)) < 0.25


def test_a_body_without_a_content_type_is_refused(fake: Fake) -> None:
    async def run() -> tuple[int, str]:
        async with asking(fake) as (client, _):
            answer = await client.post("/v1/completions", content=b'{"prompt": "x"}')
            return answer.status_code, answer.json()["error"]["message"]

    status, message = asyncio.run(run())
    assert status == 415
    assert message.startswith("The body has no content-type; send JSON")
