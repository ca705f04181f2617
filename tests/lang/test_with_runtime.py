"""Programs on the real interpreter, scheduler and tree in this process, with the fake model: the
two halves agree.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

import lmprog
from lmprog import wire
from lmprog.backends.client import RuntimeBackend, describe
from lmprog.errors import ContextOverflow, DeadlineExceeded, InvalidParameter, RuntimeGone
from lmprog.lang.ops.expressions import ChoiceMethod
from lmprog.launch import greet
from tests.lang.small_runtime import Small


@lmprog.function
async def agreed(s: lmprog.Branch, question: str) -> tuple[str, list[str], str]:
    s.append(question)
    first = s.gen(name="first", max_tokens=5)
    s.append(f" so {first} then ")
    async with s.fork(3, temperature=1.0) as branches:
        drafts = await branches.map(lambda b: b.gen(max_tokens=4))
    kind = await s.select("yes", "no")
    return await first, drafts, kind


def test_a_program_with_gen_reference_fork_and_select_runs(backend: RuntimeBackend) -> None:
    run = agreed.using(backend=backend, temperature=0, ignore_eos=True).run("the question")
    first, drafts, kind = run.value
    assert len(first) == 5
    assert [len(draft) for draft in drafts] == [4, 4, 4]
    assert run.text() == f"the question{first} so {first} then {kind}"
    assert isinstance(kind, lmprog.Selected)
    assert sum(kind.probabilities.values()) == pytest.approx(1)
    assert run.usage.generated == 5 + 12
    assert run.usage.cached > 0


def test_a_seed_replays_a_run(backend: RuntimeBackend) -> None:
    seeded = agreed.using(backend=backend, seed=3, ignore_eos=True)
    assert seeded.run("the question").value == seeded.run("the question").value


def test_the_double_and_the_runtime_read_the_same_text(backend: RuntimeBackend) -> None:
    """What the client puts together itself is what the runtime has."""

    @lmprog.function
    def program(s: lmprog.Branch) -> tuple[str, str]:
        s += "a" + lmprog.gen("x", max_tokens=3) + "b"
        forks = s.fork(2)
        forks += lambda index: "cd"[index] + lmprog.gen("y", max_tokens=2)
        forks.join("concate_and_append")
        s += lmprog.select("z", ["u", "v"])
        reply = s.cursor.read().wait(10)
        assert isinstance(reply, wire.TextIs)
        return s.text(), reply.text

    ours, theirs = program.using(backend=backend, ignore_eos=True).run().value
    assert ours == theirs


def test_what_the_runtime_streams_is_the_value(backend: RuntimeBackend) -> None:
    events = list(agreed.using(backend=backend, ignore_eos=True).stream("the question"))
    text = "".join(
        event.delta for event in events if isinstance(event, lmprog.Text) and event.var == "first"
    )
    [value] = [
        event.value for event in events if isinstance(event, lmprog.Value) and event.var == "first"
    ]
    assert text == value
    assert isinstance(events[-1], lmprog.Done)


def test_each_of_n_results_has_its_own_log_probabilities(backend: RuntimeBackend) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> lmprog.Gen[str]:
        s.append("abc")
        return s.gen("x", n=3, max_tokens=4, ignore_eos=True, logprobs=2, prompt_logprobs=1)

    run = program.using(backend=backend).run()
    metas = run.value.metas
    assert run.value.meta == metas[0]
    for meta, text in zip(metas, run.value.texts, strict=True):
        assert "".join(item.text for item in meta.logprobs) == text
        assert [len(item.top) for item in meta.logprobs] == [2] * 4
        assert [len(item.top) for item in meta.prompt_logprobs] == [
            1
        ] * 2  # the first token has nothing before it
    assert len(run.get_meta_info("x")["input_top_logprobs"]) == 2


@pytest.mark.parametrize(
    "method",
    [
        lmprog.sglang.token_length_normalized,
        lmprog.sglang.greedy_token_selection,
        lmprog.sglang.unconditional_likelihood_normalized,
    ],
)
def test_a_select_shows_the_log_probabilities_of_its_options(
    backend: RuntimeBackend, method: ChoiceMethod
) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> lmprog.Selected:
        s.append("abc")
        return s.select("ab", "cde", name="x", method=method).value

    run = program.using(backend=backend).run()
    assert set(run.value.logprobs) == {"ab", "cde"}
    assert all(run.value.logprobs.values())
    assert any(run.value.baselines.values()) == (
        method is lmprog.sglang.unconditional_likelihood_normalized
    )
    assert run.get_meta_info("x")["normalized_prompt_logprobs"] == list(run.value.scores.values())


def test_refusals_of_the_runtime_are_raised_and_leave_the_branch_usable(
    backend: RuntimeBackend,
) -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.append("abc")
        with pytest.raises(ContextOverflow) as caught:
            await s.gen(max_tokens=10_000)
        assert caught.value.limit is not None
        with pytest.raises(InvalidParameter):
            await s.gen(stop_token_ids=[999])
        return await s.gen(max_tokens=2, ignore_eos=True)

    assert len(program.using(backend=backend).run().value) == 2


def test_a_call_out_of_time_raises(backend: RuntimeBackend) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("abc")
        return s.gen(max_tokens=390, ignore_eos=True, timeout=0.000123456).value

    with pytest.raises(DeadlineExceeded, match=r"its timeout of 0\.000123 s"):
        program.using(backend=backend).run()


def test_cancelling_a_task_frees_its_branches_in_the_runtime(
    backend: RuntimeBackend, small: Small
) -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> None:
        s.append("abc")
        async with s.fork(4) as branches:
            await branches.map(lambda b: b.gen(max_tokens=380, ignore_eos=True))

    async def main() -> None:
        task = asyncio.ensure_future(program.using(backend=backend).arun())
        while describe(backend)["running"] < 1:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert describe(backend)["running"] == 0


def test_when_the_runtime_ends_every_waiting_program_hears_of_it(small: Small) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("abc")
        while True:
            s.gen(max_tokens=100).value

    with RuntimeBackend(greet(small.channel.connect())) as backend:
        threading.Timer(0.05, small.end).start()
        with pytest.raises((RuntimeGone, ContextOverflow)):
            program.using(backend=backend).run()


def test_many_programs_share_one_prefix(backend: RuntimeBackend) -> None:
    @lmprog.function
    async def program(s: lmprog.Branch, word: str) -> str:
        s.append("a long prefix that all of them have in common, and then ")
        s.append(word)
        return await s.gen(max_tokens=3, ignore_eos=True)

    results = program.map(["one", "two", "three"] * 10, backend=backend, temperature=0)
    assert len(set(results)) == 3
    assert results.usage.cached > results.usage.prompt / 2


def test_plain_programs_in_many_threads_leave_nothing_behind(backend: RuntimeBackend) -> None:
    """Joins close branches while other threads ask: every value is right, and the fixture finds no
    branch open.
    """

    @lmprog.function
    def program(s: lmprog.Branch, word: str) -> bool:
        s += word + lmprog.gen("a", max_tokens=2)
        for mode in ("gather_variable", "concate_and_append"):
            forks = s.fork(3)
            forks += lmprog.gen("part", max_tokens=2) + " so "
            s += f"{forks[0].var('part')} and "
            forks.join(mode)
            s += lmprog.gen("after", max_tokens=2)
        reply = s.cursor.read().wait(20)
        return isinstance(reply, wire.TextIs) and reply.text == s.text()

    words = [f"word {'abcdefghij'[index % 10]} " for index in range(60)]
    results = program.map(words, backend=backend, concurrency=16, ignore_eos=True)
    assert list(results) == [True] * 60
