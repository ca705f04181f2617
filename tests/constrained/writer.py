"""A whole core with real constraints and a fake model of random logits: what the constrained tests
stand on.
"""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any, Literal

import lmprog
from lmprog import wire
from lmprog.config import SchedulerConfig
from lmprog.errors import NotSupported
from lmprog.runtime.loop import Loop
from lmprog.runtime.programs.call_builder import ServedModel
from lmprog.runtime.programs.call_constraints import CallConstraints
from lmprog.runtime.programs.interpreter import Interpreter
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.runtime.text.tokenizer import ByteTokenizer, HfTokenizer, Tokenizer
from lmprog.simulation.fake_engine import FakeEngine
from lmprog.simulation.plain_sampler import PlainSampler
from lmprog.simulation.world import SimChannel

ME = b"me"
CONTEXT = 2000


@functools.cache
def nano_tokenizer() -> HfTokenizer:
    return HfTokenizer(Path(lmprog.__file__).parent / "nano")


@functools.cache
def byte_tokenizer() -> ByteTokenizer:
    return ByteTokenizer()


class Writer:
    """Answers gens; `forcing` False leaves every token to the masks."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        forcing: bool = True,
        engine: Any = None,
        constraints: CallConstraints | None = None,
        speculation: Literal["off", "auto", "always"] = "auto",
        sampler: Any = None,
    ) -> None:
        config = SchedulerConfig(page_size=16, num_pages=1024, speculation=speculation)
        self.now = 0.0
        self.tokenizer = tokenizer
        self.channel = SimChannel()
        self.scheduler = Scheduler(config, CONTEXT)
        self.engine = engine or FakeEngine(config.num_pages, config.page_size, tokenizer.vocab_size)
        self.constraints = constraints or constraints_of(tokenizer)
        welcome = wire.Welcome(
            wire.PROTOCOL_VERSION, "fake", CONTEXT, tokenizer.vocab_size, 16, 1024, 1
        )
        model = ServedModel(tokenizer, _no_template, welcome, is_forcing=forcing)
        self.interpreter = Interpreter(
            self.scheduler, model, self.constraints, self._clock, random.Random(1)
        )
        self.loop = Loop(
            self.channel,
            self.interpreter,
            self.scheduler,
            self.engine,
            sampler or PlainSampler(),
            self._clock,
        )
        self._numbers = 0

    def _clock(self) -> float:
        return self.now

    def ask(
        self, *gens: tuple[wire.Constraint | None, wire.SamplingParams]
    ) -> list[wire.CallDone | wire.Failed]:
        """Each gen on a branch of its own, all at once; their last replies in order."""
        calls = []
        for constraint, sampling in gens:
            self._numbers += 1
            number = self._numbers
            ops = (
                wire.Open(number),
                wire.Append(number, (wire.TextPiece(f"Text {number}: "),)),
                wire.Generate(number, number, sampling, constraint),
            )
            self.channel.inbox += [(ME, op) for op in ops]
            calls.append(number)
        last: dict[int | None, wire.CallDone | wire.Failed] = {}
        for _ in range(5000):
            self.loop.step()
            sent, self.channel.sent = self.channel.sent, []
            last.update(
                {
                    reply.call: reply
                    for _, reply in sent
                    if isinstance(reply, wire.CallDone | wire.Failed)
                }
            )
            if len(last) == len(calls):
                break
        self.scheduler.check()
        return [last[call] for call in calls]


_made: dict[int, CallConstraints] = {}


def constraints_of(tokenizer: Tokenizer) -> CallConstraints:
    """One for each of the two tokenizers above, so that its index is made once."""
    return _made.setdefault(id(tokenizer), CallConstraints(tokenizer))


def _no_template() -> ChatTemplate:
    raise NotSupported("no chat here")
