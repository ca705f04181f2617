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

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any
from unittest import mock

import numpy as np

from benchmarks import runner
from benchmarks.draft_rounds import OpsOf, Round, asked, compared, head, in_turn, measured
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
SAID = {
    "editing a letter": ("For Friday, and fifty chairs:", EDITED),
    "fields as JSON": ("As JSON:", COPIED),
    "quoting a letter": ("What does he say and ask?", QUOTED),
}


@dataclass(frozen=True)
class Task:
    """Calls of one kind. With an `answer` the model is made to say that."""

    name: str
    prompts: tuple[str, ...]
    sampling: wire.SamplingParams
    constraints: tuple[wire.Constraint | None, ...] = ()
    answer: str | None = None

    def ops_of(self, salt: str) -> OpsOf:
        """Each call with a cache of its own."""

        def ops(number: int) -> tuple[wire.Op, ...]:
            constraint = self.constraints[number] if self.constraints else None
            return (
                wire.Open(number, f"{salt} {number}"),
                wire.Append(number, (wire.TextPiece(self.prompts[number]),)),
                wire.Generate(number, number, self.sampling, constraint),
            )

        return ops


def tasks(num_calls: int) -> Iterator[Task]:
    greedy = wire.SamplingParams(temperature=0.0, max_tokens=400)
    for name, (question, answer) in SAID.items():
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


@contextmanager
def made_to_say(model: str, task: Task) -> Iterator[None]:
    """The model's likeliest tokens are those of the task's answer, where it has one."""
    if task.answer is None:
        yield
        return
    tokenizer, computed = load_tokenizer(locate(model)), NativeEngine.forward
    prompt = tokenizer.encode(task.prompts[0])  # those of all calls are the same
    answer = tokenizer.encode(task.answer, start=False)
    targets = np.array([*prompt, *answer, tokenizer.eos_ids[0]])

    def forward(engine: NativeEngine, batch: Batch) -> Any:
        logits = computed(engine, batch)
        after = batch.positions[batch.logit_tokens] + 1
        wanted = targets[np.minimum(after, len(targets) - 1)]
        logits[np.arange(len(wanted)), wanted] = 1e4
        return logits

    with mock.patch.object(NativeEngine, "forward", forward):
        yield


def opened(model: str, mode: str) -> OwnLoop:
    return OwnLoop(model, speculation="off" if mode == AGAIN else mode, kv_memory_mb=64)


def one_round(own: OwnLoop, model: str, task: Task, at_once: int, salt: str) -> Round:
    with made_to_say(model, task):
        if not own.loop.scheduler.stats.steps:
            asked(own, "warm", task.ops_of("warm"), range(1))  # what is done for the first time
        return measured(own, salt, task.ops_of(salt), len(task.prompts), at_once)


@runner.command
def main(
    *,
    model: str = "nano",
    calls: int = 16,
    rounds: int = 9,
    at_once: Sequence[int] = (1, 8),
    fresh: Annotated[bool, "a new runtime in each round"] = False,
    again: Annotated[bool, "a second runtime without drafts"] = False,
    only: Annotated[str, "workloads whose names have this in them"] = "",
) -> None:
    modes = (*MODES, AGAIN) if again else MODES
    print(head("workload", "at once"))
    for task in (one for one in tasks(calls) if only in one.name):
        for together in at_once:
            found: dict[str, list[Round]] = {mode: [] for mode in modes}
            owns = {} if fresh else {mode: opened(model, mode) for mode in modes}
            for number in range(rounds + (not fresh)):
                for mode in in_turn(found, number):
                    own = owns.get(mode) or opened(model, mode)
                    taken = one_round(own, model, task, together, f"{number}")
                    found[mode] += [taken] if number or fresh else []
            for line in compared(found):
                print(f"| {task.name} | {together} | {line.cells()}", flush=True)
