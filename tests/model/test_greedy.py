"""What transformers generates greedily, we generate: every architecture, alone or mixed, in chunks
or whole.
"""

from __future__ import annotations

import pytest
import torch

from lmprog.native import compiler
from tests.model.checkpoints import FOREIGN, FURTHER, LATER, LAYERED, MIXTURES, NATIVE, VARIANTS
from tests.model.conftest import NUM_NEW, Judge, Judged
from tests.model.driver import AnyEngine, Driver, Greedy

PAGE_SIZE = 16
SHORT = 100
"""Tokens: over several pages, and over every window of the recipes."""


def assert_equal(got: list[Greedy], judged: Judged) -> None:
    for prompt, ours, theirs in zip(judged.prompts, got, judged.wanted, strict=True):
        assert ours.new == theirs.new, f"prompt of {len(prompt)} tokens"
        torch.testing.assert_close(ours.logprobs, theirs.logprobs, rtol=0, atol=1e-4)


CASES = [f"{engine}:{name}" for name in NATIVE for engine in ("native", "torch")]
CASES += [f"native:{name}" for name in FURTHER | MIXTURES | LAYERED | LATER]
CASES += [f"torch:{name}" for name in ("mixtral", "gpt-oss", *LAYERED)]


@pytest.fixture(scope="module", params=[*CASES, *(f"torch:{name}" for name in FOREIGN)])
def case(request: pytest.FixtureRequest, judged: Judge) -> tuple[Judged, AnyEngine]:
    kind, _, name = request.param.partition(":")
    if kind == "native" and compiler() is None:
        pytest.skip("needs a C++ compiler")
    made = judged(name, (NATIVE | FURTHER | MIXTURES | LAYERED | LATER)[name])
    engine = made.engine(engine=kind)
    assert engine.name == kind
    return made, engine


@pytest.mark.parametrize("chunk", [1, 7, 64, 0])
def test_mixed_batches_in_chunks_of_any_size_generate_what_transformers_does(
    case: tuple[Judged, AnyEngine], chunk: int
) -> None:
    made, engine = case
    if (
        chunk == 1 and engine.name == "torch"
    ):  # a slow step a token; other chunks have the long ones
        made = made.shorter_than(SHORT)
    assert_equal(Driver(engine, PAGE_SIZE).greedy(made.prompts, NUM_NEW, chunk), made)


def test_each_prompt_alone_generates_what_transformers_does(
    case: tuple[Judged, AnyEngine],
) -> None:
    made, engine = case
    assert_equal(Driver(engine, PAGE_SIZE).greedy(made.prompts, NUM_NEW, together=False), made)


@pytest.mark.parametrize("engine", [None, "torch"])
@pytest.mark.parametrize("name", list(VARIANTS))
def test_every_variant_of_a_native_shape_scores_a_prompt_as_transformers_does(
    name: str, engine: str | None, judged: Judge
) -> None:
    made = judged(name, VARIANTS[name])
    driver = Driver(made.engine(engine=engine), PAGE_SIZE)
    assert_equal(driver.greedy(made.prompts, NUM_NEW), made)
    prompt = made.prompts[-1]
    with torch.no_grad():
        wanted = made.model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    torch.testing.assert_close(driver.score(prompt), wanted, rtol=0, atol=1e-4)


def test_the_reference_backend_generates_the_same(judged: Judge) -> None:
    made = judged("mistral", NATIVE["mistral"])
    engine = made.engine(attention="reference")
    assert_equal(Driver(engine, PAGE_SIZE).greedy(made.prompts, NUM_NEW, 64), made)
