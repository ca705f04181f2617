"""`s.snapshot()` and `s.restore(...)`: a branch goes back to where it stood."""

from __future__ import annotations

import pytest

import lmprog
from lmprog.backends.client import RuntimeBackend, describe
from lmprog.errors import Cancelled, ProgramError
from lmprog.testing import Hold, Scripted


def test_text_variables_and_messages_are_those_of_the_snapshot() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> list[object]:
        s.user("one")
        await s.gen(name="first")
        snapshot = s.snapshot()
        found: list[object] = []
        for word in ["two", "three"]:
            s.user(word)
            s["word"] = word
            found.append(await s.gen(name="second"))
            s.restore(snapshot)
            found += ["second" in s, "word" in s, s["first"], len(s.messages())]
        s.user("four")
        return [*found, await s.gen()]

    with Scripted(["1", "2", "3", "4"]) as scripted:
        run = program.using(backend=scripted).run()
        assert run.value == [*["2", False, False, "1", 2], *["3", False, False, "1", 2], "4"]
        assert [turn["content"] for turn in run.messages()] == ["one", "1", "four", "4"]
        assert scripted.prompts[3] == scripted.prompts[1].replace("two", "four")
        assert scripted.runtime.open_branches() == 0
        assert run.usage.generated == 4, "what was undone was paid for"


def test_what_the_runtime_has_is_the_text_and_no_seed_is_used_twice(
    backend: RuntimeBackend,
) -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> set[str]:
        s.append("some words before ")
        snapshot, tried = s.snapshot(), set()
        for _ in range(6):
            tried.add(await s.gen(max_tokens=6, temperature=2.0, ignore_eos=True))
            s.restore(snapshot)
        s.append("and after ")
        await s.gen(max_tokens=3)
        theirs = await s.cursor.read().arrive()
        assert getattr(theirs, "text", None) == await s.atext()
        return tried

    computed = describe(backend)["prefill_tokens"]
    assert len(program.using(backend=backend).run().value) > 1
    assert describe(backend)["prefill_tokens"] - computed < 40, "the prefix stays in the cache"


def test_a_restored_branch_can_be_joined() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s += "start "
        forks = s.fork(2)
        snapshots = [fork.snapshot() for fork in forks]
        forks += lmprog.gen("x")
        forks[0].restore(snapshots[0])
        forks[0].append("again ")
        forks[0] += lmprog.gen("x")
        forks.join("concate_and_append")
        return s.text()

    with Scripted(lambda prompt: "[c]" if "again" in prompt else "[a]") as scripted:
        assert program.using(backend=scripted).run().value == "start again [c][a]"
        assert scripted.runtime.open_branches() == 0


def test_what_still_ran_is_cancelled_and_not_raised() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        snapshot = s.snapshot()
        s += "slow"
        running = s.gen()
        s.restore(snapshot)
        with pytest.raises(Cancelled):
            running.value
        s += "fast"
        return s.gen().value

    with Scripted(lambda prompt: Hold() if "slow" in prompt else "42") as scripted:
        assert program.using(backend=scripted).run().value == "42"


def test_a_snapshot_is_of_one_branch_until_it_is_closed() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        snapshot = s.snapshot()
        with s.copy() as other, pytest.raises(ProgramError, match="of another branch"):
            other.restore(snapshot)
        s.restore(snapshot)
        snapshot.close()
        with pytest.raises(ProgramError, match="closed"):
            s.restore(snapshot)

    with Scripted([]) as scripted:
        program.using(backend=scripted).run()
