"""The Helm chart of `deploy/` makes the manifests that are there, and what its values say. Its
templates have few constructs, which a small engine here renders; where Helm's own is installed
(`pip install helm-python-sdk`), both must agree.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import re
import subprocess
import sys
from typing import Any

import jsonschema
import pytest
import yaml

from lmprog.cli.arguments import parser
from tests.deploy.test_deploy_files import DEPLOY, KUBERNETES_VERSIONS, documents, settings_of

CHART = DEPLOY / "helm" / "lmprog"
PARTS = ("replicas", "gateways")
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
CHANGED: dict[str, Any] = {
    "image": "registry/lmprog:7",
    "imagePullSecrets": [{"name": "registry"}],
    "model": "/models/story",
    "secrets": {"keys": "k", "api": "a"},
    "replicas": {
        "count": 3,
        "options": ["--kv-store=redis://valkey:6379", "--page-size=32"],
        "modelClaim": "models",
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "nodeSelector": {"gpu": "h100"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "graceSeconds": 90,
    },
    "autoscaling": {"enabled": False},
    "gateways": {"count": 1, "drainSeconds": 100, "options": ["--max-running=8"]},
}


def merged(values: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Objects are merged, all else is replaced, as Helm does it."""
    made = {**values, **over}
    for name, value in over.items():
        if isinstance(value, dict) and isinstance(values.get(name), dict):
            made[name] = merged(values[name], value)
    return made


class Template:
    """Texts, `{{ value }}`, `if` and `range`, and `-` at the left that takes space away."""

    def __init__(self, text: str, values: dict[str, Any], release: str) -> None:
        self._parts = re.split(r"\{\{(-?) (.*?) \}\}", text)
        self._names = {"Values": values, "Release": {"Name": release}}

    def rendered(self) -> str:
        text, end = self._block(0, None, is_shown=True)
        assert end == len(self._parts)
        return text

    def _block(self, at: int, dot: Any, *, is_shown: bool) -> tuple[str, int]:
        """From a text on until its `end`; where that is, among the parts."""
        made = self._parts[at]
        while at + 3 < len(self._parts):
            trims, action = self._parts[at + 1 : at + 3]
            made = made.rstrip() if trims else made
            word, _, rest = action.partition(" ")
            at += 3
            if word == "end":
                return made, at
            if word in ("if", "range"):
                found = self._value(rest, dot) if is_shown else None
                turns = (found or []) if word == "range" else [dot] * bool(found)
                for one in turns:
                    made += self._block(at, one, is_shown=True)[0]
                at = self._block(at, dot, is_shown=False)[1]
            elif is_shown:
                made += str(self._value(action, dot))
            made += self._parts[at]
        return made, len(self._parts)

    def _value(self, expression: str, dot: Any) -> Any:
        word, _, rest = expression.partition(" ")
        if word == "toJson":
            return json.dumps(self._value(rest, dot))
        if word == "not":
            return not self._value(rest, dot)
        if word == "add":
            return sum(self._value(one, dot) for one in rest.split())
        if expression.isdecimal():
            return int(expression)
        assert re.fullmatch(r"\.[\w.]*", expression), expression
        names = expression.strip(".")
        return (
            functools.reduce(lambda at, name: at[name], names.split("."), self._names)
            if names
            else dot
        )


def rendered(part: str, values: dict[str, Any], release: str = "lmprog") -> list[dict[str, Any]]:
    text = (CHART / "templates" / f"{part}.yaml").read_text()
    given = merged(DEFAULTS, values)
    return list(yaml.safe_load_all(Template(text, given, release).rendered()))


@pytest.mark.parametrize("part", PARTS)
def test_by_its_defaults_the_chart_is_the_manifests(part: str) -> None:
    """But for the number of replicas: an upgrade must not undo what the autoscaler did."""
    plain = documents(f"kubernetes/{part}.yaml")
    for document in plain:
        if document["kind"] == "StatefulSet":
            assert document["spec"].pop("replicas") == DEFAULTS["replicas"]["count"]
    assert rendered(part, {}) == plain


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("part", PARTS)
def test_what_changed_values_make_is_valid_for_kubernetes(part: str, version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for document in rendered(part, CHANGED, "stories"):
        validator.validate(document, version, strict=True)


def test_changed_values_are_where_they_belong() -> None:
    _, replicas, budget = rendered("replicas", CHANGED, "stories")
    assert replicas["spec"]["replicas"] == 3, "without an autoscaler it is ours"
    pod = replicas["spec"]["template"]["spec"]
    [container] = pod["containers"]
    given = parser().parse_args(["serve", *container["args"]])
    assert (given.model, given.kv_store, given.page_size) == (
        "/models/story",
        "redis://valkey:6379",
        32,
    )
    assert container["resources"] == {
        **DEFAULTS["replicas"]["resources"],
        **CHANGED["replicas"]["resources"],
        "limits": {**DEFAULTS["replicas"]["resources"]["limits"], "nvidia.com/gpu": 1},
    }
    assert pod["nodeSelector"] == {"gpu": "h100"}
    assert [one["mountPath"] for one in container["volumeMounts"]][-1] == "/models"
    assert pod["volumes"][-1]["persistentVolumeClaim"]["claimName"] == "models"
    assert pod["volumes"][0]["secret"]["secretName"] == "k"
    assert budget["spec"]["selector"] == replicas["spec"]["selector"]
    service, gateways, _ = rendered("gateways", CHANGED, "stories")
    assert service["metadata"]["name"] == "stories"
    pod = gateways["spec"]["template"]["spec"]
    settings = settings_of(pod["containers"][0]["args"], LMPROG_API_KEY="k")
    assert list(settings.join) == ["dns:stories-replicas:7000"]
    assert (settings.drain, pod["terminationGracePeriodSeconds"]) == (100, 130)
    assert pod["imagePullSecrets"] == [{"name": "registry"}]


@pytest.mark.parametrize("part", PARTS)
def test_pods_run_without_root_and_write_nowhere_but_in_their_volumes(part: str) -> None:
    [workload] = [one for one in rendered(part, CHANGED) if "template" in one["spec"]]
    pod = workload["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"livenessProbe", "readinessProbe", "startupProbe"} <= set(container)


def test_values_are_held_to_a_schema_and_each_is_explained() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.validate(DEFAULTS, schema)
    jsonschema.validate(merged(DEFAULTS, CHANGED), schema)
    for wrong in ({"modle": "x"}, {"replicas": {"count": 0}}, {"gateways": {"options": "--x"}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(merged(DEFAULTS, wrong), schema)
    lines = (CHART / "values.yaml").read_text().splitlines()
    groups = {"secrets", "replicas", "gateways", "autoscaling"}
    shared = {"resources", "tolerations", "enabled", "requests", "limits"}
    for before, line in itertools.pairwise(lines):
        name = line.strip().partition(":")[0]
        if line.strip() and not line.strip().startswith("#") and name not in groups | shared:
            assert before.strip().startswith("#"), line


def test_helm_itself_makes_the_same_and_finds_nothing() -> None:
    """In a process of its own: it is a library of Go."""
    if importlib.util.find_spec("helm_python") is None:
        pytest.skip("helm-python-sdk is not installed")
    program = (
        "import sys, json, helm_python as helm\n"
        "path, release, values = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])\n"
        "found = helm.lint(path, values, strict=True)\n"
        "with helm.Chart.load(path) as chart:\n"
        "    chart.validate_schema(values)\n"
        "    made = chart.render(values, name=release, namespace='default')\n"
        "print(json.dumps([found, made]))\n"
    )
    for release, values in (("lmprog", {}), ("stories", CHANGED)):
        command = [sys.executable, "-c", program, str(CHART), release, json.dumps(values)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found, made = json.loads(done.stdout.splitlines()[-1])
        assert found["errors"] == []
        assert [one["error"] for one in found["messages"] if one["severity"] > 1] == []
        for part in PARTS:
            text = made[f"lmprog/templates/{part}.yaml"]
            assert list(yaml.safe_load_all(text)) == rendered(part, values, release)
        notes = Template(
            (CHART / "templates" / "NOTES.txt").read_text(), merged(DEFAULTS, values), release
        )
        assert made["lmprog/templates/NOTES.txt"] == notes.rendered()
