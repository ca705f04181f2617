"""What of the room for Ray needs no cluster: how many replicas there should be, and who is listed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from lmprog.errors import InvalidParameter, UnknownName
from lmprog.ray.autoscaling import BUSY, TARGET, by_slots, wanted
from lmprog.server.options.server_settings import ServerSettings


@dataclass
class Context:
    """What Serve tells a policy."""

    aggregated_metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    target_num_replicas: int = 2


def test_there_are_as_many_replicas_as_are_busy_to_the_target() -> None:
    assert wanted([TARGET, TARGET], 2) == pytest.approx(2)
    assert wanted([1.0, 1.0], 2) > 2  # Serve rounds up
    assert wanted([0.0, 0.1], 2) < 1
    assert wanted([], 3) == 3.0  # nothing is known yet: as it is


def test_the_policy_reads_what_replicas_report() -> None:
    busy = Context({BUSY: {"a": 4.0, "b": 3.0}})
    assert by_slots(busy) == (pytest.approx(10.0), {})
    assert by_slots(Context()) == (2.0, {})


def test_importing_lmprog_imports_neither_ray_nor_the_fleet() -> None:
    code = (
        "import sys, lmprog; lmprog.function; lmprog.ray;"
        "print([m for m in sys.modules if m.split('.')[0] == 'ray' or 'fleet' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ray": True, "join": ("ray:stories",)}, "use one of them"),
        ({"max_replicas": 3}, "is for --ray"),
        ({"replicas": 0}, "must be at least 1"),
        ({"replicas": -1, "ray": True}, "must be at least 0"),
        ({"replicas": 0, "ray": True}, "give --max-replicas, too"),
        ({"ray": True, "replicas": 3, "max_replicas": 2}, "at least --replicas"),
        ({"keys": "folder"}, "is for --join, --ray"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        ServerSettings(**options)


def test_replicas_are_listed_while_they_renew_and_until_they_leave() -> None:
    pytest.importorskip("ray", reason="lmprog[ray] is not installed")
    from lmprog.ray.directory import LEASE_SECONDS, Directory, ReplicaEntry

    now = 0.0
    directory = Directory(lambda: now)
    one, other = ReplicaEntry("one", "ipc:///1", "node"), ReplicaEntry("two", "ipc:///2", "node")
    directory.renew(other)
    directory.renew(one)
    assert directory.entries() == [one, other]
    now = LEASE_SECONDS - 1
    directory.renew(one)
    now = LEASE_SECONDS + 1
    assert directory.entries() == [one]
    directory.leave("one")
    assert directory.entries() == []


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"replicas": 0}, InvalidParameter, "the least and the most"),
        ({"replicas": (-1, 2)}, InvalidParameter, "the least and the most"),
        ({"replicas": [2]}, InvalidParameter, "the least and the most"),
        ({"replicas": (3, 2)}, InvalidParameter, "the least and the most"),
        ({"tensor_parallel": 0}, InvalidParameter, "how many ranks"),
        ({"tp": 2}, InvalidParameter, "how many ranks"),
        ({"autoscaling": {"upscale_delay_s": 1}}, InvalidParameter, "needs room"),
        ({"thread": 1}, UnknownName, "unknown runtime option 'thread'"),
        ({"replicas": (1, 2), "kv_events": "tcp://127.0.0.1:1"}, InvalidParameter, "one runtime"),
    ],
)
def test_an_application_with_wrong_options_is_refused(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    pytest.importorskip("ray.serve", reason="lmprog[ray] is not installed")
    import lmprog.ray

    with pytest.raises(error, match=message):
        lmprog.ray.app("nano", **arguments)


def test_cache_events_of_the_only_replica_are_taken() -> None:
    pytest.importorskip("ray.serve", reason="lmprog[ray] is not installed")
    import lmprog.ray

    lmprog.ray.app("nano", replicas=1, kv_events="tcp://127.0.0.1:1")


def test_ranks_see_all_gpus_of_their_replica() -> None:
    pytest.importorskip("ray.serve", reason="lmprog[ray] is not installed")
    import lmprog.ray

    def of(**resources: float) -> tuple[Any, Any]:
        app = lmprog.ray.app("nano", tensor_parallel=2, resources=resources, device="cuda")
        made = app._bound_deployment
        config = made._replica_config
        return config.placement_group_bundles, config.ray_actor_options.get("num_gpus")

    assert of(num_cpus=3, num_gpus=0) == ([{"CPU": 3.0}, {"CPU": 3.0}], 0)
    assert of(num_cpus=3, num_gpus=0.5) == ([{"CPU": 6.0, "GPU": 1.0}], 1)
    assert of(num_cpus=3) == of(num_cpus=3, num_gpus=1) == ([{"CPU": 6.0, "GPU": 2.0}], 2)


@pytest.mark.parametrize(("device", "gpus"), [("cuda", 1), ("cuda:0", 1), ("cpu", None)])
def test_a_replica_on_a_gpu_has_one_without_being_told(device: str, gpus: int | None) -> None:
    """Ray hides a machine's from an actor that asks for none: so `--ray --device cuda` needs it."""
    pytest.importorskip("ray.serve", reason="lmprog[ray] is not installed")
    import lmprog.ray

    config = lmprog.ray.app("nano", device=device)._bound_deployment._replica_config
    assert config.ray_actor_options.get("num_gpus") == gpus


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"count": 0}, InvalidParameter, "at least one gateway"),
        ({"port": 1}, InvalidParameter, "port is the affair of Serve's proxy"),
        ({"replicas": 2}, InvalidParameter, "replicas is the affair of the application"),
        ({"api_key": "x"}, UnknownName, "unknown setting 'api_key'; valid: .*api_keys"),
        ({"max_running": 0}, InvalidParameter, "max-running is 0"),
    ],
)
def test_gateways_with_wrong_settings_are_refused(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    pytest.importorskip("ray.serve", reason="lmprog[ray] is not installed")
    import lmprog.ray

    with pytest.raises(error, match=message):
        lmprog.ray.with_gateways(lmprog.ray.app("nano"), **arguments)


def test_gateways_of_a_file_have_the_keys_of_its_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray.serve", reason="lmprog[ray] is not installed")
    import lmprog.ray
    from lmprog.ray import serve_gateway

    seen: dict[str, Any] = {}
    monkeypatch.setattr(serve_gateway, "with_gateways", lambda app, **more: seen.update(more))
    lmprog.ray.build({"model": "nano", "keys": "folder", "gateways": {"api_keys": ["one"]}})
    assert seen == {"keys": "folder", "api_keys": ["one"]}


@pytest.mark.parametrize(
    ("name", "path"),
    [("rayservice", "lmprog.ray:build"), ("rayservice-gpu", "lmprog.ray:build_openai_app")],
)
def test_serve_takes_the_manifests_of_kuberay(name: str, path: str) -> None:
    pytest.importorskip("ray.serve", reason="lmprog[ray] is not installed")
    from ray.serve.schema import ServeDeploySchema

    import lmprog.ray

    folder = Path(__file__).parents[2] / "deploy" / "kubernetes"
    manifest = yaml.safe_load((folder / f"{name}.yaml").read_text())
    config = ServeDeploySchema.model_validate(yaml.safe_load(manifest["spec"]["serveConfigV2"]))
    (application,) = config.applications
    assert application.import_path == path
    getattr(lmprog.ray, path.partition(":")[2])(application.args)


def test_a_deployment_without_replicas_sleeps_until_one_of_them_is_there() -> None:
    """One that Serve cannot start does not, nor one that is not ours."""
    pytest.importorskip("ray.serve", reason="lmprog[ray] is not installed")
    from types import SimpleNamespace

    from lmprog.ray.ray_members import DEPLOYMENT, _idle

    def of(status: str, known: tuple[str, ...] = (), **states: int) -> list[str]:
        one = SimpleNamespace(status=status, replica_states=states)
        return _idle(SimpleNamespace(deployments={DEPLOYMENT: one, "Gateway": one}), known)  # type: ignore[arg-type]

    assert of("HEALTHY") == [DEPLOYMENT]
    assert of("HEALTHY", RUNNING=1) == of("UPSCALING", STARTING=1) == []
    assert of("UPSCALING", (DEPLOYMENT,), STARTING=1) == [DEPLOYMENT], "it is being woken"
    assert of("UNHEALTHY", (DEPLOYMENT,)) == of("DEPLOY_FAILED") == []


LLM: dict[str, Any] = {
    "model_loading_config": {"model_id": "team/small", "model_source": "nano"},
    "accelerator_type": "A10G",
    "runtime_env": {"env_vars": {"A": "b"}},
    "deployment_config": {
        "autoscaling_config": {"min_replicas": 0, "max_replicas": 4, "upscale_delay_s": 1},
        "max_ongoing_requests": 32,
        "ray_actor_options": {"num_cpus": 2},
    },
    "engine_kwargs": {
        "tensor_parallel_size": 2,
        "max_model_len": 512,
        "dtype": "auto",
        "kv_memory_mb": 32,
    },
}


def test_an_llm_config_is_an_application_of_the_same_meaning(tmp_path: Path) -> None:
    """As a mapping, and as a file."""
    pytest.importorskip("ray.serve", reason="lmprog[ray] is not installed")
    from lmprog.ray.llm_names import arguments_of

    file = tmp_path / "llm.yaml"
    file.write_text(yaml.safe_dump(LLM))
    assert arguments_of(LLM) == arguments_of(str(file)) == MEANT


MEANT = {
    "model": "nano",
    "served_model_name": "team/small",
    "device": "cuda",
    "replicas": (0, 4),
    "autoscaling": {"upscale_delay_s": 1},
    "slots": 32,
    "resources": {
        "num_cpus": 2,
        "accelerator_type": "A10G",
        "runtime_env": {"env_vars": {"A": "b"}},
    },
    "tensor_parallel": 2,
    "context_len": 512,
    "kv_memory_mb": 32,
}


def test_rays_own_object_is_taken_for_an_llm_config() -> None:
    where = "ray.llm._internal.serve.core.configs.llm_config"  # its public place needs vLLM
    llm = pytest.importorskip(where, exc_type=ImportError, reason="what it needs is missing")
    from lmprog.ray.llm_names import arguments_of

    assert arguments_of(llm.LLMConfig(**LLM)) == MEANT


def test_ranks_on_an_accelerator_are_placed_where_there_is_one() -> None:
    pytest.importorskip("ray.serve", reason="lmprog[ray] is not installed")
    import lmprog.ray
    from lmprog.ray.llm_names import arguments_of

    config = lmprog.ray.app(**arguments_of(LLM))._bound_deployment._replica_config
    bundle = {"CPU": 4.0, "GPU": 2.0, "accelerator_type:A10G": 0.002}
    assert config.placement_group_bundles == [bundle]
    assert config.ray_actor_options["accelerator_type"] == "A10G"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_loading_config": {}}, "needs a model_id"),
        (
            {"model_loading_config": {"model_id": "a", "tokenizer_source": "b"}},
            "'tokenizer_source'",
        ),
        ({"lora_config": {"dynamic_lora_loading_path": "s3://x"}}, "LLMConfig has 'lora_config'"),
        ({"engine_kwargs": {"swap_space": 4}}, "unknown runtime option 'swap_space'"),
        ({"deployment_config": {"user_config": {"a": 1}}}, "deployment_config has 'user_config'"),
        (
            {"deployment_config": {"num_replicas": 2, "autoscaling_config": {"max_replicas": 2}}},
            "give one of them",
        ),
        (
            {
                "deployment_config": {
                    "autoscaling_config": {"max_replicas": 2, "target_ongoing_requests": 8}
                }
            },
            "say slots",
        ),
    ],
)
def test_what_an_llm_config_cannot_mean_here_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    pytest.importorskip("ray.serve", reason="lmprog[ray] is not installed")
    import lmprog.ray

    with pytest.raises((InvalidParameter, UnknownName), match=message):
        lmprog.ray.build_openai_app({"llm_configs": [{**LLM, "accelerator_type": None, **changes}]})


def test_each_model_of_an_application_is_a_deployment_of_its_own() -> None:
    pytest.importorskip("ray.serve", reason="lmprog[ray] is not installed")
    import lmprog.ray

    for name, expected in (("", "RuntimeReplica"), ("a/b", "RuntimeReplica:a--b")):
        made = lmprog.ray.app("nano", served_model_name=name)._bound_deployment
        assert made.name == expected


def test_two_llm_configs_of_one_name_and_none_at_all_are_refused() -> None:
    pytest.importorskip("ray.serve", reason="lmprog[ray] is not installed")
    import lmprog.ray

    one = {"model_loading_config": {"model_id": "nano"}}
    for configs, message in (([one, one], "two of llm_configs"), ([], "has no model")):
        with pytest.raises(InvalidParameter, match=message):
            lmprog.ray.build_openai_app({"llm_configs": configs})


def test_what_replicas_wait_for_is_said_and_one_that_cannot_start_is_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("ray.serve", reason="lmprog[ray] is not installed")
    from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview

    from lmprog.ray import ray_cluster

    deployments = {
        "RuntimeReplica:a": SimpleNamespace(message="taken more than 30s to be scheduled")
    }
    states = iter(["DEPLOYING", "DEPLOYING", "RUNNING"])

    def status() -> SimpleNamespace:
        def of(state: str, message: str = "") -> ApplicationStatusOverview:
            return ApplicationStatusOverview(ApplicationStatus[state], message, 0.0, deployments)

        there = {"lmprog-a": of(next(states, "RUNNING")), "another": of("DEPLOY_FAILED", "no")}
        return SimpleNamespace(applications=there)

    monkeypatch.setattr(ray_cluster.serve, "status", status)
    monkeypatch.setattr(ray_cluster, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(ray_cluster, "SAID_EVERY", 0.0)
    ray_cluster._await_all({"lmprog-a"})
    said = [one.getMessage() for one in caplog.records]
    assert said == ["lmprog-a does not serve yet: taken more than 30s to be scheduled"] * 2
    with pytest.raises(RuntimeError, match="another: no"):
        ray_cluster._await_all({"lmprog-a", "another"})
