"""Best of k, race and vote, as programs say them: on a runtime that decides by itself, and on one
that cannot.
"""

from __future__ import annotations

import asyncio
import time

import pydantic
import pytest

import lmprog
from lmprog import wire
from lmprog.backends.client import RuntimeBackend
from lmprog.errors import Cancelled, ContextOverflow, InvalidParameter, ProgramError
from lmprog.runtime.programs.result_selection import majority
from lmprog.testing import Hold, Scripted
from tests.lang.small_runtime import Small

LENGTHS = (60, 4, 60)


def settle(runtime: Small) -> dict[str, float]:
    """The runtime's figures, once nothing runs any more."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        figures = runtime.interpreter.figures()
        if figures["running"] == figures["waiting"] == figures["open_branches"] == 0:
            return figures
        time.sleep(0.01)
    raise AssertionError(f"still busy: {figures}")


@lmprog.function
async def raced(s: lmprog.Branch) -> tuple[str, list[bool]]:
    s.append("once upon a time ")
    async with s.fork(len(LENGTHS)) as branches:
        gens = [
            b.gen(max_tokens=n, ignore_eos=True) for b, n in zip(branches, LENGTHS, strict=True)
        ]
        text = await lmprog.race(*gens)
        await asyncio.wait([asyncio.ensure_future(gen.wait_async()) for gen in gens])
        return text, [isinstance(gen.failure(), Cancelled) for gen in gens]


def test_a_race_is_won_by_the_first_and_the_others_are_cancelled(
    small: Small, backend: RuntimeBackend
) -> None:
    run = raced.using(backend=backend).run()
    text, cancelled = run.value
    assert len(text) == 4
    assert cancelled == [True, False, True]
    figures = settle(small)
    assert figures["pages_free"] + figures["pages_evictable"] == figures["pages"]
    assert small.scheduler.stats.generated_tokens < sum(LENGTHS)


@lmprog.function
def raced_plainly(s: lmprog.Branch) -> str:
    s.append("once upon a time ")
    with s.fork(2) as branches:
        return lmprog.race(
            branches[0].gen(max_tokens=50, ignore_eos=True), branches[1].gen(max_tokens=2)
        ).value


def test_a_plain_program_races_too(backend: RuntimeBackend) -> None:
    assert len(raced_plainly.using(backend=backend).run().value) <= 2


@lmprog.function
async def voted(s: lmprog.Branch, texts: tuple[str, ...], length: int) -> str:
    async with s.fork(len(texts)) as branches:
        for branch, text in zip(branches, texts, strict=True):
            branch.append(text)
        gens = [
            b.gen(max_tokens=length + 30 * (i == 2), temperature=0, ignore_eos=True)
            for i, b in enumerate(branches)
        ]
        return await lmprog.vote(gens)


def test_a_vote_ends_when_nobody_can_change_it(small: Small, backend: RuntimeBackend) -> None:
    text = voted.using(backend=backend).run(("same", "same", "other"), 3).value
    assert len(text) == 3
    settle(small)
    assert small.scheduler.stats.calls_failed == 1, "the third call was cancelled"


@lmprog.function
async def one_fails(s: lmprog.Branch) -> str:
    s.append("abc")
    async with s.fork(2) as branches:
        branches[0].append("x" * 1000)
        return await lmprog.race(branches[0].gen(), branches[1].gen(max_tokens=3, ignore_eos=True))


@lmprog.function
async def all_fail(s: lmprog.Branch) -> str:
    s.append("x" * 1000)
    async with s.fork(2) as branches:
        return await lmprog.race(branches[0].gen(), branches[1].gen())


def test_who_fails_takes_no_part_and_when_all_fail_the_first_failure_is_raised(
    backend: RuntimeBackend,
) -> None:
    assert len(one_fails.using(backend=backend).run().value) == 3
    with pytest.raises(ContextOverflow) as caught:
        all_fail.using(backend=backend).run()
    assert "all_fail" in "".join(getattr(caught.value, "__notes__", []))


@lmprog.function
def best(s: lmprog.Branch, k: int, keep: wire.Keep) -> tuple[str, list[str], str]:
    s.append("once upon a time ")
    gen = s.best_of(k, max_tokens=6, stop="a", keep=keep)
    return gen.value, gen.values, s.text()


@pytest.mark.parametrize("keep", ["best", "fastest", "majority"])
def test_the_branch_goes_on_from_what_was_kept(backend: RuntimeBackend, keep: wire.Keep) -> None:
    text, texts, whole = best.using(backend=backend).run(5, keep).value
    assert texts[0] == text
    assert 1 <= len(texts) <= 5
    assert whole == "once upon a time " + text


@lmprog.function
def said_by_operators(s: lmprog.Branch) -> str:
    s += "once upon a time " + lmprog.best_of(3, "line", max_tokens=4, ignore_eos=True)
    return str(s["line"])


def test_the_operator_spelling_has_it_too(backend: RuntimeBackend) -> None:
    assert len(said_by_operators.using(backend=backend).run().value) == 4


@lmprog.function
def judged(s: lmprog.Branch) -> tuple[str, str]:
    s.append("once upon a time ")
    line = s.best_of(4, max_tokens=5, by=lmprog.Judge(" is that good?", ("yes", "no")))
    return line.value, s.text()


def test_a_judge_can_be_asked_which_is_best(backend: RuntimeBackend) -> None:
    line, whole = judged.using(backend=backend, seed=4).run().value
    assert whole == "once upon a time " + line
    with pytest.raises(InvalidParameter, match="by="):
        lmprog.best_of(3, by="taste")  # type: ignore[arg-type]


def test_what_is_kept_is_one_of_four() -> None:
    with pytest.raises(InvalidParameter, match="keep"):
        lmprog.gen(n=2, keep="worst")  # type: ignore[call-overload]


# --- a backend that knows no contests: the client decides


def test_without_a_runtime_that_decides_the_client_does_and_cancels() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> tuple[str, int]:
        async with s.fork(3) as branches:
            gens = [b.gen() for b in branches]
            value = await lmprog.vote(gens)
            await asyncio.wait([asyncio.ensure_future(gen.wait_async()) for gen in gens])
            return value, sum(isinstance(gen.failure(), Cancelled) for gen in gens)

    with Scripted(["a", "a ", Hold()]) as scripted:
        assert program.using(backend=scripted).run().value == ("a", 1)


def test_a_scripted_majority_is_kept() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> tuple[str, str]:
        value = s.gen(n=3, keep="majority").value
        return value, s.text()

    with Scripted([["a", "b", "b"]]) as scripted:
        assert program.using(backend=scripted).run().value == ("b", "b")


def test_waiting_for_a_contest_on_the_loop_is_refused_and_nothing_is_no_contest() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        with pytest.raises(ProgramError, match="nothing to choose"):
            lmprog.race()
        contest = lmprog.race(s.gen())
        with pytest.raises(ProgramError, match="await"):
            _ = contest.winner
        return await contest

    with Scripted(["x"]) as scripted:
        assert program.using(backend=scripted).run().value == "x"


def test_values_are_voted_on_as_before() -> None:
    assert lmprog.vote([1, 2, 2]) == 2
    assert lmprog.vote(["a", "B", "b"], key=str.lower) == "B"
    with pytest.raises(ProgramError):
        lmprog.vote([])


def test_a_vote_on_values_without_a_hash_compares_what_they_hold() -> None:
    one, two = (
        pydantic.create_model("One", a=(int, ...)),
        pydantic.create_model("Two", a=(int, ...)),
    )
    models = [one(a=1), one(a=2), two(a=2), one(a=2)]
    assert lmprog.vote(models) is models[1]
    assert lmprog.vote([[1], [2], [2]]) == [2]
    assert lmprog.vote([{"a": 1, "b": 2}, {"b": 3}, {"b": 2, "a": 1}]) == {"a": 1, "b": 2}
    with pytest.raises(ProgramError, match="give vote a key="):
        lmprog.vote([[object()], [object()]])


SPELLINGS = ["1", "2.0", "2"]


@lmprog.function
def voted_on_numbers(s: lmprog.Branch) -> float:
    s.append("How much?")
    with s.fork(3) as branches:
        return lmprog.vote([branch.gen(float) for branch in branches]).value


@lmprog.function
def kept_number(s: lmprog.Branch) -> float:
    s.append("How much?")
    return s.gen(float, n=3, keep="majority").value


def test_a_vote_on_typed_results_counts_values_and_not_spellings() -> None:
    with Scripted(SPELLINGS) as scripted:
        assert voted_on_numbers.run(backend=scripted).value == 2
    with Scripted([SPELLINGS]) as scripted:
        assert kept_number.run(backend=scripted).value == 2


def test_the_runtime_counts_values_too() -> None:
    number = wire.JsonSchema('{"type": "number"}')
    texts = {at: wire.compared(text, number) for at, text in enumerate(SPELLINGS)}
    assert majority(texts, 0) == 1
    assert wire.compared('{"b": "\\u0061", "a": 1}', number) == wire.compared(
        '{"a":1,"b":"a"}', number
    )
    assert wire.compared(" 2.0", None) != wire.compared("2", None)
    cut = wire.compared('{"a": 1', number)
    assert cut == '{"a": 1'
