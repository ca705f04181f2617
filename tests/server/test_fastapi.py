"""The gateway in an application of somebody else: routers, their keys, their errors, their schema."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.routing import APIRoute
from starlette.routing import Match

from lmprog.errors import InvalidParameter
from lmprog.server import ModelServer, create_app
from lmprog.server.app import build_app, route_modules
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.routes import FixedPaths, Guard, Guards
from lmprog.server.link.runtime_link import RuntimeLink
from lmprog.server.options.server_settings import ServerSettings
from tests.server.fake_runtime import Asgi, Fake

KEY = {"authorization": "Bearer key"}
BODY = {"prompt": "x", "max_tokens": 3}


async def only_on_tuesdays(x_day: str = Header()) -> None:
    if x_day != "tuesday":
        raise HTTPException(403, "not today")


@asynccontextmanager
async def theirs(
    fake: Fake, *dependencies: Any, **settings: Any
) -> AsyncIterator[tuple[httpx2.AsyncClient, FastAPI]]:
    """A client of an application with routes of its own and ours below `/llm`."""
    gateway = Gateway(ServerSettings(**settings), RuntimeLink())
    gateway.link.replace(fake.connect("test"))
    app = FastAPI()
    for module in route_modules():
        app.include_router(module.router(gateway), prefix="/llm", dependencies=dependencies)

    @app.get("/own", dependencies=[Guards(gateway).user])
    async def own() -> str:
        return "their own"

    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client, app
    finally:
        gateway.link.close()


def test_included_routers_answer_below_their_prefix(fake: Fake) -> None:
    async def run() -> None:
        async with theirs(fake) as (client, _):
            answer = await client.post("/llm/v1/completions", json=BODY)
            assert answer.status_code == 200
            assert answer.json()["usage"]["completion_tokens"] == 3
            events = (await client.post("/llm/v1/completions", json={**BODY, "stream": True})).text
            assert events.endswith("data: [DONE]\n\n")
            assert (await client.get("/llm/v1/models/fake")).json()["id"] == "fake"
            assert (await client.head("/llm/health")).status_code == 200

    asyncio.run(run())


def test_errors_of_included_routers_are_in_openais_form(fake: Fake) -> None:
    async def run() -> None:
        async with theirs(fake) as (client, _):
            for path, body, status, param in (
                ("/llm/v1/completions", {"prompt": 1}, 400, "prompt"),
                ("/llm/v1/chat/completions", {"messages": []}, 400, "messages"),
                ("/llm/v1/completions", {"prompt": "x" * 5000}, 400, "prompt"),
                ("/llm/v1/completions", {**BODY, "model": "other"}, 404, "model"),
            ):
                answer = await client.post(path, json=body)
                assert answer.status_code == status, answer.text
                assert answer.json()["error"]["param"] == param

    asyncio.run(run())


def test_included_routers_keep_their_keys_and_guard_routes_of_others(fake: Fake) -> None:
    async def run() -> None:
        async with theirs(fake, api_keys=("key",), admin_key="admin") as (client, _):
            for headers, status in (
                ({}, 401),
                (KEY, 200),
                ({"origin": "http://evil.example"}, 403),
            ):
                answer = await client.post("/llm/v1/completions", json=BODY, headers=headers)
                assert answer.status_code == status, answer.text
            assert (await client.post("/llm/flush_cache", headers=KEY)).status_code == 403
            assert (await client.get("/own", headers=KEY)).json() == "their own"
            refused = await client.get("/own")
            assert refused.status_code == 401  # in FastAPI's form: the route is not ours
            assert "Bearer" in refused.json()["detail"]
            assert "Bearer" in refused.headers["www-authenticate"]

    asyncio.run(run())


def test_dependencies_that_others_add_run_too(fake: Fake) -> None:
    async def run() -> None:
        async with theirs(fake, Depends(only_on_tuesdays)) as (client, _):
            for headers, status in (
                ({}, 422),
                ({"x-day": "monday"}, 403),
                ({"x-day": "tuesday"}, 200),
            ):
                answer = await client.post("/llm/v1/completions", json=BODY, headers=headers)
                assert answer.status_code == status, answer.text

    asyncio.run(run())


def test_their_document_describes_our_routes(fake: Fake) -> None:
    async def run() -> None:
        async with theirs(fake, api_keys=("key",)) as (client, _):
            made = (await client.get("/openapi.json")).json()
            operation = made["paths"]["/llm/v1/completions"]["post"]
            body = operation["requestBody"]["content"]["application/json"]["schema"]
            assert body == {"$ref": "#/components/schemas/CompletionBody"}
            assert operation["security"] == [{"key": []}]
            fields = made["components"]["schemas"]["CompletionBody"]["properties"]
            assert {"maximum": 2.0, "minimum": 0.0, "type": "number"} in fields["temperature"][
                "anyOf"
            ]

    asyncio.run(run())


def our_app() -> tuple[Gateway, FastAPI]:
    gateway = Gateway(ServerSettings(), RuntimeLink())
    return gateway, build_app(gateway)


async def answered(
    app: FastAPI, path: str, headers: dict[str, str] | None = None, raises: bool = False
) -> Any:
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=raises)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.get(path, headers=headers)


def test_a_path_without_parameters_leads_to_the_route_that_the_router_would_find() -> None:
    async def run() -> None:
        _, app = our_app()
        found = FixedPaths(app.routes, app.router)._found
        assert len(found) > 60
        for (path, method), (route, _) in found.items():
            scope = {"type": "http", "path": path, "method": method, "root_path": ""}
            first = next(one for one in app.routes if one.matches(scope)[0] is Match.FULL)
            assert first is route

    asyncio.run(run())


def test_their_routes_and_layers_on_our_application_are_as_on_any_other() -> None:
    seen = []

    async def run() -> None:
        _, app = our_app()

        @app.get("/mine/{number}")
        async def mine(number: int, x_day: str = Header()) -> str:
            return f"{number} {x_day}"

        async def health() -> str:
            return "theirs"

        app.router.routes.insert(0, APIRoute("/health", health))

        @app.middleware("http")
        async def layer(request: Request, go_on: Any) -> Any:
            seen.append(request.url.path)
            if request.headers.get("x-day") == "never":
                raise ValueError("never")
            return await go_on(request)

        assert (await answered(app, "/mine/3", {"x-day": "monday"})).json() == "3 monday"
        assert (await answered(app, "/mine/3")).status_code == 422
        assert (await answered(app, "/health")).json() == "theirs"
        assert (await answered(app, "/version")).json()["version"]
        broken = await answered(app, "/version", {"x-day": "never"})
        assert (broken.status_code, broken.json()["error"]["code"]) == (500, "internal_error")

    asyncio.run(run())
    assert seen == ["/mine/3", "/mine/3", "/health", "/version", "/version"]


@pytest.mark.parametrize("path", ["/health", "/v1/models/one"])
def test_a_request_that_breaks_is_answered_counted_and_raised(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the path is fixed, and where it has a parameter."""

    async def run() -> None:
        gateway, app = our_app()
        monkeypatch.setattr(Guard, "check", lambda *_: 1 / 0)
        broken = await answered(app, path, {"x-request-id": "mine"})
        assert (broken.status_code, broken.json()["error"]["code"]) == (500, "internal_error")
        assert broken.headers.get_list("x-request-id") == ["mine"]
        text = gateway.meters.text()[0].decode()
        assert 'status="500"' in text
        assert gateway.open_requests == 0
        with pytest.raises(ZeroDivisionError):
            await answered(app, path, raises=True)

    asyncio.run(run())


def test_nothing_of_a_body_is_read_where_the_key_is_missing_or_there_is_no_room(
    fake: Fake,
) -> None:
    async def run(ours: bool, **settings: Any) -> tuple[int, int]:
        gateway = Gateway(ServerSettings(**settings), RuntimeLink())
        gateway.link.replace(fake.connect("test"))
        app = FastAPI()
        for module in route_modules():
            app.include_router(module.router(gateway))
        if ours:
            app = build_app(gateway)
        with gateway.admit(), gateway.admit():
            ask = Asgi(app, "POST", "/v1/completions", body=BODY)
            status = await ask.started()
            unread = len(ask._messages)
            await ask.leave()
        gateway.link.close()
        return status, unread

    for ours in (True, False):
        assert asyncio.run(run(ours, api_keys=("key",))) == (401, 1)
        assert asyncio.run(run(ours, max_running=1, max_waiting=9)) == (200, 0)
        assert asyncio.run(run(ours, max_running=1, max_waiting=1)) == (429, 1)


def test_the_application_runs_a_runtime_for_as_long_as_it_lives(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMPROG_SERVED_MODEL_NAME", "little")
    app = create_app("dummy:tiny", num_pages=64)

    async def run() -> None:
        async with app.router.lifespan_context(app):
            transport = httpx2.ASGITransport(app=app)
            async with httpx2.AsyncClient(
                transport=transport, base_url="http://localhost", timeout=60.0
            ) as client:
                assert (await client.get("/v1/models")).json()["data"][0]["id"] == "little"
                answer = await client.post("/v1/completions", json=BODY)
                assert answer.status_code == 200, answer.text
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (await client.post("/v1/completions", json=BODY)).status_code == 503

    asyncio.run(run())


def test_an_application_whose_runtime_cannot_start_does_not_start() -> None:
    server = ModelServer("/no/such/model")

    async def run() -> None:
        async with server.lifespan(FastAPI()):
            raise AssertionError("it started")

    with pytest.raises(Exception, match="no/such/model"):
        asyncio.run(run())


def test_programs_load_nothing_of_the_server() -> None:
    code = (
        "import sys, lmprog; lmprog.function; lmprog.connect;"
        "assert not [n for n in sys.modules if n.split('.')[0] in "
        "('fastapi', 'starlette', 'uvicorn', 'pydantic')]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "setting"),
    [("replicas", 2), ("join", ("tcp://127.0.0.1:5555",)), ("models", ("a=nano", "b=nano"))],
)
def test_an_application_refuses_settings_of_several_runtimes(name: str, setting: Any) -> None:
    with pytest.raises(InvalidParameter, match="one runtime of its own") as caught:
        create_app(settings=ServerSettings(**{name: setting}))
    assert caught.value.name == name
