"""What the tests of the operator spelling's rows share: programs on a script, and the keywords of
sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lmprog
from lmprog import wire
from lmprog.testing import Scripted

SAMPLING = [
    ("max_tokens", 5, "max_tokens", 5),
    ("min_tokens", 2, "min_tokens", 2),
    ("stop", "END", "stop", ("END",)),
    ("stop", ["a", "b"], "stop", ("a", "b")),
    ("stop_token_ids", [7], "stop_token_ids", (7,)),
    ("stop_regex", "x+", "stop_regex", ("x+",)),
    ("temperature", 0.25, "temperature", 0.25),
    ("top_p", 0.5, "top_p", 0.5),
    ("top_k", 3, "top_k", 3),
    ("min_p", 0.125, "min_p", 0.125),
    ("frequency_penalty", 0.5, "frequency_penalty", 0.5),
    ("presence_penalty", -0.5, "presence_penalty", -0.5),
    ("ignore_eos", True, "ignore_eos", True),
    ("return_logprob", True, "logprobs", 0),
    ("return_text_in_logprobs", True, "logprobs", None),
]
BESIDES = [
    ("seed", 11, "seed", 11),
    ("logit_bias", {7: -1.0}, "logit_bias", ((7, -1.0),)),
    ("repetition_penalty", 1.5, "repetition_penalty", 1.5),
]


def one(body: Callable[..., object], *answers: Any, **options: Any) -> tuple[Any, Scripted]:
    """The state of a program that is `body`, and the backend that it ran on."""
    with Scripted(answers) as scripted:
        return lmprog.function(body).run(backend=scripted, **options), scripted


def op_of(scripted: Scripted, index: int = 0) -> wire.Generate:
    op = scripted.asked[index].op
    assert isinstance(op, wire.Generate)
    return op
