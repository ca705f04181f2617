"""Pages of other sites in a user's browser: they neither read nor change anything here."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx2
import pytest

from lmprog.errors import InvalidParameter
from lmprog.server.http.auth import ServedSites
from lmprog.server.options.server_settings import ServerSettings
from tests.server.fake_runtime import Fake, asking

KEYS: dict[str, Any] = {"api_keys": ("user",), "admin_key": "admin"}
ADMIN = {"authorization": "Bearer admin"}
READING = ("/v1/models", "/metrics", "/ui/events", "/health", "/")


def sent(
    fake: Fake, method: str, path: str, headers: dict[str, str], **settings: Any
) -> httpx2.Response:
    """The answer to one request; a generation's body where it is a POST to one."""
    body = {"prompt": "x", "max_tokens": 1} if path == "/v1/completions" else None

    async def run() -> httpx2.Response:
        async with asking(fake, **settings) as (client, _):
            return await client.request(method, path, headers=headers, json=body)

    return asyncio.run(run())


@pytest.mark.parametrize("path", READING)
@pytest.mark.parametrize("settings", [{}, KEYS], ids=["open", "with keys"])
def test_a_page_whose_name_was_pointed_at_us_reads_nothing(
    fake: Fake, path: str, settings: dict[str, Any]
) -> None:
    """As Chrome sends it after DNS rebinding: neither Origin nor Sec-Fetch headers, nor a key."""
    answer = sent(fake, "GET", path, {"host": "evil.example:8000"}, **settings)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "unknown_host"
    assert "--allowed-hosts" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "host", ["host.docker.internal:8000", "lmprog", "lmprog.ai.svc.cluster.local"]
)
def test_who_brings_a_key_may_use_any_name_of_a_service(fake: Fake, host: str) -> None:
    basic = base64.b64encode(b":user").decode()
    for headers, status in (
        ({"authorization": "Bearer user"}, 200),
        ({"x-api-key": "user"}, 200),
        ({"x-api-key": "wrong"}, 403),
        ({"authorization": f"Basic {basic}"}, 403),  # a browser adds it by itself
        ({"authorization": "Bearer user", "origin": "http://evil.example"}, 403),
        ({}, 403),
    ):
        answer = sent(fake, "GET", "/v1/models", {"host": host, **headers}, **KEYS)
        assert answer.status_code == status, headers


@pytest.mark.parametrize(
    ("host", "is_served"),
    [
        ("localhost:8000", True),
        ("LOCALHOST.", True),
        ("127.0.0.1:8000", True),
        ("192.168.1.5", True),
        ("[::1]:8000", True),
        ("models.example:8000", True),
        ("other.models.example", False),
        ("models.example.evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost@evil.example", False),
        ("[", False),
        ("", False),
        ("evil.example", False),
    ],
)
def test_a_host_is_served_when_it_is_an_address_or_a_name_of_ours(
    host: str, is_served: bool
) -> None:
    sites = ServedSites(ServerSettings(allowed_hosts=("models.example",)))
    assert sites.serves(host) == is_served


def test_any_host_is_served_where_the_operator_says_so() -> None:
    assert ServedSites(ServerSettings(allowed_hosts=("*",))).serves("any.example:1")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),  # no browser
        ({"origin": "http://localhost"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost:3000"}, 403),  # another program of the same machine
        ({"origin": "null"}, 403),  # a sandboxed frame, a file
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 403),  # a form
    ],
)
@pytest.mark.parametrize("settings", [{}, KEYS], ids=["open", "with keys"])
def test_only_pages_of_our_own_origin_send_requests(
    fake: Fake, headers: dict[str, str], status: int, settings: dict[str, Any]
) -> None:
    answer = sent(fake, "POST", "/v1/completions", {**headers, **ADMIN}, **settings)
    assert answer.status_code == status, answer.text


def test_a_link_from_another_site_opens_the_page_and_a_picture_does_not(fake: Fake) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    picture = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert sent(fake, "GET", "/ui", link).status_code == 200
    assert sent(fake, "GET", "/ui", picture).status_code == 403


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"sec-fetch-site": "same-origin"}, 403),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, 403),  # typed in, or from a mail
        ({"x-requested-with": "x"}, 200),
        ({"authorization": "Bearer any"}, 200),
    ],
)
def test_get_changes_nothing_without_a_header_that_no_site_can_send_to_another(
    fake: Fake, method: str, headers: dict[str, str], status: int
) -> None:
    assert sent(fake, method, "/flush_cache", headers).status_code == status


def test_post_flushes_as_ever(fake: Fake) -> None:
    assert sent(fake, "POST", "/flush_cache", {}).status_code == 200


SITE = "https://app.example"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


def test_pages_of_an_allowed_origin_use_the_server_and_can_read_its_answers(fake: Fake) -> None:
    settings = {**KEYS, "cors_origins": (SITE,)}
    asked = sent(fake, "OPTIONS", "/v1/completions", {"origin": SITE, **PREFLIGHT}, **settings)
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == SITE
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert "x-stainless-os" in asked.headers["access-control-allow-headers"]
    for key, status in (("user", 200), ("wrong", 401)):
        headers = {"origin": SITE, "authorization": f"Bearer {key}"}
        answer = sent(fake, "POST", "/v1/completions", headers, **settings)
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == SITE
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
    other = {"origin": "https://evil.example", "authorization": "Bearer user"}
    refused = sent(fake, "POST", "/v1/completions", other, **settings)
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/completions", {}, 204),
        ("/nowhere", {}, 404),
        ("/v1/completions", {"origin": SITE, **PREFLIGHT}, 403),
    ],
)
def test_options_are_answered(fake: Fake, path: str, headers: dict[str, str], status: int) -> None:
    answer = sent(fake, "OPTIONS", path, headers)
    assert answer.status_code == status
    assert status != 204 or answer.headers["allow"] == "POST"


@pytest.mark.parametrize("origin", ["app.example", "https://app.example/", "https://", ""])
def test_what_is_not_an_origin_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(InvalidParameter, match="--cors-origin"):
        ServerSettings(cors_origins=(origin,))
