"""From which of several results a branch goes on, where an API gave them all at once: `keep` of a
generation.

Knows results; when who has lost is cancelled is the runtime's business, and an API's results come
together.
"""

from __future__ import annotations

import msgspec

from lmprog import wire
from lmprog.backends.majority import kept_first
from lmprog.errors import NotSupported


def is_first_kept(op: wire.Generate) -> bool:
    """Whether it is known beforehand which result it is."""
    return op.keep == "first" or op.sampling.n == 1


def asked_of(op: wire.Generate) -> wire.SamplingParams:
    """The sampling to ask for: with log-probabilities where the likeliest result is wanted."""
    return op.sampling.scored() if op.keep == "best" and op.sampling.n > 1 else op.sampling


def kept(op: wire.Generate, outputs: tuple[wire.Output, ...]) -> tuple[wire.Output, ...]:
    """The results, the kept one first. Raises `NotSupported` where the API did not tell what that
    needs.
    """
    if is_first_kept(op):
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
            "this API does not tell how likely its results are, which keep='best' compares; "
            "use keep='majority'"
        )
    return sum(token.logprob for token in output.logprobs) / max(len(output.logprobs), 1)
