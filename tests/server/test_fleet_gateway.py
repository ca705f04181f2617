"""What a gateway tells of its replicas, and a gateway before runtimes that run elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from rich.console import Console

from lmprog import wire
from lmprog.cli.top import drawn
from lmprog.errors import InvalidParameter
from lmprog.fleet.questions import summed
from lmprog.fleet.replica_link import ReplicaState
from lmprog.launch import RuntimeProcess
from lmprog.server.http.http_server import bind, url_of
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.page.requests_view import Viewer
from lmprog.server.page.watching import Watcher
from lmprog.server.service import ServerService
from lmprog.server.supervision.supervised_fleet import joined_runtimes
from lmprog.transport import write_keys
from tests.server.fake_runtime import Fake, asking

PATIENCE = 120.0
FIGURES = {"pid": 7.0, "running": 2.0, "generated_tokens": 30.0, "pages": 10.0, "pages_free": 4.0}


@dataclass
class ToldFleet:
    """A fleet of which everything is made up."""

    states: list[ReplicaState]
    size: int = 3
    num_moved: int = 5
    drained: list[tuple[str, float]] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def replicas(self) -> Sequence[ReplicaState]:
        return self.states

    def figures(self) -> Mapping[str, float]:
        return summed([one.figures for one in self.states])

    def drain(self, name: str, seconds: float) -> None:
        if name not in [one.name for one in self.states]:
            raise InvalidParameter(f"there is no replica {name!r}", name="replica")
        self.drained.append((name, seconds))


def told() -> ToldFleet:
    return ToldFleet(
        [
            ReplicaState("replica-1", 4, False, True, FIGURES),
            ReplicaState("replica-2", 1, True, False, {**FIGURES, "pid": 8.0}),
        ]
    )


def test_metrics_and_routes_tell_of_each_replica_and_drain_one() -> None:
    async def run() -> None:
        with Fake() as fake:
            async with asking(fake) as (client, gateway):
                assert (await client.get("/fleet")).json()["replicas"] == []
                refused = await client.post("/fleet/drain", json={"replica": "replica-1"})
                assert refused.status_code == 400
                gateway.fleet = fleet = told()
                metrics = (await client.get("/metrics")).text
                for line in (
                    'lmprog_replica_up{model_name="fake",replica="replica-1"} 1.0',
                    'lmprog_replica_up{model_name="fake",replica="replica-2"} 0.0',
                    'lmprog_replica_draining{model_name="fake",replica="replica-2"} 1.0',
                    'lmprog_replica_programs{model_name="fake",replica="replica-1"} 4.0',
                    'lmprog_num_requests_running{model_name="fake",replica="replica-2"} 2.0',
                    'lmprog_replicas_wanted{model_name="fake"} 3.0',
                    'lmprog_programs_moved_total{model_name="fake"} 5.0',
                ):
                    assert line in metrics.splitlines()
                fleet.states = [ReplicaState("replica-1", 0, False, True, {"pid": 9.0})]
                metrics = (await client.get("/metrics")).text  # one died, one was started again
                assert 'requests_running{model_name="fake",replica="replica-2"}' not in metrics
                for name in ("replica-1", "replica-2"):  # what they had counted stays counted
                    total = f'generation_tokens_total{{model_name="fake",replica="{name}"}} 30.0'
                    assert f"lmprog_{total}" in metrics.splitlines()
                body = {"replica": "replica-1", "seconds": 2}
                answer = await client.post("/fleet/drain", json=body)
                assert answer.json()["replicas"][0]["name"] == "replica-1"
                assert fleet.drained == [("replica-1", 2.0)]
                unknown = await client.post("/fleet/drain", json={"replica": "x"})
                assert unknown.status_code == 400
                assert unknown.json()["error"]["param"] == "replica"

    asyncio.run(run())


def test_pictures_have_all_replicas_and_the_sums_of_their_figures() -> None:
    async def run() -> dict[str, object]:
        with Fake() as fake:
            async with asking(fake) as (_, gateway):
                gateway.fleet = told()
                async for frame in Watcher(gateway).frames(Viewer(True, "", False)):
                    _, found, data = frame.decode().partition("event: snapshot\ndata: ")
                    if found:
                        picture: dict[str, object] = json.loads(data)
                        return picture
        raise AssertionError("no picture came")

    picture = asyncio.run(run())
    figures = picture["figures"]
    assert isinstance(figures, dict)
    assert figures["pages"] == 20.0
    fleet = picture["fleet"]
    assert isinstance(fleet, dict)
    assert [one["name"] for one in fleet["replicas"]] == ["replica-1", "replica-2"]


def test_top_shows_replicas_and_how_many_are_missing() -> None:
    states = [
        {"name": "replica-1", "programs": 4, "draining": False, "responsive": True},
        {"name": "replica-2", "programs": 0, "draining": True, "responsive": True},
    ]
    numbers = ("running", "waiting", "pages", "pagesFree", "cachedTokens", "lookedUpTokens")
    replicas = [{**one, **dict.fromkeys(numbers, 1), "generatedTokens": 1} for one in states]
    names = ("pages", "pages_free", "pages_evictable", "pages_pinned", "pages_cached", "page_size")
    counted = ("cached_tokens", "prefill_tokens", "calls_done", "generated_tokens", "tree_nodes")
    picture = {
        "about": {"model": "m"},
        "clock": 1.0,
        "figures": dict.fromkeys((*names, *counted), 1.0),
        "running": [],
        "runningLeftOut": 0,
        "waiting": [],
        "waitingLeftOut": 0,
        "nodes": [],
        "fleet": {"size": 3, "moved": 0, "replicas": replicas, "shown": None},
    }
    console = Console(width=120)
    with console.capture() as capture:
        console.print(drawn(picture, None))
    text = capture.get()
    assert "replica-1" in text
    assert "draining" in text
    assert "1 not there" in text


@pytest.mark.parametrize("header", ["one", ""])
def test_a_requests_session_goes_with_its_programs(header: str) -> None:
    async def run() -> list[wire.Op]:
        with Fake() as fake:
            async with asking(fake) as (client, gateway):
                connection = gateway.link._connection
                assert connection is not None
                sent: list[wire.Op] = []
                send = connection.send

                def noted(ops: Sequence[wire.Op]) -> None:
                    sent.extend(ops)
                    send(ops)

                connection.send = noted  # type: ignore[method-assign]
                for path, body in (
                    ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
                    ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 1}}),
                ):
                    headers = {"x-session-id": header} if header else {}
                    answer = await client.post(path, json=body, headers=headers)
                    assert answer.status_code == 200
                return sent

    sessions = [op.session for op in asyncio.run(run()) if isinstance(op, wire.Open)]
    assert len(sessions) == 2
    assert len(set(sessions)) == 1
    assert header not in sessions or not header, "the wire carries a digest, not the name"
    assert bool(sessions[0]) == bool(header)


def test_a_gateway_joins_runtimes_by_keys_and_goes_on_when_one_is_told_to_stop(
    tmp_path: Path,
) -> None:
    keys = tmp_path / "keys"
    write_keys(keys)
    options: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_memory_mb": 32}
    options["keys"] = str(keys)

    async def run() -> None:
        runtimes = [
            RuntimeProcess("dummy:tiny", address="tcp://127.0.0.1:*", **options) for _ in range(2)
        ]
        addresses = [one.address for one in runtimes]
        settings = ServerSettings(port=0)
        bound = bind(settings)
        service = ServerService(settings, joined_runtimes(addresses, str(keys)))
        serving = asyncio.create_task(service.run(bound, lambda facts: None))
        base = url_of(bound)
        try:
            async with httpx2.AsyncClient(
                base_url=base, timeout=PATIENCE, trust_env=False
            ) as client:

                async def until_there(count: int) -> None:
                    async with asyncio.timeout(PATIENCE):
                        while len((await client.get("/fleet")).json()["replicas"]) != count:
                            await asyncio.sleep(0.05)

                await until_there(2)
                body = {"max_tokens": 60, "ignore_eos": True}
                asked = [
                    client.post("/v1/completions", json={**body, "prompt": f"{n} times"})
                    for n in range(12)
                ]
                answers = asyncio.gather(*asked)
                fleet = service.gateway.fleet
                assert fleet is not None
                while sum(one.programs for one in fleet.replicas()) < 8:
                    await asyncio.sleep(0.005)
                await asyncio.to_thread(runtimes[0].close)
                assert [one.status_code for one in await answers] == [200] * 12
                await until_there(1)
                assert (await client.get("/ready")).status_code == 200
                runtimes[0] = await asyncio.to_thread(
                    lambda: RuntimeProcess("dummy:tiny", address=addresses[0], **options)
                )
                await until_there(2)
                service.ask_to_stop()
                assert await asyncio.wait_for(serving, PATIENCE)
            assert all(one.alive for one in runtimes), "what was only joined is not ended"
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            for one in runtimes:
                one.close(0.0)

    asyncio.run(run())


def test_a_gateway_whose_model_was_replaced_everywhere_begins_anew_with_the_new_one() -> None:
    """It refuses the new one while somebody has the old one."""
    options: dict[str, Any] = {"threads": 1, "kv_memory_mb": 32}

    async def run() -> None:
        runtimes = [
            RuntimeProcess("dummy:tiny", address="tcp://127.0.0.1:*", **options) for _ in range(2)
        ]
        addresses = [one.address for one in runtimes]
        bound = bind(settings := ServerSettings(port=0))
        service = ServerService(settings, joined_runtimes(addresses, None))
        serving = asyncio.create_task(service.run(bound, lambda facts: None))
        try:
            async with httpx2.AsyncClient(
                base_url=url_of(bound), timeout=PATIENCE, trust_env=False
            ) as client:

                async def told(path: str) -> Any:
                    return (await client.get(path)).json()

                async def replace(at: int) -> None:
                    await asyncio.to_thread(runtimes[at].close)
                    runtimes[at] = await asyncio.to_thread(
                        lambda: RuntimeProcess("dummy:64x3", address=addresses[at], **options)
                    )

                async with asyncio.timeout(PATIENCE):
                    while len((await told("/fleet"))["replicas"]) != 2:
                        await asyncio.sleep(0.05)
                    before = (await told("/version"))["fingerprint"]
                    await replace(0)
                    while not (refused := (await told("/fleet"))["refused"]):
                        await asyncio.sleep(0.05)
                    assert refused[addresses[0]].startswith("weights (")
                    assert (await told("/version"))["fingerprint"] == before
                    assert (await client.get("/ready")).status_code == 200
                    await replace(1)
                    while len((await told("/fleet"))["replicas"]) != 2:
                        await asyncio.sleep(0.05)
                    while (await client.get("/ready")).status_code != 200:
                        await asyncio.sleep(0.05)
                after = (await told("/version"))["fingerprint"]
                assert after["weights"] not in ("", before["weights"])
                assert after["tokenizer"] == before["tokenizer"]
                body = {"prompt": "a", "max_tokens": 4}
                assert (await client.post("/v1/completions", json=body)).status_code == 200
                service.ask_to_stop()
                assert await asyncio.wait_for(serving, PATIENCE)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            for one in runtimes:
                one.close(0.0)

    asyncio.run(run())


def test_what_is_said_of_runtimes_must_make_sense() -> None:
    with pytest.raises(InvalidParameter, match="one of them"):
        ServerSettings(join=("tcp://127.0.0.1:1",), replicas=2)
    with pytest.raises(InvalidParameter, match="need none"):
        ServerSettings(keys="/nowhere")
    with pytest.raises(InvalidParameter, match="other machines"):
        joined_runtimes(["tcp://192.0.2.1:7000"], None)
    with pytest.raises(InvalidParameter, match="lmprog fleet keys"):
        joined_runtimes(["tcp://192.0.2.1:7000"], "/nowhere")
