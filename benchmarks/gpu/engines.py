"""lmprog on a device beside other engines: the same random model and the same tokens, in turn.

Every side is a process that stays (`benchmarks.peers`). A round asks all sides for a workload one
after the other, first with one token for each request, in texts of their own: that is how long it
takes until all of them have their first token. A side that is not installed, that does not start,
that takes too long, or that gives fewer tokens than asked for is named as missing.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import runner
from benchmarks.models import make_comparable
from benchmarks.peers.compare import Side
from benchmarks.peers.side_loop import Case
from benchmarks.workloads.text import Pieces, Writer
from lmprog.runtime.engine.device.flashinfer_reader import is_installed
from lmprog.runtime.text.tokenizer import HfTokenizer

SHARE = 0.2
"""Of a GPU's memory, for each side that takes a share."""
MOST_TOKENS = 10_240
_OTHERS = ("vLLM", "SGLang", "mini-sglang")
_START_SECONDS = 180.0
_ANSWER_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Workload:
    """`requests` behind a prefix that they share; "nodes": how many thoughts a level of a tree has,
    of `own` tokens each."""

    shared: int
    requests: int
    own: int
    out: int
    levels: int = 1
    options: int = 0
    """Texts of 3 tokens that are scored in place of generating."""

    @property
    def about(self) -> str:
        many = f"{self.requests}^{self.levels}" if self.levels > 1 else f"{self.requests}"
        end = f"{self.options} choices scored" if self.options else f"{self.out} out"
        shared = f"share {self.shared} tokens" if self.shared > 1 else "share nothing"
        return f"{many} requests {shared}, {self.own} a level of their own, {end}"


USUAL = {
    "self-consistency": Workload(8192, 64, 4, 256),
    "tree of thought": Workload(1024, 8, 64, 64, levels=3),
    "unshared": Workload(1, 256, 512, 256),
    "select": Workload(2048, 256, 64, 0, options=4),
}
TINY = {
    "self-consistency": Workload(18, 2, 1, 3),
    "tree of thought": Workload(4, 2, 2, 2, levels=2),
    "select": Workload(4, 2, 2, 0, options=2),
}


class Texts:
    """Makes the cases of a round, whose texts no earlier round had."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = HfTokenizer(folder)
        self._pieces = Pieces(self.tokenizer)

    def case(self, workload: Workload, salt: str) -> Case:
        writer = Writer(self._pieces, salt, 1.0, 1.0)

        def ids(count: int) -> list[int]:
            return self.tokenizer.encode(writer.text(count))

        own: list[list[int]] = [[]]
        shared = ids(workload.shared)
        for _ in range(workload.levels):
            own = [node + ids(workload.own) for node in own for _ in range(workload.requests)]
        choices = [ids(3) for _ in range(workload.options)]
        return {
            "shared": shared,
            "own": own,
            "out": workload.out,
            "turns": [],
            "choices": choices,
        }


@dataclass(slots=True)
class EngineTimes:
    """Of one side at one workload, a value a round."""

    first: list[float] = field(default_factory=list)
    """Seconds until all requests have a token; none for choices."""
    whole: list[float] = field(default_factory=list)
    same: list[float] = field(default_factory=list)
    """Shares of outputs that are those of the first side."""

    def cells(self, workload: Workload) -> tuple[str, str, str]:
        asked, whole = workload.requests**workload.levels, statistics.median(self.whole)
        first = f"{statistics.median(self.first):.3f}" if self.first else "-"
        rate = f"{asked * workload.out / whole:.0f}"
        if workload.options:
            rate = f"{asked / whole:.1f} choices"
        return first, rate, f"{statistics.mean(self.same):.0%}"


@dataclass(frozen=True, slots=True)
class EnginesFound:
    """What a report is made of. `rows`: of a side, of a workload; `missing`: why."""

    model: str
    rounds: int
    workloads: dict[str, Workload]
    rows: dict[str, dict[str, EngineTimes]]
    missing: dict[str, str]

    def table(self) -> str:
        """Markdown, a workload and a side a line."""
        rows = [
            (name, side, *times[name].cells(workload))
            for name, workload in self.workloads.items()
            for side, times in self.rows.items()
            if name in times
        ]
        columns = ("workload", "side", "first tokens, s", "tokens a second", "same outputs")
        left_out = [f"- {side}: left out, {why}" for side, why in self.missing.items()]
        about = [f"- {name}: {workload.about}" for name, workload in self.workloads.items()]
        return "\n".join([runner.table(columns, rows, texts=2), "", *about, *left_out])


def sides(folder: Path, device: str, missing: dict[str, str]) -> list[Side]:
    """lmprog's first; those that are not installed go to `missing`."""
    is_tiny = device == "emulated"
    made = []
    attentions = ["tree", "flashinfer"] if is_installed() and not is_tiny else ["tree"]
    if "flashinfer" not in attentions:
        missing["lmprog flashinfer"] = "on no GPU" if is_tiny else "FlashInfer is not installed"
    for attention in attentions:
        options = {
            "device": device,
            "dtype": "float32" if is_tiny else "bfloat16",
            "attention": attention,
            "kv_memory_mb": 8 if is_tiny else 8000,
            "context_len": 256 if is_tiny else MOST_TOKENS,
        }
        command = [sys.executable, "-m", "benchmarks.peers.lmprog_side", str(folder)]
        made.append(Side(f"lmprog {attention}", [*command, json.dumps(options)]))

    def add(name: str, package: str, engine: str, *arguments: object) -> None:
        if importlib.util.find_spec(package) is None:
            missing[name] = "it is not installed"
            return
        whole = "benchmarks.peers.whole_prompts"
        made.append(Side(name, [sys.executable, "-m", whole, engine, *map(str, arguments)]))

    kind, place = ("float32", "cpu") if is_tiny else ("bfloat16", device)
    name = "transformers continuous batching"
    add(name, "transformers", "continuous", folder, kind, place, SHARE)
    if is_tiny:
        missing.update(dict.fromkeys(_OTHERS, "it needs a GPU"))
        return made
    add("vLLM", "vllm", "vllm", folder, kind, 1, SHARE, MOST_TOKENS)
    add("SGLang", "sglang", "sglang", folder, SHARE, MOST_TOKENS)
    add("mini-sglang", "minisgl", "minisgl", folder, SHARE, MOST_TOKENS)
    return made


@contextmanager
def _at_most(side: Side, seconds: float) -> Iterator[None]:
    """Ends the side's process where what is done with it takes longer."""

    def end() -> None:
        if side.process is not None:
            side.process.kill()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _started(side: Side) -> None:
    """`Side.start` with a bound. The process exists only within the call."""
    with _at_most(side, _START_SECONDS):
        side.start()


def _answer(side: Side, case: Case) -> dict[str, Any] | None:
    with _at_most(side, _ANSWER_SECONDS):
        answer = side.answer(case)
    if answer is None or case["choices"]:
        return answer
    short = [one for one in answer["outputs"] if not isinstance(one, str)]
    if any(len(one) < case["out"] - 1 for one in short):  # mini-sglang keeps the last one
        side.missing = "it gave fewer tokens than asked for"
        side.close()
        return None
    return answer


def run_round(
    all_sides: list[Side], texts: Texts, workloads: dict[str, Workload], salt: str
) -> Any:
    """Of each side, of each workload: seconds until first tokens, seconds, share of same outputs."""
    found: dict[str, dict[str, tuple[float | None, float, float]]] = {}
    for name, workload in workloads.items():
        case = texts.case(workload, f"{salt} {name}")
        first = texts.case(workload, f"{salt} {name}, first") | {"out": 1}
        wanted: list[Any] | None = None
        for side in all_sides:
            if workload.options and not side.name.startswith("lmprog"):
                continue
            until = None if workload.options else _answer(side, first)
            answer = _answer(side, case)
            if answer is None or (until is None and not workload.options):
                continue
            outputs = [_text(texts, case, one) for one in answer["outputs"]]
            wanted = outputs if wanted is None else wanted
            same = [
                a == b or (bool(b) and _begins(a, b)) for a, b in zip(wanted, outputs, strict=True)
            ]
            seconds = None if until is None else until["wall"]
            found.setdefault(side.name, {})[name] = (
                seconds,
                answer["wall"],
                sum(same) / len(same),
            )
    return found


def _text(texts: Texts, case: Case, output: Any) -> Any:
    if case["choices"] or isinstance(output, str):
        return output
    return texts.tokenizer.decode(output)


def _begins(whole: Any, part: Any) -> bool:
    """Whether a text is another but its last token, which one side keeps."""
    return isinstance(whole, str) and isinstance(part, str) and whole.startswith(part)


def measure_engines(device: str, rounds: int, seconds: float) -> EnginesFound:
    """Starts all sides, warms them up with small workloads, and makes rounds until `seconds` are
    over: at least one."""
    ends, is_tiny = time.monotonic() + seconds, device == "emulated"
    model, workloads = ("tiny", TINY) if is_tiny else ("L", USUAL)
    rows: dict[str, dict[str, EngineTimes]] = {}
    missing: dict[str, str] = {}
    number = 0
    with tempfile.TemporaryDirectory() as scratch:
        make_comparable(Path(scratch), model)
        texts = Texts(Path(scratch))
        all_sides = sides(Path(scratch), device, missing)
        try:
            for side in all_sides:
                _started(side)
            if not is_tiny:
                run_round(all_sides, texts, TINY, "warm up")
            while number < rounds and (number == 0 or time.monotonic() < ends):
                number += 1
                for name, times in run_round(all_sides, texts, workloads, f"{number}").items():
                    _note(rows.setdefault(name, {}), times)
        finally:
            for side in all_sides:
                side.close()
    missing |= {side.name: side.missing for side in all_sides if side.missing}
    return EnginesFound(f"random Llama {model}", number, workloads, rows, missing)


def _note(
    rows: dict[str, EngineTimes], times: dict[str, tuple[float | None, float, float]]
) -> None:
    for workload, (first, whole, same) in times.items():
        kept = rows.setdefault(workload, EngineTimes())
        if first is not None:
            kept.first.append(first)
        kept.whole.append(whole)
        kept.same.append(same)
