"""An example of each option that shapes sampling, with which every sampler must choose otherwise, and
of each other option, with which a runtime must answer otherwise.

A line that is added to the table of options needs an example here, and the example needs somebody
who honours it: so no option does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmprog import wire
from lmprog.runtime.scheduling.sampling_requests import SampleRequest, SampleResult
from lmprog.runtime.text.tokenizer import ByteTokenizer
from lmprog.simulation.fake_engine import ALPHABET
from lmprog.wire import SamplingParams

SIZE = 61
END = len(ALPHABET)
"""The token that ends a text of the fake model."""
NUM_DRAWS = 200
CHANGES = {
    "temperature": SamplingParams(temperature=0.3),
    "top_p": SamplingParams(top_p=0.5),
    "top_k": SamplingParams(top_k=3),
    "min_p": SamplingParams(min_p=0.5),
    "frequency_penalty": SamplingParams(frequency_penalty=2.0),
    "presence_penalty": SamplingParams(presence_penalty=2.0),
    "repetition_penalty": SamplingParams(repetition_penalty=3.0),
    "logit_bias": SamplingParams(logit_bias=((7, 20.0),)),
}
"""Beside defaults."""

Choose = Callable[[NDArray[np.float32], Sequence[SampleRequest]], Sequence[SampleResult | None]]


def shaping() -> set[str]:
    """The options that samplers must honour."""
    lines = wire.SAMPLING_OPTIONS.items()
    return {name for name, line in lines if line.option.role in ("draw", "edit")}


def ignored(choose: Choose, num_draws: int = NUM_DRAWS) -> list[str]:
    """The options with which a sampler chooses what it chooses without them."""
    logits = np.random.default_rng(5).normal(0, 1.5, (1, SIZE)).astype(np.float32)
    likeliest = np.argsort(-logits[0])[:5].tolist()

    def drawn(sampling: SamplingParams) -> list[int]:
        picks = [
            SampleRequest(0, sampling, 11, step, tuple(likeliest), tuple(likeliest))
            for step in range(num_draws)
        ]
        return [-1 if one is None else one.token for one in choose(logits, picks)]

    plain = drawn(SamplingParams())
    assert plain == drawn(SamplingParams()), "the same draws each time"
    return [name for name, sampling in CHANGES.items() if drawn(sampling) == plain]


Asked = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
COURSES: dict[str, Asked] = {
    "seed": ({"temperature": 1.0, "seed": 1}, {"seed": 2}, {}),
    "max_tokens": ({}, {"max_tokens": 3}, {}),
    "min_tokens": ({"stop_token_ids": tuple(range(0, END, 2))}, {"min_tokens": 5}, {}),
    "stop": ({}, {"stop": tuple("abcdefghijklmnop")}, {}),
    "stop_token_ids": ({}, {"stop_token_ids": tuple(range(0, END, 2))}, {}),
    "stop_regex": ({}, {"stop_regex": ("[a-p]",)}, {}),
    "allowed_token_ids": ({}, {"allowed_token_ids": (1, 2)}, {}),
    "bad_words": ({}, {"bad_words": tuple("abcdefghijklmnopqrstuvwxyzABCDE")}, {}),
    "ignore_eos": ({"logit_bias": ((END, 20.0),)}, {"ignore_eos": True, "min_tokens": 0}, {}),
    "skip_special_tokens": (
        {"logit_bias": ((ByteTokenizer.SPECIAL.index("<|user|>") + 256, 20.0),)},
        {"skip_special_tokens": False},
        {},
    ),
    "jump": ({}, {"jump": "exact"}, {"constraint": wire.Regex("abc[d-f]ghi")}),
    "logprobs": ({}, {"logprobs": 1}, {}),
    "prompt_logprobs": ({}, {"prompt_logprobs": 1}, {}),
    "prompt_logprobs_start": ({"prompt_logprobs": 1}, {"prompt_logprobs_start": 3}, {}),
    "n": ({}, {"n": 2}, {}),
    "faithful": (
        {"temperature": 1.0, "seed": 5},
        {"faithful": 8},
        {"constraint": wire.Regex("[a-z]{3}0|[A-E]{4}")},
    ),
    "beams": ({}, {"beams": wire.Beams(3)}, {}),
}
"""Of the others: what is asked for without the option, what it adds, and the rest of the call."""
