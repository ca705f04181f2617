"""What `lmprog doctor --gpu` says: a minute on a GPU that nobody has tried lmprog on.

Each look gives a state, what was found and what to do. Later looks are left out where an earlier
one has failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import LmprogError
from lmprog.runtime.engine.device.choice import chosen_device, why_no_gpu
from lmprog.runtime.engine.device.driver import Driver, ModuleKey
from lmprog.runtime.engine.device.evidence import gathered
from lmprog.runtime.engine.device.loading import open_driver
from lmprog.runtime.engine.engine import select_engine
from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.scheduling.sampling_requests import SampleRequest
from lmprog.wire import SamplingParams

_TRIED = (
    ModuleKey("float", 64),
    ModuleKey("bf16", 64),
    ModuleKey("f16", 128),
    ModuleKey("bf16", 128, "e4m3"),
)
_TREES = 40
_PROMPT = "What is the capital of France?"
_NEW_TOKENS = 16
_PAGE = 16


@dataclass(frozen=True, slots=True)
class GpuFinding:
    state: Literal["ok", "fail"]
    name: str
    what: str


def gpu_report(device: str = "cuda:0") -> Iterator[GpuFinding]:
    """One finding after the other, as they come. `device` may be "emulated"."""
    try:
        device = chosen_device(device)
        if device == "cpu":
            yield GpuFinding("fail", "device", "the processor is no GPU")
            return
        yield GpuFinding("ok", "device", f"{device} is there")
        yield from _kernels(device)
        yield _tokens(device)
    except LmprogError as error:
        yield GpuFinding("fail", "device", str(error))


def gpu_line() -> str:
    """What there is, in a few words."""
    return why_no_gpu(0) or "cuda:0 is there; `lmprog doctor --gpu` tries it"


def _kernels(device: str) -> Iterator[GpuFinding]:
    trees = 3 if device == "emulated" else _TREES
    for key in _TRIED:
        driver: Driver = open_driver(device, key)
        found = gathered(driver, key, trees)
        what = f"{trees} random trees, the worst token {found.worst:.1e} from float64"
        kept = f", keys and values {key.kept_name}" if key.kept_name else ""
        name = f"{key.type_name}/{key.head_dim}{kept}"
        yield GpuFinding("ok" if found.is_right else "fail", name, what)


def _tokens(device: str) -> GpuFinding:
    """Greedy tokens of the shipped model in float32, on the device and on the processor."""
    found = [_greedy(name) for name in ("cpu", device)]
    what = f"{_NEW_TOKENS} greedy tokens of nano, on the processor and on the device"
    if found[0] == found[1]:
        return GpuFinding("ok", "tokens", f"{what}: the same")
    return GpuFinding("fail", "tokens", f"{what}: {found[0]} and {found[1]}")


def _greedy(device: str) -> list[int]:
    scheduler = SchedulerConfig(num_pages=16, token_budget=128, page_size=_PAGE)
    selected = select_engine(RuntimeConfig(device=device, dtype="float32", scheduler=scheduler))
    tokens = [byte % 256 + 5 for byte in _PROMPT.encode()]
    new: list[int] = []
    start = 0
    for _ in range(_NEW_TOKENS):
        batch = _row(tokens[start:], start)
        start = len(tokens)
        pick = SampleRequest(0, SamplingParams(temperature=0.0), 0, 0)
        chosen = selected.sampler.sample(selected.engine.forward(batch), (pick,), ()).samples[0]
        if chosen is None:
            return [*new, -1]
        new.append(chosen.token)
        tokens.append(chosen.token)
    return new


def _row(tokens: list[int], start: int) -> Batch:
    """One sequence's next tokens; its pages are 0, 1, 2 ..."""

    def ints(*values: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
        return np.array(values, np.int32)

    end = start + len(tokens)
    positions = np.arange(start, end, dtype=np.int32)
    pages = -(-end // _PAGE)
    return Batch(
        tokens=ints(*tokens),
        positions=positions,
        row_starts=ints(0, len(tokens)),
        kv_lens=ints(end),
        page_starts=ints(0, pages),
        pages=np.arange(pages, dtype=np.int32),
        write_tokens=np.arange(len(tokens), dtype=np.int32),
        write_slots=positions,
        copies=np.zeros((0, 2), np.int32),
        logit_tokens=ints(len(tokens) - 1),
        page_size=_PAGE,
    )
