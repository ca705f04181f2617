"""Processor time that a step costs on a device, and how much of it the device waits for. The driver
is none: it takes a given time for a step and computes nothing, so no GPU is needed.

    python -m benchmarks.device_step [--rows 16 64] [--step-ms 0.6 3.5] [--steps 300]
    python -m benchmarks.device_step --mixed --layers 32

`--mixed`: beside the rows one long prompt after another is read, in chunks of 256 tokens. The driver's clock is the processor time of this thread, and the time that the host waits for the
device. What a step takes beyond the device's own time is on the critical path. What the driver of
NVIDIA costs the host (a copy, the launch of a graph) is not in it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import torch

from benchmarks import runner
from benchmarks.host_step import decoding_loop
from lmprog import wire
from lmprog.config import SchedulerConfig
from lmprog.errors import NotSupported
from lmprog.runtime.engine.attention import AttentionShape, LayerAttention
from lmprog.runtime.engine.device.device_decoder import DeviceDecoder
from lmprog.runtime.engine.device.device_engine import DeviceEngine, DeviceModel
from lmprog.runtime.engine.device.device_memory import VirtualMemory
from lmprog.runtime.engine.device.device_weights import device_weights
from lmprog.runtime.engine.device.driver import Launch
from lmprog.runtime.engine.device.kernels import Kernels
from lmprog.runtime.engine.device.sampling import DeviceSampler
from lmprog.runtime.engine.device.tree_attention import TreeAttention, module_key
from lmprog.runtime.engine.model.rope import Rope
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.torch_engine.weights import random_weights
from lmprog.runtime.loop import Loop
from lmprog.runtime.steps import PlainSteps
from lmprog.transport import LocalRuntimeChannel

SHAPE = ModelShape(
    vocab_size=8192,
    hidden=256,
    inner=512,
    num_heads=4,
    num_kv_heads=1,
    head_dim=64,
    context_len=4096,
    rope=Rope(),
    windows=(None,),
)
"""Of one layer: `--layers` has more. They count where a step is no graph."""
ONCE_A_LAYER = "rope_append"
CHUNK = 256
LEAST_CHUNKS = 0.5
"""Of steps that are measured as mixed."""
PROMPT_WORDS = 1_900
"""Of two tokens each: a prompt has a place in the context."""


class TimedEvent:
    def __init__(self, driver: TimedDriver) -> None:
        self._driver, self._done_at = driver, driver.free_at

    def wait(self) -> None:
        driver = self._driver
        driver.waited += max(0.0, self._done_at - driver.now())


class TimedGraph:
    def __init__(self, driver: TimedDriver) -> None:
        self._driver = driver

    def replay(self) -> None:
        self._driver.begin_step()


class TimedDriver:
    """See `Driver`. A step takes `step_seconds`, as a graph or launch by launch, all else no time;
    host memory has `token`s.
    """

    def __init__(self, step_seconds: float, token: int, num_layers: int = 1) -> None:
        self.device = torch.device("cpu")
        self.num_processors = 132
        self.step_seconds = step_seconds
        self.free_at = self.waited = 0.0
        self.num_steps = self.num_issued = 0
        """Begun; and those of them that were no graphs."""
        self._num_layers, self._num_appended = num_layers, 0
        self._token = token
        self._is_capturing = False

    def begin_step(self) -> None:
        self.num_steps += 1
        self.free_at = max(self.free_at, self.now()) + self.step_seconds

    def now(self) -> float:
        return time.thread_time() + self.waited

    def memory(self, num_bytes: int) -> torch.Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def pinned(self, num_bytes: int) -> torch.Tensor:
        tokens = torch.full((-(-num_bytes // 4),), self._token, dtype=torch.int32)
        return tokens.view(torch.uint8)[:num_bytes]

    def memory_info(self) -> None:
        """It has no bound."""

    def trim(self) -> None: ...

    def virtual_memory(self) -> VirtualMemory:
        raise NotSupported("nothing can be mapped")

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None: ...

    def launch(self, launch: Launch) -> None:
        if launch.kernel != ONCE_A_LAYER or self._is_capturing:
            return
        if self._num_appended % self._num_layers == 0:
            self.begin_step()
            self.num_issued += 1
        self._num_appended += 1

    def compute(self, work: Callable[[], object]) -> None: ...

    def is_lost(self, error: Exception) -> bool:
        return False

    def event(self) -> TimedEvent:
        return TimedEvent(self)

    def aside(self, work: Callable[[], None]) -> TimedEvent:
        work()
        return TimedEvent(self)

    def join(self, mark: TimedEvent) -> None: ...

    def capture(self, work: Callable[[], None]) -> TimedGraph:
        self._is_capturing = True
        work()
        self._is_capturing = False
        return TimedGraph(self)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Milliseconds, medians."""

    host: float
    """Processor time of a step."""
    exposed: float
    """What a step takes beyond the device's own time."""
    chunks: float
    """The part of the steps that had a chunk of a prompt."""
    issued: float
    """The part that were no graphs."""


def engine_on(
    drivers: list[TimedDriver],
    step_seconds: float,
    num_layers: int,
    config: SchedulerConfig,
    token: int,
) -> tuple[DeviceEngine, DeviceSampler]:
    """A real engine on a driver that computes nothing, which is added to `drivers`."""
    driver = TimedDriver(step_seconds, token, num_layers)
    model_shape = replace(SHAPE, windows=(None,) * num_layers)
    drivers.append(driver)
    layer = LayerAttention(SHAPE.head_dim**-0.5)
    heads = (SHAPE.num_heads, SHAPE.num_kv_heads, SHAPE.head_dim, SHAPE.head_dim)
    asked = AttentionShape((layer,) * num_layers, *heads, torch.bfloat16)
    kernels = Kernels(driver, module_key(asked))
    weights = device_weights(random_weights(model_shape, torch.bfloat16, 0), driver)
    decoder = DeviceDecoder(kernels, model_shape, weights, SHAPE.context_len, config.token_budget)
    budget = config.token_budget
    attention = TreeAttention(kernels, asked, config.num_pages, config.page_size, budget)
    model = DeviceModel(
        decoder, attention, "tree", None, SHAPE.context_len, "bfloat16", config.num_pages
    )
    sampler = DeviceSampler(kernels, SHAPE.vocab_size)
    return DeviceEngine(driver, model, sampler), sampler


class LongPrompts:
    """A client that has one long prompt after another read, each of its own words."""

    def __init__(self, loop: Loop) -> None:
        self._scheduler = loop.scheduler
        assert isinstance(loop.channel, LocalRuntimeChannel)
        self._client = loop.channel.connect()
        self._client.send([wire.Hello(wire.PROTOCOL_VERSION)])
        self._number = 0
        self._asked_at = 0
        self._remaining = 0

    def has_grown(self) -> bool:
        """Whether less of the prompts is left to compute than when it was asked last."""
        before = self._remaining
        self._remaining = max((one.remaining for one in self._scheduler.running), default=0)
        return 1 < before > self._remaining

    def keep_reading(self) -> None:
        """Before a turn: asks for another one where none is being read."""
        steps = self._scheduler.stats.steps
        if any(one.remaining > 1 for one in self._scheduler.running) or steps - self._asked_at < 3:
            return
        self._number, self._asked_at = self._number + 1, steps
        prompt = f"{self._number}" + " word" * PROMPT_WORDS
        self._client.send(
            [
                wire.Open(self._number),
                wire.Append(self._number, (wire.TextPiece(prompt),)),
                wire.Generate(self._number, self._number, wire.SamplingParams(max_tokens=1)),
            ]
        )


def step_times(
    num_rows: int,
    step_ms: float,
    num_steps: int,
    is_ahead: bool = True,
    is_mixed: bool = False,
    num_layers: int = 1,
) -> StepTimes:
    """Of steps in which `num_rows` streamed gens decode one token each, and if it `is_mixed` beside
    chunks of a prompt. A step that is planned with everything known comes now and then, and is
    among them.
    """
    drivers: list[TimedDriver] = []
    made: Any = partial(engine_on, drivers, step_ms / 1e3, num_layers)
    changes: dict[str, Any] = {}
    if is_mixed:
        changes = {"max_rows": num_rows + 1, "max_chunk": CHUNK, "step_ms": 0}
    loop = decoding_loop(num_rows, 2 * num_steps, made, **changes)
    prompts = LongPrompts(loop) if is_mixed else None
    if not is_ahead:
        steps: Any = loop._steps
        loop._steps = PlainSteps(loop.scheduler, steps._engine, steps._sampler, steps.batches)
    (driver,) = drivers
    host: list[float] = []
    began, steps_before, issued_before = driver.now(), driver.num_steps, driver.num_issued
    num_chunks = 0
    for _ in range(num_steps):
        if prompts is not None:
            prompts.keep_reading()
        host.append(1e3 * runner.seconds(loop.step, 1, time.thread_time))
        num_chunks += prompts is not None and prompts.has_grown()
    num_begun = driver.num_steps - steps_before
    whole = 1e3 * (driver.now() - began) / num_begun
    chunks, issued = num_chunks / num_steps, (driver.num_issued - issued_before) / num_begun
    if is_mixed and chunks < LEAST_CHUNKS:
        raise RuntimeError(f"{chunks:.0%} of the steps had a chunk of a prompt")
    return StepTimes(statistics.median(host), whole - step_ms, chunks, issued)


@runner.command
def main(
    *,
    rows: Sequence[int] = (16, 64, 256),
    step_ms: Sequence[float] = (0.0, 0.6, 3.5),
    steps: int = 300,
    mixed: Annotated[bool, "beside chunks of prompts"] = False,
    layers: int = 1,
) -> None:
    columns = (
        "device, ms a step; host, ms; exposed, one ahead; exposed, one after the other; "
        "with a chunk; no graph"
    )
    runner.head("rows", *columns.split("; "))
    for num_rows in rows:
        for ms in step_ms:
            ahead = step_times(num_rows, ms, steps, is_mixed=mixed, num_layers=layers)
            plain = step_times(num_rows, ms, steps, False, mixed, layers)
            figures = (ahead.host, ahead.exposed, plain.exposed, ahead.chunks, ahead.issued)
            runner.say(num_rows, ms, *(f"{figure:.3f}" for figure in figures))
