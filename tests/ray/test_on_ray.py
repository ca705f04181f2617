"""Replicas of a real Ray cluster on this machine: programs survive whatever happens to them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import lmprog
import lmprog.ray
from lmprog.errors import RuntimeGone
from lmprog.transport import write_keys
from tests.model.small_checkpoint import write_checkpoint
from tests.ray.cluster import (
    ENVIRONMENT,
    OPTIONS,
    PATIENCE,
    SEEDS,
    Load,
    offspring,
    parent_of,
    running_cluster,
    second_node,
    story,
    until,
)
from tests.server.process import serving

os.environ.update(ENVIRONMENT)
ray = pytest.importorskip("ray", reason="lmprog[ray] is not installed")
serve = pytest.importorskip("ray.serve", reason="lmprog[ray] is not installed")

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]
NAME = "stories"
SLOTS = 4
SERVE_OPTIONS = ("--threads", "1", "--dtype", "float32")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of Serve's proxy."""
    with running_cluster() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def alone() -> dict[int, list[str]]:
    """What each program ends with on a single runtime."""
    with lmprog.Runtime("nano", **OPTIONS) as runtime:
        return {seed: story.run(seed, backend=runtime).value for seed in SEEDS}


def deploy(replicas: int | tuple[int, int] = 2, **changes: Any) -> None:
    """Returns when the application runs."""
    app = lmprog.ray.app("nano", replicas=replicas, slots=SLOTS, **{**OPTIONS, **changes})
    serve.run(app, name=NAME, route_prefix=None)


@pytest.fixture
def fleet(cluster: str) -> Iterator[lmprog.Fleet]:
    """Two replicas that serve, at the beginning of the test."""
    deploy()
    with lmprog.Fleet.from_ray(NAME, slots=SLOTS) as made:
        until(lambda: len(names(made)) == 2, "two replicas serve")
        yield made


def names(fleet: lmprog.Fleet) -> set[str]:
    return set(fleet.channel.loads)


def runtime_of_busiest(fleet: lmprog.Fleet) -> tuple[str, int]:
    """The name of a replica, and its runtime's process; waits until its figures are known."""
    until(lambda: all("pid" in one.figures for one in fleet.channel.replicas()), "figures come")
    state = max(fleet.channel.replicas(), key=lambda one: one.programs)
    return state.name, int(state.figures["pid"])


def replaced(fleet: lmprog.Fleet, name: str) -> bool:
    return name not in names(fleet) and len(names(fleet)) == 2


def test_programs_end_as_on_one_runtime(fleet: lmprog.Fleet, alone: dict[int, list[str]]) -> None:
    with Load(fleet, alone) as load:
        until(lambda: load.num_done >= 2 * len(SEEDS), "programs end")


@pytest.mark.parametrize("killed", ["runtime", "actor"])
def test_a_killed_replica_is_replaced_and_loses_no_program(
    fleet: lmprog.Fleet, alone: dict[int, list[str]], killed: str
) -> None:
    with Load(fleet, alone) as load:
        name, pid = runtime_of_busiest(fleet)
        victim = pid if killed == "runtime" else parent_of(pid)
        assert victim is not None
        assert victim != os.getpid()
        os.kill(victim, signal.SIGKILL)
        until(lambda: replaced(fleet, name), "the killed replica is replaced")
        done = load.num_done
        until(lambda: load.num_done >= done + len(SEEDS), "programs go on")
    until(lambda: parent_of(pid) is None, "the killed replica's runtime ends")
    assert fleet.channel.num_moved > 0


def test_a_rolling_update_loses_no_program(
    fleet: lmprog.Fleet, alone: dict[int, list[str]]
) -> None:
    before = names(fleet)
    with Load(fleet, alone) as load:
        deploy(kv_memory_mb=48)
        until(lambda: len(names(fleet) - before) == 2, "both replicas are new")
        until(lambda: not names(fleet) & before, "the old ones are gone")
        done = load.num_done
        until(lambda: load.num_done >= done + len(SEEDS), "programs go on")


def test_an_update_to_a_later_generation_of_other_weights_mixes_and_fails_no_program(
    fleet: lmprog.Fleet, alone: dict[int, list[str]], tmp_path: Path
) -> None:
    """Programs that run across it end with either model, and those that begin after it with the
    new one.
    """
    later = write_checkpoint(tmp_path / "later")
    with lmprog.Runtime(str(later), **OPTIONS) as runtime:
        of_later = {seed: story.run(seed, backend=runtime).value for seed in SEEDS}
    either = {seed: (alone[seed], of_later[seed]) for seed in SEEDS}
    before = names(fleet)
    with Load(fleet, either) as load:
        app = lmprog.ray.app(str(later), replicas=2, slots=SLOTS, generation=1, **OPTIONS)
        serve.run(app, name=NAME, route_prefix=None)
        until(lambda: len(names(fleet) - before) == 2, "both replicas are new")
        until(lambda: not names(fleet) & before, "the old ones are gone")
        done = load.num_done
        until(lambda: load.num_done >= done + len(SEEDS), "programs go on")
    for seed in SEEDS:
        assert story.using(backend=fleet).run(seed).value == of_later[seed]


def test_replicas_follow_the_load_and_nothing_is_lost(
    fleet: lmprog.Fleet, alone: dict[int, list[str]]
) -> None:
    quick = {
        "upscale_delay_s": 1,
        "downscale_delay_s": 2,
        "look_back_period_s": 2,
        "metrics_interval_s": 0.5,
    }
    deploy((2, 3), autoscaling=quick)
    with Load(fleet, alone, threads=16):
        until(lambda: len(names(fleet)) == 3, "a third replica is started")
    with Load(fleet, alone, threads=1):
        until(lambda: len(names(fleet)) == 2, "a replica is ended")


def test_the_last_replica_ends_while_nobody_asks_and_who_asks_then_is_waited_for(
    fleet: lmprog.Fleet, alone: dict[int, list[str]]
) -> None:
    """A fleet that comes to an application that sleeps wakes it, since it must know the model."""
    quick = {
        "downscale_delay_s": 3,  # who is woken must be asked before it ends again
        "downscale_to_zero_delay_s": 3,
        "look_back_period_s": 1,
        "metrics_interval_s": 0.5,
    }
    deploy((0, 1), autoscaling=quick)
    for _ in range(2):
        until(lambda: fleet.channel.is_asleep and not names(fleet), "no replica is left")
        assert story.run(SEEDS[0], backend=fleet).value == alone[SEEDS[0]]
    until(lambda: fleet.channel.is_asleep and not names(fleet), "no replica is left")
    with lmprog.Fleet.from_ray(NAME, slots=SLOTS) as other:
        assert story.run(SEEDS[1], backend=other).value == alone[SEEDS[1]]


def test_a_gateway_joins_the_replicas_of_an_application(
    fleet: lmprog.Fleet, alone: dict[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    with serving("--join", f"ray:{NAME}") as gateway:
        backend = lmprog.sglang.RuntimeEndpoint(gateway.url)
        assert story.run(SEEDS[0], backend=backend).value == alone[SEEDS[0]]
        gateway.signal(signal.SIGTERM)
        assert gateway.process.wait(120) == 0
    assert story.run(SEEDS[0], backend=fleet).value == alone[SEEDS[0]]  # they are not the gateway's


def test_a_replica_of_another_machine_needs_keys(
    cluster: str, alone: dict[int, list[str]], tmp_path: Path
) -> None:
    from lmprog.ray.ray_members import RayMembers

    keys = str(tmp_path / "keys")
    write_keys(Path(keys))
    with second_node("far"):
        far = {"resources": {"resources": {"far": 0.1}}, **OPTIONS}
        serve.run(lmprog.ray.app("nano", **far), name="far", route_prefix=None)
        members = RayMembers("far")
        until(lambda: len(members.current()) == 1, "the replica is in the directory")
        with pytest.raises(RuntimeGone, match="another machine and has no keys"):
            members.current()[0].dial()
        members.close(0.0)
        serve.run(lmprog.ray.app("nano", keys=keys, **far), name="far", route_prefix=None)
        with lmprog.Fleet.from_ray("far", keys=keys) as fleet:
            assert story.run(SEEDS[0], backend=fleet).value == alone[SEEDS[0]]
        serve.delete("far")


def test_a_replica_has_its_ranks_in_a_placement_group(cluster: str) -> None:
    from ray.util import placement_group_table

    with lmprog.Runtime("nano", tp=2, **{**OPTIONS, "threads": 2}) as runtime:
        expected = story.run(SEEDS[0], backend=runtime).value
    app = lmprog.ray.app("nano", tensor_parallel=2, **{**OPTIONS, "threads": 2})
    serve.run(app, name="ranks", route_prefix=None)
    with lmprog.Fleet.from_ray("ranks") as fleet:
        assert story.run(SEEDS[0], backend=fleet).value == expected
    groups = [one for one in placement_group_table().values() if one["state"] == "CREATED"]
    assert [one["bundles"] for one in groups] == [{0: {"CPU": 1.0}, 1: {"CPU": 1.0}}]
    serve.delete("ranks")


def pids_of(fleet: lmprog.Fleet) -> dict[str, int]:
    """Of the runtimes whose figures are known, by replica."""
    states = fleet.channel.replicas()
    return {one.name: int(one.figures["pid"]) for one in states if "pid" in one.figures}


def busy_replica(http: httpx2.Client) -> str:
    """The one that has the gateway's only request."""
    replicas = http.get("/fleet").json()["replicas"]
    (found,) = [one["name"] for one in replicas if one["programs"]]
    return str(found)


def test_requests_to_serves_own_proxy_are_served_and_survive_a_replica(
    cluster: str, alone: dict[int, list[str]]
) -> None:
    app = lmprog.ray.build(
        {
            "model": "nano",
            "replicas": 2,
            **OPTIONS,
            "speculation": "off",  # so that a long answer, which repeats itself, takes its time
            "gateways": {"served_model_name": "tales"},
        }
    )
    serve.run(app, name="tales", route_prefix="/")
    body = {"prompt": "Once", "max_tokens": 3000, "seed": 1, "ignore_eos": True}
    with (
        httpx2.Client(base_url=cluster, timeout=PATIENCE, trust_env=False) as http,
        lmprog.Fleet.from_ray("tales") as fleet,
    ):
        until(lambda: len(names(fleet)) == 2, "two replicas serve")
        assert http.get("/v1/models").json()["data"][0]["id"] == "tales"
        whole = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
        backend = lmprog.sglang.RuntimeEndpoint(cluster)
        assert not backend.lost
        assert story.run(SEEDS[0], backend=backend).value == alone[SEEDS[0]]
        until(lambda: len(pids_of(fleet)) == 2, "figures come")
        pids, pieces = pids_of(fleet), []
        with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as stream:
            for line in stream.iter_lines():
                if not line.startswith("data: {"):
                    continue
                pieces.append(json.loads(line[6:])["choices"][0]["text"])
                if len(pieces) == 3:
                    os.kill(pids[busy_replica(http)], signal.SIGKILL)
        assert len(pieces) > 3, "more of it came after the death"
        assert "".join(pieces) == whole
    serve.delete("tales")


def test_llm_configs_are_models_of_one_application_and_ray_has_their_figures(
    cluster: str, alone: dict[int, list[str]]
) -> None:
    def config(name: str, source: str) -> dict[str, Any]:
        loading = {"model_id": name, "model_source": source}
        return {"model_loading_config": loading, "engine_kwargs": dict(OPTIONS)}

    configs = [config("team/story", "nano"), config("other", "dummy:tiny")]
    serve.run(lmprog.ray.build_openai_app({"llm_configs": configs}), name="llm", route_prefix="/")
    with httpx2.Client(base_url=cluster, timeout=PATIENCE, trust_env=False) as http:

        def listed() -> set[str]:
            return {one["id"] for one in http.get("/v1/models").json()["data"]}

        until(lambda: listed() == {"team/story", "other"}, "both models are listed")
        backend = lmprog.connect(cluster, model="team/story")
        assert story.run(SEEDS[0], backend=backend).value == alone[SEEDS[0]]
        body = {"model": "other", "prompt": "It is", "max_tokens": 4, "ignore_eos": True}
        assert http.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 4
        (node,) = [one for one in ray.nodes() if one["Alive"]]
        port = node["MetricsExportPort"]
        exported = f"http://{node['NodeManagerAddress']}:{port}/metrics"

        def generated(model: str) -> float:
            lines = http.get(exported).text.splitlines()
            mine = [one for one in lines if one.startswith("ray_lmprog_generation_tokens_total{")]
            return sum(float(one.split()[-1]) for one in mine if f'"{model}"' in one)

        until(lambda: generated("other") == 4, "the figures are exported")
        until(lambda: generated("team/story") > 4, "those of the other model, too")
    with lmprog.Fleet.from_ray("llm") as fleet:
        assert set(fleet.models) == {"team/story", "other"}
    serve.delete("llm")


def test_a_server_runs_its_replicas_on_a_cluster_of_its_own(alone: dict[int, list[str]]) -> None:
    before = offspring()
    with serving("nano", "--ray", "--replicas", "2", *SERVE_OPTIONS) as server:
        server.until(lambda: len(server.http.get("/fleet").json()["replicas"]) == 2)
        backend = lmprog.sglang.RuntimeEndpoint(server.url)
        assert story.run(SEEDS[0], backend=backend).value == alone[SEEDS[0]]
        started = offspring() - before
        server.signal(signal.SIGTERM)
        assert server.process.wait(120) == 0, "".join(server.logged)
    until(lambda: not any(parent_of(pid) for pid in started), "all that was started ends")


def answered(http: httpx2.Client, model: str, max_tokens: int = 4) -> dict[str, Any]:
    """What a completion of that model tells."""
    body = {"model": model, "prompt": "It is", "max_tokens": max_tokens, "ignore_eos": True}
    found: dict[str, Any] = http.post("/v1/completions", json=body).json()
    assert found["usage"]["completion_tokens"] == max_tokens, found
    return found


def models_listed(http: httpx2.Client) -> set[str]:
    return {one["id"] for one in http.get("/v1/models").json()["data"]}


def test_a_server_runs_several_models_on_a_cluster_of_its_own(
    alone: dict[int, list[str]],
) -> None:
    before = offspring()
    models = ("--models", "tales=nano", "--models", "other=dummy:tiny")
    with serving(*models, "--ray", "--replicas", "2", *SERVE_OPTIONS) as server:
        server.until(lambda: len(server.http.get("/fleet").json()["replicas"]) == 4)
        assert models_listed(server.http) == {"tales", "other"}
        replicas = server.http.get("/fleet").json()["replicas"]
        assert sorted(one["model"] for one in replicas) == ["other"] * 2 + ["tales"] * 2
        backend = lmprog.connect(server.url, model="tales")
        assert story.run(SEEDS[0], backend=backend).value == alone[SEEDS[0]]
        assert answered(server.http, "other")["model"] == "other"
        started = offspring() - before
        server.signal(signal.SIGTERM)
        assert server.process.wait(120) == 0, "".join(server.logged)
    until(lambda: not any(parent_of(pid) for pid in started), "all that was started ends")


def test_a_gateway_joins_the_replicas_of_two_applications(
    cluster: str, alone: dict[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a model of its own; when one is gone the other one is still served."""
    for name, model in (("tales", "nano"), ("other", "dummy:tiny")):
        app = lmprog.ray.app(model, replicas=1, slots=SLOTS, served_model_name=name, **OPTIONS)
        serve.run(app, name=f"joined-{name}", route_prefix=None)
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    with serving("--join", "ray:joined-tales", "--join", "ray:joined-other") as gateway:
        gateway.until(lambda: models_listed(gateway.http) == {"tales", "other"})
        backend = lmprog.connect(gateway.url, model="tales")
        assert story.run(SEEDS[0], backend=backend).value == alone[SEEDS[0]]
        assert answered(gateway.http, "other")["model"] == "other"
        serve.delete("joined-other")
        assert answered(gateway.http, "tales")["model"] == "tales"
        gateway.signal(signal.SIGTERM)
        assert gateway.process.wait(120) == 0, "".join(gateway.logged)
    serve.delete("joined-tales")
