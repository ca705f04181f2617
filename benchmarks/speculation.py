"""What drafts save: the same calls with speculation off, always and auto, in one run.

    python -m benchmarks.speculation                  nano, one call at a time and eight at once
    python -m benchmarks.speculation --rounds 5 --model dummy:512x8 --at-once 1 4 16

Two workloads are nano's own: extraction under a schema as its evaluation asks for it, and free text,
greedy and drawn, which repeats nothing on purpose. In three the model is made to say what an able one
would: editing a letter, copying fields of it as JSON, quoting it. Its logits are computed as ever,
and the next token of the answer gets the greatest one; drafts know nothing of that. So acceptance is
that of a model that does its task, and costs are those of this one.

Each mode has one runtime for a workload, which goes on learning what drafts are worth; its first
round is not counted. With --fresh it has a new one in each round, and all of them count. With --again
there is a second runtime without drafts: what its times differ by is chance. How times are compared is
told in `draft_rounds`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.draft_rounds import Round, asked, compared, head, in_turn, measured
from benchmarks.own_loop import OwnLoop
from lmprog import wire
from lmprog.runtime.engine.model.locate import locate
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.text.tokenizer import load_tokenizer
from training.document import Family
from training.items import draw_items

MODES = ("off", "always", "auto")
AGAIN = "off again"
"""A second runtime without drafts."""
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
    for name, question, answer in (
        ("editing a letter", "For Friday, and fifty chairs:", EDITED),
        ("fields as JSON", "As JSON:", COPIED),
        ("quoting a letter", "What does he say and ask?", QUOTED),
    ):
        yield Task(name, (f"{LETTER}\n{question}\n",) * num_calls, greedy, answer=answer)
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


def opened(model: str, mode: str) -> OwnLoop:
    return OwnLoop(model, speculation="off" if mode == AGAIN else mode, kv_memory_mb=64)


class Asked:
    """The calls of one round of a task, each with a cache of its own."""

    def __init__(self, task: Task, script: Script, salt: str) -> None:
        self._task = task
        self._salt = salt
        if task.answer is not None:
            tokenizer = load_tokenizer(script.location)
            prompt = tokenizer.encode(task.prompts[0])
            answer = tokenizer.encode(task.answer, start=False)
            script.targets = np.array([*prompt, *answer, tokenizer.eos_ids[0]])

    def __call__(self, number: int) -> tuple[wire.Op, ...]:
        task = self._task
        constraint = task.constraints[number] if task.constraints else None
        return (
            wire.Open(number, f"{self._salt} {number}"),
            wire.Append(number, (wire.TextPiece(task.prompts[number]),)),
            wire.Generate(number, number, task.sampling, constraint),
        )


def one_round(own: OwnLoop, model: str, task: Task, at_once: int, salt: str) -> Round:
    script = Script(locate(model))
    with script.read():
        if not own.loop.scheduler.stats.steps:
            asked(own, "warm", Asked(task, script, "warm"), range(1))  # of what is done first
        return measured(own, salt, Asked(task, script, salt), len(task.prompts), at_once)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speculation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="nano")
    parser.add_argument("--calls", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--fresh", action="store_true", help="a new runtime in each round")
    parser.add_argument("--again", action="store_true", help="a second runtime without drafts")
    parser.add_argument("--only", default="", help="workloads whose names have this in them")
    chosen = parser.parse_args()
    modes = (*MODES, AGAIN) if chosen.again else MODES
    print(head("workload", "at once"))
    for task in tasks(chosen.calls):
        for at_once in chosen.at_once if chosen.only in task.name else ():
            found = rounds_of(task, at_once, chosen.model, modes, chosen.rounds, chosen.fresh)
            for line in compared(found):
                print(f"| {task.name} | {at_once} | {line.cells()}", flush=True)


def rounds_of(
    task: Task, at_once: int, model: str, modes: tuple[str, ...], rounds: int, is_fresh: bool
) -> dict[str, list[Round]]:
    """The rounds of each mode, asked in turn."""
    found: dict[str, list[Round]] = {mode: [] for mode in modes}
    owns = {} if is_fresh else {mode: opened(model, mode) for mode in modes}
    for number in range(rounds + (not is_fresh)):
        for mode in in_turn(found, number):
            own = owns.get(mode) or opened(model, mode)
            one = one_round(own, model, task, at_once, f"{number}")
            if number or is_fresh:
                found[mode].append(one)
    return found


if __name__ == "__main__":
    main()
