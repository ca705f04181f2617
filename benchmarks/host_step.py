"""Processor time that a step costs outside of the model: messages, plan, batch, requests, commit,
text, replies. The engine computes nothing, and every sampled token is the same.

    python -m benchmarks.host_step [--rows 16 64 256] [--steps 300] [--plan]
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Items
from functools import partial
from statistics import median
from typing import Annotated, Any

from benchmarks import runner
from lmprog import wire
from lmprog.config import SchedulerConfig
from lmprog.errors import NotSupported
from lmprog.runtime.engine.device.flashinfer_reader import paged_rows, shared_runs
from lmprog.runtime.engine.device.items import Tiling, plan_items
from lmprog.runtime.engine.device.step_arrays import ItemPlans, StepRules
from lmprog.runtime.engine.model.locate import NANO
from lmprog.runtime.loop import Loop
from lmprog.runtime.programs.call_builder import ServedModel
from lmprog.runtime.programs.interpreter import Interpreter
from lmprog.runtime.scheduling.batch import Batch, build_batch
from lmprog.runtime.scheduling.generation import Scoring
from lmprog.runtime.scheduling.plan import Plan, Row
from lmprog.runtime.scheduling.sampling_requests import (
    SampleRequest,
    SampleResult,
    ScoreRequest,
    StepResults,
)
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup
from lmprog.runtime.steps import StepEngine, StepSampler
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.runtime.text.tokenizer import load_tokenizer
from lmprog.transport import LocalRuntimeChannel

CONTEXT = 4096
PAGE = 16
WARM_UP = 50
PROMPT = "A short prompt of some twenty tokens, so that nearly every step only decodes. "


class NoEngine:
    """Takes a batch and computes nothing."""

    def forward(self, batch: Batch) -> None:
        return None


class OneToken:
    """Samples the same token for every request."""

    def __init__(self, token: int) -> None:
        self._result = SampleResult(token, 0.0)

    def sample(
        self, logits: None, picks: tuple[SampleRequest, ...], scores: tuple[ScoreRequest, ...]
    ) -> StepResults:
        return StepResults((self._result,) * len(picks), ())


MakeEngine = Callable[[SchedulerConfig, int], tuple[StepEngine[Any], StepSampler[Any]]]
"""An engine and its sampler for a number of pages and a token that it always samples."""


def nothing(_: SchedulerConfig, token: int) -> tuple[StepEngine[Any], StepSampler[Any]]:
    """An engine that computes nothing, and the same token for all."""
    return NoEngine(), OneToken(token)


def decoding_loop(
    num_rows: int, max_tokens: int, make_engine: MakeEngine = nothing, **changes: Any
) -> Loop:
    """A loop in whose next steps `num_rows` streamed gens decode one token each. `changes` are of
    its scheduler's configuration.
    """
    tokenizer = load_tokenizer(NANO)
    # so many pages that every program has a place, whatever it is expected to grow to
    usual = {"num_pages": 300 * num_rows + 1000, "max_rows": num_rows, "speculation": "off"}
    config = SchedulerConfig(page_size=PAGE, **{**usual, **changes})
    scheduler = Scheduler(config, CONTEXT)
    welcome = wire.Welcome(
        wire.PROTOCOL_VERSION, "none", CONTEXT, tokenizer.vocab_size, 16, config.num_pages, 0
    )
    channel = LocalRuntimeChannel()
    model = ServedModel(tokenizer, _no_template, welcome)
    interpreter = Interpreter(scheduler, model, None, time.monotonic, random.Random(0))
    token = tokenizer.encode(" word", start=False)[0]
    loop = Loop(channel, interpreter, scheduler, *make_engine(config, token), time.monotonic)
    client = channel.connect()
    client.send([wire.Hello(wire.PROTOCOL_VERSION)])
    sampling = wire.SamplingParams(max_tokens=WARM_UP + max_tokens, ignore_eos=True)
    for number in range(num_rows):
        client.send(
            [
                wire.Open(number),
                wire.Append(number, (wire.TextPiece(f"{PROMPT}{number}"),)),
                wire.Generate(number, number, sampling, stream=True),
            ]
        )
    for _ in range(WARM_UP):
        loop.step()
    if len(scheduler.running) != num_rows:
        raise RuntimeError(f"{len(scheduler.running)} of {num_rows} sequences run")
    return loop


def milliseconds_per_step(num_rows: int, num_steps: int) -> float:
    """The median over steps in which `num_rows` streamed gens decode one token each."""
    loop = decoding_loop(num_rows, 2 * num_steps)
    times = [runner.seconds(loop.step, 1, time.thread_time) for _ in range(num_steps)]
    return 1e3 * median(times)


def plan_milliseconds(num_rows: int, prefix: int, own: int, num_steps: int) -> tuple[float, ...]:
    """The medians of planning a GPU's attention anew and patched, and of the requests of its
    cascade, for decode rows on a common prefix with so many tokens of
    their own. One row has no requests."""
    rules = Tiling(group=4)
    plans = ItemPlans(StepRules(rules, (), 1 << 20), None)
    anew, patched, requests = list[float](), list[float](), list[float]()
    for step in range(num_steps):
        batch = _fork(num_rows, prefix, own + step)
        whole = partial(plan_items, batch, rules, None, 1 << 20)
        anew.append(1e3 * runner.seconds(whole, 1, time.thread_time))
        patched.append(1e3 * runner.seconds(partial(plans.of, batch), 1, time.thread_time))
        cascade = partial(_cascade, batch, num_rows)
        requests.append(1e3 * runner.seconds(cascade, 1, time.thread_time))
    if plans.num_patched != num_steps - 1:
        raise RuntimeError(f"{plans.num_patched} of {num_steps - 1} plans were patched")
    return median(anew), median(patched), median(requests)


def _cascade(batch: Batch, num_rows: int) -> None:
    shared = shared_runs(batch, 1 << 20)
    if num_rows > 1 and (shared is None or len(shared.gather) < num_rows):
        raise RuntimeError("nothing is shared")
    paged_rows(batch, 0 if shared is None else shared.depths)


def _fork(num_rows: int, prefix: int, own: int) -> Batch:
    """Rows that decode at position `own` after a prefix of whole pages; each has pages to come."""
    sequence = Sequence(SequenceGroup(), array("i"), Scoring(1, ()))
    shared, most = prefix // PAGE, 64
    start, needed = prefix + own, own // PAGE + 1
    rows = []
    for row in range(num_rows):
        first = shared + row * most
        pages = array("i", [*range(shared), *range(first, first + needed)])
        rows.append(Row(sequence, array("i", [7]), start, start + 1, pages, start))
    return build_batch(Plan(tuple(rows)), PAGE)


def _no_template() -> ChatTemplate:
    raise NotSupported("no chat here")


@runner.command
def main(
    *,
    rows: Items[int] = (1, 16, 64, 256),
    steps: int = 300,
    plan: Annotated[bool, "a GPU's plan of attention instead"] = False,
) -> None:
    if plan:
        runner.head("rows", "prefix", "plan made anew, ms", "patched, ms", "cascade anew, ms")
        for num_rows in rows:
            for prefix in (1024, 8192):
                found = plan_milliseconds(num_rows, prefix, 100, steps)
                runner.say(num_rows, f"{prefix:,}", *(f"{one:.3f}" for one in found))
        return
    runner.head("rows", "processor ms a step", "us a row")
    for num_rows in rows:
        cost = milliseconds_per_step(num_rows, steps)
        runner.say(num_rows, f"{cost:.3f}", f"{1e3 * cost / num_rows:.1f}")
