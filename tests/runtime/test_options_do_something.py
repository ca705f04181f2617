"""No option does nothing: samplers honour those that shape sampling, a runtime all others."""

from __future__ import annotations

from typing import Any

import pytest

from lmprog import wire
from lmprog.runtime.text.tokenizer import ByteTokenizer
from tests.runtime.talk import Talk, done, text
from tests.sampler.examples import CHANGES, COURSES, shaping


def test_every_option_has_an_example() -> None:
    """A line was added to `wire.sampling_params`: give it one, and whoever honours it."""
    assert set(CHANGES) == shaping()
    assert set(COURSES) == set(wire.SAMPLING_OPTIONS) - shaping()


@pytest.mark.parametrize("name", COURSES)
def test_a_runtime_honours_every_other_option(name: str) -> None:
    def answered(sampling: dict[str, Any], more: dict[str, Any]) -> list[object]:
        params = wire.SamplingParams(**{"temperature": 0.0, "max_tokens": 9, **sampling})
        asked = wire.Generate(1, 2, params, **more)
        ops = (wire.Open(1), text(1, "once upon a time"), asked)
        tokenizer = ByteTokenizer() if name == "skip_special_tokens" else None
        reply = done(Talk(tokenizer, is_forcing=True).ask(*ops))[2]
        usage = (reply.usage.generated, reply.usage.forced)
        return [reply.outputs, usage, reply.prompt_logprobs, reply.next_logprobs]

    without, added, more = COURSES[name]
    assert answered(without, more) == answered(without, more)
    assert answered({**without, **added}, more) != answered(without, more)
