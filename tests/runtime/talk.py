"""An interpreter with the fake model behind it, spoken to op by op: what the interpreter's tests
stand on.
"""

from __future__ import annotations

import random
from concurrent.futures import Executor
from functools import cache
from typing import Any

from lmprog import wire
from lmprog.config import SchedulerConfig
from lmprog.runtime.loop import Loop
from lmprog.runtime.programs.call_builder import ServedModel
from lmprog.runtime.programs.call_constraints import CallConstraints
from lmprog.runtime.programs.interpreter import Interpreter
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.simulation.fake_engine import FakeEngine, LetterTokenizer
from lmprog.simulation.plain_sampler import PlainSampler
from lmprog.simulation.world import SimChannel
from lmprog.transport import Received

ME = b"me"
GREEDY = wire.SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)


class Talk:
    """`say` hands ops in, `until_idle` gives all replies that come of them."""

    def __init__(
        self,
        tokenizer: Any = None,
        engine: Any = None,
        sampler: Any = None,
        is_forcing: bool = False,
        context_len: int = 200,
        tokenising: Executor | None = None,
        is_timed: bool = False,
        **changes: Any,
    ) -> None:
        """Without an engine the fake model answers. `is_forcing`: what a constraint leaves no
        choice about is not sampled. `is_timed`: the scheduler counts the seconds of `now`, too.
        """
        config = SchedulerConfig(**{"page_size": 4, "num_pages": 64, **changes})
        self.now = 0.0
        self.tokenizer = tokenizer or LetterTokenizer()
        self.channel = SimChannel()
        self.scheduler = Scheduler(config, context_len, clock=self._time if is_timed else None)
        self.engine = engine or FakeEngine(
            config.num_pages, config.page_size, self.tokenizer.vocab_size
        )
        vocab_size = self.tokenizer.vocab_size if engine is None else engine.vocab_size
        constraints = CallConstraints(self.tokenizer)
        welcome = wire.Welcome(wire.PROTOCOL_VERSION, "fake", 200, vocab_size, 4, 64, 1)
        model = ServedModel(self.tokenizer, _template, welcome, is_forcing=is_forcing)
        self.interpreter = Interpreter(
            self.scheduler, model, constraints, self._time, random.Random(1), tokenising
        )
        self.loop = Loop(
            self.channel,
            self.interpreter,
            self.scheduler,
            self.engine,
            sampler or PlainSampler(),
            self._time,
        )
        self.say(wire.Hello(wire.PROTOCOL_VERSION))
        self.step()

    def _time(self) -> float:
        return self.now

    def say(self, *ops: Received, client: bytes = ME) -> None:
        self.channel.inbox += [(client, op) for op in ops]

    def step(self) -> list[wire.Reply]:
        """One turn of the loop; what was sent to anybody."""
        self.loop.step()
        self.scheduler.check()
        sent, self.channel.sent = self.channel.sent, []
        return [reply for _, reply in sent]

    def until_idle(self) -> list[wire.Reply]:
        replies = self.step()
        for _ in range(1000):
            is_said = not self.channel.inbox and not self.interpreter.is_working
            if self.scheduler.idle and is_said:
                return replies
            replies += self.step()
        raise AssertionError("never idle")

    def ask(self, *ops: wire.Op) -> list[wire.Reply]:
        self.say(*ops)
        return self.until_idle()


def text(branch: int, *texts: str) -> wire.Append:
    return wire.Append(branch, tuple(wire.TextPiece(one) for one in texts))


def done(replies: list[wire.Reply]) -> dict[int, wire.CallDone]:
    return {reply.call: reply for reply in replies if isinstance(reply, wire.CallDone)}


def failed(replies: list[wire.Reply]) -> dict[int | None, wire.Failed]:
    return {reply.call: reply for reply in replies if isinstance(reply, wire.Failed)}


@cache
def _template() -> ChatTemplate:
    return ChatTemplate(
        "{% for m in messages %}"
        "{% if m['role'] == 'wizard' %}{{ raise_exception('there is no wizard') }}{% endif %}"
        "{{ m['role'][0] + ':' + m['content'] + ';' }}"
        "{% endfor %}{% if add_generation_prompt %}a:{% endif %}",
        {},
    )
