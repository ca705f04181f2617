"""What a fork, a copy or a view of a branch may be told."""

from __future__ import annotations

from lmprog.backends import Backend
from lmprog.lang.ops.sampling import SamplingOptions


class ForkOptions(SamplingOptions, total=False):
    """The options of a fork, a copy or a view of a branch. `timeout` and `max_total_tokens` limit
    what all its calls take together; `heal` is the default of its generations; `backend`
    is where they are asked for, None for the run's own; `lora` is the adapter that computes them,
    "" for the base alone.
    """

    timeout: float | None
    max_total_tokens: int | None
    heal: bool
    backend: Backend | None
    lora: str | None
