"""What drafts save: the same calls with speculation off, always and auto, in one run.

    python -m benchmarks.speculation                  nano, one call at a time and eight at once
    python -m benchmarks.speculation --rounds 5 --model dummy:512x8 --at-once 1 4 16

Two workloads are nano's own: extraction under a schema as its evaluation asks for it, and free text,
greedy and drawn, which repeats nothing on purpose. In three the model is made to say what an able one
would: editing a letter, copying fields of it as JSON, quoting it. Its logits are computed as ever,
and the next token of the answer gets the greatest one; drafts know nothing of that. So acceptance is
that of a model that does its task, and costs are those of this one.

Processor time is the computing thread's, so what else the machine does changes little; the least of
all rounds counts. Each mode has one runtime for a workload, which goes on learning what drafts are
worth; with --fresh it has a new one in each round. All three modes must say the same.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.own_loop import OwnLoop
from lmprog import wire
from lmprog.config import SpeculationName
from lmprog.runtime.engine.batch import Batch
from lmprog.runtime.engine.model.locate import locate
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.text.tokenizer import load_tokenizer
from training.document import Family
from training.items import draw_items

MODES: tuple[SpeculationName, ...] = ("off", "always", "auto")
LETTER = """Dear Mr Hollis,

thank you for your letter of 12 March. I write to confirm that the delivery of forty oak chairs to the
old library in Marlow Street will take place on Tuesday. The chairs were made by our workshop in
Fenwick and each of them has been checked by Mrs Ada Barlow, who can be reached at 0131 555 0199.
The price that we agreed is 3,840 pounds, of which you have paid 1,200 pounds already. Please let me
know if somebody can open the gate in the morning, since our driver leaves again before noon.

Yours sincerely,
Edmund Pryce, Pryce and Daughters Ltd
"""
EDITED = LETTER.replace("Tuesday", "Friday").replace("forty", "fifty").replace("noon", "two")
COPIED = json.dumps(
    {
        "sender": "Edmund Pryce",
        "company": "Pryce and Daughters Ltd",
        "place": "the old library in Marlow Street",
        "checked_by": "Mrs Ada Barlow",
        "phone": "0131 555 0199",
        "price": "3,840 pounds",
        "paid": "1,200 pounds already",
    }
)
QUOTED = (
    'He says "each of them has been checked by Mrs Ada Barlow" and asks "if somebody can open the '
    'gate in the morning, since our driver leaves again before noon".'
)


@dataclass(frozen=True)
class Task:
    """Calls of one kind. With an `answer` the model is made to say that."""

    name: str
    prompts: tuple[str, ...]
    sampling: wire.SamplingParams
    constraints: tuple[wire.Constraint | None, ...] = ()
    answer: str | None = None


def tasks(num_calls: int) -> Iterator[Task]:
    greedy = wire.SamplingParams(temperature=0.0, max_tokens=400)
    for name, asked, answer in (
        ("editing a letter", "For Friday, and fifty chairs:", EDITED),
        ("fields as JSON", "As JSON:", COPIED),
        ("quoting a letter", "What does he say and ask?", QUOTED),
    ):
        yield Task(name, (f"{LETTER}\n{asked}\n",) * num_calls, greedy, answer=answer)
    items = draw_items(Family.EXTRACTION, num_calls)
    schemas = tuple(wire.JsonSchema(json.dumps(item.schema)) for item in items)
    prompts = tuple(item.prompt for item in items)
    exact = wire.SamplingParams(temperature=0.0, max_tokens=96, jump="exact")
    yield Task("nano: extraction", prompts, greedy, schemas)
    yield Task("nano: extraction, every token sampled", prompts, exact, schemas)
    free = wire.SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    drawn = wire.SamplingParams(temperature=1.0, max_tokens=100, ignore_eos=True, seed=3)
    stories = tuple(f"{number}. Once there was a baker" for number in range(num_calls))
    yield Task("nano: free text, greedy", stories, free)
    yield Task("nano: free text, drawn", stories, drawn)


@dataclass
class Figures:
    steps: int
    seconds: float
    drafted: int
    accepted: int
    texts: list[str]


class Script:
    """Makes a model say one answer after one prompt; the prompts of all calls are the same."""

    def __init__(self, location: Path | None) -> None:
        self.location = location
        self.targets: np.ndarray[Any, Any] | None = None
        """By position: the token that follows there; None: the model says what it likes."""

    @contextmanager
    def read(self) -> Iterator[None]:
        computed = NativeEngine.forward

        def forward(engine: NativeEngine, batch: Batch) -> Any:
            logits = computed(engine, batch)
            if self.targets is not None:
                after = batch.positions[batch.logit_tokens] + 1
                wanted = self.targets[np.minimum(after, len(self.targets) - 1)]
                logits[np.arange(len(wanted)), wanted] = 1e4
            return logits

        with mock.patch.object(NativeEngine, "forward", forward):
            yield


def opened(model: str, mode: SpeculationName) -> OwnLoop:
    return OwnLoop(model, speculation=mode, kv_memory_mb=64)


def measured(own: OwnLoop, model: str, task: Task, at_once: int, salt: str) -> Figures:
    script = Script(locate(model))
    with script.read():
        if not own.loop.scheduler.stats.steps:
            _ask(own, task, range(1), "warm", script)  # what is done first is not counted
        stats = own.loop.scheduler.stats
        before = (stats.steps, stats.drafted_tokens, stats.accepted_tokens)
        began, texts = time.thread_time(), list[str]()
        for first in range(0, len(task.prompts), at_once):
            asked = range(first, min(first + at_once, len(task.prompts)))
            texts += _ask(own, task, asked, salt, script)
        seconds = time.thread_time() - began
    after = (stats.steps, stats.drafted_tokens, stats.accepted_tokens)
    steps, drafted, accepted = (b - a for a, b in zip(before, after, strict=True))
    return Figures(steps, seconds, drafted, accepted, texts)


def _ask(own: OwnLoop, task: Task, which: range, salt: str, script: Script) -> list[str]:
    """The texts of these calls, all asked at once, each with a cache of its own."""
    if task.answer is not None:
        tokenizer = load_tokenizer(script.location)
        prompt = tokenizer.encode(task.prompts[0])
        answer = tokenizer.encode(task.answer, start=False)
        script.targets = np.array([*prompt, *answer, tokenizer.eos_ids[0]])
    for number in which:
        constraint = task.constraints[number] if task.constraints else None
        own.say(
            salt.encode(),
            wire.Open(number, f"{salt} {number}"),
            wire.Append(number, (wire.TextPiece(task.prompts[number]),)),
            wire.Generate(number, number, task.sampling, constraint),
        )
    found: dict[int, str] = {}
    while len(found) < len(which):
        for came in own.turn():
            if isinstance(came.reply, wire.Failed):
                raise RuntimeError(came.reply.message)
            if isinstance(came.reply, wire.CallDone):
                found[came.reply.call] = came.reply.outputs[0].text
    own.say(salt.encode(), *(wire.Close(number) for number in which))
    own.turn()
    return [found[number] for number in which]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speculation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="nano")
    parser.add_argument("--calls", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--fresh", action="store_true", help="a new runtime in each round")
    parser.add_argument("--only", default="", help="workloads whose names have this in them")
    asked = parser.parse_args()
    head = (
        "workload | at once | speculation | steps | fewer | processor ms | less | drafted | right"
    )
    print(f"| {head} |")
    print("|---|---:|---|---:|---:|---:|---:|---:|---:|")
    for task in tasks(asked.calls):
        for at_once in asked.at_once if asked.only in task.name else ():
            report(task, at_once, asked.model, asked.rounds, is_fresh=asked.fresh)


def report(task: Task, at_once: int, model: str, rounds: int, *, is_fresh: bool) -> None:
    """A line for each mode."""
    best: dict[str, Figures] = {}
    owns = {} if is_fresh else {mode: opened(model, mode) for mode in MODES}
    for number in range(rounds):
        for mode in MODES:
            own = opened(model, mode) if is_fresh else owns[mode]
            found = measured(own, model, task, at_once, f"{number}")
            if mode not in best or found.seconds < best[mode].seconds:
                best[mode] = found
    without = best["off"]
    for mode, one in best.items():
        if one.texts != without.texts:
            raise RuntimeError(f"{task.name}: {mode} says something else")
        print(
            f"| {task.name} | {at_once} | {mode} | {one.steps:,} | {without.steps / one.steps:.2f} "
            f"| {1e3 * one.seconds:,.0f} | {without.seconds / one.seconds:.2f} | {one.drafted:,} "
            f"| {one.accepted:,} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
