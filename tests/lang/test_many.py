"""Many programs at once: everyone gets its own outcome, and nothing is left behind."""

from __future__ import annotations

import asyncio

import lmprog
from lmprog.testing import Hold, Scripted, Scripting


def test_a_thousand_programs_on_one_loop_leave_nothing_behind() -> None:
    """Ten in a hundred are cancelled, five raise: everyone else gets its value, and no branch stays
    open.
    """

    @lmprog.function
    async def program(s: lmprog.Branch, index: int) -> int:
        s.append(f"{index}")
        async with s.fork(2) as branches:
            drafts = await branches.map(lambda b: b.gen())
        if index % 20 == 7:
            raise ValueError(f"mine {index}")
        if index % 10 == 3:
            await s.gen()
        return len(drafts)

    forks_seen = dict.fromkeys(range(1000), 0)

    def script(prompt: str) -> Scripting:
        index = int(prompt)
        forks_seen[index] += 1
        return Hold() if forks_seen[index] == 3 else ""

    async def main() -> list[object]:
        on = program.using(backend=scripted)
        tasks = [asyncio.ensure_future(on.arun(index)) for index in range(1000)]
        while len(scripted.runtime.held()) < 100:
            await asyncio.sleep(0.01)
        for index in range(3, 1000, 10):
            tasks[index].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    with Scripted(script) as scripted:
        outcomes = asyncio.run(main())
        assert scripted.runtime.open_branches() == 0
        assert scripted.runtime.held() == []
    for index, outcome in enumerate(outcomes):
        if index % 20 == 7:
            assert isinstance(outcome, ValueError)
            assert str(outcome) == f"mine {index}"
        elif index % 10 == 3:
            assert isinstance(outcome, asyncio.CancelledError)
        else:
            assert isinstance(outcome, lmprog.Run)
            assert outcome.value == 2
