"""A call that generates nothing (`max_tokens=0`), at a service.

Not every service computes a prompt alone: each is asked for one token, which is not kept, but for
the likeliest tokens beside it.
"""

from __future__ import annotations

import msgspec

from lmprog import wire
from lmprog.backends.blackbox.api import ApiAnswer, ApiRequest
from lmprog.backends.blackbox.transcript import Prompt


def prefill_request(prompt: Prompt, op: wire.Generate) -> ApiRequest:
    """Without a constraint and stops, which have no text to hold."""
    sampling = msgspec.structs.replace(
        op.sampling, max_tokens=1, min_tokens=0, n=1, stop=(), stop_regex=(), stop_token_ids=()
    )
    return ApiRequest(prompt, sampling)


def prefilled(op: wire.Generate, answer: ApiAnswer) -> wire.CallDone:
    """The call's reply; its usage is what the service counts."""
    scored = answer.outputs[0].logprobs
    outputs = tuple(wire.Output("", (), "length") for _ in range(op.sampling.n))
    return wire.CallDone(
        op.call, outputs, answer.usage, next_logprobs=scored[0].top if scored else ()
    )
