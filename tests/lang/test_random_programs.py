"""Programs drawn at random: what the client says a branch's text is, is what the runtime has,
whatever happened.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import lmprog
from lmprog import wire
from lmprog.backends.client import RuntimeBackend


class Author:
    """Writes a program while it runs: random ops on random branches of a growing and shrinking
    set.
    """

    def __init__(self, s: lmprog.Branch, rng: random.Random) -> None:
        self.rng = rng
        self.live = [s]
        self.groups: list[tuple[lmprog.Branch, Any]] = []
        self.gens: list[lmprog.Gen[Any]] = []

    async def act(self) -> None:
        rng = self.rng
        branch = rng.choice(self.live)
        kind = rng.choice(
            [
                "text",
                "gen",
                "gen",
                "select",
                "reference",
                "reference",
                "fork",
                "join",
                "await",
                "turn",
            ]
        )
        if kind == "text":
            branch.append(rng.choice(["so ", "and then ", "", "x"]))
        elif kind == "gen":
            self.gens.append(branch.gen(rng.choice([None, "name"]), rng.randint(1, 3)))
        elif kind == "select":
            self.gens.append(branch.select("yes", "no", "maybe", name="kind"))
        elif kind == "reference" and self.gens:
            gen = rng.choice(self.gens)
            branch.append(f": {gen}!" if rng.random() < 0.5 else gen)
        elif kind == "fork" and len(self.live) < 8:
            group = branch.fork(rng.randint(1, 3))
            self.live += group
            self.groups.append((branch, group))
        elif kind == "join" and self.groups:
            self.join(rng.randrange(len(self.groups)))
        elif kind == "await" and self.gens:
            await rng.choice(self.gens)
        elif kind == "turn":
            await asyncio.sleep(0)

    def join(self, index: int) -> None:
        """Joins a group none of whose children has living children itself."""
        group = self.groups[index][1]
        if any(other in list(group) for other, _ in self.groups):
            return
        del self.groups[index]
        self.live = [branch for branch in self.live if branch not in list(group)]
        group.join(self.rng.choice(["gather_variable", "concate_and_append"]))


@lmprog.function
async def drawn(s: lmprog.Branch, seed: int) -> int:
    rng = random.Random(seed)
    s.append("start ")
    author = Author(s, rng)
    for _ in range(rng.randint(3, 25)):
        await author.act()
    for branch in author.live:
        ours = await branch.atext()
        theirs = await branch.cursor.read().arrive()
        assert isinstance(theirs, wire.TextIs), theirs
        assert ours == theirs.text
    return len(author.live)


@pytest.mark.parametrize("together", [1, 8])
def test_client_and_runtime_agree_on_every_text(
    backend: RuntimeBackend, together: int, seed: int
) -> None:
    results = drawn.map(
        range(seed, seed + 150), backend=backend, concurrency=together, on_error="collect"
    )
    assert results.errors == {}
