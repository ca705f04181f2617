"""The scheduler's rules, on the fake model that reads its pages."""

from __future__ import annotations

import random

import pytest

from lmprog.config import SchedulerConfig
from lmprog.errors import ContextOverflow, Overloaded
from lmprog.runtime.scheduling.namespaces import Namespace
from lmprog.runtime.scheduling.sequence import Sequence
from lmprog.simulation.fake_engine import reference_logits
from lmprog.simulation.plain_sampler import log_softmax
from tests.runtime.rig import VOCAB, Rig, expected


def tokens(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=count)


def config(**changes: object) -> SchedulerConfig:
    """Without drafts: what is computed is counted."""
    fields = {"page_size": 4, "num_pages": 512, "speculation": "off", **changes}
    return SchedulerConfig(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("page_size", [1, 3, 4, 16])
@pytest.mark.parametrize("max_chunk", [0, 1, 7])
def test_what_is_generated_does_not_depend_on_pages_or_chunks(
    page_size: int, max_chunk: int
) -> None:
    rig = Rig(config(page_size=page_size, max_chunk=max_chunk))
    prompts = [tokens(seed, length) for seed, length in enumerate([1, 2, 5, 16, 33])]
    sequences = [rig.gen(prompt, 9) for prompt in prompts]
    rig.run()
    for prompt, sequence in zip(prompts, sequences, strict=True):
        assert list(sequence.tokens) == prompt + expected(prompt, 9)


@pytest.mark.parametrize("common", [0, 1, 4, 31, 32, 33, 100])
@pytest.mark.parametrize("page_size", [1, 16])
def test_sixteen_branches_of_one_step_compute_their_common_prefix_once(
    common: int, page_size: int
) -> None:
    rig = Rig(config(page_size=page_size))
    prefix = tokens(1, common)
    prompts = [[*prefix, branch, *tokens(100 + branch, 20)] for branch in range(16)]
    sequences = [rig.gen(prompt, 1) for prompt in prompts]
    rig.step()
    assert rig.plans[0].num_tokens == common + 16 * 21
    for prompt, sequence in zip(prompts, sequences, strict=True):
        assert list(sequence.tokens) == prompt + expected(prompt, 1)


def test_equal_prompts_of_one_step_compute_all_but_their_last_token_once() -> None:
    rig = Rig(config(page_size=16))
    prompt = tokens(1, 37)
    sequences = [rig.gen(prompt, 5) for _ in range(8)]
    rig.step()
    assert rig.plans[0].num_tokens == 36 + 8
    rig.run()
    assert all(list(sequence.tokens) == prompt + expected(prompt, 5) for sequence in sequences)


def test_generated_tokens_are_found_again() -> None:
    rig = Rig(config(page_size=4))
    prompt = tokens(1, 10)
    first = rig.gen(prompt, 13)
    rig.run()
    rig.plans.clear()
    follow = [*first.tokens, 5, 6, 7]
    second = rig.gen(follow, 2)
    rig.step()
    # All but the last generated token (never computed) and the three new ones.
    assert rig.plans[0].num_tokens == 4
    rig.run()
    assert list(second.tokens) == follow + expected(follow, 2)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_preemption_every_third_step_changes_nothing(page_size: int) -> None:
    rig = Rig(config(page_size=page_size, max_chunk=5), preempt_every=3)
    shared = tokens(3, 18)
    prompts = [shared + tokens(seed, seed) for seed in range(1, 8)]
    sequences = [rig.gen(prompt, 24) for prompt in prompts]
    rig.run()
    assert rig.scheduler.stats.preemptions > 3
    for prompt, sequence in zip(prompts, sequences, strict=True):
        assert list(sequence.tokens) == prompt + expected(prompt, 24)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("num_pages", [12, 15, 40])
def test_a_tiny_pool_ends_in_right_answers(num_pages: int, share: bool) -> None:
    rig = Rig(
        config(page_size=4, num_pages=num_pages, share=share, token_budget=16), context_len=40
    )
    prompts = [tokens(seed % 3, 10) + tokens(seed, seed % 9) for seed in range(20)]
    sequences = [rig.gen(prompt, 12) for prompt in prompts]
    rig.run()
    for prompt, sequence in zip(prompts, sequences, strict=True):
        assert list(sequence.tokens) == prompt + expected(prompt, 12)


def test_scoring_gives_the_log_probabilities_of_the_given_tokens() -> None:
    rig = Rig(config(max_chunk=6))
    text = tokens(5, 17)
    sequence = rig.score(text, first=9, finals=(3, 4))
    rig.run()
    task = sequence.task
    found = [scored.logprob for scored in task.logprobs]
    likely = [log_softmax(reference_logits(text[:end], VOCAB)) for end in range(9, 18)]
    assert found == pytest.approx([likely[i][text[9 + i]] for i in range(8)], abs=1e-6)
    assert [one.logprob for one in task.final_logprobs] == pytest.approx(
        [likely[8][3], likely[8][4]], abs=1e-6
    )


def test_a_call_that_can_never_fit_is_refused_with_the_numbers() -> None:
    rig = Rig(config(page_size=4, num_pages=8), context_len=1000)
    with pytest.raises(
        ContextOverflow, match=r"20 tokens; with max_tokens=9 that is 29 > 28"
    ) as caught:
        rig.gen(tokens(1, 20), 9)
    assert (caught.value.prompt, caught.value.max_tokens, caught.value.limit) == (20, 9, 28)
    rig.gen(tokens(1, 20), 8)
    rig.run()


def test_a_prompt_that_alone_is_too_long_gets_no_advice_about_max_tokens() -> None:
    rig = Rig(config(page_size=4, num_pages=8), context_len=1000)
    with pytest.raises(ContextOverflow, match=r"set max_tokens <= 4\.$"):
        rig.gen(tokens(1, 24), 5)
    with pytest.raises(ContextOverflow, match=r"Shorten the prompt\.$"):
        rig.gen(tokens(1, 28), 1)


def test_a_full_line_refuses() -> None:
    rig = Rig(config(max_waiting=2))
    rig.gen([1], 1)
    rig.gen([1], 1)
    with pytest.raises(Overloaded) as caught:
        rig.gen([1], 1)
    assert caught.value.retry_after == 1.0


def test_a_row_that_is_not_finite_ends_alone_and_leaves_nothing_in_the_tree() -> None:
    rig = Rig(config(page_size=4))
    rig.engine.poison = {96}
    shared = [1, 2, 3, 4, 5, 6]
    bad = rig.gen([*shared, 96, 7, 8, 9, 10, 11], 4)
    good = rig.gen([*shared, 8, 9], 4)
    failed = [one for one in rig.step() if one.error]
    assert [one.sequence for one in failed] == [bad]
    rig.run()
    assert list(good.tokens) == [*shared, 8, 9, *expected([*shared, 8, 9], 4)]
    rig.engine.poison = set()
    again = rig.gen([*shared, 96, 7, 8, 9, 10, 11], 4)
    rig.plans.clear()
    rig.run()
    assert rig.plans[0].num_tokens >= 6, "nothing of the failed row may be found"
    assert list(again.tokens) == [*bad.tokens[:12], *expected([*bad.tokens[:12]], 4)]


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs"])
def test_all_policies_answer_everything(policy: str) -> None:
    rig = Rig(config(page_size=4, num_pages=24, token_budget=8, policy=policy), context_len=64)
    prompts = [tokens(seed % 4, 8) + tokens(seed, seed % 5 + 1) for seed in range(30)]
    sequences = [rig.gen(prompt, 4) for prompt in prompts]
    rig.run()
    assert all(
        list(sequence.tokens) == p + expected(p, 4)
        for p, sequence in zip(prompts, sequences, strict=True)
    )


def test_branches_of_different_salts_share_nothing() -> None:
    rig = Rig(config(page_size=4))
    prompt = tokens(1, 20)
    rig.gen(prompt, 1, namespace=Namespace("a"))
    rig.gen(prompt, 1, namespace=Namespace("b"))
    rig.step()
    assert rig.plans[0].num_tokens == 40


def admitted(rig: Rig, sequences: list[Sequence]) -> list[int]:
    """The places of `sequences` in the order of their admission."""
    return sorted(range(len(sequences)), key=lambda at: sequences[at].admission_order)


def test_the_oldest_keeps_its_place_when_memory_runs_short() -> None:
    rig = Rig(config(num_pages=16, admission="unlimited"), context_len=64)
    sequences = [rig.gen([first] * 4, 28) for first in (1, 2, 3)]
    rig.run()
    preempted = [one.num_memory_preemptions for one in sequences]
    assert preempted[0] == 0
    assert preempted[2] > 0


def test_newcomers_wait_for_the_next_depth_first_sweep() -> None:
    rig = Rig(config(policy="dfs", max_rows=1))
    sequences = [rig.gen([first, 1, 2], 1) for first in (30, 10, 20)]
    rig.step()
    sequences += [rig.gen([first, 1, 2], 1) for first in (15, 5)]
    rig.run()
    assert admitted(rig, sequences) == [0, 1, 2, 4, 3]


def test_a_priority_is_worth_seconds_of_waiting_and_not_more() -> None:
    rig = Rig(config(policy="fcfs", max_rows=1, ageing=30.0))
    first = rig.gen([1] * 8, 1)
    low = rig.gen([2] * 8, 1)
    rig.step()  # the first one: nine seconds of work
    early = rig.gen([3] * 8, 1, priority=1)
    rig.step()
    for prompt in (4, 5, 6, 7):
        rig.gen([prompt] * 8, 1, priority=1)
        rig.step()
    late = rig.gen([9] * 8, 1, priority=1)
    rig.run()
    order = [one.admission_order for one in (first, early, low, late)]
    assert order == sorted(order), "a level of priority overtakes, but only what is younger"


def test_clients_take_turns_by_the_tokens_they_were_served() -> None:
    rig = Rig(config(max_rows=1))
    flood = [rig.gen([first] * 20, 1, client="flood") for first in range(40)]
    for _ in range(3):
        rig.step()
    small = rig.gen([90] * 5, 1, client="small")
    rig.run()
    assert small.admission_order <= 5
    assert flood[-1].admission_order == 41


def test_of_several_later_sequences_the_youngest_programs_is_preempted_first() -> None:
    rig = Rig(config(num_pages=12, admission="unlimited"))
    sequences = [rig.gen(tokens(seed, 8), 24) for seed in range(4)]
    order: list[int] = []
    while not rig.scheduler.idle:
        rig.step()
        for number, one in enumerate(sequences):
            order += [number] * (one.group.preemptions - order.count(number))
    assert order[:2] == [3, 2]
    for seed, one in enumerate(sequences):
        assert list(one.tokens)[8:] == expected(tokens(seed, 8), 24)


def test_who_was_preempted_and_admitted_in_one_step_has_one_row() -> None:
    """It had two where it was to be computed behind the one that needed its pages, and another
    client's turn let it in again before that.
    """
    rig = Rig(SchedulerConfig(page_size=1, num_pages=16, admission="unlimited"))
    sizes = [(1, 6, "a"), (11, 4, "a"), (8, 5, "a"), (4, 9, "b"), (4, 11, "a"), (4, 7, "b")]
    for size, count, client in sizes:
        rig.gen([(7 * size + place) % 50 for place in range(size)], count, client=client)
    rig.run()
    assert rig.scheduler.stats.preemptions
    for plan in rig.plans:
        assert len({row.sequence for row in plan.rows}) == len(plan.rows)
