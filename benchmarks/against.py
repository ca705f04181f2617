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

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.chat_admission import MODEL_WORDS, Case, lengths_of, pages_for
from benchmarks.checkpoints import checkpoint
from benchmarks.memory_pressure import PAGE, chats
from benchmarks.own_loop import percentile
from benchmarks.step_length import BAR_MS, LEAST_PART, prompts
from lmprog.runtime.engine.model.locate import locate
from lmprog.runtime.text.tokenizer import load_tokenizer

HERE = Path(__file__).parent.parent
CLIENT = Path(__file__).with_name("public_client.py")
THERE_NAME, HERE_NAME, PEER_NAME = "checkout", "here", "transformers"
MOST_BUSY = 0.7
WORKLOADS = ("chats", "prompts")
THREADS = 1
OPTIONS = {"threads": THREADS, "dtype": "float32"}

Task = dict[str, Any]
Found = dict[str, Any]
Run = Callable[[], Found]


def on_checkout(folder: Path, task: Task) -> Found:
    """What the client finds with lmprog from that checkout."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-P", str(CLIENT)],
        input=json.dumps(task),
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: Found = json.loads(done.stdout)
    if not Path(found["lmprog"]).resolve().is_relative_to(folder.resolve()):
        raise RuntimeError(f"{folder} was asked for, and {found['lmprog']} was run")
    return found


def chat_task(case: Case) -> tuple[Task, int]:
    """The chats as texts, and the tokens that must be computed."""
    some = chats(1, case.answer, case.think, case.scale)
    words = spelled(case.model)
    task = {
        "workload": "chats",
        "model": case.model,
        "options": {**OPTIONS, "num_pages": pages_for(some, case.memory), "page_size": PAGE},
        "chats": [
            {
                "questions": [
                    "".join(words[token % len(words)] for token in question)
                    for question in one.questions
                ],
                "pauses": one.pauses,
                "answer": one.answer,
            }
            for one in some
        ],
    }
    return task, sum(lengths_of(some)) - len(some)


def spelled(model: str) -> list[str]:
    """Words of one token each, wherever they stand."""
    from benchmarks.workloads.text import Pieces

    return Pieces(load_tokenizer(locate(model))).texts[:MODEL_WORDS]


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
    wall, busy = time.perf_counter() - wall, time.process_time() - busy
    counts = {
        "computed_tokens": peer.num_computed - computed,
        "steps": peer.num_forwards - forwards,
    }
    return {"wall": wall, "busy": busy, **counts}


@dataclass(frozen=True)
class Rounds:
    """What each side found, round by round; in each round the sides took turns."""

    found: dict[str, list[Found]]

    def least(self, side: str, name: str) -> float:
        times: list[float] = [one[name] for one in self.found[side]]
        return min(times)

    def ratio(self, side: str, other: str, name: str) -> tuple[float, float, float]:
        """Of the least times, and the least and the greatest of single rounds."""
        pairs = zip(self.found[side], self.found[other], strict=True)
        rounds = [a[name] / b[name] for a, b in pairs]
        return self.least(side, name) / self.least(other, name), min(rounds), max(rounds)


def in_turn(sides: dict[str, Run], repeat: int) -> Rounds:
    found: dict[str, list[Found]] = {name: [] for name in sides}
    for _ in range(repeat):
        for name, run in sides.items():
            found[name].append(run())
    return Rounds(found)


def told(ratio: tuple[float, float, float]) -> str:
    return f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f})"


def chat_lines(rounds: Rounds, least: int) -> list[str]:
    """Of a cell: each side's figures, and the bars."""
    lines = []
    for name, runs in rounds.found.items():
        best = min(runs, key=lambda one: one["busy"])
        computed = sorted(one["computed_tokens"] / least for one in runs)
        lines.append(
            f"  {name} | {computed[0]:.2f} to {computed[-1]:.2f} | {best['steps']:.0f} | {best['wall']:.2f} s | "
            f"{best['busy']:.2f} s"
        )
    of_checkout = rounds.ratio(HERE_NAME, THERE_NAME, "busy")
    lines.append(
        bar("processor time over the checkout's", of_checkout, of_checkout[0] <= MOST_BUSY)
    )
    if PEER_NAME in rounds.found:
        of_peer = rounds.ratio(HERE_NAME, PEER_NAME, "busy")
        lines.append(bar("processor time over transformers'", of_peer, of_peer[0] <= 1.0))
    return lines


def prompt_lines(rounds: Rounds) -> list[str]:
    """Each side's figures, and the bars."""
    lines = []
    for name, runs in rounds.found.items():
        gaps = [1e3 * gap for one in runs for gap in one["gaps"]]
        lines.append(
            f"  {name} | {len(gaps)} steps | p50 {percentile(gaps, 0.5):.1f} ms | p99 "
            f"{percentile(gaps, 0.99):.1f} ms | longest {max(gaps):.1f} ms | all prompts "
            f"{rounds.least(name, 'whole'):.2f} s"
        )
    p99 = 1e3 * percentile([gap for one in rounds.found[HERE_NAME] for gap in one["gaps"]], 0.99)
    verdict = "met" if p99 <= BAR_MS else "missed"
    lines.append(f"  p99 {p99:.1f} ms, at most {BAR_MS:.0f}: {verdict}")
    part = rounds.ratio(THERE_NAME, HERE_NAME, "whole")
    lines.append(bar("prompts a second over the checkout's", part, part[0] >= LEAST_PART))
    return lines


def bar(what: str, ratio: tuple[float, float, float], is_met: bool) -> str:
    return f"  {what}: {told(ratio)}: {'met' if is_met else 'missed'}"


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.against",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkout", type=Path, help="the folder of another checkout")
    parser.add_argument("--model", default="nano", help="of both sides: nano is this checkout's")
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--memory", default="0.5,0.25")
    parser.add_argument("--answers", default="8,384")
    parser.add_argument("--thinks", default="0")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--peer", choices=(PEER_NAME,), help="also the chats with its generate")
    asked = parser.parse_args(arguments)
    if not (asked.checkout / "lmprog" / "__init__.py").is_file():
        parser.error(f"{asked.checkout} is no checkout: it has no lmprog/__init__.py")
    asked.only = asked.only.split(",")
    if unknown := set(asked.only) - set(WORKLOADS):
        parser.error(f"unknown workload {unknown.pop()!r}; valid: {', '.join(WORKLOADS)}")
    if asked.peer and "chats" not in asked.only:
        parser.error("--peer goes with chats only")
    return asked


def run_chats(asked: argparse.Namespace, folder: Path) -> None:
    for memory in map(float, asked.memory.split(",")):
        for answer in map(int, asked.answers.split(",")):
            for think in map(float, asked.thinks.split(",")):
                case = Case(str(folder), answer, think, memory, asked.scale)
                task, least = chat_task(case)
                sides = of_both(asked.checkout, task)
                if asked.peer:
                    sides[PEER_NAME] = partial(on_transformers, folder, task)
                print(
                    f"\nmemory {memory:.0%}, answer {answer}, think {think:g}: tokens computed "
                    "over the lower bound | steps | to the last answer | processor time"
                )
                print("\n".join(chat_lines(in_turn(sides, asked.repeat), least)), flush=True)


def run_prompts(asked: argparse.Namespace, folder: Path) -> None:
    task = {
        "workload": "prompts",
        "model": str(folder),
        "options": {**OPTIONS, "kv_memory_mb": 3072},
        "prompts": prompts(folder, asked.prompts),
    }
    print("\nprompts beside eight streams")
    rounds = in_turn(of_both(asked.checkout, task), asked.repeat)
    print("\n".join(prompt_lines(rounds)), flush=True)


def of_both(checkout: Path, task: Task) -> dict[str, Run]:
    return {
        THERE_NAME: partial(on_checkout, checkout, task),
        HERE_NAME: partial(on_checkout, HERE, task),
    }


def main() -> None:
    asked = options(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="lmprog-bench-") as scratch:
        _, folder = checkpoint(asked.model, Path(scratch))
        if folder is None:
            sys.exit("both sides need a checkpoint with files; a dummy has none")
        if "chats" in asked.only:
            run_chats(asked, folder)
        if "prompts" in asked.only:
            run_prompts(asked, folder)


if __name__ == "__main__":
    main()
