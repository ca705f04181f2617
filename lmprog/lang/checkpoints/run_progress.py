"""What a run, and the runs inside it, have done: what a checkpoint keeps, and what a resumed run
need not do again.

Everything has a key: which call of which branch of which run, by their places in the program.
Numbers of branches and calls differ from run to run; places do not. Knows no branches and sends
nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lmprog import wire
from lmprog.errors import Cancelled, CheckpointMismatch, LmprogError, Paused, ProgramError
from lmprog.lang.checkpoints import checkpoint_file
from lmprog.lang.checkpoints.checkpoint_file import (
    CheckpointFile,
    Kept,
    KeptCall,
    KeptFailure,
    KeptQuestion,
    KeptRetry,
    KeptValue,
    KeptWinner,
    RunCheckpoint,
    RunOrigin,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a run that was paused is told."""

    value: Any


class CallSource(Protocol):
    """A call of the run."""

    @property
    def key(self) -> str: ...

    def kept(self, outcome: object = None) -> KeptCall | None:
        """What is kept of it; None as long as it has no result. `outcome`: its last reply, where
        that is just arriving.
        """
        ...

    def kept_failure(self, error: LmprogError) -> KeptFailure:
        """What is kept of it, where it has failed with `error`."""
        ...


class AskedRun(Protocol):
    """A run with all that it has asked, and the runs inside it."""

    @property
    def origin(self) -> Callable[[], RunOrigin] | None:
        """Which run it is; None before it has begun."""
        ...

    def sources(self, first: int) -> Sequence[CallSource]:
        """The calls, from that one on."""
        ...


class RunProgress:
    """Of one run, on any thread. With a `file`, everything is written there when it happens."""

    def __init__(
        self,
        run: AskedRun,
        file: CheckpointFile | None = None,
        answer: Answer | None = None,
    ) -> None:
        """Raises `ProgramError` for an answer that nobody waits for."""
        self._run = run
        self.paused: Paused | None = None
        """Why the run stops; None unless it waits for an answer."""
        self._failed: ProgramError | None = None
        known = None if file is None else file.known()
        self.known: RunCheckpoint | None = known
        """What the run goes on from; None for a run that begins."""
        self._file = file
        self._lock = threading.RLock()
        self._calls: dict[str, CallSource] = {}  # those that were looked for
        self._num_found = 0
        self._failures: dict[str, KeptFailure] = {}
        """By key: of those that the program was told and went on from, as far as one knows."""
        self._lately: set[str] = set()
        """The calls whose failure the program was told since it asked for anything."""
        self._is_over = False
        kept = () if known is None else known.kept
        self._known = {(type(one), one.key): one for one in kept}
        self._others: list[KeptValue | KeptWinner | KeptQuestion] = [
            one for one in kept if isinstance(one, KeptValue | KeptWinner | KeptQuestion)
        ]
        for one in kept:
            if isinstance(one, KeptFailure):
                self._failures[one.key] = one
            elif isinstance(one, KeptRetry):
                self._failures.pop(one.key, None)
        self._lost = [key for one in kept if isinstance(one, KeptWinner) for key in one.lost]
        self._answer = answer
        self._question = None if known is None else known.question
        if answer is not None and self._question is None:
            raise ProgramError("an answer is given, but the checkpoint has no question")

    def _take_answer(self) -> None:
        answer, asked = self._answer, self._question
        if answer is None or asked is None:
            return
        told = KeptValue(asked.key, _asks_of_question(asked.question), answer.value)
        self._known[KeptValue, told.key] = told
        self._add(told)

    # --- the run

    def check(self) -> None:
        """Raises where the run is to stop."""
        if self.paused is not None:
            raise self.paused
        if self._failed is not None:
            raise ProgramError(self._failed.message)

    def begin(self, welcome: wire.Welcome) -> None:
        """The run begins, or goes on. Raises `CheckpointMismatch` where it is another one, and
        `InvalidParameter` where its arguments cannot be written.
        """
        if self._file is None:
            return
        origin = self._origin()
        if self.known is None:
            self._file.begin(origin)
            return
        self.known.origin.check_model(welcome)
        self.known.origin.check_others(origin)
        for what in ("program", "arguments", "seed"):
            before, now = getattr(self.known.origin, what), getattr(origin, what)
            if before != now:
                raise CheckpointMismatch(
                    f"the checkpoint is of a run with {what} {before!r}, and this run has {now!r}; "
                    "give it a file of its own"
                )
        self._take_answer()

    def end(self) -> None:
        """The run is over: its file may be another's."""
        with self._lock:
            self._is_over = True
            if self._file is not None:
                self._file.close()
                self._file = None

    def _origin(self) -> RunOrigin:
        make = self._run.origin
        if make is None:
            raise ProgramError("a run has no checkpoint before it has begun")
        return make()

    def write(self, path: Path) -> None:
        """Writes all that is there so far."""
        origin = self._origin()
        with self._lock:
            if self._file is not None and self._file.path.absolute() == path.absolute():
                return  # all of it is there
            calls = [source.kept() for source in self._all_calls().values()]
            here = {call.key for call in calls if call is not None}
            calls += [
                one
                for one in self._known.values()
                if isinstance(one, KeptCall) and one.key not in here
            ]  # a resumed run that has not come so far again
            answered = [call for call in calls if call is not None]
            kept = [*answered, *self._failures.values(), *self._others]
        checkpoint_file.write(path, origin, kept)

    # --- calls

    def _all_calls(self) -> dict[str, CallSource]:
        """By key."""
        for source in self._run.sources(self._num_found):
            self._calls[source.key] = source
            self._num_found += 1
        return self._calls

    def asked(self) -> None:
        """A call is asked."""
        with self._lock:
            self._lately.clear()

    @property
    def is_written(self) -> bool:
        """Whether there is a file that everything goes to."""
        return self._file is not None

    def ended(self, source: CallSource, outcome: object) -> None:
        """That call has its last reply: where there is a file, it is written."""
        with self._lock:
            kept = None if self._file is None else source.kept(outcome)
            if kept is not None:
                self._write(kept)

    def raised(self, keys: Sequence[str], error: LmprogError) -> None:
        """The program is told that the calls of these keys have failed, and may go on from that.
        A call that was only cancelled has not failed.
        """
        if isinstance(error, Cancelled | CheckpointMismatch):
            return
        with self._lock:
            if self._is_over:
                return
            error.calls = tuple(keys)
            self._lately.update(keys)
            calls = self._all_calls()
            for key in keys:
                if key in calls and key not in self._failures:
                    self._failures[key] = calls[key].kept_failure(error)
                    self._write(self._failures[key])

    def ended_by(self, error: BaseException) -> None:
        """The run ends with `error`. Where calls' failures caused that, these are asked again by a
        run that goes on from here, and those that failed likewise at the same time. What stops a
        run from outside has no such cause.
        """
        if self.paused is not None:
            return
        with self._lock:
            failures = self._failures
            causes = {key for key in _causes(error) if key in failures}
            codes = {failures[key].code for key in causes}
            lately = {key for key in self._lately if key in failures}
            causes |= {key for key in lately if failures[key].code in codes}
            for key in sorted(causes):
                del failures[key]
                self._write(KeptRetry(key))

    def call(self, key: str, asks: Callable[[], str]) -> KeptCall | KeptFailure | None:
        """How a call ended before; None where it did not. Raises `CheckpointMismatch` where it asks
        something else now.
        """
        kept: KeptCall | KeptFailure | None = self._find(KeptCall, key) or self._failures.get(key)
        if kept is None:
            return None
        asked, asks_now = kept.asks, asks()
        is_open = isinstance(kept, KeptFailure) and not (asked and asks_now)
        if asked != asks_now and not is_open:
            raise CheckpointMismatch(
                f"the program asks something else than when the checkpoint was made: {kept.label} "
                f"(call {key}) has other text before it, or another request. Programs that are "
                "resumed must do the same again up to where they stopped: what is not the same "
                "each time (the clock, chance, files) belongs into s.once(function)"
            )
        return kept

    def is_lost(self, key: str) -> bool:
        """Whether the call of that key was cancelled, since others won."""
        return any(
            key == lost or (lost[-1] in ".#" and key.startswith(lost)) for lost in self._lost
        )

    # --- values

    def value(self, key: str, asks: str) -> Answer | None:
        """What a function or somebody gave before; None where that did not happen."""
        kept = self._find(KeptValue, key)
        if kept is None:
            return None
        if kept.asks != asks:
            raise CheckpointMismatch(
                f"the program does something else than when the checkpoint was made: at {key} it "
                f"was {kept.asks!r}, now {asks!r}"
            )
        return Answer(kept.json)

    def keep_value(self, key: str, asks: str, value: Any) -> None:
        self._add(KeptValue(key, asks, value))

    def pause(self, key: str, question: str) -> Any:
        """The answer, where there is one. Raises `Paused` otherwise: the run stops."""
        answer = self.value(key, _asks_of_question(question))
        if answer is not None:
            return answer.value
        with self._lock:
            if self.paused is None:
                self.paused = Paused(question, question=question)
                self.paused.write = self.write
                asked = KeptQuestion(key, question)
                if self._find(KeptQuestion, key) is None:
                    self._add(asked)
        raise self.paused

    # --- contests

    def winner(self, key: str) -> int | None:
        """Who won a contest that was decided before."""
        kept = self._find(KeptWinner, key)
        return None if kept is None else kept.place

    def keep_winner(self, key: str, place: int, lost: Sequence[str]) -> None:
        if self._find(KeptWinner, key) is None:
            self._add(KeptWinner(key, place, tuple(lost)))

    # --- kept things

    def _find(self, kind: type[Any], key: str) -> Any:
        return self._known.get((kind, key))

    def _add(self, kept: KeptValue | KeptWinner | KeptQuestion) -> None:
        with self._lock:
            self._others.append(kept)
            self._write(kept)

    def _write(self, kept: Kept) -> None:
        """Where that fails, the run ends with its next op: a call has no way to raise."""
        try:
            if self._file is not None:
                self._file.add(kept)
        except OSError as error:
            self._failed = ProgramError(f"the checkpoint cannot be written: {error}")


def _causes(error: BaseException) -> Sequence[str]:
    """The keys of the calls whose failure `error` is, or comes from."""
    if isinstance(error, Paused | CheckpointMismatch) or not isinstance(error, Exception):
        return ()
    if isinstance(error, ExceptionGroup):
        return [key for one in error.exceptions for key in _causes(one)]
    if isinstance(error, LmprogError) and error.calls:
        return error.calls
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return () if before is None else _causes(before)


def _asks_of_question(question: str) -> str:
    return f"pause: {question}"
