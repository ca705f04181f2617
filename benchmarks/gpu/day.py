"""The first day on a GPU as one command: a line of JSON as each thing ends, so that a call that is
killed loses nothing, and the next call goes on behind what is in the file.

    python -m benchmarks.gpu.day --carry FOLDER      # here: all that such a machine needs
    python -m benchmarks.gpu.day [--device cuda:0] [--out day.jsonl] [--minutes 9]    # there

For a machine with a driver, Python 3.12, a CUDA build of torch and no network: the folder has the
sources and the wheels that are not there (msgspec, pyzmq, pytest), and is run in. Right comes before
fast: every kernel beside its plain twin, random trees, the tests of kernels and engine, one tiny
case under compute-sanitizer where that is installed; then the kernels' times, the engines beside others, the ablations. FlashInfer is used
where it is installed; it is not carried. `--device emulated` runs all of it with tiny shapes, which
shows that it works and nothing else.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from benchmarks import runner
from benchmarks.gpu import ablations, engines, kernel_times
from lmprog.errors import LmprogError
from lmprog.runtime.engine.device.choice import chosen_device
from lmprog.runtime.engine.device.driver import ModuleKey, ProductKey
from lmprog.runtime.engine.device.evidence import gathered, kernel_errors, wrong_kernels
from lmprog.runtime.engine.device.kernels import Kernels
from lmprog.runtime.engine.device.loading import open_driver

CARRIED = ("lmprog", "kernels", "benchmarks", "tests", "pyproject.toml")
_BEHIND_PYTEST = ("pluggy", "iniconfig", "packaging", "pygments", "sortedcontainers")
WHEELS = ("msgspec", "pyzmq", "pytest", "hypothesis", *_BEHIND_PYTEST)
MOST_CARRIED = 60 << 20
_KEYS = (
    ModuleKey("bf16", 128),
    ModuleKey("f16", 64),
    ModuleKey("float", 64),
    ModuleKey("bf16", 128, "e4m3"),
)
Thing = tuple[str, Callable[[], Any]]


@dataclass(frozen=True, slots=True)
class Asked:
    device: str
    rounds: int
    ends: float
    """When no round is begun any more, by the monotonic clock."""

    @property
    def is_tiny(self) -> bool:
        return self.device == "emulated"

    @property
    def seconds(self) -> float:
        return max(0.0, self.ends - time.monotonic())


def twins(asked: Asked, key: ModuleKey) -> dict[str, Any]:
    """Every kernel and product beside its plain twin."""
    products = ProductKey(key.type_name)
    errors = kernel_errors(Kernels(open_driver(asked.device, key, products), key, products))
    return {"errors": errors, "wrong": wrong_kernels(errors, key)}


def trees(asked: Asked, key: ModuleKey) -> dict[str, Any]:
    return asdict(gathered(open_driver(asked.device, key), key, 1 if asked.is_tiny else 40))


def sanitized(asked: Asked, tool: str) -> str:
    """What compute-sanitizer says of one tree."""
    case = (
        "from benchmarks.gpu.day import _KEYS; "
        "from lmprog.runtime.engine.device.evidence import gathered; "
        "from lmprog.runtime.engine.device.loading import open_driver; "
        f"print(gathered(open_driver({asked.device!r}, _KEYS[0]), _KEYS[0], 1))"
    )
    command = ["compute-sanitizer", "--tool", tool, sys.executable, "-c", case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    return (done.stdout + done.stderr)[-2000:]


def tested(asked: Asked) -> str:
    """The tests of kernels and engine that ask for results alone, on the device; those of families
    where transformers is there to make checkpoints.
    """
    command = [sys.executable, "-c", _TESTS, *_TEST_OPTIONS]
    environment = os.environ | {"LMPROG_TEST_DEVICE": asked.device}
    done = subprocess.run(
        command, cwd=runner.ROOT, env=environment, capture_output=True, text=True, timeout=540
    )
    said = (done.stdout + done.stderr)[-2000:]
    if done.returncode:
        raise RuntimeError(said)
    return said


_TESTS = """
import importlib.util, sys, pytest
from tests.cuda.conftest import ON_DEVICE
names = set(ON_DEVICE)
if importlib.util.find_spec("transformers") is None:
    names.remove("test_device_families")
sys.exit(pytest.main([*sys.argv[1:], *(f"tests/cuda/{name}.py" for name in sorted(names))]))
"""
_TEST_OPTIONS = ("-q", "-x", "-o", "addopts=", "-o", "filterwarnings=default")
"""Plugins that the configuration names are not carried."""


def timed(work: Callable[[], kernel_times.Timing]) -> dict[str, Any]:
    return asdict(work())


def things(asked: Asked) -> Iterator[Thing]:
    """In the order of their worth."""
    keys = _KEYS[1:2] if asked.is_tiny else _KEYS
    for key in keys:
        yield f"twins {key.name}", partial(twins, asked, key)
    for key in keys:
        yield f"trees {key.name}", partial(trees, asked, key)
    if not asked.is_tiny:
        yield "tests/cuda", partial(tested, asked)
    if shutil.which("compute-sanitizer") and not asked.is_tiny:
        for tool in ("memcheck", "racecheck"):
            yield f"compute-sanitizer {tool}", partial(sanitized, asked, tool)
    for kept in ("",) if asked.is_tiny else ("", "e4m3"):
        for name, work in kernel_times.measures(asked.device, kept=kept):
            yield f"{name} {kept}".strip(), partial(timed, work)
    yield (
        "engines",
        lambda: asdict(engines.measure_engines(asked.device, asked.rounds, asked.seconds)),
    )
    yield (
        "ablations",
        lambda: [
            asdict(one)
            for one in ablations.measure_ablations(asked.device, asked.rounds, asked.seconds)
        ],
    )


def done_in(out: Path) -> set[str]:
    """What is in the file already, and did not fail."""
    lines = out.read_text().splitlines() if out.exists() else []
    return {one["thing"] for one in map(json.loads, lines) if "error" not in one}


def run_all(given: Iterator[Thing], out: Path, is_over: Callable[[], bool]) -> int:
    """How many failed. Each is written when it ends."""
    known, failed = done_in(out), 0
    for name, work in given:
        if name in known or is_over():
            continue
        began = time.monotonic()
        line: dict[str, Any] = {"thing": name}
        try:
            line["found"] = work()
        except Exception as error:  # noqa: BLE001 - whatever a device does, the rest goes on
            traceback.print_exc()
            line["error"], failed = f"{type(error).__name__}: {error}", failed + 1
        line["seconds"] = round(time.monotonic() - began, 3)
        with out.open("a") as file:
            file.write(json.dumps(_without_nan(line)) + "\n")
        print(name, line.get("found", line.get("error")), flush=True)
    return failed


def _without_nan(value: Any) -> Any:
    """JSON has none."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    return value


def carry(folder: Path, wheels: tuple[str, ...] = WHEELS) -> int:
    """Fills a new folder; its bytes."""
    folder.mkdir(parents=True)
    left_out = shutil.ignore_patterns("__pycache__", "*.so", "*.pyc", "artifacts", "images")
    for name in CARRIED:
        source = runner.ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=left_out)
        else:
            shutil.copy(source, folder / name)
    if wheels:
        target = ["--target", str(folder), "--python-version", "3.12", "--only-binary", ":all:"]
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", *target, *wheels],
            check=True,
        )
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@runner.command
def main(
    *,
    device: str = "cuda:0",
    out: Path = Path("day.jsonl"),
    minutes: Annotated[float, "nothing is begun after these"] = 9,
    rounds: int = 3,
    carry_: Annotated[Path | None, "make this folder and measure nothing"] = None,
) -> int:
    """0: nothing failed; 1: something did."""
    if carry_ is not None:
        size = carry(carry_)
        print(f"{carry_}: {size / (1 << 20):.1f} MiB")
        return int(size > MOST_CARRIED)
    try:
        asked = Asked(chosen_device(device), rounds, time.monotonic() + 60 * minutes)
    except LmprogError as error:
        print(error)
        return 1
    return int(run_all(things(asked), out, lambda: asked.seconds == 0.0) > 0)
