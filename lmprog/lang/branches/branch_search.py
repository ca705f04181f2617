"""Search over forks: branches are forked, each fork goes a step on and is scored, the best go on.

With `at_once` as large as `width` this is beam search over steps of any length, with `at_once=1`
best-first search. Who is left behind is closed at once, and what only it had computed leaves the
runtime's cache. Knows branches and scores; what a step is, the program says.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lmprog.errors import not_allowed
from lmprog.lang.branches.branch import Branch, Branches
from lmprog.lang.branches.branch_contents import ForkOptions
from lmprog.lang.branches.gen import Gen
from lmprog.lang.branches.mapped import Mapped

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class SearchPath(Generic[T]):
    """A branch that a search has come to."""

    branch: Branch
    values: tuple[T, ...] = ()
    """What `expand` gave for each step so far."""
    score: float = 1.0
    """While a step is made or scored: that of the path before it."""
    fork: Branches | None = field(default=None, repr=False)
    before: SearchPath[T] | None = field(default=None, repr=False)


Expand = Callable[[SearchPath[T]], "Awaitable[T] | T"]
Score = Callable[[SearchPath[T]], "Awaitable[float] | float"]
Turn = Sequence[Mapped[SearchPath[T]]]


class BranchSearch(Generic[T]):
    """`await` it for the paths that are left, best first, or read `.value`, which blocks."""

    def __init__(
        self, start: Branch, expand: Expand[T], score: Score[T], limits: SearchLimits
    ) -> None:
        self._start: SearchPath[T] = SearchPath(start)
        self._expand = expand
        self._score = score
        self._limits = limits
        self._num_alive: dict[SearchPath[T], int] = {}
        """Of each expanded path: its steps that were not left behind."""

    @property
    def value(self) -> list[SearchPath[T]]:
        turns = self._turns(self._made)
        try:
            turn = next(turns)
            while True:
                turn = turns.send([mapped.value for mapped in turn])
        except StopIteration as end:
            return list(end.value)

    def __await__(self) -> Generator[Any, None, list[SearchPath[T]]]:
        return self._run().__await__()

    async def _run(self) -> list[SearchPath[T]]:
        turns = self._turns(self._made_async)
        try:
            turn = next(turns)
            while True:
                turn = turns.send([await mapped for mapped in turn])
        except StopIteration as end:
            return list(end.value)

    def _turns(
        self, made: Callable[[SearchPath[T]], Any]
    ) -> Generator[Turn[T], list[list[SearchPath[T]]], list[SearchPath[T]]]:
        """Gives what is under way in a turn, and takes its results; the paths left at the end."""
        limits, kept, left = self._limits, [self._start], self._limits.budget
        while True:
            best = [path for path in kept[: limits.at_once] if not limits.until(path)][:left]
            if not best:
                return kept
            left -= len(best)
            found = yield [self._forked(path, made) for path in best]
            new = self._different([path for paths in found for path in paths])
            rest = [path for path in kept if path not in best]
            ranked = sorted([*new, *rest], key=lambda path: -path.score)
            kept, behind = ranked[: limits.width], ranked[limits.width :]
            self._leave(behind)

    def _forked(
        self, path: SearchPath[T], made: Callable[[SearchPath[T]], Any]
    ) -> Mapped[SearchPath[T]]:
        fork = path.branch.fork(self._limits.proposals, **self._limits.options)
        self._num_alive[path] = len(fork)
        return fork.map(lambda branch: made(replace(path, branch=branch, fork=fork, before=path)))

    def _made(self, path: SearchPath[T]) -> SearchPath[T]:
        value: Any = self._expand(path)
        value = value.value if isinstance(value, Gen) else value
        path = replace(path, values=(*path.values, value))
        score: Any = self._score(path)
        return replace(path, score=float(score.value if isinstance(score, Gen) else score))

    async def _made_async(self, path: SearchPath[T]) -> SearchPath[T]:
        value: Any = self._expand(path)
        value = await value if inspect.isawaitable(value) else value
        path = replace(path, values=(*path.values, value))
        score: Any = self._score(path)
        return replace(path, score=float(await score if inspect.isawaitable(score) else score))

    def _different(self, found: list[SearchPath[T]]) -> list[SearchPath[T]]:
        """Of paths with the same values the first; the others are left behind."""
        first: list[SearchPath[T]] = []
        again: list[SearchPath[T]] = []
        for path in found:
            is_known = any(path.values == other.values for other in first)
            (again if is_known else first).append(path)
        self._leave(again)
        return first

    def _leave(self, behind: list[SearchPath[T]]) -> None:
        """Closes branches, and those before them on which nobody stands any more."""
        for one in behind:
            path: SearchPath[T] | None = one
            while path is not None and path.fork is not None:
                path.fork.drop([path.branch], forget=True)
                path = path.before
                assert path is not None, "a fork is of a path"
                self._num_alive[path] -= 1
                if self._num_alive[path]:
                    break


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """How far a search goes."""

    width: int
    budget: int
    proposals: int
    at_once: int
    until: Callable[[SearchPath[Any]], bool]
    options: ForkOptions


class SearchOptions(ForkOptions, total=False):
    """What a search may be told besides how wide it is, and what its forks are."""

    proposals: int
    """Forks of each path; 2 if it is not given."""
    at_once: int
    """Paths that are forked in a turn; all if it is not given."""
    until: Callable[[SearchPath[Any]], bool]
    """Whether a path needs no further step."""


def search(
    start: Branch,
    expand: Expand[T],
    score: Score[T],
    *,
    width: int,
    budget: int,
    **options: Unpack[SearchOptions],
) -> BranchSearch[T]:
    """Searches on from `start`: `await` it, or read its `.value`, for the best paths, best first.

    In each turn the `at_once` best paths are forked `proposals` times. `expand(path)` makes a step
    on `path.branch` and gives its value; `score(path)` scores the path with it, `path.score` being
    that of the path before. Both may be coroutine functions. The `width` best of all paths are
    kept. It ends when `until` holds for those that would be forked next, or when `budget` paths
    were forked. Other options are a fork's.
    """
    proposals, at_once = options.pop("proposals", 2), options.pop("at_once", width)
    until = options.pop("until", lambda path: False)
    for name, value in (
        *(("width", width), ("budget", budget)),
        *(("proposals", proposals), ("at_once", at_once)),
    ):
        if value < 1:
            raise not_allowed(name, value, "1 or more")
    limits = SearchLimits(width, budget, proposals, at_once, until, options)
    return BranchSearch(start, expand, score, limits)
