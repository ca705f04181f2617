"""Steps that the emulated device computes while the next one has begun: prompts in chunks, options
that are scored, and sequences that decode beside them, give what they give one after the other.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from lmprog.native import compiler
from lmprog.runtime.engine.device.emulated_driver import EmulatedDriver, KernelFault
from lmprog.runtime.engine.device.staging import Staging
from lmprog.runtime.scheduling import step_costs
from lmprog.runtime.scheduling.batch import build_batch
from lmprog.runtime.scheduling.generation import Scoring
from lmprog.runtime.scheduling.sequence import Sequence
from lmprog.runtime.steps import EngineLost, PlainSteps
from lmprog.runtime.steps_ahead import StepsAhead
from tests.cuda.test_emulated_engine import NEW_TOKENS, alone, fresh, prompts, rig_for
from tests.cuda.trees import Row, batch_of
from tests.runtime.rig import Rig

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def run_ahead(rig: Rig) -> tuple[int, int]:
    """Until all is done. Returns the steps that were begun ahead, and those of them that had more
    than the next token of each sequence.
    """
    steps = StepsAhead(
        rig.scheduler, rig.engine, rig.sampler, partial(build_batch, page_size=rig.config.page_size)
    )
    num_ahead = num_mixed = 0
    for _ in range(1000):
        if rig.scheduler.idle:
            return num_ahead, num_mixed
        for one in steps.turn():
            if one.ended:
                assert one.error is None
                node = rig.scheduler.end(one.sequence)
                if node is not None:
                    rig.scheduler.unpin(node)
        rig.scheduler.check()
        if steps.num_ahead > num_ahead:
            num_ahead = steps.num_ahead
            plan = steps._begun.rows.plan if steps._begun is not None else None
            num_mixed += plan is not None and plan.num_tokens > len(plan.rows)
    raise AssertionError("never idle")


@pytest.mark.parametrize("max_chunk", [0, 7])
def test_chunks_of_prompts_are_begun_ahead(max_chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_costs, "QUANTUM", 1e9)  # without a clock each token is a second
    rig = rig_for("emulated", token_budget=24, max_chunk=max_chunk)
    sequences = [rig.gen(prompt, NEW_TOKENS) for prompt in prompts()]
    num_ahead, num_mixed = run_ahead(rig)
    assert [list(one.tokens) for one in sequences] == alone()
    assert num_ahead > num_mixed > 1


def test_options_are_scored_ahead_as_on_the_processor() -> None:
    """An option longer than the budget of a step, beside one that decodes."""
    dice = random.Random(3)
    tokens = [dice.randrange(256) for _ in range(60)]

    def scored(rig: Rig, is_ahead: bool) -> tuple[list[float], array[int]]:
        other = rig.gen(tokens[:5], 12)
        option: Sequence = rig.score(tokens, 10, (7, 8))
        if is_ahead:
            assert run_ahead(rig)[1] > 0
        else:
            rig.run()
        task = option.task
        assert isinstance(task, Scoring)
        found = [one.logprob for one in (*task.logprobs, *task.final_logprobs)]
        return found, other.tokens

    expected, text = scored(rig_for("cpu"), is_ahead=False)
    found, text_ahead = scored(rig_for("emulated", token_budget=16), is_ahead=True)
    assert len(found) == len(expected) == 52
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert text_ahead == text


@pytest.mark.parametrize("num_waits", [0, 1])
def test_arrays_of_a_begun_step_stay_where_they_are_until_it_is_computed(num_waits: int) -> None:
    """The next step's need more room than there is. Else a kernel would touch memory that was given
    back, which the emulator refuses. Every other wait does all that was begun.
    """
    engine = fresh()
    engine._staging = Staging(engine.driver, 1 << 12)
    few, many = (
        replace(
            batch_of([Row(0, count, tuple(range(9, 40)))], 16), tokens=np.zeros(count, np.int32)
        )
        for count in (20, 100)
    )
    for _ in range(num_waits):
        engine.finish()
    engine.forward(few)
    moves = engine._staging.moves
    engine.forward(many)
    assert engine._staging.moves > moves
    engine.finish()


@pytest.mark.parametrize("kind", [PlainSteps, StepsAhead])
def test_a_kernel_that_fails_ends_the_runtime_at_its_first_step(
    kind: type[PlainSteps] | type[StepsAhead], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device every later call fails, too: calls that come would only fail one by one."""
    driver = fresh().driver
    assert isinstance(driver, EmulatedDriver)
    rig = rig_for("emulated")
    rig.gen(prompts()[0], NEW_TOKENS)
    steps = kind(
        rig.scheduler, rig.engine, rig.sampler, partial(build_batch, page_size=rig.config.page_size)
    )
    steps.turn()

    def fault(_launch: object, seed: int) -> None:
        raise KernelFault("reads what is not its own")

    with monkeypatch.context() as patch:
        patch.setattr(driver.kernels, "run", fault)
        with pytest.raises(EngineLost, match="reads what is not its own"):
            list(iter(steps.turn, None))
    with pytest.raises(KernelFault, match="an earlier kernel has failed"):
        driver.event().wait()
    fresh()  # for the tests after this one
