"""Who shares the cache: the same key finds what it left, another key never does, and a client
cannot choose.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmprog.errors import InvalidParameter
from lmprog.server.options.api_keys import key_of_caches
from lmprog.server.options.server_settings import ServerSettings
from lmprog.transport.address import write_keys
from tests.server.fake_runtime import Fake, asking

FLEET: dict[str, Any] = {"join": ("tcp://127.0.0.1:7000",)}
PROMPT = "A prompt that is long enough to fill some pages of the cache."
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2},
    "/v1/responses": {"input": PROMPT, "max_output_tokens": 16},
    "/generate": {"text": PROMPT, "sampling_params": {"max_new_tokens": 2}},
}


def cached(answer: dict[str, Any]) -> int:
    """Of the prompt, in whichever dialect."""
    if "meta_info" in answer:
        return int(answer["meta_info"]["cached_tokens"])
    usage = answer["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    return int(details["cached_tokens"])


def asked(
    fake: Fake, path: str, keys: list[str], more: dict[str, Any] | None = None, **settings: Any
) -> list[int]:
    """Cached tokens of the same request, sent once with each of the keys."""

    async def run() -> list[int]:
        found = []
        async with asking(fake, **settings) as (client, _):
            for key in keys:
                headers = {"authorization": f"Bearer {key}"} if key else {}
                response = await client.post(
                    path, json={**ROUTES[path], **(more or {})}, headers=headers
                )
                assert response.status_code == 200, response.text
                found.append(cached(response.json()))
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("path", ROUTES)
def test_with_two_keys_each_finds_its_own_prefix_and_never_the_others(
    fake: Fake, path: str
) -> None:
    first, again, other, other_again = asked(fake, path, ["a", "a", "b", "b"], api_keys=("a", "b"))
    assert first == 0
    assert again > 0
    assert other == 0
    assert other_again == again
    fake.end()  # nobody else looks at the scheduler now
    fake.scheduler.check()


@pytest.mark.parametrize("path", ROUTES)
def test_shared_isolation_shares_among_keys(fake: Fake, path: str) -> None:
    first, other = asked(fake, path, ["a", "b"], api_keys=("a", "b"), cache_isolation="shared")
    assert first == 0
    assert other > 0


@pytest.mark.parametrize("path", ROUTES)
def test_strict_isolation_shares_nothing_with_anybody(fake: Fake, path: str) -> None:
    assert asked(fake, path, ["a", "a", "b"], api_keys=("a", "b"), cache_isolation="strict") == [
        0,
        0,
        0,
    ]


def test_one_key_or_none_shares_by_default(fake: Fake) -> None:
    first, again = asked(fake, "/v1/completions", ["", ""])
    assert first == 0 < again


def test_a_salt_of_the_client_is_mixed_in_under_its_key(fake: Fake) -> None:
    """The same salt with another key is another cache: nobody reaches another's cache by guessing a
    salt.
    """
    settings: dict[str, Any] = {"api_keys": ("a", "b"), "allow_cache_salt": True}
    first, again, other = asked(
        fake, "/v1/completions", ["a", "a", "b"], {"cache_salt": "s"}, **settings
    )
    assert (first, other) == (0, 0)
    assert again > 0
    unsalted, *_ = asked(fake, "/v1/completions", ["a"], **settings)
    assert unsalted == 0


def test_salts_are_not_the_same_in_two_servers(fake: Fake) -> None:
    """Whoever knows a key cannot compute its salt: a server's secret is in it."""
    counts = [asked(fake, "/v1/completions", ["a"], api_keys=("a", "b"))[0] for _ in range(3)]
    assert counts == [0, 0, 0]
    salts = {root.salt for root in fake.scheduler.tree.roots()}
    assert len(salts) == 3
    assert all(len(salt) == 33 for salt in salts)


LISTED = "You answer questions about the sea, shortly and without any ornament. "
SYSTEM = {"role": "system", "content": "You are the harbour master, and you know every ship."}


def public(folder: Path) -> list[Path]:
    (folder / "sea.txt").write_text(LISTED)
    (folder / "sea and lakes.txt").write_text(LISTED + "And about lakes. ")
    (folder / "master.json").write_text(json.dumps([SYSTEM]))
    return list(folder.iterdir())


@pytest.fixture(params=[1, 4, 16, 64])
def with_public(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fake]:
    with Fake(public=public(tmp_path), page_size=request.param) as fake:
        yield fake
    fake.scheduler.check()


BEGUN = 1 + len(LISTED)  # tokens: bytes, after the one that begins every text


def test_keys_share_exactly_the_listed_text_and_each_has_the_rest_for_itself(
    with_public: Fake,
) -> None:
    prompt = LISTED + "How deep is it in the middle?"

    async def run() -> list[int]:
        found = []
        async with asking(with_public, api_keys=("a", "b")) as (client, _):
            for key, text in [
                ("a", prompt),
                ("b", prompt),
                ("b", prompt),
                ("a", LISTED + "How warm?"),
                ("b", LISTED + "How warm?"),
                ("a", LISTED),
                ("b", LISTED),
                ("b", LISTED[:-1] + "?"),
            ]:
                body = {"prompt": text, "max_tokens": 4}
                response = await client.post(
                    "/v1/completions", json=body, headers={"authorization": f"Bearer {key}"}
                )
                found.append(cached(response.json()))
        return found

    how = len("How ")
    last = len(prompt)  # the last token is always computed, for its logits
    assert asyncio.run(run()) == [0, BEGUN, last, BEGUN + how, BEGUN + how, BEGUN - 1, BEGUN - 1, 0]


def test_a_longer_listed_text_is_shared_as_far_as_it_is_contained_whole(with_public: Fake) -> None:
    lakes = LISTED + "And about lakes. "

    async def run() -> list[int]:
        found = []
        async with asking(with_public, api_keys=("a", "b")) as (client, _):
            for key, text in [
                ("a", lakes + "x"),
                ("b", lakes + "y"),
                ("b", LISTED + "And about lak"),
                ("b", "You answer"),
            ]:
                response = await client.post(
                    "/v1/completions",
                    json={"prompt": text, "max_tokens": 4},
                    headers={"authorization": f"Bearer {key}"},
                )
                found.append(cached(response.json()))
        return found

    assert asyncio.run(run()) == [0, 1 + len(lakes), BEGUN, 0]


def test_a_listed_system_message_is_shared_up_to_where_users_begin(with_public: Fake) -> None:
    async def run() -> list[int]:
        found = []
        async with asking(with_public, api_keys=("a", "b")) as (client, _):
            for key, text in [
                ("a", "Who comes?"),
                ("b", "Who comes?"),
                ("b", "Who comes?"),
                ("a", "Who goes?"),
            ]:
                messages = [SYSTEM, {"role": "user", "content": text}]
                response = await client.post(
                    "/v1/chat/completions",
                    json={"messages": messages, "max_tokens": 4},
                    headers={"authorization": f"Bearer {key}"},
                )
                found.append(cached(response.json()))
        return found

    head = (
        1 + 1 + len(SYSTEM["content"]) + 1 + 1
    )  # bos, the turn's two ends, and the user's beginning
    assert asyncio.run(run()) == [0, head, head + len("Who comes?") + 1, head + len("Who ")]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"cache_isolation": "strict"}, 0), ({"allow_cache_salt": True}, 0)],
    ids=["strict", "a cache of its own"],
)
def test_who_shares_with_nobody_shares_no_listed_text_either(
    with_public: Fake, settings: dict[str, Any], expected: int
) -> None:
    more = {"prompt": LISTED + "x"} | (
        {"cache_salt": "own"} if "allow_cache_salt" in settings else {}
    )
    found = asked(with_public, "/v1/completions", ["a", "b"], more, api_keys=("a", "b"), **settings)
    assert found == [0, expected]


def test_answers_are_the_same_with_listed_texts_and_without(tmp_path: Path) -> None:
    def answers(paths: list[Path]) -> list[str]:
        async def run(fake: Fake) -> list[str]:
            found = []
            async with asking(fake, api_keys=("a", "b")) as (client, _):
                for key in "abba":
                    for more in ("", "x", "xy", "And about lakes. z"):
                        response = await client.post(
                            "/v1/completions",
                            json={
                                "prompt": LISTED + more,
                                "max_tokens": 12,
                                "temperature": 0,
                                "ignore_eos": True,
                            },
                            headers={"authorization": f"Bearer {key}"},
                        )
                        found.append(response.json()["choices"][0]["text"])
            return found

        with Fake(public=paths) as fake:
            return asyncio.run(run(fake))

    assert answers([]) == answers(public(tmp_path))


@pytest.mark.parametrize(
    "content", [None, "{", "{}", "[]", "[1]", '[{"role": "wizard", "content": "x"}]']
)
def test_a_list_that_cannot_be_used_is_refused_with_its_name(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "mine.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidParameter, match=r"mine\.json"):
        Fake(public=[path])


def test_gateways_with_one_secret_give_a_key_the_same_cache(fake: Fake, tmp_path: Path) -> None:
    """Two of them, or one that was started again: what the other left is found, by its key alone."""
    path, made = "/v1/completions", tmp_path / "secret"
    both: dict[str, Any] = {"api_keys": ("a", "b")}
    both["cache_key_file"] = str(made)
    _, all_found = asked(fake, path, ["a", "a"], **both)
    assert asked(fake, path, ["a", "b"], **both) == [all_found, 0]
    del both["cache_key_file"]
    assert asked(fake, path, ["a"], **both) == [0], "without, each start has a secret of its own"
    assert len(made.read_text()) == 64
    assert made.stat().st_mode & 0o077 == 0
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["secret"]


def test_the_keys_of_a_fleet_are_a_secret_that_its_gateways_share(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_keys(tmp_path / name)

    def made_of(name: str) -> bytes:
        return key_of_caches(ServerSettings(**FLEET, keys=str(tmp_path / name)))

    assert made_of("one") == made_of("one") != made_of("other")
    assert len(made_of("one")) == 32
    with pytest.raises(InvalidParameter, match="No such file"):
        made_of("none")


def test_a_secret_that_cannot_be_used_is_an_error_at_the_start(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("abc")
    for place, why in (("short", "less than 32 characters"), ("no/folder", "No such file")):
        with pytest.raises(InvalidParameter, match=why):
            asked(fake, "/generate", [""], cache_key_file=str(tmp_path / place))
