"""The page's routes: files that need no key, pictures that cost little, a playground that tells
what became of text.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest

from lmprog import wire
from lmprog.errors import RuntimeGone
from lmprog.server.page import STATIC
from lmprog.server.page.watching import PERIOD
from tests.server.fake_runtime import Asgi, Fake, asking

FILES = {path.name: path.read_text() for path in STATIC.iterdir()}
KEYS: dict[str, Any] = {"api_keys": ("user",), "admin_key": "admin"}
SECRET = "a sentence that nobody else should read"


@asynccontextmanager
async def viewer(app: Any, **headers: str) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    """Somebody who watches until the block ends."""
    ask = Asgi(app, "GET", "/ui/events", headers)
    try:
        assert await ask.started() == 200
        yield events(ask)
    finally:
        await ask.leave()


def app_of(client: httpx2.AsyncClient) -> Any:
    """The application that `client` asks; viewers of one application share its watcher."""
    return client._transport.app  # type: ignore[attr-defined]


async def events(ask: Asgi) -> AsyncIterator[tuple[str, Any]]:
    """All events as they come, until the stream ends."""
    taken = 0
    while not (ask.ended and taken == len(ask.parts)):
        if taken == len(ask.parts):
            await asyncio.sleep(0.01)
            continue
        for block in ask.parts[taken].decode().split("\n\n"):
            found = re.fullmatch(r"event: (\w+)\ndata: (.*)", block)
            if found:
                yield found[1], json.loads(found[2])
        taken += 1


async def first(found: AsyncIterator[tuple[str, Any]], wanted: str) -> Any:
    """The next event of that name."""
    async for name, value in found:
        if name == wanted:
            return value
    raise AssertionError(f"no {wanted}")


async def play(client: httpx2.AsyncClient, **body: Any) -> list[tuple[str, Any]]:
    reply = await client.post("/ui/play", json=body)
    assert reply.status_code == 200, reply.text
    blocks = [
        block.splitlines() for block in reply.text.split("\n\n") if block.startswith("event: ")
    ]
    return [
        (name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for name, data in blocks
    ]


def last(found: list[tuple[str, Any]], name: str) -> dict[str, Any]:
    values: list[dict[str, Any]] = [value for one, value in found if one == name]
    return values[-1]


# --- files ----------------------------------------------------------------------------------------


def test_the_files_need_no_key_and_bring_a_policy_that_runs_nothing_else(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake, **KEYS) as (client, _):
            for path in ["/", "/ui", *(f"/ui/{name}" for name in FILES)]:
                reply = await client.get(path)
                assert reply.status_code == 200, path
                policy = reply.headers["content-security-policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                again = await client.get(path, headers={"if-none-match": reply.headers["etag"]})
                assert (again.status_code, again.content) == (304, b"")

    asyncio.run(run())


def test_the_files_load_nothing_from_elsewhere_and_make_no_markup_of_text() -> None:
    for name, text in FILES.items():
        elsewhere = {
            url for url in re.findall(r"https?://[^\s'\"`)]+", text) if "w3.org" not in url
        }
        assert not elsewhere, name
        for wrong in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ):
            assert wrong not in text, name
    index = FILES["index.html"]
    assert not re.search(r"\s(style|on[a-z]+)=", index), "the policy allows no inline code"
    assert not re.search(r"<script(?![^>]*\ssrc=)", index)


def test_every_file_that_a_file_names_is_there() -> None:
    named = {
        name
        for text in FILES.values()
        for name in re.findall(r'"(?:/ui/|\./)([a-z]+\.(?:js|css|json))"', text)
    }
    assert named == set(FILES) - {"index.html"}


# --- pictures -------------------------------------------------------------------------------------


def test_a_viewer_is_told_what_runs_and_then_what_it_looks_like(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake) as (client, _):
            await play(client, prompt="hello there", max_tokens=4)
            async with viewer(app_of(client)) as found:
                about = await first(found, "about")
                assert (about["model"], about["context"], about["showsText"]) == (
                    "fake",
                    2000,
                    False,
                )
                snapshot = await first(found, "snapshot")
                assert snapshot["figures"]["calls_done"] == 2
                assert (
                    sum(node[3] for node in snapshot["nodes"]) == 11 + 1 + 3
                )  # with <bos>, without the last
                assert "pid" not in snapshot["figures"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("shows", "key", "sees"),
    [(True, "admin", True), (True, "user", False), (False, "admin", False)],
)
def test_text_is_shown_only_where_the_server_says_so_and_only_to_the_administrator(
    fake: Fake, shows: bool, key: str, sees: bool
) -> None:
    async def run() -> None:
        async with asking(fake, ui_show_text=shows, **KEYS) as (client, _):
            authorization = client.headers["authorization"] = f"Bearer {key}"
            await play(client, prompt=SECRET, max_tokens=2)
            async with viewer(app_of(client), authorization=authorization) as found:
                assert (await first(found, "about"))["showsText"] == sees
                snapshot = await first(found, "snapshot")
                assert (SECRET[:10] in json.dumps(snapshot)) == sees

    asyncio.run(run())


def test_without_a_key_there_are_no_pictures_and_no_playground(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake, **KEYS) as (client, _):
            assert (await client.get("/ui/events")).status_code == 401
            assert (await client.post("/ui/play", json={"prompt": "x"})).status_code == 401

    asyncio.run(run())


def test_the_runtime_is_asked_once_for_all_viewers_and_not_at_all_without_any(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake) as (client, gateway):
            asked = 0
            ask = gateway.link.ask

            async def counting(make: Any, timeout: float = 10.0) -> wire.Reply:
                nonlocal asked
                asked += 1
                return await ask(make, timeout)

            gateway.link.ask = counting  # type: ignore[method-assign]
            began = asyncio.get_running_loop().time()
            async with AsyncExitStack() as stack:
                for _ in range(8):
                    await first(await stack.enter_async_context(viewer(app_of(client))), "snapshot")
                await asyncio.sleep(3 * PERIOD)
                periods = (asyncio.get_running_loop().time() - began) / PERIOD
                assert 1 <= asked <= periods + 2, "and once more at first: what keys have cost"
            await asyncio.sleep(0.05)
            before = asked
            await asyncio.sleep(3 * PERIOD)
            assert asked == before

    asyncio.run(run())


def test_a_viewer_hears_of_a_runtime_that_is_away_and_of_its_return(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake) as (client, gateway), viewer(app_of(client)) as found:
            await first(found, "snapshot")
            gateway.link.replace(None)
            assert "again" in (await first(found, "away"))["message"]
            gateway.link.replace(fake.connect("again"))
            await first(found, "snapshot")

    asyncio.run(run())


def test_viewers_are_let_go_when_the_server_drains(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake) as (client, gateway), viewer(app_of(client)) as found:
            await first(found, "snapshot")
            gateway.draining = True
            async with asyncio.timeout(30):
                assert [name async for name, _ in found if name == "about"] == []

    asyncio.run(run())


# --- the playground -------------------------------------------------------------------------------


def test_a_text_is_told_as_it_comes_and_its_deltas_are_the_text(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake) as (client, _):
            found = await play(client, prompt="hello", max_tokens=12)
            assert last(found, "prompt") == {"text": "hello", "tokens": 6}
            done = last(found, "done")
            assert (
                "".join(value["text"] for name, value in found if name == "delta") == done["text"]
            )
            assert (done["usage"]["generated"], done["forced"]) == (12, [])

    asyncio.run(run())


def test_the_cached_part_of_a_prompt_is_told_in_characters(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake) as (client, _):
            await play(client, prompt="straße: abc", max_tokens=1)
            done = last(await play(client, prompt="straße: xyz", max_tokens=1), "done")
            assert done["cachedText"] == len("straße: ")
            assert done["usage"]["cached"] == 1 + len(
                "straße: ".encode()
            )  # with <bos>, which has no text

    asyncio.run(run())


def test_a_chat_is_written_by_the_template(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake) as (client, _):
            messages = [
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "two"},
                {"role": "user", "content": "three"},
            ]
            found = await play(client, messages=messages, max_tokens=3)
            text = last(found, "prompt")["text"]
            assert text.index("one") < text.index("two") < text.index("three")
            assert last(found, "done")["finish"] == "length"

    asyncio.run(run())


def test_a_schema_is_kept_and_the_forced_stretches_are_named(fake: Fake) -> None:
    schema = {
        "type": "object",
        "properties": {"animal": {"enum": ["dog", "cat"]}},
        "required": ["animal"],
    }
    schema["additionalProperties"] = False  # type: ignore[assignment]

    async def run() -> None:
        async with asking(fake) as (client, _):
            done = last(await play(client, prompt="x", schema=schema, max_tokens=60), "done")
            assert json.loads(done["text"])["animal"] in ("dog", "cat")
            forced = "".join(done["text"][begin:end] for begin, end in done["forced"])
            assert forced.startswith('{"animal": "')
            assert len(forced) == done["usage"]["forced"]
            assert len(forced) < len(done["text"])

    asyncio.run(run())


def test_choices_come_with_probabilities_that_add_up_to_one(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake) as (client, _):
            chosen = last(await play(client, prompt="x", choices=["aa", "bb", "c"]), "chosen")
            shares = [option["probability"] for option in chosen["options"]]
            assert sum(shares) == pytest.approx(1.0)
            assert [option["text"] for option in chosen["options"]] == ["aa", "bb", "c"]
            assert shares[chosen["chosen"]] == max(shares)
            assert chosen["cachedText"] is None

    asyncio.run(run())


def test_forks_share_their_prompt(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake) as (client, _):
            found = await play(
                client,
                prompt="a prompt of some length",
                forks=4,
                max_tokens=5,
                temperature=1.0,
                seed=1,
            )
            done = sorted(
                (value for name, value in found if name == "done"), key=lambda value: value["index"]
            )
            assert [value["index"] for value in done] == [0, 1, 2, 3]
            assert sorted(value["usage"]["cached"] for value in done) == [0, 23, 23, 23]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({}, 400, "either prompt or messages"),
        (
            {"prompt": "x", "messages": [{"role": "user", "content": "y"}]},
            400,
            "either prompt or messages",
        ),
        ({"prompt": "x", "choices": ["a"], "forks": 2}, 400, "neither forks nor a schema"),
        ({"prompt": "x", "forks": 17}, 400, "forks"),
        ({"messages": [{"role": "wizard", "content": "y"}]}, 400, "role"),
        ({"prompt": "x", "max_tokens": 10**6}, 200, "1,000,000"),
        ({"prompt": "x", "schema": {"type": "nonsense"}}, 200, "nonsense"),
        ({"prompt": "x", "choices": [""]}, 400, "choices[0]"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(
    fake: Fake, body: dict[str, Any], status: int, says: str
) -> None:
    async def run() -> None:
        async with asking(fake) as (client, _):
            reply = await client.post("/ui/play", json=body)
            assert reply.status_code == status, reply.text
            assert says in reply.text
            if status == 200:
                assert "event: failed" in reply.text

    asyncio.run(run())


def test_a_page_of_another_site_may_not_play(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake) as (client, _):
            for site, status in (
                ("cross-site", 403),
                ("same-site", 403),
                ("same-origin", 200),
                ("none", 200),
            ):
                headers = {"sec-fetch-site": site, "host": "localhost"}
                reply = await client.post(
                    "/ui/play", json={"prompt": "x", "max_tokens": 1}, headers=headers
                )
                assert reply.status_code == status

    asyncio.run(run())


def test_a_play_whose_viewer_leaves_is_cancelled() -> None:
    async def run(fake: Fake) -> None:
        async with asking(fake) as (client, gateway):
            ask = Asgi(app_of(client), "POST", "/ui/play", body={"prompt": "x", "max_tokens": 1500})
            await ask.until(b"event: delta")
            assert gateway.open_results == 1
            await ask.leave()
            async with asyncio.timeout(30):
                while (await gateway.link.figures())["running"]:
                    await asyncio.sleep(0.02)
            assert gateway.open_results == 0

    with Fake(pace=0.01) as fake:
        asyncio.run(run(fake))


def test_a_play_without_a_runtime_is_told_so(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake, start_wait=0) as (client, gateway):
            gateway.link.replace(None)
            with pytest.raises(RuntimeGone):
                gateway.link.exchange()
            reply = await client.post("/ui/play", json={"prompt": "x"})
            assert reply.status_code == 503

    asyncio.run(run())
