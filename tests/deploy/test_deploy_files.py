"""The files of `deploy/` are valid by the published schemas, and say what our commands take. Nothing
is built and nothing is started here.
"""

from __future__ import annotations

import ast
import importlib.resources
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from lmprog.cli.arguments import given_options, parser
from lmprog.server.observability.runtime_metrics import ROUTERS_NAMES
from lmprog.server.options.configuration import configured
from lmprog.server.options.server_settings import ServerSettings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted(DEPLOY.glob("*.Dockerfile"))
KUBERNETES_VERSIONS = ("1.30.0", "1.37.0")


def documents(name: str) -> list[dict[str, Any]]:
    found = list(yaml.safe_load_all((DEPLOY / name).read_text()))
    assert found
    return found


def of_kind(name: str, kind: str) -> dict[str, Any]:
    (found,) = [one for one in documents(name) if one["kind"] == kind]
    return found


def container_of(workload: dict[str, Any]) -> dict[str, Any]:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def settings_of(arguments: list[str], **environment: str) -> Any:
    """What `lmprog serve` would do with the arguments; raises for what it would refuse."""
    given = parser().parse_args(["serve", *arguments])
    return configured(given_options(given), environment, None, DEPLOY).settings()


def instructions(path: Path) -> list[tuple[str, str]]:
    """Of a Dockerfile: words in front and what follows."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(word, rest) for word, rest in found]


def test_there_are_files_to_check() -> None:
    assert [path.name for path in DOCKERFILES] == ["cpu.Dockerfile", "cuda.Dockerfile"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_hadolint_finds_nothing(path: Path) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([hadolint, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    worse = path.read_text().replace("--no-install-recommends", "")
    done = subprocess.run([hadolint, "-"], input=worse, capture_output=True, text=True, check=False)
    assert "DL3015" in done.stdout  # it does look


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_images_have_two_stages_no_root_and_a_healthcheck(path: Path) -> None:
    lines = instructions(path)
    starts = [index for index, (word, _) in enumerate(lines) if word == "FROM"]
    assert len(starts) == 2
    last = dict(lines[starts[1] :])
    assert int(last["USER"]) > 0
    assert "/ready" in last["HEALTHCHECK"]
    assert "g++" not in " ".join(rest for _, rest in lines[starts[1] :])
    for word, rest in lines[: starts[1]]:
        if word == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
    command = json.loads(last["ENTRYPOINT"]) + json.loads(last["CMD"])
    assert command[:2] == ["lmprog", "serve"]
    assert settings_of(command[2:], LMPROG_API_KEY="k").host == "0.0.0.0"
    extras = re.search(r"\[([a-z,]+)\]\"", path.read_text())
    assert extras is not None
    offered = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert set(extras[1].split(",")) <= set(offered)


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("name", ["replicas", "gateways"])
def test_manifests_are_valid_for_kubernetes(name: str, version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for document in documents(f"kubernetes/{name}.yaml"):
        validator.validate(document, version, strict=True)
    broken = documents(f"kubernetes/{name}.yaml")[1]
    broken["spec"]["replicas"] = "two"
    with pytest.raises(validator.ValidationError):
        validator.validate(broken, version, strict=True)


@pytest.mark.parametrize("name", ["rayservice", "rayservice-gpu"])
def test_pods_of_the_ray_services_are_valid_for_kubernetes(name: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    cluster = of_kind(f"kubernetes/{name}.yaml", "RayService")["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **group["template"]}
        validator.validate(pod, KUBERNETES_VERSIONS[-1], strict=True)


def test_the_ray_service_calls_our_application_with_its_parameters() -> None:
    config = yaml.safe_load(
        of_kind("kubernetes/rayservice.yaml", "RayService")["spec"]["serveConfigV2"]
    )
    (application,) = config["applications"]
    module, _, name = application["import_path"].partition(":")
    assert (module, name) == ("lmprog.ray", "build")
    tree = ast.parse((ROOT / "lmprog" / "ray" / "application.py").read_text())
    functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    assert name in functions
    known = functions["app"].args
    arguments = dict(application["args"])
    gateways = arguments.pop("gateways")
    assert set(arguments) <= {one.arg for one in (*known.args, *known.kwonlyargs)}
    settings = {name: gateways[name] for name in set(gateways) - {"count", "resources"}}
    assert ServerSettings(**settings).allowed_hosts == ["*"]
    assert (config["proxy_location"], application["route_prefix"]) == ("EveryNode", "/")


def test_a_worker_of_ray_has_room_for_a_replica_and_a_gateway() -> None:
    spec = of_kind("kubernetes/rayservice.yaml", "RayService")["spec"]
    (application,) = yaml.safe_load(spec["serveConfigV2"])["applications"]
    (group,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    [container] = group["template"]["spec"]["containers"]
    asked = [application["args"], application["args"]["gateways"]]
    needed = sum(one["resources"]["num_cpus"] for one in asked)
    assert int(container["resources"]["limits"]["cpu"]) >= needed
    assert application["args"]["gateways"]["count"] <= group["minReplicas"]
    secrets = {
        one["name"]: one["secret"]["secretName"] for one in group["template"]["spec"]["volumes"]
    }
    mounted = {one["mountPath"]: secrets[one["name"]] for one in container["volumeMounts"]}
    assert mounted == {"/keys": "lmprog-keys", "/api": "lmprog-api-keys"}


def test_gateways_join_all_replicas_by_the_name_of_their_service() -> None:
    replicas = of_kind("kubernetes/replicas.yaml", "StatefulSet")
    gateways = of_kind("kubernetes/gateways.yaml", "Deployment")
    settings = settings_of(container_of(gateways)["args"], LMPROG_API_KEY="k")
    service = replicas["spec"]["serviceName"]
    assert service == of_kind("kubernetes/replicas.yaml", "Service")["metadata"]["name"]
    assert list(settings.join) == [f"dns:{service}:7000"]
    scaler = of_kind("kubernetes/replicas.yaml", "HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"]["name"] == replicas["metadata"]["name"]
    assert scaler["minReplicas"] == replicas["spec"]["replicas"]
    (metric,) = scaler["metrics"]
    assert metric["external"]["metric"]["name"] in runtime_metric_names()
    pod = gateways["spec"]["template"]["spec"]
    stop = container_of(gateways)["lifecycle"]["preStop"]["exec"]["command"]
    assert int(stop[1]) + settings.drain < pod["terminationGracePeriodSeconds"]
    assert settings.keys == "/keys"


def runtime_metric_names() -> set[str]:
    return {f"lmprog_{name}" for name in ROUTERS_NAMES}


def test_replicas_are_started_by_a_command_that_we_have() -> None:
    container = container_of(of_kind("kubernetes/replicas.yaml", "StatefulSet"))
    given = parser().parse_args(["serve", *container["args"]])
    assert (given.model, given.keys) == ("nano", "/keys")
    assert given.address == "tcp://$(POD_IP):7000"
    assert [one["name"] for one in container["env"]] == ["POD_IP"]


def compose() -> dict[str, Any]:
    (found,) = documents("compose.yaml")
    return found


def test_the_compose_file_is_valid() -> None:
    package = pytest.importorskip("check_jsonschema")
    text = (
        importlib.resources.files(package.__name__)
        .joinpath("builtin_schemas", "vendor", "compose-spec.json")
        .read_text()
    )
    schema = json.loads(text)
    jsonschema.validate(compose(), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**compose(), "services": {"x": {"imag": "y"}}}, schema)


def test_what_the_compose_file_names_is_there() -> None:
    services = compose()["services"]
    lmprog = services["lmprog"]
    assert (DEPLOY / lmprog["build"]["context"] / lmprog["build"]["dockerfile"]).is_file()
    arguments = [one.replace("${LMPROG_MODEL:-nano}", "nano") for one in lmprog["command"]]
    settings = settings_of(arguments, LMPROG_API_KEY="k", LMPROG_ALLOWED_HOSTS="lmprog")
    assert settings.replicas == 2
    assert int(lmprog["stop_grace_period"].removesuffix("s")) > settings.drain
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith(".") and source != "./models":  # that one is the user's
                assert (DEPLOY / source).exists(), source


def test_prometheus_asks_our_server_and_grafana_finds_prometheus_and_the_board() -> None:
    services = compose()["services"]
    (prometheus,) = documents("prometheus.yaml")
    (job,) = prometheus["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["lmprog:8000"]}]
    key = services["prometheus"]["configs"][0]
    assert job["authorization"]["credentials_file"] == key["target"]
    (source,) = documents("grafana/datasources.yaml")[0]["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = documents("grafana/dashboards.yaml")[0]["providers"]
    boards = provider["options"]["path"]
    assert f"../docs/grafana:{boards}:ro" in services["grafana"]["volumes"]
    assert (ROOT / "docs" / "grafana" / "lmprog.json").is_file()


def test_the_workers_of_ray_come_and_go_between_the_bounds_of_the_application() -> None:
    spec = of_kind("kubernetes/rayservice.yaml", "RayService")["spec"]
    (application,) = yaml.safe_load(spec["serveConfigV2"])["applications"]
    (group,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    assert spec["rayClusterConfig"]["enableInTreeAutoscaling"] is True
    assert [group["minReplicas"], group["maxReplicas"]] == application["args"]["replicas"]


def test_models_on_gpus_end_while_nobody_asks_and_have_room_where_they_run() -> None:
    spec = of_kind("kubernetes/rayservice-gpu.yaml", "RayService")["spec"]
    cluster = spec["rayClusterConfig"]
    (application,) = yaml.safe_load(spec["serveConfigV2"])["applications"]
    assert application["import_path"] == "lmprog.ray:build_openai_app"
    assert cluster["enableInTreeAutoscaling"] is True
    groups = {one["groupName"]: one for one in cluster["workerGroupSpecs"]}
    limits = {
        name: one["template"]["spec"]["containers"][0]["resources"]["limits"]
        for name, one in groups.items()
    }
    scaled = [
        one["deployment_config"]["autoscaling_config"] for one in application["args"]["llm_configs"]
    ]
    assert [one["min_replicas"] for one in scaled] == [0, 0]
    assert groups["gpus"]["minReplicas"] == 0
    assert groups["gpus"]["maxReplicas"] == sum(one["max_replicas"] for one in scaled)
    for config in application["args"]["llm_configs"]:
        needed = config["deployment_config"]["ray_actor_options"]["num_cpus"]
        assert int(limits["gpus"]["cpu"]) >= needed
    assert limits["gpus"]["nvidia.com/gpu"] == "1"
    ingress = application["args"]["ingress_deployment_config"]
    assert groups["gateways"]["minReplicas"] >= ingress["num_replicas"]
    assert int(limits["gateways"]["cpu"]) >= ingress["ray_actor_options"]["num_cpus"]


def unit_of_systemd() -> dict[str, str]:
    lines = (DEPLOY / "lmprog.service").read_text().splitlines()
    told = [line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")]
    return dict(told)


def test_systemd_finds_nothing_wrong_with_its_unit(tmp_path: Path) -> None:
    """Where its commands would be."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    text = (DEPLOY / "lmprog.service").read_text().replace("/srv/lmprog/bin/lmprog", "/bin/true")
    for written, problem in ((text, ""), (text.replace("Restart=", "Restrat="), "Restrat")):
        place = tmp_path / "lmprog.service"
        place.write_text(written)
        command = [analyze, "verify", "--man=no", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        ours = [line for line in done.stderr.splitlines() if "lmprog.service" in line]
        assert bool(ours) == bool(problem), done.stderr
        assert problem in "\n".join(ours)


def test_the_unit_starts_what_we_have_and_ends_it_later_than_it_drains() -> None:
    unit = unit_of_systemd()
    program, command, *arguments = unit["ExecStart"].split()
    assert (Path(program).name, command) == ("lmprog", "serve")
    settings = settings_of(arguments, LMPROG_API_KEY="k")
    assert int(unit["TimeoutStopSec"]) > settings.drain
    assert settings.cache_key_file is not None
    assert Path(settings.cache_key_file).parent.name == unit["StateDirectory"]
    assert (unit["Restart"], unit["KillMode"]) == ("on-failure", "mixed")


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps_of(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text("utf-8"))["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_names_targets_commands_and_files_that_are_there(path: Path) -> None:
    """`check-jsonschema` has GitHub's own schema."""
    check = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
    ]
    subprocess.run([*check, path], check=True)
    text = "\n".join(step.get("run", "") for step in steps_of(path))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([\w-]+)", text)) <= targets
    for command in re.findall(r"\blmprog ([a-z]+)", text):
        assert (ROOT / "lmprog" / "cli" / f"{command}.py").is_file(), command


def test_wheels_are_made_for_each_platform_and_tried_by_commands_that_are_there() -> None:
    [path] = [one for one in WORKFLOWS if one.stem == "wheels"]
    jobs = yaml.safe_load(path.read_text("utf-8"))["jobs"]
    built = {one["archs"]: one["runner"] for one in jobs["build"]["strategy"]["matrix"]["include"]}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["cibuildwheel"]
    assert sorted(built) == sorted({*settings["linux"]["archs"], *settings["macos"]["archs"]})
    images = ("manylinux", "musllinux")
    for arch in settings["linux"]["archs"]:
        assert all(f"{image}-{arch}-image" in settings["linux"] for image in images)
    assert "skip" not in settings
    first, second = settings["test-command"]
    assert (ROOT / first.removeprefix("python {project}/")).is_file()
    assert second == "lmprog --version"


def test_what_runs_without_linux_is_there() -> None:
    rule = (ROOT / "Makefile").read_text().partition("\ntest-portable:")[2].partition("\n\n")[0]
    named = re.findall(r"tests/\S+", rule)
    assert len(named) >= 6
    assert "LMPROG_PORTABLE=1" in rule
    assert [name for name in named if not (ROOT / name).exists()] == []
