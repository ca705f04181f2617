"""Programs drawn at random give the same texts on the API channel as on the plain double, which
works step by step.
"""

from __future__ import annotations

import asyncio
import random
import zlib

import pytest

import lmprog
from lmprog import wire
from lmprog.backends.blackbox.api import ApiAnswer, ApiRequest, TextListener
from lmprog.backends.blackbox.api_backend import ApiBackend
from lmprog.backends.blackbox.retry_policy import RetryPolicy
from lmprog.backends.blackbox.transcript import Prompt, TextPrompt
from lmprog.testing import Scripted
from tests.backends.test_speculation_is_exact import LetterModel
from tests.lang.test_random_programs import Author

WORDS = ("yes", "no", "maybe")


def word(prompt: str) -> str:
    """The answer to everything."""
    return WORDS[zlib.crc32(prompt.encode()) % 3]


class Words(LetterModel):
    """Answers in no particular order: other branches overtake."""

    async def generate(self, request: ApiRequest, on_text: TextListener | None) -> ApiAnswer:
        assert isinstance(request.prompt, TextPrompt)
        for _ in range(zlib.crc32(request.prompt.text.encode()) % 5):
            await asyncio.sleep(0)
        return ApiAnswer(
            (wire.Output(word(request.prompt.text), (), "stop"),), wire.Usage(prompt=1, generated=1)
        )

    async def select(self, prompt: Prompt, op: wire.Select) -> wire.Chosen | None:
        assert isinstance(prompt, TextPrompt)
        best = op.choices.index(word(prompt.text))
        return wire.Chosen(
            op.call, best, tuple(wire.ScoredChoice(0.0, 0.0) for _ in op.choices), wire.Usage()
        )


@lmprog.function
async def texts(s: lmprog.Branch, seed: int) -> list[str]:
    rng = random.Random(seed)
    s.append("start ")
    author = Author(s, rng)
    for _ in range(rng.randint(3, 25)):
        await author.act()
    for gen in author.gens:
        await gen
    return [await branch.atext() for branch in author.live]


@pytest.mark.parametrize("together", [1, 8])
def test_the_same_texts(together: int, seed: int) -> None:
    seeds = range(seed, seed + 80)
    with Scripted(word) as scripted, ApiBackend(Words(0), RetryPolicy(), {}) as api:
        expected = list(texts.map(seeds, backend=scripted, concurrency=together))
        found = list(texts.map(seeds, backend=api, concurrency=together))
        assert lmprog.get_server_info(api)["open_branches"] == 0
    for one, ours, theirs in zip(seeds, found, expected, strict=True):
        assert ours == theirs, f"seed {one}"
