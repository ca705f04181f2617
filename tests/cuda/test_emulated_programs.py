"""Whole programs on a runtime whose device is emulated: the values are those of the processor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import lmprog
from lmprog.backends.client import RuntimeBackend
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.native import compiler, kernels_folder
from lmprog.runtime.assembly import assemble
from lmprog.runtime.steps import PlainSteps
from lmprog.runtime.steps_ahead import StepsAhead
from lmprog.transport import LocalRuntimeChannel
from tests.runtime.runtime_thread import serving

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(
        not (kernels_folder().parent / "lmprog" / "nano" / "model.safetensors").exists(),
        reason="the shipped model is not in this checkout",
    ),
]


@contextmanager
def runtime_on(
    device: str, attention: Any = None, is_ahead: bool = True
) -> Iterator[RuntimeBackend]:
    """A runtime with the shipped model in a thread of this process. `is_ahead`: on a device, steps
    are begun while others are computed.
    """
    scheduler = SchedulerConfig(num_pages=64, token_budget=128)
    config = RuntimeConfig(
        "nano",
        device=device,
        attention=attention,
        dtype="float32",
        threads=1,
        scheduler=scheduler,
    )
    facts: dict[str, str] = {}
    channel = LocalRuntimeChannel()
    loop, _ = assemble(config, channel, resolved=facts.__setitem__)
    assert facts["device"] == device
    kind = f"({attention or 'tree'})" if device == "emulated" else "native"
    assert kind in facts["engine"]
    if device == "emulated" and not is_ahead:
        engine, sampler = loop._steps._engine, loop._steps._sampler  # type: ignore[attr-defined]
        loop._steps = PlainSteps(loop.scheduler, engine, sampler, loop._steps.batches)
    with serving(loop, channel) as backend:
        yield backend
    if device == "emulated" and is_ahead:
        assert isinstance(loop._steps, StepsAhead)
        assert loop._steps.num_ahead > 5


@lmprog.function
async def program(s: lmprog.Branch) -> tuple[str, list[int], str, list[str], str]:
    s.user("What is the capital of France?")
    with s.assistant():
        answer = await s.gen(max_tokens=6)
    async with s.fork(3) as branches:
        numbers = await branches.map(lambda b: b.gen(int, max_tokens=3))
    kind = await s.select("yes", "no")
    async with s.fork(2, temperature=0.7, seed=5) as more:
        drawn = await more.map(lambda b: b.gen(max_tokens=4))
    words = await s.gen(regex="[a-z]{2,12}", max_tokens=3)
    return answer, numbers, str(kind), drawn, str(words)


PLACES: list[tuple[str, Any, bool]] = [
    ("cpu", None, False),
    ("emulated", None, True),
    ("emulated", None, False),
    ("emulated", "reference", True),
]


def test_a_program_gives_what_it_gives_on_the_processor() -> None:
    """Generation, forks, constraints, one of them with hardly any tokens left, a select, and draws
    by a seed; on the device one step ahead or one after the other.
    """
    values = []
    for place in PLACES:
        with runtime_on(*place) as backend:
            run = program.using(backend=backend, temperature=0).run()
            values.append(run.value)
            assert run.usage.cached > 0
    assert values == [values[0]] * len(PLACES)
