"""What a run gives back: `Run` for one, `Results` for many. Knows how to read, and how to stop runs
that nobody waits for any more; starts none.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TextIO, TypeVar

from lmprog import wire
from lmprog.errors import Cancelled
from lmprog.lang.branches.branch import Branch
from lmprog.lang.branches.scope import Scope, total
from lmprog.lang.ops import threads

if TYPE_CHECKING:
    from lmprog.lang.runs.work_view import ShownPart

R = TypeVar("R")


class Run(Generic[R]):
    """One run of a program, with its value, its branch and its work. Reading what failed raises
    why. A read that is interrupted (Ctrl-C) while the run goes on in another thread ends the run.
    """

    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.scope: Scope = branch.cursor.scope
        self.outcome: Future[R] = Future()

    @property
    def value(self) -> R:
        """What the program returned; blocks while it runs. Raises what the run raised."""
        self.sync()
        return self.outcome.result()

    @property
    def ret_value(self) -> R:
        """SGLang's name of `value`."""
        return self.value

    @property
    def failure(self) -> BaseException | None:
        """What the run raised; None where it went well. Blocks while it runs."""
        self.sync()
        return self.outcome.exception()

    @property
    def usage(self) -> wire.Usage:
        """The work of all calls of the run, summed; those still running not included."""
        return self.scope.usage()

    @property
    def num_from_cache(self) -> int:
        """How many of the run's calls were answered from the folder of `using(cache=...)`, or from
        the checkpoint that it goes on from; they cost nothing in `usage`. Runs within this one
        count their own.
        """
        return self.scope.num_from_cache()

    @property
    def usage_by_model(self) -> dict[str, wire.Usage]:
        """The same for each model that the run, or a run inside it, has asked."""
        return self.scope.usage_by_model()

    @property
    def seed(self) -> int:
        """What all seeds of the run come from; `program.using(seed=run.seed)` gives the same calls
        the same tokens.
        """
        return self.scope.seed

    def save(self, path: str | Path) -> None:
        """Writes the run's ops and results to a file that `lmprog.replay` does again; blocks while
        it runs.

        Runs that the program started by `.run(...)` are runs of their own and not in it.
        """
        from lmprog.lang.runs.run_replay import Recording

        self.sync()
        Recording.of(self.scope).write(Path(path))

    def checkpoint(self, path: str | Path) -> None:
        """Writes what the run has done so far to a file, from which `lmprog.resume` goes on, in any
        process, on any backend with the same model. Does not wait, and may be called at any time.
        """
        self.scope.record.needed().write(Path(path))

    def __getitem__(self, name: str) -> Any:
        self._if_started_well()
        with self._ending_if_interrupted():
            return self.branch[name]

    def __setitem__(self, name: str, value: object) -> None:
        """Gives a name of the run another value; texts stay as they are."""
        self.branch.set_var(name, value)

    def __contains__(self, name: str) -> bool:
        return name in self.branch

    def get_var(self, name: str) -> Any:
        return self[name]

    def set_var(self, name: str, value: object) -> None:
        self[name] = value

    def get_meta_info(self, name: str) -> dict[str, Any]:
        self._if_started_well()
        with self._ending_if_interrupted():
            return self.branch.get_meta_info(name)

    def text(self) -> str:
        """The whole text of the program's own branch; blocks while the program runs."""
        self._finished()
        return self.branch.text()

    def messages(self) -> list[dict[str, str]]:
        self._finished()
        return self.branch.messages()

    @property
    def truncated(self) -> tuple[str, ...]:
        """The results that a token limit ended before they were complete, by their names or where
        they stand; blocks. Empty where all of them ended by themselves.
        """
        self.sync()
        return tuple(gen.name or str(gen.site) for gen in self.scope.all_gens() if gen.is_truncated)

    def sync(self) -> None:
        """Blocks until the program has ended, well or not."""
        if not self.outcome.done():
            with self._ending_if_interrupted():
                threads.wait([self.outcome])

    def error(self) -> BaseException | None:
        """SGLang's name of `failure`."""
        return self.failure

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text as it comes, from the beginning. Raises at the end what the run raised."""
        with self._ending_if_interrupted():
            yield from self.branch.text_iter(var_name)
        self._finished()

    async def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """The same for an event loop; with `return_meta_data` pairs of text and meta
        information.
        """
        async for piece in self.branch.text_async_iter(var_name, return_meta_data):
            yield piece
        self._finished()

    @property
    def transcript(self) -> list[ShownPart]:
        """The text in parts, each with what is known of it (cached, computed, generated, forced,
        ...); blocks.
        """
        from lmprog.lang.runs.work_view import parts_of

        self.sync()
        return parts_of(self.branch.cursor)

    def show(self, file: TextIO | None = None, *, color: bool | None = None) -> None:
        """Prints the run's text, what of it was cached, computed, generated and forced, and its
        work; blocks.

        Colored where `file` (standard output without one) is a terminal, or as `color` says.
        """
        from lmprog.lang.runs.work_view import to_terminal

        self.sync()
        to_terminal(self, file, color=color)

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        if not self.outcome.done():
            return "<i>still running</i>"
        from lmprog.lang.runs.work_view import to_html

        return to_html(self)

    # --- ends: the first one counts

    def end(self, value: R) -> None:
        """The program has returned `value`."""
        with contextlib.suppress(InvalidStateError):
            self.outcome.set_result(value)

    def fail(self, error: BaseException) -> None:
        """The run has ended with `error`."""
        with contextlib.suppress(InvalidStateError):
            self.outcome.set_exception(error)

    @contextlib.contextmanager
    def _ending_if_interrupted(self) -> Iterator[None]:
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            stop_runs([self], "the run was interrupted")
            raise

    def _finished(self) -> None:
        """Waits for the end; raises the run's error."""
        self.value  # noqa: B018  (raises)

    def _if_started_well(self) -> None:
        """If the run has failed, raises its failure and not the missing name."""
        if self.outcome.done():
            self.outcome.result()

    def __str__(self) -> str:
        """The whole text, of a run that has ended well."""
        is_whole = self.outcome.done() and self.outcome.exception() is None
        return self.text() if is_whole else repr(self)

    def __repr__(self) -> str:
        if not self.outcome.done():
            return "<run, still running>"
        failure = self.outcome.exception()
        return (
            f"<run, failed: {failure!r}>" if failure else f"<run, value {self.outcome.result()!r}>"
        )


class Results(Sequence[R]):
    """The values of many runs, in their order. Reading the value of a run that failed raises why it
    did.
    """

    def __init__(self, runs: Sequence[Run[R]]) -> None:
        self.runs = list(runs)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [run.value for run in self.runs[index]]
        return self.runs[index].value

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def errors(self) -> Mapping[int, BaseException]:
        """What the failed runs raised, by index."""
        failures = ((index, run.failure) for index, run in enumerate(self.runs))
        return {index: failure for index, failure in failures if failure is not None}

    @property
    def values(self) -> list[R]:
        """The values of the runs that went well."""
        return [run.value for run in self.runs if run.failure is None]

    @property
    def usage(self) -> wire.Usage:
        return total(run.usage for run in self.runs)

    def __repr__(self) -> str:
        return f"<results of {len(self.runs)} runs, {len(self.errors)} failed>"


def stop_runs(runs: Sequence[Run[Any]], why: str) -> None:
    """Cancels those that still go on, and gives them a moment to end. One that does not, since its
    program is busy with something else, is left behind as it is: it ends at its next op.
    """
    left = [run for run in runs if not run.outcome.done()]
    if not left or sys.is_finalizing():  # with the process everything ends, and no thread starts
        return
    # Not in this thread: it may have been interrupted where it held a lock, and is not to wait for
    # a backend either.
    threads.start("lmprog-stop", _cancel, left, why)
    concurrent.futures.wait([run.outcome for run in left], threads.STOP_SECONDS)
    for run in left:
        run.fail(Cancelled(why))


def _cancel(runs: Sequence[Run[Any]], why: str) -> None:
    for run in runs:
        run.scope.cancel(Cancelled(why))


def carry(error: BaseException, runs: Sequence[Run[Any]]) -> None:
    """Gives an exception that leaves a batch what is done: the `Results`, as its `results`. All of
    the runs have ended.
    """
    if not isinstance(getattr(error, "results", None), Results | None):
        return  # an attribute of the user's own
    error.results = Results(runs)  # type: ignore[attr-defined]
    num_well = sum(run.failure is None for run in runs)
    error.add_note(
        f"{num_well:,} of {len(runs):,} runs had ended well; this exception's `results` has them"
    )
