"""The same work on lmprog as it is here and as it is in another checkout, in turn in one run.

    python -m benchmarks.against CHECKOUT [--model nano|random:768x12|FOLDER] [--only chats,prompts]
        [--memory 0.5,0.25] [--answers 8,384] [--thinks 0] [--scale S] [--prompts N]
        [--repeat R] [--peer transformers]

*chats*: those of `chat_admission`, in memory for a part of them: processor time of all processes.
*prompts*: the long prompts of `step_length` beside eight streams: processor time of the runtime from
one token of the streams to the next, and for all prompts. Each side has a process of its own, in
which `public_client` imports lmprog from its checkout; weights, texts and options are the same, in
float32 and with one thread. `git worktree add FOLDER COMMIT` makes a checkout; its kernels are
compiled at its first start. Transformers' `generate` (`--peer`) has all chats in lockstep, with
memory for all and no pauses, which is in its favor.

Times are the least of `--repeat` runs, gaps those of all; a ratio is that of these times, and behind
it stand the least and the greatest of single rounds. The bars: chats without pauses take at most 0.7
of the checkout's processor time and no more than transformers; beside prompts p99 is at most 60 ms,
and the prompts a second are at least 0.9 of the checkout's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from benchmarks import runner
from benchmarks.chat_admission import MODEL_WORDS, Case
from benchmarks.models import prepared
from benchmarks.runner import percentile
from benchmarks.step_length import BAR_MS, LEAST_PART
from benchmarks.step_length import prompts as long_prompts
from benchmarks.virtual_time import PAGE, chats, pages_for
from lmprog.runtime.engine.model.locate import locate
from lmprog.runtime.text.tokenizer import load_tokenizer

HERE = runner.ROOT
CLIENT = Path(__file__).with_name("public_client.py")
THERE_NAME, HERE_NAME, PEER_NAME = "checkout", "here", "transformers"
MOST_BUSY = 0.7
WORKLOADS = ("chats", "prompts")
THREADS = 1
OPTIONS: dict[str, Any] = {"threads": THREADS, "dtype": "float32"}

Task = dict[str, Any]
Found = dict[str, Any]
Run = Callable[[], Found]


def on_checkout(folder: Path, task: Task) -> Found:
    """What the client finds with lmprog from that checkout."""
    done = subprocess.run(
        [sys.executable, "-P", str(CLIENT)],
        input=json.dumps(task),
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: Found = json.loads(done.stdout)
    if not Path(found["lmprog"]).resolve().is_relative_to(folder.resolve()):
        raise RuntimeError(f"{folder} was asked for, and {found['lmprog']} was run")
    return found


def chat_task(case: Case) -> tuple[Task, int]:
    """The chats as texts of words of one token each, and the tokens that must be computed."""
    from benchmarks.workloads.text import Pieces

    some = chats(1, case.answer, case.think, case.scale)
    words = Pieces(load_tokenizer(locate(case.model))).texts[:MODEL_WORDS]

    def text(question: list[int]) -> str:
        return "".join(words[token % len(words)] for token in question)

    task = {
        "workload": "chats",
        "model": case.model,
        "options": {**OPTIONS, "num_pages": pages_for(some, case.memory), "page_size": PAGE},
        "chats": [
            {
                "questions": list(map(text, one.questions)),
                "pauses": one.pauses,
                "answer": one.answer,
            }
            for one in some
        ],
    }
    return task, sum(one.length - 1 for one in some)


def on_transformers(folder: Path, task: Task) -> Found:
    """The chats in lockstep."""
    from benchmarks.peers.transformers import TransformersPeer, warm_up
    from benchmarks.workloads.agents import Serial, in_lockstep

    peer = TransformersPeer(folder, THREADS)
    warm_up(peer)
    items = []
    for one in task["chats"]:
        first, *others = one["questions"]
        items.append(Serial("", first, [*others, first], one["answer"]))
    computed, forwards = peer.num_computed, peer.num_forwards
    wall, busy = time.perf_counter(), time.process_time()
    in_lockstep(peer, items)
    return {
        "wall": time.perf_counter() - wall,
        "busy": time.process_time() - busy,
        "computed_tokens": peer.num_computed - computed,
        "steps": peer.num_forwards - forwards,
    }


@dataclass(frozen=True)
class Rounds:
    """What each side found, round by round; in each round the sides took turns."""

    found: dict[str, list[Found]]

    def least(self, side: str, name: str) -> float:
        return min(float(one[name]) for one in self.found[side])

    def bar(
        self, what: str, sides: tuple[str, str], name: str, holds: Callable[[float], bool]
    ) -> str:
        """The ratio of two sides' least times, and the least and the greatest of single rounds."""
        side, other = sides
        pairs = zip(self.found[side], self.found[other], strict=True)
        rounds = [a[name] / b[name] for a, b in pairs]
        ratio = self.least(side, name) / self.least(other, name)
        told = f"{ratio:.2f} ({min(rounds):.2f} to {max(rounds):.2f})"
        return f"  {what}: {told}: {runner.verdict(holds(ratio))}"


def chat_lines(rounds: Rounds, least: int) -> list[str]:
    """Of a cell: each side's figures, and the bars."""
    lines = []
    for name, runs in rounds.found.items():
        best = min(runs, key=lambda one: one["busy"])
        computed = sorted(one["computed_tokens"] / least for one in runs)
        times = f"{best['wall']:.2f} s | {best['busy']:.2f} s"
        share = f"{computed[0]:.2f} to {computed[-1]:.2f}"
        lines.append(f"  {name} | {share} | {best['steps']:.0f} | {times}")
    others = [(THERE_NAME, "checkout's", MOST_BUSY)]
    if PEER_NAME in rounds.found:
        others.append((PEER_NAME, "transformers'", 1.0))
    for other, whose, most in others:
        holds = partial(float.__ge__, most)
        sides = (HERE_NAME, other)
        lines.append(
            rounds.bar(f"processor time over {'the ' * (most < 1)}{whose}", sides, "busy", holds)
        )
    return lines


def prompt_lines(rounds: Rounds) -> list[str]:
    """Each side's figures, and the bars."""
    lines, p99 = [], 0.0
    for name, runs in rounds.found.items():
        gaps = [1e3 * gap for one in runs for gap in one["gaps"]]
        p50, p99 = percentile(gaps, 0.5), percentile(gaps, 0.99)
        lines.append(
            f"  {name} | {len(gaps)} steps | p50 {p50:.1f} ms | p99 {p99:.1f} ms | longest "
            f"{max(gaps):.1f} ms | all prompts {rounds.least(name, 'whole'):.2f} s"
        )
    gaps = [1e3 * gap for one in rounds.found[HERE_NAME] for gap in one["gaps"]]
    p99 = percentile(gaps, 0.99)
    lines.append(f"  p99 {p99:.1f} ms, at most {BAR_MS:.0f}: {runner.verdict(p99 <= BAR_MS)}")
    what, sides = "prompts a second over the checkout's", (THERE_NAME, HERE_NAME)
    return [*lines, rounds.bar(what, sides, "whole", lambda part: part >= LEAST_PART)]


def of_both(checkout: Path, task: Task) -> dict[str, Run]:
    return {
        THERE_NAME: partial(on_checkout, checkout, task),
        HERE_NAME: partial(on_checkout, HERE, task),
    }


def run_chats(checkout: Path, cases: list[Case], peer: str | None, repeat: int) -> None:
    for case in cases:
        task, least = chat_task(case)
        sides = of_both(checkout, task)
        if peer:
            sides[PEER_NAME] = partial(on_transformers, Path(case.model), task)
        print(
            f"\nmemory {case.memory:.0%}, answer {case.answer}, think {case.think:g}: tokens "
            "computed over the lower bound | steps | to the last answer | processor time"
        )
        lines = chat_lines(Rounds(runner.in_turn(sides, repeat)), least)
        print("\n".join(lines), flush=True)


def run_prompts(checkout: Path, folder: Path, count: int, repeat: int) -> None:
    task = {"workload": "prompts", "model": str(folder), "prompts": long_prompts(folder, count)}
    task |= {"options": {**OPTIONS, "kv_memory_mb": 3072}}
    print("\nprompts beside eight streams")
    lines = prompt_lines(Rounds(runner.in_turn(of_both(checkout, task), repeat)))
    print("\n".join(lines), flush=True)


@runner.command
def main(
    checkout: Annotated[Path, "the folder of another checkout"],
    *,
    model: Annotated[str, "of both sides: nano is this checkout's"] = "nano",
    only: runner.Names = WORKLOADS,
    memory: runner.Floats = (0.5, 0.25),
    answers: runner.Ints = (8, 384),
    thinks: runner.Floats = (0,),
    scale: float = 0.25,
    prompts: int = 8,
    repeat: int = 3,
    peer: Annotated[
        str | None, "also the chats with its generate", {"choices": [PEER_NAME]}
    ] = None,
) -> None:
    if not (checkout / "lmprog" / "__init__.py").is_file():
        raise runner.WrongOptions(f"{checkout} is no checkout: it has no lmprog/__init__.py")
    if unknown := set(only) - set(WORKLOADS):
        valid = ", ".join(WORKLOADS)
        raise runner.WrongOptions(f"unknown workload {unknown.pop()!r}; valid: {valid}")
    if peer and "chats" not in only:
        raise runner.WrongOptions("--peer goes with chats only")
    with prepared(model) as (_, folder):
        if folder is None:
            sys.exit("both sides need a checkpoint with files; a dummy has none")
        if "chats" in only:
            cells = product(memory, answers, thinks)
            cases = [Case(str(folder), one, think, part, scale) for part, one, think in cells]
            run_chats(checkout, cases, peer, repeat)
        if "prompts" in only:
            run_prompts(checkout, folder, prompts, repeat)
