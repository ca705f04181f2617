"""What a workload is: seeded data, the program for lmprog, and the same work for a peer that goes
in lockstep.

Both sides give their results as a flat list of texts in the same order, so that they can be
compared. Generations are greedy and of forced length. Knows no runtime's insides and no timing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from benchmarks.workloads.text import Writer
from lmprog.backends import Backend
from lmprog.lang.program import Program


class Lockstep(Protocol):
    """Rows of one batch that a peer moves together; the strongest form in which `generate` users
    can write these.
    """

    def extend(self, texts: Sequence[str]) -> None:
        """Appends a text to each row."""
        ...

    def generate(self, num_tokens: int) -> list[str]:
        """Generates on every row."""
        ...

    def match(self, pattern: str, most: int) -> list[str]:
        """Generates a match of a regular expression on every row, at most `most` tokens."""
        ...

    def select(self, options: Sequence[Sequence[str]]) -> list[str]:
        """Appends to each row its likeliest option by mean log-probability."""
        ...

    def fork(self, size: int) -> Lockstep:
        """Each row `size` times, standing on copies of what is computed; this one can go on,
        too.
        """
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Drops all other rows."""
        ...


class Peer(Protocol):
    """Something else that can do a workload's work."""

    def start(self, texts: Sequence[str]) -> Lockstep:
        """New rows, one for each text."""
        ...


class Workload:
    """One workload's data. Subclasses make it in `prepare` and say how it is run."""

    name: ClassVar[str]
    about: ClassVar[str]
    """The sizes before scaling, in words."""
    program: ClassVar[Program[..., list[str]]]
    items: Sequence[Any]
    memory: int | None = None
    """Tokens that the key/value memory may hold; None: all."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.prepare(writer)

    def prepare(self, w: Writer) -> None:
        """Draws the data."""
        raise NotImplementedError

    def run(self, backend: Backend) -> list[str]:
        """Does the work on lmprog: the program on all items at once, their results joined."""
        greedy = type(self).program.using(backend=backend, temperature=0.0, ignore_eos=True)
        found = greedy.map(self.items, concurrency=max(1, len(self.items)))
        return [text for texts in found for text in texts]

    def peer(self, peer: Peer) -> list[str]:
        """Does the same work on a peer."""
        raise NotImplementedError


def forced(num_tokens: int) -> dict[str, Any]:
    """The settings of a generation of exactly so many tokens."""
    return {"max_tokens": num_tokens, "min_tokens": num_tokens}


def by_row(steps: Sequence[Sequence[str]]) -> list[str]:
    """What lockstep gives step by step, in the order of the rows."""
    return [text for row in zip(*steps, strict=True) for text in row]
