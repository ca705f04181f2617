"""A runtime in a thread of this process, real in everything but the model: what tests of both
halves stand on.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

from lmprog import wire
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import NotSupported
from lmprog.runtime.assembly import assemble
from lmprog.runtime.loop import Loop
from lmprog.runtime.programs.call_builder import CallBuilder, CallLimits
from lmprog.runtime.programs.interpreter import Interpreter
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.simulation.fake_engine import FakeEngine
from lmprog.simulation.letters import LetterTokenizer
from lmprog.simulation.plain_sampler import PlainSampler
from lmprog.transport import LocalRuntimeChannel

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
        limits = CallLimits(
            tokenizer.vocab_size, self.scheduler.longest_sequence, self.scheduler.check_fits
        )
        calls = CallBuilder(tokenizer, limits, None, None, random.Random(1))
        welcome = wire.Welcome(
            wire.PROTOCOL_VERSION, "fake", CONTEXT, tokenizer.vocab_size, 4, 2000, 0
        )
        self.interpreter = Interpreter(self.scheduler, calls, _no_template, welcome, time.monotonic)
        self.channel = LocalRuntimeChannel()
        loop = Loop(
            self.channel, self.interpreter, self.scheduler, engine, PlainSampler(), time.monotonic
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(loop,))
        self._thread.start()

    def _serve(self, loop: Loop) -> None:
        try:
            while not self._ended.is_set():
                loop.step()
        finally:
            self.channel.close()  # whoever waits hears of it, also when a step raised

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


@dataclass
class Real:
    """A runtime with a small random model, in a thread of this process."""

    loop: Loop
    channel: LocalRuntimeChannel
    ended: threading.Event

    def serve(self) -> None:
        try:
            while not self.ended.is_set():
                self.loop.step()
        finally:
            self.channel.close()

    @classmethod
    def begin(cls) -> tuple[Real, threading.Thread]:
        """One that serves already, and its thread; setting `ended` ends it."""
        config = RuntimeConfig(
            model="dummy:tiny",
            dtype="float32",
            threads=1,
            kv_memory_mb=32,
            scheduler=SchedulerConfig(page_size=16, max_waiting=10_000, max_rows=256),
        )
        channel = LocalRuntimeChannel()
        loop, _ = assemble(config, channel)
        made = cls(loop, channel, threading.Event())
        thread = threading.Thread(target=made.serve)
        thread.start()
        return made, thread
