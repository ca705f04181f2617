"""Every route of the router against every kind of key."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import secrets
from typing import Any

import pytest
from fastapi.params import Depends
from fastapi.routing import RouteContext, iter_route_contexts

from lmprog.errors import InvalidParameter
from lmprog.server.app import build_app
from lmprog.server.gateway.routes import Guard, KeyGuard
from lmprog.server.http.auth import Access, Keyring, label_of, session_of
from lmprog.server.options.server_settings import ServerSettings
from tests.server.fake_runtime import Asgi, Fake, asking

FILES = "/ui/{name}.{kind}"
OPEN_PATHS = {"/health", "/ready", "/", "/ui", FILES}
"""Liveness, and the files of the page, which hold no data."""
KEYS: dict[str, Any] = {"api_keys": ("user-one", "user-two"), "admin_key": "the-admin"}
GIVEN = {
    "nothing": {},
    "a bad key": {"authorization": "Bearer user-on"},
    "an empty key": {"authorization": "Bearer "},
    "broken basic": {"authorization": "Basic %%%"},
    "a user's key": {"authorization": "Bearer user-two"},
    "a user's key by x-api-key": {"x-api-key": "user-one"},
    "a user's key by a browser": {
        "authorization": "Basic " + base64.b64encode(b"me:user-one").decode()
    },
    "the admin's key": {"authorization": "Bearer the-admin"},
}


ADMIN_PATHS = {"/flush_cache", "/fleet/drain", "/fleet/update"}


def is_let_in(path: str, given: str) -> bool:
    if path in OPEN_PATHS:
        return True
    if path in ADMIN_PATHS:
        return given == "the admin's key"
    return "user's" in given or "admin's" in given


def guard_of(route: RouteContext) -> Guard:
    """Every route has one, before any other dependency."""
    first: Depends = route.dependencies[0]
    assert isinstance(first.dependency, Guard), route.path
    return first.dependency


def test_every_route_opens_to_the_keys_that_it_should_and_to_no_others(fake: Fake) -> None:
    async def run() -> int:
        tried = 0
        async with asking(fake, **KEYS) as (_, gateway):
            app = build_app(gateway)
            for route in iter_route_contexts(app.routes):
                assert route.path is not None
                assert isinstance(guard_of(route), KeyGuard) == (route.path not in OPEN_PATHS)
                path = re.sub(r"{[^}]*}", "x", route.path.replace(FILES, "/ui/page.css"))
                for method in sorted(route.methods or ()):
                    for name, headers in GIVEN.items():
                        ask = Asgi(app, method, path, headers)
                        status = await ask.started()
                        assert (status not in (401, 403)) == is_let_in(route.path, name), (
                            method,
                            path,
                            name,
                        )
                        await ask.leave()
                        if status in (401, 403):
                            check_refusal(ask)
                        tried += 1
        return tried

    assert asyncio.run(run()) > 50


def check_refusal(ask: Asgi) -> None:
    """In its dialect's form, and with the way to do better."""
    said = json.loads(b"".join(ask.parts))
    error = said["error"]
    if isinstance(error, str):  # Ollama's, which is the sentence
        error = {**said, "message": error, "type": "permission_error"}
    assert error["type"] in ("authentication_error", "permission_error")
    assert error["message"]
    assert error["code"] if "code" in error else error["details"]["error_code"]
    assert ("www-authenticate" in ask.headers) == (ask.status == 401)


def test_a_path_that_does_not_exist_is_not_told_without_a_key(fake: Fake) -> None:
    async def run() -> list[int]:
        async with asking(fake, **KEYS) as (client, _):
            replies = [await client.get("/nowhere", headers=headers) for headers in GIVEN.values()]
            return [reply.status_code for reply in replies]

    assert asyncio.run(run()) == [401, 401, 401, 401, 404, 404, 404, 404]


def test_another_sites_page_cannot_use_the_key_that_the_browser_keeps(fake: Fake) -> None:
    async def run() -> list[int]:
        async with asking(fake, **KEYS) as (client, _):
            headers = GIVEN["a user's key by a browser"]
            return [
                (
                    await client.post(
                        "/v1/completions", json={"prompt": "x"}, headers={**headers, **more}
                    )
                ).status_code
                for more in (
                    {},
                    {"sec-fetch-site": "same-origin"},
                    {"sec-fetch-site": "cross-site"},
                )
            ]

    assert asyncio.run(run()) == [200, 200, 403]


def test_digests_are_compared_in_constant_time_whichever_key_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = 0
    original = secrets.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        nonlocal compared
        compared += 1
        assert len(one) == len(other) == 32
        return original(one, other)

    monkeypatch.setattr("lmprog.server.http.auth.secrets.compare_digest", counting)
    keyring = Keyring(ServerSettings(**KEYS))
    for key, access in (
        ("user-one", Access.USER),
        ("user-two", Access.USER),
        ("the-admin", Access.ADMIN),
        ("x", Access.NOTHING),
        (None, Access.NOTHING),
    ):
        compared = 0
        assert keyring.find(key)[0] is access
        assert compared == 3


def test_without_any_key_everything_is_open_and_only_to_this_machine() -> None:
    assert Keyring(ServerSettings()).find(None)[0] is Access.ADMIN
    with pytest.raises(InvalidParameter, match="can be reached from other machines"):
        ServerSettings(host="0.0.0.0")
    ServerSettings(host="0.0.0.0", api_keys=("x",))
    ServerSettings(host="0.0.0.0", allow_open=True)


def test_with_keys_and_without_an_admins_nobody_is_admin() -> None:
    keyring = Keyring(ServerSettings(api_keys=("x",)))
    assert not keyring.has_admin
    assert keyring.find("x")[0] is Access.USER


def test_a_session_has_the_name_that_a_header_of_a_known_harness_gives() -> None:
    for name in ("x-session-id", "x-dynamo-session-id", "x-claude-code-session-id", "session-id"):
        assert session_of({name: "s"}) == session_of({"x-session-id": "s"})
    assert session_of({"x-dynamo-session-id": "a", "session-id": "b"}) == session_of(
        {"session-id": "a"}
    )
    assert session_of({}) == session_of({"x-session-id": ""}) == ""


def test_a_label_is_the_first_field_that_says_what_a_session_has_in_common() -> None:
    named = label_of({"prompt_cache_key": "k"})
    assert len(named) == 32
    assert label_of({"user": "u", "prompt_cache_key": "k"}) == named
    assert label_of({"metadata": {"user_id": "k"}, "user": 7}) == named
    for nothing in ({}, {"user": ["k"]}, {"metadata": "k"}, {"prompt_cache_key": ""}):
        assert label_of(nothing) == ""
    assert label_of({"user": "\ud800"}), "any text that JSON can have"
