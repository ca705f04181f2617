"""Chooses which of several results a branch continues from, when an API returned all of them
together: `keep` of a generation.

Knows results only. Cancelling the others early is left to the runtime, since an API's results
arrive together.
"""

from __future__ import annotations

import msgspec

from lmprog import wire
from lmprog.backends.majority import kept_first
from lmprog.errors import NotSupported


def keeps_first(op: wire.Generate) -> bool:
    """Whether the first result is kept in any case."""
    return op.keep == "first" or op.sampling.n == 1


def sampling_to_request(op: wire.Generate) -> wire.SamplingParams:
    """The sampling to request: with log-probabilities if the likeliest result is kept."""
    return op.sampling.scored() if op.keep == "best" and op.sampling.n > 1 else op.sampling


def in_kept_order(op: wire.Generate, outputs: tuple[wire.Output, ...]) -> tuple[wire.Output, ...]:
    """The results, the kept one first. Raises `NotSupported` if the API did not return what the
    choice needs.
    """
    if keeps_first(op):
        return outputs
    if op.keep != "best":
        return tuple(
            outputs[place] for place in kept_first(op.keep, [output.text for output in outputs])
        )
    best = max(range(len(outputs)), key=lambda place: _mean(outputs[place]))
    ordered = (outputs[best], *(output for place, output in enumerate(outputs) if place != best))
    if op.sampling.logprobs is not None:
        return ordered
    return tuple(msgspec.structs.replace(output, logprobs=()) for output in ordered)


def _mean(output: wire.Output) -> float:
    if not output.logprobs and output.text:
        raise NotSupported(
            "this API returns no log-probabilities, which keep='best' compares; use keep='majority'"
        )
    return sum(token.logprob for token in output.logprobs) / max(len(output.logprobs), 1)
