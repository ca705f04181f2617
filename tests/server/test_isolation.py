"""Who shares the cache: the same key finds what it left, another key never does, and a client cannot choose."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.server.fake_runtime import Fake, asking

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


def asked(fake: Fake, path: str, keys: list[str], more: dict[str, Any] | None = None, **settings: Any) -> list[int]:
    """Cached tokens of the same request, sent once with each of the keys."""

    async def run() -> list[int]:
        found = []
        async with asking(fake, **settings) as (client, _):
            for key in keys:
                headers = {"authorization": f"Bearer {key}"} if key else {}
                response = await client.post(path, json={**ROUTES[path], **(more or {})}, headers=headers)
                assert response.status_code == 200, response.text
                found.append(cached(response.json()))
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("path", ROUTES)
def test_with_two_keys_each_finds_its_own_prefix_and_never_the_others(fake: Fake, path: str) -> None:
    first, again, other, other_again = asked(fake, path, ["a", "a", "b", "b"], api_keys=("a", "b"))
    assert first == 0
    assert again > 0
    assert other == 0
    assert other_again == again
    fake.scheduler.check()


@pytest.mark.parametrize("path", ROUTES)
def test_shared_isolation_shares_among_keys(fake: Fake, path: str) -> None:
    first, other = asked(fake, path, ["a", "b"], api_keys=("a", "b"), cache_isolation="shared")
    assert first == 0
    assert other > 0


@pytest.mark.parametrize("path", ROUTES)
def test_strict_isolation_shares_nothing_with_anybody(fake: Fake, path: str) -> None:
    assert asked(fake, path, ["a", "a", "b"], api_keys=("a", "b"), cache_isolation="strict") == [0, 0, 0]


def test_one_key_or_none_shares_by_default(fake: Fake) -> None:
    first, again = asked(fake, "/v1/completions", ["", ""])
    assert first == 0 < again


def test_a_salt_of_the_client_is_mixed_in_under_its_key(fake: Fake) -> None:
    """The same salt with another key is another cache: nobody reaches another's cache by guessing a salt."""
    settings: dict[str, Any] = {"api_keys": ("a", "b"), "allow_cache_salt": True}
    first, again, other = asked(fake, "/v1/completions", ["a", "a", "b"], {"cache_salt": "s"}, **settings)
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
    assert all(len(salt) == 32 for salt in salts)
