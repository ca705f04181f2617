"""Every way of running a program gives the same tokens, call by call; `ways_of_running` has the ways
and draws the programs. Below, the two rules by which that holds, one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lmprog
from lmprog import wire
from lmprog.backends.client import RuntimeBackend
from lmprog.testing import Hold, Scripted, Scripting
from tests.lang.ways_of_running import Machines, differences, machines

NUM_PROGRAMS = 200


@pytest.fixture(scope="module")
def on() -> Iterator[Machines]:
    with machines() as made:
        yield made


@pytest.fixture
def runtime(on: Machines) -> RuntimeBackend:
    assert isinstance(on.runtime, RuntimeBackend)
    return on.runtime


@pytest.mark.parametrize("part", range(4))
def test_every_way_of_running_a_program_gives_the_same_tokens(
    on: Machines, part: int, seed: int
) -> None:
    """Each program plainly and in some of the ways."""
    first = 1000 * seed + part * NUM_PROGRAMS // 4
    programs = range(first, first + NUM_PROGRAMS // 4)
    assert [one for number in programs for one in differences(on, number, num_ways=4)] == []
    assert on.moved.num_moved > 0


# --- a result in the text of another branch

SPELLS = r"say <\|end\|> now"


@lmprog.function
async def quoting(s: lmprog.Branch, how: str, reads: bool) -> tuple[str, ...]:
    """One branch writes the name of a special token, the other has it in its text."""
    s.append("begin ")
    async with s.fork(2) as (a, b):
        result = a.gen("said", regex=SPELLS, max_tokens=20)
        formatted = f" it says {result}, " if how in ("formatted", "written") else ""
        if reads:
            await result
        if how == "appended":
            b.append(" it says ", result, ", ")
        elif how == "formatted":
            b.append(formatted)
        elif how == "written":
            b["note"] = formatted
            b.append(b.var("note"))
        elif how == "joined":
            c = a.fork(1)
            c.join("concate_and_append")
            b.append(" it says ", result, ", ")
        else:
            a.append(" or so")
            forks = b.fork(1)
            forks[0].append(result)
            forks.join("concate_and_append")
        after = b.gen(max_tokens=4, ignore_eos=True)
        read = b.cursor.scope.client.call(
            wire.Read(b.cursor.id, b.cursor.scope.client.number(), with_tokens=True)
        )
        await after
        outcome = await read.arrive()
        assert isinstance(outcome, wire.TextIs)
        return await result, await after, str(outcome.tokens)


@pytest.mark.parametrize("how", ["appended", "formatted", "written", "joined", "gained"])
def test_a_result_in_another_branch_is_letters_whether_it_was_read_before_or_not(
    runtime: RuntimeBackend, how: str
) -> None:
    program = quoting.using(backend=runtime, temperature=0)
    late, early = program.run(how, False).value, program.run(how, True).value
    assert late == early
    assert late[0] == "say <|end|> now"
    assert "0" not in late[2].strip("()").split(", "), "no token of the name"


# --- what a branch gains of another on backends that keep branches here


def test_a_fork_given_up_after_a_join_raises_what_the_program_raised(
    runtime: RuntimeBackend, tmp_path: Path
) -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> None:
        s.append("x")
        forks = s.fork(2)
        forks[0].gen(max_tokens=200, ignore_eos=True)
        forks.join("concate_and_append")
        raise ValueError("mine")

    with Scripted(lambda _: Hold()) as scripted:
        for backend in (scripted, runtime):
            for ready in (program, program.using(cache=tmp_path)):
                with pytest.raises(ValueError, match="mine"):
                    ready.using(backend=backend).run()


@pytest.mark.parametrize("is_cached", [False, True])
def test_what_a_closed_branch_had_gained_still_arrives(is_cached: bool, tmp_path: Path) -> None:
    """The parent is busy until after the children are closed."""

    def answer(prompt: str) -> Scripting:
        return Hold() if prompt == "x" else "c" if prompt.endswith("child ") else "end"

    @lmprog.function
    def program(s: lmprog.Branch, scripted: Scripted) -> str:
        s.append("x")
        forks = s.fork(2)
        slow = s.gen(max_tokens=3)
        found = []
        for branch in forks:
            branch.append("child ")
            found.append(branch.gen(max_tokens=1))
        assert [gen.value for gen in found] == ["c", "c"]
        forks.join("concate_and_append")
        s.gen(max_tokens=2)
        scripted.release("slow ")
        assert slow.value == "slow "
        return s.text()

    with Scripted(answer) as scripted:
        ready = program.using(backend=scripted)
        ready = ready.using(cache=tmp_path) if is_cached else ready
        text = ready.run(scripted).value
        assert text == "xslow child cchild cend"
        assert scripted.prompts[-1] == "xslow child cchild c"
