"""What drafts save: the same calls asked of several runtimes in turn.

    python -m benchmarks.speculation [--rounds 5] [--model dummy:512x8] [--at-once 1 4 16]   off, always and auto
    python -m benchmarks.speculation models [--times 16] [--at-once 1 4]     nano drafts for a deeper model

Each runtime of a comparison is asked in each round, in an order that changes from round to round, so
what else the machine does meanwhile meets all of them. What is told is the median of the rounds:
of processor time, which is the computing thread's, and of its ratio to the first runtime's in the
same round. All of them must say the same.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any
from unittest import mock

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from benchmarks import runner
from benchmarks.own_loop import OwnLoop
from lmprog import wire
from lmprog.runtime.engine.model.locate import NANO, locate
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.text.tokenizer import load_tokenizer
from training.document import Family
from training.items import draw_items

# -- rounds and their table

HEAD = ("speculation", "steps", "fewer", "processor ms", "less", "drafted", "right")
"""Columns of a row; others may stand before."""

OpsOf = Callable[[int], tuple[wire.Op, ...]]
"""A call's ops, on the branch of its own number, which they open."""


@dataclass(frozen=True, slots=True)
class Round:
    """What the calls of one round took, and said."""

    steps: int
    seconds: float
    drafted: int
    accepted: int
    texts: list[str]


@dataclass(frozen=True, slots=True)
class Compared:
    """One runtime beside the first one of its comparison, over all rounds."""

    name: str
    steps: float
    fewer: float
    """Steps of the first one over its own."""
    seconds: float
    less: float
    """The same of processor time."""
    drafted: float
    accepted: float

    def cells(self) -> tuple[str, ...]:
        taken = (f"{1e3 * self.seconds:,.0f}", f"{self.less:.2f}")
        drafts = (f"{self.drafted:,.0f}", f"{self.accepted:,.0f}")
        return (self.name, f"{self.steps:,.0f}", f"{self.fewer:.2f}", *taken, *drafts)


def asked(own: OwnLoop, salt: str, ops_of: OpsOf, which: Iterable[int]) -> list[str]:
    """The texts of these calls, all asked at once."""
    numbers = list(which)
    for number in numbers:
        own.say(salt.encode(), *ops_of(number))
    found: dict[int, str] = {}
    while len(found) < len(numbers):
        for came in own.turn():
            if isinstance(came.reply, wire.CallDone):
                found[came.reply.call] = came.reply.outputs[0].text
    own.say(salt.encode(), *(wire.Close(number) for number in numbers))
    own.turn()
    return [found[number] for number in numbers]


def measured(own: OwnLoop, salt: str, ops_of: OpsOf, num_calls: int, at_once: int) -> Round:
    """All calls, so many at once."""
    stats = own.loop.scheduler.stats
    before = (stats.steps, stats.drafted_tokens, stats.accepted_tokens)
    began, texts = time.thread_time(), list[str]()
    for first in range(0, num_calls, at_once):
        texts += asked(own, salt, ops_of, range(first, min(first + at_once, num_calls)))
    seconds = time.thread_time() - began
    after = (stats.steps, stats.drafted_tokens, stats.accepted_tokens)
    steps, drafted, accepted = (b - a for a, b in zip(before, after, strict=True))
    return Round(steps, seconds, drafted, accepted, texts)


def in_turn(names: Iterable[str], number: int) -> list[str]:
    """The order of round `number`: forwards and backwards."""
    return list(names)[:: 1 if number % 2 else -1]


def compared(rounds: Mapping[str, list[Round]]) -> list[Compared]:
    """Beside the first one of `rounds`. Raises `RuntimeError` where one says something else."""
    first, *_ = rounds.values()
    found: list[Compared] = []
    for name, own in rounds.items():
        pairs = list(zip(first, own, strict=True))
        if any(a.texts != b.texts for a, b in pairs):
            raise RuntimeError(f"{name} says something else")
        fewer = sum(a.steps for a, _ in pairs) / sum(b.steps for _, b in pairs)
        less = median(a.seconds / b.seconds for a, b in pairs)
        steps, seconds, drafted, accepted = (
            median(getattr(one, figure) for one in own)
            for figure in ("steps", "seconds", "drafted", "accepted")
        )
        found.append(Compared(name, steps, fewer, seconds, less, drafted, accepted))
    return found


# -- with speculation off, always and auto

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


def modes(
    *,
    model: str = "nano",
    calls: int = 16,
    rounds: int = 9,
    at_once: Sequence[int] = (1, 8),
    fresh: Annotated[bool, "a new runtime in each round"] = False,
    again: Annotated[bool, "a second runtime without drafts"] = False,
    only: Annotated[str, "workloads whose names have this in them"] = "",
) -> None:
    """Two workloads are nano's own: extraction under a schema as its evaluation asks for it, and free
    text, greedy and drawn, which repeats nothing on purpose. In three the model is made to say what an
    able one would: editing a letter, copying fields of it as JSON, quoting it. Its logits are computed
    as ever, and the next token of the answer gets the greatest one; drafts know nothing of that. So
    acceptance is that of a model that does its task, and costs are those of this one.

    Each mode has one runtime for a workload, which goes on learning what drafts are worth; its first
    round is not counted. With --fresh it has a new one in each round, and all of them count. With
    --again there is a second runtime without drafts: what its times differ by is chance.
    """
    modes = (*MODES, AGAIN) if again else MODES
    runner.head("workload", "at once", *HEAD, texts=3)
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
                runner.say(task.name, together, *line.cells())


# -- with a draft model

WAYS: dict[str, dict[str, Any]] = {
    "off": {"speculation": "off"},
    "prompt lookup": {},
    "draft model": {"draft_model": "nano"},
}


def deepened(folder: Path, times: int, noise: float) -> Path:
    """A checkpoint of `times` as many layers as nano."""
    described = json.loads((NANO / "config.json").read_text())
    weights, dice = load_file(NANO / "model.safetensors"), torch.Generator().manual_seed(1)
    first = described["num_hidden_layers"]
    for layer in range(first, first * times):
        for name in [name for name in weights if name.startswith("model.layers.0.")]:
            shape, kind = weights[name].shape, weights[name].dtype
            is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
            drawn = torch.randn(shape, generator=dice) * 0.05 * (noise if is_output else 1.0)
            made = torch.ones(shape) if "layernorm" in name else drawn
            weights[name.replace(".0.", f".{layer}.", 1)] = made.to(kind)
    folder.mkdir()
    for path in NANO.glob("*.json"):
        shutil.copy(path, folder)
    save_file(weights, folder / "model.safetensors")
    described["num_hidden_layers"] = first * times
    (folder / "config.json").write_text(json.dumps(described))
    return folder


def stories(salt: str, sampling: wire.SamplingParams) -> OpsOf:
    """Calls that share nothing but their salt."""

    def ops(number: int) -> tuple[wire.Op, ...]:
        prompt = wire.TextPiece(f"{number}. A short story about a baker who finds a key.\nOnce")
        gen = wire.Generate(number, number, sampling)
        return wire.Open(number, salt), wire.Append(number, (prompt,)), gen

    return ops


def models(
    *,
    times: int = 8,
    noise: Sequence[float] = (0.0, 0.1, 0.3, 1.0),
    at_once: Sequence[int] = (1, 8),
    calls: int = 8,
    tokens: int = 64,
    rounds: int = 2,
) -> None:
    """No pair of a small and a large trained model of one vocabulary is shipped. So the large one is
    made: nano, and behind its layers others at random, whose part of the sum is scaled by `noise`.
    With 0 it says what nano says, at the costs of its size; the more noise, the oftener it says
    something else, and the less its text means. So costs are real, and acceptance is what the noise
    makes it: what a pair of trained models reaches is theirs to show.

    Each way has one runtime; its first round, which learns what drafts are worth, is not counted.
    """
    runner.head("noise", "text", "at once", *HEAD, texts=4)
    for one in noise:
        with tempfile.TemporaryDirectory() as folder:
            model = str(deepened(Path(folder) / "deep", times, one))
            owns = {name: OwnLoop(model, kv_memory_mb=256, **way) for name, way in WAYS.items()}
        for text, temperature in (("greedy", 0.0), ("drawn", 1.0)):
            sampling = wire.SamplingParams(
                temperature=temperature, max_tokens=tokens, ignore_eos=True, seed=3
            )
            for together in at_once:
                found: dict[str, list[Round]] = {name: [] for name in WAYS}
                for number in range(rounds + 1):
                    salt = f"{text} {together} {number}"
                    for name in in_turn(found, number):
                        ops = stories(salt, sampling)
                        taken = measured(owns[name], salt, ops, calls, together)
                        found[name] += [taken] if number else []
                for line in compared(found):
                    runner.say(one, text, together, *line.cells())


COMMANDS = runner.commands(modes, models)
