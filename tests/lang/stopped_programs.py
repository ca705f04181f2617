"""Programs that are stopped and go on: drawn at random, and one that kills its process."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import lmprog
from lmprog.backends.client import RuntimeBackend
from lmprog.launch import greet
from tests.lang.small_runtime import Real

KINDS = (
    "text", "text", "gen", "gen", "stop", "best", "int", "select", "reference", "fork", "join",
    "await", "snapshot", "restore", "once", "nested", "turn",
)  # fmt: skip


@lmprog.function
async def nested(s: lmprog.Branch, text: str) -> str:
    s.append(text)
    return await s.gen(max_tokens=2)


class StoppedAuthor:
    """Writes a program while it runs: random ops on random branches. What it draws does not depend
    on what the model says, and everything else does.
    """

    def __init__(self, s: lmprog.Branch, rng: random.Random) -> None:
        self.rng = rng
        self.live = [s]
        self.groups: list[tuple[lmprog.Branch, Any]] = []
        self.gens: list[lmprog.Gen[Any]] = []
        self.snapshots: list[tuple[lmprog.Branch, Any]] = []

    async def act(self) -> None:
        rng, branch = self.rng, self.rng.choice(self.live)
        kind, number = rng.choice(KINDS), rng.randint(1, 4)
        if kind == "text":
            branch.append(rng.choice(["so ", "and then ", "the an", "x", "http:"]))
        elif kind == "gen":
            self.gens.append(branch.gen(rng.choice([None, "name"]), number, temperature=1.5))
        elif kind == "stop":
            self.gens.append(branch.gen(max_tokens=12, stop=["e", " a"], temperature=1.0))
        elif kind == "best":
            self.gens.append(branch.gen(n=3, keep="best", max_tokens=number))
        elif kind == "int":
            self.gens.append(branch.gen(int, max_tokens=4, on_incomplete="keep"))
        elif kind == "select":
            self.gens.append(branch.select("yes", "no", "maybe", temperature=1.0))
        elif kind == "reference" and self.gens:
            gen = rng.choice(self.gens)
            branch.append(f": {gen}!" if number < 3 else gen)
        elif kind == "fork" and len(self.live) < 6:
            group = branch.fork(number % 3 + 1)
            self.live += group
            self.groups.append((branch, group))
        elif kind == "join" and self.groups:
            self.join(rng.randrange(len(self.groups)))
        elif kind == "await" and self.gens:
            await rng.choice(self.gens)
        elif kind == "snapshot":
            self.snapshots.append((branch, branch.snapshot()))
        elif kind == "restore" and self.snapshots:
            await self.restore(*rng.choice(self.snapshots))
        elif kind == "once":
            branch.append(branch.once(_drawn_once, number))
        elif kind == "nested":
            branch.append((await nested.arun("inside ")).value)
        elif kind == "turn" and not branch.cursor.has_roles():
            await branch.settled()

    async def restore(self, branch: lmprog.Branch, snapshot: Any) -> None:
        """Nothing may refer to what is cancelled, so it is awaited first."""
        if branch in self.live and not any(parent is branch for parent, _ in self.groups):
            await branch.settled()
            branch.restore(snapshot)

    def join(self, index: int) -> None:
        """Joins a group none of whose children has living children itself."""
        group = self.groups[index][1]
        if any(other in list(group) for other, _ in self.groups):
            return
        del self.groups[index]
        self.live = [branch for branch in self.live if branch not in list(group)]
        group.join(self.rng.choice(["gather_variable", "concate_and_append"]))


def _drawn_once(number: int) -> str:
    return f"<{number}>"


@lmprog.function
async def stopped(s: lmprog.Branch, seed: int) -> list[str]:
    rng = random.Random(seed)
    s.append("start ")
    author = StoppedAuthor(s, rng)
    for _ in range(rng.randint(8, 22)):
        await author.act()
    return [await branch.atext() for branch in author.live]


def tokens_of(run: lmprog.Run[Any]) -> dict[str, object]:
    """What every call gave, by its place in the program."""
    found: dict[str, object] = {}
    for gen in run.scope.all_gens():
        if gen.failure() is None:
            found[gen.key] = (gen.texts, [meta.tokens for meta in gen.metas])
    return found


@lmprog.function
async def quoting(s: lmprog.Branch) -> str:
    """Results in other text, read before and not; its file of version 0.1 is a test's."""
    s.append("start ")
    first = s.gen(max_tokens=4)
    async with s.fork(2) as (a, b):
        a.append(f"so {first}: ")
        second = await a.gen(max_tokens=4)
        b.append(f"then {first} and {second}: ", await b.select("yes", "no"))
        return f"{second} {await b.gen(max_tokens=4)}"


@lmprog.function
def killed(s: lmprog.Branch, at: int) -> str:
    """Its process is gone after so many results."""
    s.append("the an")
    for number in range(6):
        if number == at and os.environ.get("DIES"):
            os.kill(os.getpid(), signal.SIGKILL)
        s.append(s.gen(max_tokens=3, temperature=1.0).value + " and ")
    return s.text()


if __name__ == "__main__":
    made = Real()
    with RuntimeBackend(greet(made.channel.connect())) as backend:
        from tests.lang.stopped_programs import killed as program  # by the name that is imported

        run = program.using(backend=backend, checkpoint=Path(sys.argv[1]), seed=11)
        print(run.run(int(sys.argv[2])).value)
    made.end()
