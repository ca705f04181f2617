"""A runtime in a thread of this process, real in everything but the model: what tests of both
halves stand on.
"""

from __future__ import annotations

import random
import time

from lmprog import wire
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import NotSupported
from lmprog.runtime.assembly import assemble
from lmprog.runtime.loop import Loop
from lmprog.runtime.programs.call_builder import ServedModel
from lmprog.runtime.programs.interpreter import Interpreter
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.simulation.fake_engine import FakeEngine, LetterTokenizer
from lmprog.simulation.plain_sampler import PlainSampler
from lmprog.transport import LocalRuntimeChannel
from tests.runtime.runtime_thread import RuntimeThread

CONTEXT = 400


def _no_template() -> ChatTemplate:
    raise NotSupported("no chat template here")


class Small:
    """A runtime in a thread: everything real but the model."""

    def __init__(self) -> None:
        tokenizer = LetterTokenizer()
        config = SchedulerConfig(page_size=4, num_pages=2000)
        self.scheduler = Scheduler(config, CONTEXT)
        engine = FakeEngine(config.num_pages, config.page_size, tokenizer.vocab_size)
        welcome = wire.Welcome(
            wire.PROTOCOL_VERSION, "fake", CONTEXT, tokenizer.vocab_size, 4, 2000, 0
        )
        model = ServedModel(tokenizer, _no_template, welcome)
        self.interpreter = Interpreter(
            self.scheduler, model, None, time.monotonic, random.Random(1)
        )
        self.channel = LocalRuntimeChannel()
        loop = Loop(
            self.channel, self.interpreter, self.scheduler, engine, PlainSampler(), time.monotonic
        )
        self._thread = RuntimeThread(loop, self.channel)

    def end(self) -> None:
        self._thread.end()


class Real:
    """A runtime with a small random model, in a thread of this process; it serves already."""

    def __init__(self) -> None:
        config = RuntimeConfig(
            model="dummy:tiny",
            dtype="float32",
            threads=1,
            kv_memory_mb=32,
            scheduler=SchedulerConfig(page_size=16, max_waiting=10_000, max_rows=256),
        )
        self.channel = LocalRuntimeChannel()
        self.loop, _ = assemble(config, self.channel)
        self._thread = RuntimeThread(self.loop, self.channel)

    def end(self) -> None:
        self._thread.end()
