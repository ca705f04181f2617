"""Processor time that a step costs on a device, and how much of it the device waits for. The driver
is none: it takes a given time for a step and computes nothing, so no GPU is needed.

    python -m benchmarks.device_step [--rows 16 64] [--step-ms 0.6 3.5] [--steps 300] [--profile]

The driver's clock is the processor time of this thread, and the time that the host waits for the
device. What a step takes beyond the device's own time is on the critical path. What the driver of
NVIDIA costs the host (a copy, the launch of a graph) is not in it.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.host_step import decoding_loop
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
from lmprog.runtime.engine.model.weights import random_weights
from lmprog.runtime.steps import PlainSteps

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
"""Launches are in a graph, so layers do not count."""


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
        driver = self._driver
        driver.num_steps += 1
        driver.free_at = max(driver.free_at, driver.now()) + driver.step_seconds


class TimedDriver:
    """See `Driver`. A graph takes `step_seconds`, all else no time; host memory has `token`s."""

    def __init__(self, step_seconds: float, token: int) -> None:
        self.device = torch.device("cpu")
        self.num_processors = 132
        self.step_seconds = step_seconds
        self.free_at = self.waited = 0.0
        self.num_steps = 0
        self._token = token

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

    def launch(self, launch: Launch) -> None: ...

    def compute(self, work: Callable[[], object]) -> None: ...

    def event(self) -> TimedEvent:
        return TimedEvent(self)

    def aside(self, work: Callable[[], None]) -> TimedEvent:
        work()
        return TimedEvent(self)

    def join(self, mark: TimedEvent) -> None: ...

    def capture(self, work: Callable[[], None]) -> TimedGraph:
        work()
        return TimedGraph(self)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Milliseconds, medians."""

    host: float
    """Processor time of a step."""
    exposed: float
    """What a step takes beyond the device's own time."""


def engine_on(
    drivers: list[TimedDriver], step_seconds: float, config: SchedulerConfig, token: int
) -> tuple[DeviceEngine, DeviceSampler]:
    """A real engine on a driver that computes nothing, which is added to `drivers`."""
    driver = TimedDriver(step_seconds, token)
    drivers.append(driver)
    layer = LayerAttention(SHAPE.head_dim**-0.5)
    heads = (SHAPE.num_heads, SHAPE.num_kv_heads, SHAPE.head_dim, SHAPE.head_dim)
    asked = AttentionShape((layer,), *heads, torch.bfloat16)
    kernels = Kernels(driver, module_key(asked))
    weights = device_weights(random_weights(SHAPE, torch.bfloat16, 0), driver)
    decoder = DeviceDecoder(kernels, SHAPE, weights, SHAPE.context_len, config.token_budget)
    budget = config.token_budget
    attention = TreeAttention(kernels, asked, config.num_pages, config.page_size, budget)
    model = DeviceModel(
        decoder, attention, "tree", None, SHAPE.context_len, "bfloat16", config.num_pages
    )
    sampler = DeviceSampler(kernels, SHAPE.vocab_size)
    return DeviceEngine(driver, model, sampler), sampler


@contextmanager
def _profiled(profile: cProfile.Profile | None) -> Iterator[None]:
    if profile is not None:
        profile.enable()
    yield
    if profile is not None:
        profile.disable()


def step_times(
    num_rows: int,
    step_ms: float,
    num_steps: int,
    is_ahead: bool = True,
    profile: cProfile.Profile | None = None,
) -> StepTimes:
    """Of steps in which `num_rows` streamed gens decode one token each. A step that is planned with
    everything known comes now and then, and is among them.
    """
    drivers: list[TimedDriver] = []
    made: Any = partial(engine_on, drivers, step_ms / 1e3)
    loop = decoding_loop(num_rows, 2 * num_steps, made)
    if not is_ahead:
        steps: Any = loop._steps
        loop._steps = PlainSteps(loop.scheduler, steps._engine, steps._sampler, steps.batches)
    (driver,) = drivers
    host: list[float] = []
    began, steps_before = driver.now(), driver.num_steps
    with _profiled(profile):
        for _ in range(num_steps):
            before = time.thread_time()
            loop.step()
            host.append(1e3 * (time.thread_time() - before))
    whole = 1e3 * (driver.now() - began) / (driver.num_steps - steps_before)
    return StepTimes(statistics.median(host), whole - step_ms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--step-ms", type=float, nargs="+", default=[0.0, 0.6, 3.5])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--profile", action="store_true", help="where the time goes")
    given = parser.parse_args()
    print(
        "| rows | device, ms a step | host, ms | exposed, one ahead | exposed, one after the other |"
    )
    print("|---:|---:|---:|---:|---:|")
    for num_rows in given.rows:
        for step_ms in given.step_ms:
            profile = cProfile.Profile() if given.profile else None
            ahead = step_times(num_rows, step_ms, given.steps, True, profile)
            plain = step_times(num_rows, step_ms, given.steps, is_ahead=False)
            figures = f"{ahead.host:.3f} | {ahead.exposed:.3f} | {plain.exposed:.3f}"
            print(f"| {num_rows} | {step_ms} | {figures} |")
            if profile is not None:
                pstats.Stats(profile).sort_stats("tottime").print_stats(35)


if __name__ == "__main__":
    main()
