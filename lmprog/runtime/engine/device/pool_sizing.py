"""How much memory a device has left for pages: measured while it computes the largest steps that a
runtime may ask of it, on a pool just large enough for them.

What torch keeps of a step's memory is not free afterwards, so what is free then is what was free at
the peak. Knows steps by their sizes; knows no scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lmprog.config import SchedulerConfig
from lmprog.errors import NotSupported
from lmprog.runtime.engine.device.device_engine import DeviceEngine
from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.scheduling.sampling_requests import SampleRequest, ScoreRequest
from lmprog.wire import SamplingParams

USUAL_FRACTION = 0.9
"""Of what is left; the rest is for graphs, which come later, and for others."""
_TOP = 20
"""Of the most likely tokens, which a request may ask for."""


@dataclass(frozen=True, slots=True)
class StepSizes:
    """The most tokens and rows of a step, and tokens of a row."""

    tokens: int
    rows: int
    row_tokens: int
    page_size: int

    @staticmethod
    def of(config: SchedulerConfig, context_len: int) -> StepSizes:
        rows = min(config.max_rows, config.token_budget)
        row_tokens = min(context_len, config.max_chunk or context_len)
        return StepSizes(
            min(config.token_budget, rows * row_tokens), rows, row_tokens, config.page_size
        )

    @property
    def num_pages(self) -> int:
        """That the largest step takes, at most."""
        return self.tokens // self.page_size + self.rows


def largest_steps(sizes: StepSizes) -> Iterator[Batch]:
    """As many tokens as there may be, in few rows, every logit wanted, as for scores; and as many
    rows of one token.
    """
    full, rest = divmod(sizes.tokens, sizes.row_tokens)
    yield _batch([sizes.row_tokens] * full + [rest] * bool(rest), sizes.page_size)
    yield _batch([1] * sizes.rows, sizes.page_size)


def free_beside(engine: DeviceEngine, sizes: StepSizes) -> int:
    """Bytes that are left for pages beside the largest steps. Raises DeviceMemoryFull where they do
    not fit.
    """
    asked = SamplingParams(temperature=1.0, logprobs=_TOP)
    for batch in largest_steps(sizes):
        logits = engine.forward(batch)
        picks = tuple(SampleRequest(row, asked, 0, 0) for row in range(batch.num_rows))
        score = ScoreRequest(0, (0,) * len(batch.logit_tokens), _TOP)
        engine.sampler.sample(logits, picks, (score,))
    engine.finish()
    info = engine.driver.memory_info()
    assert info is not None, "a device without a bound is not measured"
    return info.free + engine.attention.pages.mapped_bytes


def pages_in(free: int, fraction: float, engine: DeviceEngine, sizes: StepSizes) -> int:
    """How many pages `fraction` of `free` bytes hold. Raises NotSupported where they are fewer than
    the largest step takes.
    """
    each, least = engine.attention.bytes_per_page, sizes.num_pages
    found = int(free * fraction) // each
    if found < least:
        raise NotSupported(
            f"beside the model and its largest step ({sizes.tokens} tokens, {sizes.rows} rows) "
            f"{_mib(free)} of the device's memory are left, {fraction:g} of it for keys and "
            f"values; these take {_mib(least * each)} in one step. Lower token_budget or max_rows, "
            "or choose a smaller model"
        )
    return found


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):,.1f} MiB"


def _batch(counts: list[int], page_size: int) -> Batch:
    """Rows of so many first tokens, each on pages of its own."""

    def ints(values: object) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
        return np.ascontiguousarray(np.array(values, np.int32))

    positions = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
    used = [-(-count // page_size) for count in counts]
    page_starts, row_starts = ints([0, *np.cumsum(used)]), ints([0, *np.cumsum(counts)])
    first_slots = np.repeat(page_starts[:-1] * page_size, counts)
    each = np.arange(len(positions), dtype=np.int32)
    return Batch(
        tokens=np.zeros(len(positions), np.int32),
        positions=positions,
        row_starts=row_starts,
        kv_lens=ints(counts),
        page_starts=page_starts,
        pages=np.arange(page_starts[-1], dtype=np.int32),
        write_tokens=each,
        write_slots=(first_slots + positions).astype(np.int32),
        copies=np.zeros((0, 2), np.int32),
        logit_tokens=each,
        page_size=page_size,
    )
