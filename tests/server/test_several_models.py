"""A gateway before runtimes of several models: each request gets the one that it names."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import lmprog
from lmprog.backends.blackbox.server_backend import RuntimeEndpoint
from lmprog.cli import main
from lmprog.errors import InvalidParameter, UnknownName
from lmprog.native import compiler
from lmprog.server.http.http_server import bind, url_of
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.service import ServerService
from lmprog.server.supervision.supervised_fleet import supervised
from tests.fleet.test_one_model import Places, Replica, adapter
from tests.model.small_checkpoint import TEMPLATE, write_checkpoint

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

PATIENCE = 120.0
USER = [{"role": "user", "content": "Say it."}]
LONG, SHORT = 512, 96
"""The contexts of the two models."""


class Server:
    """A gateway before replicas in threads: `small`, `large` and `large` once more."""

    def __init__(self, client: httpx2.AsyncClient, service: ServerService, places: Places) -> None:
        self.client, self.service, self.places = client, service, places
        self.url = str(client.base_url)

    async def post(self, path: str, **body: Any) -> httpx2.Response:
        return await self.client.post(path, json=body)

    async def ok(self, path: str, **body: Any) -> Any:
        answer = await (self.post(path, **body) if body else self.client.get(path))
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not is_so():
                await asyncio.sleep(0.01)

    @property
    def there(self) -> dict[str, str]:
        fleet = self.service.gateway.fleet
        assert fleet is not None
        return {one.name: one.served_name for one in fleet.replicas()}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two models, of which one shouts."""
    loud = TEMPLATE.replace("<{{", "<loud {{")
    return write_checkpoint(tmp_path / "a"), write_checkpoint(tmp_path / "b", 1, template=loud)


def small(folder: Path, **more: Any) -> Replica:
    return Replica(folder, served_model_name="small", context_len=SHORT, **more)


def large(folder: Path, **more: Any) -> Replica:
    return Replica(folder, served_model_name="large", context_len=LONG, **more)


@asynccontextmanager
async def serving(places: Places, **settings: Any) -> AsyncIterator[Server]:
    made = ServerSettings(port=0, **settings)
    bound = bind(made)
    service = ServerService(made, supervised(lambda: places))
    up = asyncio.Event()
    running = asyncio.create_task(service.run(bound, lambda facts: up.set()))
    try:
        async with httpx2.AsyncClient(
            base_url=url_of(bound), timeout=PATIENCE, trust_env=False
        ) as client:
            server = Server(client, service, places)
            await server.until(lambda: up.is_set() and len(server.there) == places.size)
            link = service.gateway.link
            names = set(server.there.values())
            await server.until(lambda: set(link.models) == names)
            yield server
        service.ask_to_stop()
        assert await asyncio.wait_for(running, PATIENCE)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def run(
    test: Callable[[Server], Coroutine[Any, Any, None]], replicas: dict[str, Replica], **more: Any
) -> None:
    async def whole() -> None:
        async with serving(Places(replicas), **more) as server:
            await test(server)

    asyncio.run(whole())


def both(folders: tuple[Path, Path], **more: Any) -> dict[str, Replica]:
    return {"a": small(folders[0]), "b": large(folders[1], **more), "c": large(folders[1], **more)}


ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "chats": ("/v1/chat/completions", {"messages": USER, "max_tokens": 4}),
    "completions": ("/v1/completions", {"prompt": "It is", "max_tokens": 4}),
    "responses": ("/v1/responses", {"input": "It is", "max_output_tokens": 4}),
    "messages": ("/v1/messages", {"messages": USER, "max_tokens": 4}),
    "counting": ("/v1/messages/count_tokens", {"messages": USER}),
    "generate": ("/generate", {"text": "It is", "sampling_params": {"max_new_tokens": 4}}),
    "tokenize": ("/tokenize", {"prompt": "It is"}),
    "programs": (
        "/v1/programs",
        {
            "ops": [
                {"op": "open", "branch": "b"},
                {"op": "append", "branch": "b", "pieces": ["It is"]},
                {"op": "gen", "branch": "b", "call": "c", "max_tokens": 4},
            ]
        },
    ),
    "ollama": ("/api/chat", {"messages": USER, "stream": False, "options": {"num_predict": 4}}),
}


def text_of(answer: dict[str, Any]) -> Any:
    """What a model said or counted, in whatever dialect; nothing that differs by request."""
    for name in ("choices", "output", "content", "input_tokens", "text", "tokens", "results"):
        if name in answer:
            found = answer[name]
            return _without_ids(found)
    return answer["message"]["content"]


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        dropped = ("id", "usage", "timing")
        return {name: _without_ids(one) for name, one in value.items() if name not in dropped}
    return [_without_ids(one) for one in value] if isinstance(value, list) else value


def greedy(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The same request, with a text that is the same each time."""
    if path == "/generate":
        return {**body, "sampling_params": {**body["sampling_params"], "temperature": 0}}
    if path == "/v1/programs":
        return {"ops": [*body["ops"][:2], {**body["ops"][2], "temperature": 0}]}
    if path == "/api/chat":
        return {**body, "options": {**body["options"], "temperature": 0}}
    takes_none = path in ("/tokenize", "/v1/messages/count_tokens")
    return body if takes_none else {**body, "temperature": 0}


def test_each_route_asks_the_model_that_is_named_and_none_is_the_first(
    folders: tuple[Path, Path],
) -> None:
    async def test(server: Server) -> None:
        alone: dict[str, Any] = {}
        for at, (path, body) in ROUTES.items():
            asked = greedy(path, body)
            found = {
                name: text_of(await server.ok(path, **asked, **({"model": name} if name else {})))
                for name in ("small", "large", *[""] * (path != "/api/chat"))
            }
            assert found.get("", found["small"]) == found["small"], at
            alone[at] = found
        same = [at for at, found in alone.items() if found["small"] == found["large"]]
        assert same == ["tokenize"], "the two have the same tokens, and other templates"

    run(test, both(folders))


def test_an_unknown_model_is_404_in_each_dialect_and_lists_those_served(
    folders: tuple[Path, Path],
) -> None:
    async def test(server: Server) -> None:
        for path, body in ROUTES.values():
            answer = await server.post(path, **body, model="lagre")
            assert answer.status_code == 404, path
            assert "did you mean 'large'" in answer.text, path
            assert "serves 'small', 'large'" in answer.text, path
        shapes = {
            "/v1/messages": lambda told: told["error"]["type"] == "not_found_error",
            "/v1/chat/completions": lambda told: told["error"]["code"] == "model_not_found",
            "/api/chat": lambda told: isinstance(told["error"], str),
        }
        for path, is_right in shapes.items():
            body = next(body for at, body in ROUTES.values() if at == path)
            assert is_right((await server.post(path, **body, model="x")).json()), path
        assert (await server.client.get("/v1/models/lagre")).status_code == 404

    run(test, both(folders))


def test_models_are_listed_with_their_own_facts_and_adapters(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    async def test(server: Server) -> None:
        cards = {one["id"]: one for one in (await server.ok("/v1/models"))["data"]}
        assert list(cards) == ["small", "large", "clerk"]
        assert [one["max_model_len"] for one in cards.values()] == [SHORT, LONG, LONG]
        assert [one["parent"] for one in cards.values()] == [None, None, "large"]
        digests = {one["fingerprint"]["digest"] for one in cards.values()}
        assert len(digests) == 2
        assert (await server.ok("/v1/models/large"))["max_model_len"] == LONG
        loaded = (await server.ok("/api/ps"))["models"]
        assert [one["context_length"] for one in loaded] == [SHORT, LONG, LONG]
        shown = await server.ok("/api/show", model="large:latest")
        assert shown["model_info"]["lmprog.context_length"] == LONG
        body = {"prompt": "It is", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        said = {
            name: text_of(await server.ok("/v1/completions", **body, model=name))[0]["text"]
            for name in ("small", "large", "clerk")
        }
        assert len(set(said.values())) == 3

    run(test, both(folders, **adapter(folders[1], tmp_path / "clerk", 1)))


def test_an_adapters_name_that_two_models_have_is_said_with_its_model(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    async def test(server: Server) -> None:
        names = [one["id"] for one in (await server.ok("/v1/models"))["data"]]
        assert names == ["small", "large", "clerk", "large:clerk"]
        body = {"prompt": "It is", "max_tokens": 2}
        for name in names:
            assert (await server.ok("/v1/completions", **body, model=name))["model"] == name

    made = [adapter(folder, tmp_path / folder.name / "clerk", 1) for folder in folders]
    run(test, {"a": small(folders[0], **made[0]), "b": large(folders[1], **made[1])})


def test_context_template_and_counts_are_those_of_the_model_that_is_named(
    folders: tuple[Path, Path],
) -> None:
    async def test(server: Server) -> None:
        prompt = "a" * (SHORT + 40)
        body = {"prompt": prompt, "max_tokens": 1}
        assert (await server.post("/v1/completions", **body, model="small")).status_code == 400
        assert (await server.post("/v1/completions", **body, model="large")).status_code == 200
        cut = {"prompt": "a" * 20, "max_tokens": LONG, "model": "large", "ignore_eos": True}
        told = await server.ok("/v1/messages", messages=USER, max_tokens=9_999, model="small")
        assert told["usage"]["output_tokens"] < SHORT
        assert (await server.post("/v1/completions", **cut)).status_code == 400
        lengths = {}
        for name in ("small", "large"):
            chat = {"messages": USER, "model": name, "max_tokens": 1, "return_token_ids": True}
            lengths[name] = (await server.ok("/v1/chat/completions", **chat))["prompt_token_ids"]
            tokens = await server.ok("/tokenize", prompt="It is", model=name)
            assert tokens["max_model_len"] == (SHORT if name == "small" else LONG)
        assert lengths["small"] != lengths["large"], "each has a template of its own"

    run(test, both(folders))


def test_requests_of_both_models_at_once_are_never_mixed(folders: tuple[Path, Path]) -> None:
    async def test(server: Server) -> None:
        async def ask(name: str, at: int) -> str:
            body = {"prompt": f"Number {at}", "max_tokens": 6, "temperature": 0, "model": name}
            told = await server.ok("/v1/completions", **body, ignore_eos=True)
            assert told["model"] == name
            return str(told["choices"][0]["text"])

        pairs = [(name, at) for at in range(12) for name in ("small", "large")]
        alone = [await ask(*one) for one in pairs]
        assert await asyncio.gather(*(ask(*one) for one in pairs)) == alone
        assert alone[::2] != alone[1::2]

    run(test, both(folders))


@pytest.mark.parametrize("keys", [(), ("one", "two")])
def test_metrics_tell_the_models_apart(folders: tuple[Path, Path], keys: tuple[str, ...]) -> None:
    """Also where the calls of several keys take turns, and one is sent on behalf of another."""

    async def test(server: Server) -> None:
        if keys:
            server.client.headers["authorization"] = f"Bearer {keys[0]}"
        body = {"prompt": "It is", "max_tokens": 2, "ignore_eos": True}
        names = ["small", "large", "large", "large"]
        await asyncio.gather(*(server.ok("/v1/completions", **body, model=one) for one in names))
        lines = (await server.client.get("/metrics")).text.splitlines()
        for name, count in (("small", 1), ("large", 3)):
            for counter in (
                f'num_requests_total{{model_name="{name}"}} {count}.0',
                f'e2e_request_latency_seconds_count{{model_name="{name}"}} {count}.0',
                f'time_to_first_token_seconds_count{{model_name="{name}"}} {count}.0',
                f'http_requests_total{{method="POST",model_name="{name}",'
                f'route="/v1/completions",status="200"}} {count}.0',
                f'http_request_seconds_count{{model_name="{name}",route="/v1/completions"}} '
                f"{count}.0",
            ):
                assert f"lmprog_{counter}" in lines
            of_key = [one for one in lines if one.startswith("lmprog_key_generation_tokens_total{")]
            used = [one.rpartition(" ")[2] for one in of_key if f'"{name}"' in one]
            assert [one for one in used if one != "0.0"] == [f"{2.0 * count}"] * bool(keys)
        up = [one for one in lines if one.startswith("lmprog_replica_up{")]
        assert sorted(up) == [
            'lmprog_replica_up{model_name="large",replica="b"} 1.0',
            'lmprog_replica_up{model_name="large",replica="c"} 1.0',
            'lmprog_replica_up{model_name="small",replica="a"} 1.0',
        ]
        fleet = (await server.ok("/fleet"))["replicas"]
        assert {one["name"]: one["model"] for one in fleet} == server.there
        assert set((await server.ok("/version"))["models"]) == {"small", "large"}

    run(test, both(folders), api_keys=keys)


def test_a_model_whose_last_runtime_is_replaced_fails_alone_and_begins_anew(
    folders: tuple[Path, Path],
) -> None:
    async def test(server: Server) -> None:
        before = (await server.ok("/v1/models/small"))["fingerprint"]["digest"]
        going = asyncio.create_task(
            server.post("/v1/completions", prompt="a", max_tokens=400, model="large")
        )
        await asyncio.to_thread(server.places.put, "a", small(folders[1]))
        models = server.service.gateway.link.models
        await server.until(lambda: server.service.gateway.link.models is not models)
        assert (await going).status_code == 200
        after = (await server.ok("/v1/models/small"))["fingerprint"]["digest"]
        assert after != before
        body = {"prompt": "a", "max_tokens": 2}
        for name in ("small", "large"):
            assert (await server.ok("/v1/completions", **body, model=name))["model"] == name

    run(test, both(folders))


def test_the_first_model_is_the_one_that_the_operator_names(folders: tuple[Path, Path]) -> None:
    async def test(server: Server) -> None:
        told = await server.ok("/v1/completions", prompt="a", max_tokens=1)
        assert told["model"] == "large"
        names = [one["id"] for one in (await server.ok("/v1/models"))["data"]]
        assert names == ["large", "small"]

    run(test, both(folders), served_model_name="large")


def test_a_program_over_http_names_the_model_of_its_server(folders: tuple[Path, Path]) -> None:
    @lmprog.function
    def tale(s: lmprog.Branch) -> str:
        s += "It begins: "
        s += lmprog.gen("x", max_tokens=6, temperature=0, ignore_eos=True)
        return str(s["x"])

    def told(url: str) -> dict[str | None, str]:
        found = {}
        for name in (None, "small", "large"):
            with lmprog.connect(url, model=name) as backend:
                assert isinstance(backend, RuntimeEndpoint)
                found[name] = tale.run(backend=backend).value
        with pytest.raises(UnknownName, match="served: 'small', 'large'"):
            lmprog.connect(url, model="tiny")
        return found

    async def test(server: Server) -> None:
        found = await asyncio.to_thread(told, server.url)
        assert found[None] == found["small"] != found["large"]

    run(test, both(folders))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"models": ("nano",)}, "'nano'; it must be NAME=MODEL"),
        ({"models": ("a=", "b=nano")}, "'a='; it must be NAME=MODEL"),
        ({"models": ("=nano",)}, "'=nano'; it must be NAME=MODEL"),
        ({"models": ("a=nano", "b=nano", "a=other")}, "has 'a' twice"),
        ({"models": ("a=nano",), "join": ("tcp://127.0.0.1:1",)}, "--join serves runtimes that"),
        ({"models": ("a=nano",), "served_model_name": "b"}, "is 'b'; with --models it is one of a"),
    ],
)
def test_models_that_cannot_be_started_together_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidParameter, match=message):
        ServerSettings(**settings)


def test_a_model_may_have_an_equals_sign_in_its_path() -> None:
    made = ServerSettings(models=("a=/x/b=c", "d=nano"))
    assert made.named_models == {"a": "/x/b=c", "d": "nano"}


def test_one_command_chats_with_the_model_that_it_names(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(url: str, *model: str) -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO("Say it.\n"))
        code = main(["chat", url, "--temperature", "0", "--max-tokens", "4", *model])
        found = capsys.readouterr()
        return found.out if code == 0 else found.err

    async def test(server: Server) -> None:
        texts = {}
        for name in ("small", "large"):
            asked = {"messages": USER, "max_tokens": 4, "temperature": 0, "model": name}
            answer = await server.ok("/v1/chat/completions", **asked)
            texts[name] = answer["choices"][0]["message"]["content"] + "\n"
        assert texts["small"] != texts["large"]
        assert await asyncio.to_thread(said, server.url) == texts["small"]
        for name, text in texts.items():
            assert await asyncio.to_thread(said, server.url, "--model", name) == text
        unknown = await asyncio.to_thread(said, server.url, "--model", "lagre")
        assert unknown == "lmprog: there is no model 'lagre' here; served: 'small', 'large'\n"

    run(test, both(folders))
