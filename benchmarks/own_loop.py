"""Runtimes in this thread: one whose clock is the thread's processor time, and a loop around a
model that computes nothing.

What a busy machine does to the wall clock is not measured then, so figures of latency can be
compared anywhere. Where a workload waits for nothing but time, `skip` lets it pass. Knows the loop
and its channel; knows no workload.
"""

from __future__ import annotations

import random
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from lmprog import wire
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.runtime.assembly import assemble
from lmprog.runtime.loop import Loop
from lmprog.runtime.programs.call_builder import ServedModel
from lmprog.runtime.programs.call_constraints import CallConstraints
from lmprog.runtime.programs.compile_pool import CompilePool, Job
from lmprog.runtime.programs.interpreter import Interpreter
from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.scheduling.sampling_requests import (
    SampleRequest,
    SampleResult,
    ScoreRequest,
    StepResults,
)
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.runtime.text.tokenizer import ByteTokenizer, PieceTokenizer
from lmprog.simulation.world import SimChannel

ME = b"bench"

_SCHEDULING = set(SchedulerConfig.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Came:
    """A reply, and when it was there."""

    client: bytes
    reply: wire.Reply
    at: float


class OwnLoop:
    """One thread computes unless `threads` says otherwise; `fields` are those of `RuntimeConfig` and `SchedulerConfig`."""

    def __init__(self, model: str, channel: SimChannel | None = None, **fields: Any) -> None:
        scheduling = {name: fields.pop(name) for name in _SCHEDULING & set(fields)}
        fields = {"threads": 1, **fields, "scheduler": SchedulerConfig(**scheduling)}
        config = RuntimeConfig(model, **fields)
        self._skipped = 0.0
        self.channel = channel or SimChannel()
        self.loop, self.welcome = assemble(config, self.channel, clock=self.now)
        self._greeted: set[bytes] = set()
        self._num_calls = 0

    def now(self) -> float:
        return time.thread_time() + self._skipped

    def skip(self, seconds: float) -> None:
        """Nothing is computed, and the time is over. The thread of a second tier really has it."""
        if self.loop.scheduler.tier is not None:
            time.sleep(seconds)
        self._skipped += seconds

    def say(self, client: bytes, *ops: wire.Op) -> None:
        if client not in self._greeted:
            self._greeted.add(client)
            self.channel.inbox.append((client, wire.Hello(wire.PROTOCOL_VERSION)))
        self.channel.inbox += [(client, op) for op in ops]

    def ask(self, client: bytes, prompt: str, max_tokens: int, salt: str = "") -> int:
        """A stream of so many tokens on a branch of its own; the number of both."""
        self._num_calls += 1
        number, text = self._num_calls, (wire.TextPiece(prompt),)
        sampling = wire.SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        gen = wire.Generate(number, number, sampling, None, True)
        self.say(client, wire.Open(number, salt), wire.Append(number, text), gen)
        return number

    def turn(self) -> list[Came]:
        """One step. Raises `RuntimeError` where a call failed."""
        self.channel.sent.clear()
        self.loop.step()
        now = self.now()
        for _, reply in self.channel.sent:
            if isinstance(reply, wire.Failed):
                raise RuntimeError(reply.message)
        return [Came(client, reply, now) for client, reply in self.channel.sent]

    def finish(self, call: int) -> None:
        """Turns until this call is done."""
        while not any(
            isinstance(one.reply, wire.CallDone) and one.reply.call == call for one in self.turn()
        ):
            pass

    @property
    def is_idle(self) -> bool:
        return self.loop.scheduler.idle and not self.channel.inbox and not self.loop.inbox.num_ops


class ManyTokens(ByteTokenizer):
    """Encodes byte by byte, and has all tokens of another vocabulary beside."""

    def __init__(self, tokens: Sequence[bytes | None]) -> None:
        super().__init__()
        special = {self._ids[name]: name for name in self.SPECIAL}
        pieces = [bytes([byte]) for byte in range(256)]
        PieceTokenizer.__init__(self, [*pieces, *(None for _ in special), *tokens], special)


class TimedModel:
    """A model that computes nothing and samples any allowed token, often a hot one."""

    def __init__(self, hot: Sequence[int]) -> None:
        self.seconds = 0.0
        self._hot = hot

    def forward(self, batch: Batch) -> None: ...

    def sample(
        self, _: None, picks: tuple[SampleRequest, ...], scores: tuple[ScoreRequest, ...]
    ) -> StepResults:
        began = time.thread_time()
        found = tuple([SampleResult(self._token(one), 0.0) for one in picks])
        self.seconds += time.thread_time() - began
        return StepResults(found, ())

    def _token(self, pick: SampleRequest) -> int:
        rng = random.Random(f"{pick.seed} {pick.step}")
        if pick.mask is None:
            return 97
        if pick.seed % 2:
            for token in rng.sample(self._hot, 24):
                if pick.mask.allows(token):
                    return token
        return int(rng.choice(pick.mask.tokens))


class TimedPool(CompilePool):
    """Knows how long the newest job of each owner took, in the whole process's processor time."""

    def __init__(self) -> None:
        super().__init__()
        self.took: dict[Hashable, float] = {}

    def submit(self, job: Job, owner: Hashable = None) -> None:
        began = time.process_time()

        def timed() -> None:
            job()
            self.took[owner] = time.process_time() - began

        super().submit(timed, owner)


class ModelFreeLoop:
    """Calls on one loop around such a model."""

    def __init__(self, tokenizer: ManyTokens, hot: Sequence[int]) -> None:
        self.channel, self.model = SimChannel(), TimedModel(hot)
        self.pool = TimedPool()
        self.constraints = CallConstraints(tokenizer, workers=self.pool)
        self.constraints.vocabulary.prepare()
        config = SchedulerConfig(num_pages=200_000)
        scheduler = Scheduler(config, 16_000, clock=time.monotonic)
        size = tokenizer.vocab_size
        welcome = wire.Welcome(wire.PROTOCOL_VERSION, "none", 16_000, size, 16, 1, 1)
        served = ServedModel(tokenizer, partial(ChatTemplate, ""), welcome)
        made = Interpreter(scheduler, served, self.constraints, time.monotonic, random.Random(1))
        self.loop = Loop(self.channel, made, scheduler, self.model, self.model, time.monotonic)
        self.ended: dict[int | None, wire.Reply] = {}
        self.texts: dict[int | None, int] = {}
        self.took: list[float] = []  # milliseconds of the processor, by step
        self._numbers = count(1)

    def ask(self, constraint: wire.Constraint | None, most: int, client: bytes = ME) -> int:
        number = next(self._numbers)
        sampling = wire.SamplingParams(seed=number, max_tokens=most, ignore_eos=True)
        piece = (wire.TextPiece(f"Text {number}: "),)
        gen = wire.Generate(number, number, sampling, constraint, True)
        ops = (wire.Open(number), wire.Append(number, piece), gen)
        self.channel.inbox += [(client, op) for op in ops]
        return number

    def turn(self) -> None:
        began, model = time.thread_time(), self.model.seconds
        self.loop.step()
        self.took.append(1e3 * (time.thread_time() - began - (self.model.seconds - model)))
        for _, reply in self.channel.sent:
            if isinstance(reply, wire.Delta):
                self.texts[reply.call] = self.texts.get(reply.call, 0) + 1
            elif isinstance(reply, wire.CallDone | wire.Failed):
                self.ended[reply.call] = reply
        self.channel.sent = []

    def compiled_in(self, constraint: wire.Constraint) -> tuple[float, float]:
        """Processor time until a bystander's constraint was compiled, and its call has ended."""
        self.pool.took.clear()
        began, call = time.process_time(), self.ask(constraint, 12, b"other")
        while call not in self.ended:
            self.turn()
        (compiled,) = (took for owner, took in self.pool.took.items() if "other" in str(owner))
        return compiled, time.process_time() - began
