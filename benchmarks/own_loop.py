"""A runtime in this thread, whose clock is the thread's processor time.

What a busy machine does to the wall clock is not measured then, so figures of latency can be
compared anywhere. Where a workload waits for nothing but time, `skip` lets it pass. Knows the loop
and its channel; knows no workload.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from lmprog import wire
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.runtime.assembly import assemble
from lmprog.simulation.world import SimChannel

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
