"""Several keys on one server: none of them takes it all, and their calls take turns by weight."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from lmprog import wire
from lmprog.errors import InvalidParameter
from lmprog.server.app import build_app
from lmprog.server.fairness.accounts import KeyAccount, KeyAccounts
from lmprog.server.fairness.dispatch import PIECE, Dispatcher, FairQueue, cost_of
from lmprog.server.observability.meters import HELD_KINDS
from lmprog.server.options.api_keys import ApiKey, digest, keys_of
from lmprog.server.options.server_settings import ServerSettings
from tests.server.fake_runtime import Asgi, Fake, asking

PLACES = 1280


def key(name: str, **limits: Any) -> ApiKey:
    return ApiKey(name, digest(name), **limits)


def accounts(*keys: ApiKey, share: float = 0.75) -> list[KeyAccount]:
    made = KeyAccounts(keys, PLACES, share, lambda: 0.0)
    return list(made)


class Outlet:
    """Writes down what is sent."""

    def __init__(self, log: list[tuple[str, int]], name: str) -> None:
        self.log = log
        self.name = name
        self.sent: list[wire.Op] = []
        self.failed: Exception | None = None

    def send_now(self, ops: Sequence[wire.Op]) -> None:
        self.sent += ops
        self.log += [(self.name, op.call) for op in ops if isinstance(op, wire.Generate)]

    def fail(self, error: Exception) -> None:
        self.failed = error


def ops_of(numbers: Sequence[int], timeout: float | None = None) -> list[wire.Op]:
    """A request of so many prompts: branch and call have the same number."""
    sampling = wire.SamplingParams(max_tokens=1)
    return [
        op
        for number in numbers
        for op in (
            wire.Open(number),
            wire.Append(number, (wire.TextPiece("x"),)),
            wire.Generate(number, number, sampling, timeout=timeout),
        )
    ]


# --- places


def test_one_key_cannot_take_all_places_and_another_always_finds_one() -> None:
    made = KeyAccounts([key("greedy"), key("late")], PLACES, 0.75, lambda: 0.0)
    greedy, late = made
    held = 0
    while made.has_room(greedy, 64, held):
        greedy.open_results += 64
        held += 64
    assert held == 960  # three quarters
    assert made.has_room(late, 64, held)
    assert made.most_at_once(greedy) == 960


@pytest.mark.parametrize("seed", range(20))
def test_however_many_greedy_keys_there_are_a_new_one_finds_a_place(seed: int) -> None:
    rng = random.Random(seed)
    names = [key(f"k{number}", weight=rng.choice([0.5, 1.0, 4.0])) for number in range(6)]
    made = KeyAccounts([*names, key("new")], PLACES, 0.75, lambda: 0.0)
    *greedy, new = made
    for _ in range(5000):
        one, results = rng.choice(greedy), rng.choice([1, 4, 64])
        held = sum(account.open_results for account in greedy)
        if made.has_room(one, results, held):
            one.open_results += results
    held = sum(account.open_results for account in greedy)
    assert held < PLACES
    assert made.has_room(new, 1, held)


def test_a_request_that_fills_the_server_leaves_room_for_another_key(fake: Fake) -> None:
    """Two requests of 640 prompts took all 1,280 places once."""
    headers = [{"authorization": f"Bearer {name}"} for name in ("one", "two")]
    many = {"prompt": ["x"] * 640, "max_tokens": 400, "ignore_eos": True}

    async def run() -> tuple[int, httpx2.Response, httpx2.Response]:
        async with asking(fake, api_keys=("one", "two")) as (client, gateway):
            first = asyncio.create_task(
                client.post("/v1/completions", json=many, headers=headers[0])
            )
            while not gateway.open_results:
                await asyncio.sleep(0.001)
            second = await client.post("/v1/completions", json=many, headers=headers[0])
            one = {"prompt": "y", "max_tokens": 1}
            other = await client.post("/v1/completions", json=one, headers=headers[1])
            is_first_done = first.done()
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            return is_first_done, second, other

    is_first_done, second, other = asyncio.run(run())
    assert not is_first_done
    assert second.status_code == 429
    assert "kept for other keys" in second.json()["error"]["message"]
    assert int(second.headers["retry-after"]) >= 1
    assert other.status_code == 200


def test_a_single_key_may_use_the_whole_server(fake: Fake) -> None:
    async def run() -> list[int]:
        async with asking(fake, api_keys=("one",), max_running=4, max_waiting=4) as (client, _):
            body = {"prompt": ["x"] * 4, "max_tokens": 20, "ignore_eos": True}
            answers = [
                client.post("/v1/completions", json=body, headers={"x-api-key": "one"})
                for _ in range(2)
            ]
            return [answer.status_code for answer in await asyncio.gather(*answers)]

    assert asyncio.run(run()) == [200, 200]


# --- turns


def popped(queue: FairQueue[Any]) -> Any:
    return queue.pop(queue.first())


@pytest.mark.parametrize("seed", range(10))
def test_keys_that_wait_get_service_by_their_weights(seed: int) -> None:
    rng = random.Random(seed)
    weights = {"a": 1.0, "b": 2.0, "c": 5.0}
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for name, weight in weights.items():
        for _ in range(3000):
            cost = rng.randint(1, PIECE)
            queue.push(name, weight, cost, (name, cost))
    served: Counter[str] = Counter()
    for _ in range(2000):  # none of them runs dry
        name, cost = popped(queue)
        served[name] += cost
        normal = [served[name] / weight for name, weight in weights.items()]
        assert max(normal) - min(normal) <= 2 * PIECE


def test_a_key_that_was_idle_has_saved_up_nothing() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(1000):
        queue.push("busy", 1.0, 1.0, "busy")
        popped(queue)
    for _ in range(4):
        queue.push("busy", 1.0, 1.0, "busy")
        queue.push("idle", 1.0, 1.0, "idle")
    assert sorted(popped(queue) for _ in range(4)) == ["busy", "busy", "idle", "idle"]
    assert len(queue) == 4


def test_long_lists_of_choices_cost_a_key_what_they_take_and_short_ones_a_result() -> None:
    long = wire.Select(1, 1, tuple(f"{number:0380}" for number in range(1024)))
    short = wire.Select(1, 1, ("yes", "no", "perhaps"))
    assert cost_of(short) == 1
    assert 900 < cost_of(long) < 1024
    queue: FairQueue[int] = FairQueue()
    for number in (1, 2):
        queue.push("many", 1.0, cost_of(long), number)
    for number in range(3, 9):
        queue.push("few", 1.0, cost_of(short), number)
    assert [popped(queue) for _ in range(8)] == [1, 3, 4, 5, 6, 7, 8, 2]


def test_the_runtime_gets_no_more_than_it_computes_and_another_key_comes_at_once() -> None:
    log: list[tuple[str, int]] = []
    large, small = Outlet(log, "large"), Outlet(log, "small")
    one, two = accounts(key("one"), key("two"))
    dispatcher = Dispatcher(32, lambda: 0.0)
    dispatcher.put(large, one, ops_of(range(640)))
    assert dispatcher.in_runtime == len(log) == 32
    dispatcher.put(small, two, ops_of([1000]))
    assert log[-1] == ("small", 1000)
    for call in itertools.chain(range(640), [1000]):
        dispatcher.ended(call)
    assert dispatcher.in_runtime == 0
    assert large.sent == ops_of(range(640))
    assert len(log) == 641


def test_no_calls_of_others_keep_a_key_from_its_part_of_the_runtime() -> None:
    """Two calls of 128 results took all 256 places, and another key's two tokens waited until the
    first of them had ended: 10 s of processor time.
    """
    log: list[tuple[str, int]] = []
    greedy, late, heavy = accounts(key("greedy"), key("late"), key("heavy", weight=2.0))
    dispatcher = Dispatcher(256, lambda: 0.0)
    for number in range(8):
        sampling = wire.SamplingParams(max_tokens=2000, n=128)
        call = wire.Generate(number, number, sampling)
        dispatcher.put(Outlet(log, "greedy"), greedy, [wire.Open(number), call])
    assert dispatcher.in_runtime == 256
    for number in range(1000, 1200):
        dispatcher.put(Outlet(log, "late"), late, ops_of([number]))
    assert Counter(name for name, _ in log) == {"greedy": 2, "late": 128}
    for number in range(2000, 2200):
        dispatcher.put(Outlet(log, "heavy"), heavy, ops_of([number]))
    assert Counter(name for name, _ in log)["heavy"] == 128
    for number in range(1000, 1065):
        dispatcher.ended(number)  # of its quarter, 64, it has 63 now
    assert Counter(name for name, _ in log) == {"greedy": 2, "late": 129, "heavy": 128}
    for number in (*range(8), *range(1000, 2200)):
        dispatcher.ended(number)
    assert dispatcher.in_runtime == 0


def test_who_leaves_is_forgotten_and_only_its_open_branches_are_closed() -> None:
    log: list[tuple[str, int]] = []
    large, small = Outlet(log, "large"), Outlet(log, "small")
    one, two = accounts(key("one"), key("two"))
    dispatcher = Dispatcher(16, lambda: 0.0)
    dispatcher.put(large, one, ops_of(range(64)))
    assert dispatcher.leave(large) == frozenset(range(16, 64))
    for call in range(16):
        dispatcher.ended(call)
    assert len(log) == 16
    dispatcher.put(small, two, ops_of([100]))
    assert log[-1] == ("small", 100)
    assert dispatcher.leave(small) == frozenset()


def test_time_spent_waiting_for_a_turn_counts_against_the_timeout() -> None:
    now = 0.0
    log: list[tuple[str, int]] = []
    outlet = Outlet(log, "x")
    (one,) = accounts(key("one"))
    dispatcher = Dispatcher(1, lambda: now)
    dispatcher.put(Outlet(log, "first"), one, ops_of([0]))
    dispatcher.put(outlet, one, ops_of([1], timeout=10.0))
    now = 4.0
    dispatcher.ended(0)
    (timeout,) = [op.timeout for op in outlet.sent if isinstance(op, wire.Generate)]
    assert timeout == pytest.approx(6.0)


def test_answers_are_the_same_in_turns_and_at_once(fake: Fake) -> None:
    body = {"prompt": [f"text {number}" for number in range(40)], "max_tokens": 4, "temperature": 0}

    async def run(**settings: Any) -> list[str]:
        async with asking(fake, **settings) as (client, gateway):
            answers = [
                client.post("/v1/completions", json=body, headers={"x-api-key": name})
                for name in ("one", "two")
            ]
            texts = [
                choice["text"]
                for answer in await asyncio.gather(*answers)
                for choice in answer.json()["choices"]
            ]
            assert gateway.open_results == 0
            return texts

    alone = asyncio.run(run())
    assert asyncio.run(run(api_keys=("one", "two"), max_running=5)) == alone


def test_a_client_that_leaves_while_it_waits_for_its_turn_leaves_nothing(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake, api_keys=("one", "two"), max_running=2) as (client, gateway):
            body = {"prompt": ["x"] * 100, "max_tokens": 300, "ignore_eos": True}
            headers = {"x-api-key": "one"}
            large = asyncio.create_task(client.post("/v1/completions", json=body, headers=headers))
            while not gateway.open_results:
                await asyncio.sleep(0.001)
            large.cancel()
            await asyncio.gather(large, return_exceptions=True)
            while gateway.open_results:
                await asyncio.sleep(0.001)
            one = {"prompt": "y", "max_tokens": 1}
            answer = await client.post("/v1/completions", json=one, headers=headers)
            assert answer.status_code == 200

    asyncio.run(run())


# --- priority and tokens


@pytest.mark.parametrize(
    ("settings", "priority", "status"),
    [
        ({}, 100, 200),
        ({"api_keys": ("one",)}, 100, 200),
        ({"api_keys": ("one", "two")}, 0, 200),
        ({"api_keys": ("one", "two")}, -5, 200),
        ({"api_keys": ("one", "two")}, 1, 400),
        ({"api_keys": ("one", "two"), "max_priority": 10}, 10, 200),
        ({"api_keys": ("one", "two"), "max_priority": 10}, 11, 400),
    ],
)
def test_a_key_claims_no_higher_priority_than_it_may(
    fake: Fake, settings: dict[str, Any], priority: int, status: int
) -> None:
    async def run() -> httpx2.Response:
        async with asking(fake, **settings) as (client, _):
            body = {"prompt": "x", "max_tokens": 1, "priority": priority}
            return await client.post("/v1/completions", json=body, headers={"x-api-key": "one"})

    answer = asyncio.run(run())
    assert answer.status_code == status, answer.text
    if status == 400:
        assert answer.json()["error"]["param"] == "priority"


@pytest.mark.parametrize(
    ("body", "asked", "told"),
    [
        ({"priority": 5, "osl": 40}, (5, 40), ()),
        ({"priority": 11, "osl": 0}, (10, None), ("nvext.agent_hints.priority is lowered to 10",)),
        ({"priority": -1000}, (-100, None), ()),
        (
            {"speculative_prefill": True, "strict_priority": 1},
            (0, None),
            ("nvext.agent_hints.strict_priority has no effect",),
        ),
        ({"speculative_prefill": False, "strict_priority": 0}, (0, None), ()),
    ],
)
def test_hints_of_harnesses_are_followed_or_said_to_have_no_effect(
    fake: Fake,
    monkeypatch: pytest.MonkeyPatch,
    body: dict[str, Any],
    asked: tuple[int, int | None],
    told: tuple[str, ...],
) -> None:
    groups, submit = list[Any](), fake.scheduler.submit

    def submitted(group: Any, *more: Any) -> Any:
        groups.append((group.priority, group.expected))
        return submit(group, *more)

    monkeypatch.setattr(fake.scheduler, "submit", submitted)
    nvext = {"agent_hints": body}
    texts = {"messages": [{"role": "user", "content": "x"}]}, {"prompt": "x", "priority": 3}

    async def run() -> list[httpx2.Response]:
        async with asking(fake, api_keys=("one", "two"), max_priority=10) as (client, _):
            return [
                await client.post(
                    f"/v1/{route}completions",
                    json={**text, "max_tokens": 1, "nvext": nvext},
                    headers={"x-api-key": "one"},
                )
                for route, text in zip(("chat/", ""), texts, strict=True)
            ]

    chat, completion = asyncio.run(run())
    assert (chat.status_code, completion.status_code) == (200, 200), chat.text
    assert groups == [asked, (3, asked[1])], "its own priority goes before the hint's"
    said = chat.headers.get("warning", "")
    assert said.count("nvext") == len(told)
    assert all(text in said for text in told)
    said = completion.headers.get("warning", "")
    assert ("speculative_prefill has no effect" in said) == bool(body.get("speculative_prefill"))


def test_health_is_asked_with_any_key(fake: Fake) -> None:
    async def run() -> int:
        async with asking(fake, api_keys=("one", "two")) as (client, _):
            answer = await client.get("/health_generate", headers={"x-api-key": "one"})
            return answer.status_code

    assert asyncio.run(run()) == 200


def test_a_bucket_of_tokens_fills_by_the_minute() -> None:
    now = 0.0
    account = KeyAccount(key("a", tokens_per_minute=600.0), lambda: now)
    account.use(400, 100)
    assert account.seconds_until_tokens() == 0.0
    account.use(0, 300)  # what is under way may finish
    assert account.seconds_until_tokens() == pytest.approx(20.1)
    now = 20.2
    assert account.seconds_until_tokens() == 0.0
    now = 3600.0
    account.use(600, 0)
    assert account.seconds_until_tokens() > 0  # no more than one minute is saved up


FILE = """
[alice]
key = "alices"
tokens_per_minute = 20
max_priority = 7

[bob]
sha256 = "{bob}"
weight = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(FILE.format(bob=digest("bobs").hex()))
    return path


def test_tokens_of_a_minute_are_refused_beyond_what_a_key_has(fake: Fake, file: Path) -> None:
    async def run() -> list[httpx2.Response]:
        async with asking(fake, api_key_file=str(file)) as (client, _):
            body = {"prompt": "abcd", "max_tokens": 30, "ignore_eos": True}
            return [
                await client.post("/v1/completions", json=body, headers={"x-api-key": name})
                for name in ("alices", "alices", "bobs", "bobs")
            ]

    first, second, *others = asyncio.run(run())
    assert first.status_code == 200
    assert second.status_code == 429
    assert second.json()["error"]["code"] == "tokens_per_minute"
    assert int(second.headers["retry-after"]) > 30
    assert [answer.status_code for answer in others] == [200, 200]


def test_usage_is_shown_by_the_keys_names(fake: Fake, file: Path) -> None:
    async def run() -> tuple[str, str]:
        settings = {"api_key_file": str(file), "admin_key": "admins"}
        async with asking(fake, **settings) as (client, _):
            body = {"prompt": "abcd", "max_tokens": 3, "ignore_eos": True, "stream": True}
            await client.post("/v1/completions", json=body, headers={"x-api-key": "bobs"})
            seen = [
                (await client.get("/metrics", headers={"x-api-key": name})).text
                for name in ("admins", "bobs")
            ]
            return seen[0], seen[1]

    by_admin, by_user = asyncio.run(run())
    assert 'lmprog_key_generation_tokens_total{key="bob",model_name="fake"} 3.0' in by_admin
    found = re.search(r'lmprog_prompt_tokens_total{model_name="fake"} (\S+)', by_admin)
    assert found is not None
    prompt = f'lmprog_key_prompt_tokens_total{{key="bob",model_name="fake"}} {found[1]}'
    assert prompt in by_admin
    assert 'lmprog_key_results_open{key="bob",model_name="fake"} 0.0' in by_admin
    for figure in (
        'cost_seconds_total{key="bob",kind="step"',
        'cost_seconds_total{key="bob",kind="host"',
    ):
        cost = re.search(rf'lmprog_key_{figure},model_name="fake"}} (\S+)', by_admin)
        assert cost is not None, figure
        assert float(cost[1]) > 0
    for cause in ("memory", "place", "load", "step"):
        assert f'lmprog_key_waited_seconds_total{{cause="{cause}",key="bob"' in by_admin
    assert 'key_cost_seconds_total{key="alice"' not in by_admin, "she asked nothing"
    for kind in HELD_KINDS:
        held = f'lmprog_key_bytes_held{{key="bob",kind="{kind}",model_name="fake"}} 0.0'
        assert held in by_admin, "there from the beginning"
        assert f'lmprog_bytes_held{{kind="{kind}",model_name="fake"}} 0.0' in by_user
    for total in ('cost_seconds_total{kind="step"', 'waited_seconds_total{cause="step"'):
        assert f"lmprog_{total}" in by_user, "of all together"
    assert "bobs" not in by_admin
    assert "lmprog_key_" not in by_user


# --- the file


def test_a_file_of_keys_says_what_each_may_do(file: Path) -> None:
    alice, bob = keys_of(ServerSettings(api_key_file=str(file)))
    assert (alice.name, alice.tokens_per_minute, alice.max_priority) == ("alice", 20.0, 7)
    assert (bob.digest, bob.weight, bob.max_priority) == (digest("bobs"), 3.0, 0)


def test_keys_are_read_again_and_a_broken_file_changes_nothing(fake: Fake, file: Path) -> None:
    async def run() -> None:
        async with asking(fake, api_key_file=str(file)) as (client, gateway):

            async def status(name: str) -> int:
                return (await client.get("/v1/models", headers={"x-api-key": name})).status_code

            assert [await status(name) for name in ("alices", "bobs", "carols")] == [200, 200, 401]
            gateway.accounts.get(gateway.keyring.keys[0]).use(5, 5)  # type: ignore[union-attr]
            file.write_text('[alice]\nkey = "alices"\n[carol]\nkey = "carols"\n')
            gateway.reload_keys()
            assert [await status(name) for name in ("alices", "bobs", "carols")] == [200, 401, 200]
            assert [account.prompt_tokens for account in gateway.accounts] == [5, 0]
            file.write_text("[alice")
            with pytest.raises(InvalidParameter, match="TOML"):
                gateway.reload_keys()
            assert await status("carols") == 200

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\n", "either key or sha256"),
        ('[a]\nkey = "x"\nsha256 = "y"\n', "either key or sha256"),
        ('[a]\nsha256 = "y"\n', "64 hexadecimal digits"),
        ('[a]\nkey = "x"\nweight = 0\n', "weight"),
        ('[a]\nkey = "x"\nwieght = 1\n', "wieght"),
        ('[a]\nkey = "x"\ntokens_per_minute = 0\n', "tokens_per_minute"),
        ('["a b"]\nkey = "x"\n', "name"),
        ('[a]\nkey = "x"\n[b]\nkey = "x"\n', "the same key"),
        ("x = [", "TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(InvalidParameter, match=message):
        keys_of(ServerSettings(api_key_file=str(path)))


def test_a_file_of_keys_closes_the_server_even_when_it_is_empty(fake: Fake, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text("")

    async def run() -> int:
        async with asking(fake, api_key_file=str(path)) as (client, _):
            return (await client.get("/v1/models")).status_code

    assert asyncio.run(run()) == 401


def test_without_keys_work_is_on_the_account_of_the_address_that_asks(fake: Fake) -> None:
    async def run() -> set[str]:
        async with asking(fake) as (_, gateway):
            app = build_app(gateway)
            body = {"prompt": "hello", "max_tokens": 3}
            for client in ("10.0.0.1", "10.0.0.2"):
                for path in ("/v1/completions", "/tokenize"):
                    request = Asgi(app, "POST", path, body=body, client=client)
                    await request.task
                    assert request.status == 200
            return set((await gateway.link.described()).accounts)

    assert {"10.0.0.1", "10.0.0.2"} <= asyncio.run(run())
