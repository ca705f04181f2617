"""Doing a saved run again: the ops that it posted, with their seeds, and the results that it had,
token for token.

The file is that of a checkpoint, with the ops besides. The program's own code is not run again, so
a replay needs no part of it. What the run cancelled, or what failed, is left out: how far that went
was a matter of time. So who lost a contest does not run again, and who won a race is taken from the
file; the majority of a vote is found again from what its calls give now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path

from lmprog import wire
from lmprog.backends import Backend
from lmprog.backends.client import ClientCall
from lmprog.backends.majority import majority
from lmprog.errors import LmprogError, ModelError, RequestRejected
from lmprog.journal import (
    Asking,
    Journal,
    ProgramCall,
    is_same,
    renumbered,
    wanted_outputs,
)
from lmprog.lang.branches.scope import Scope, uncached_backend_of
from lmprog.lang.checkpoints import checkpoint_file
from lmprog.lang.checkpoints.checkpoint_file import (
    KeptCall,
    Line,
    RunCheckpoint,
    RunOrigin,
    SavedContest,
    SavedOp,
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A call that did not give what it gave before."""

    label: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.label}: it was {self.before}, now {self.now}"


@dataclass(frozen=True, slots=True)
class Replayed:
    """How a replay went. `num_skipped` calls of the run had failed or were cancelled, and were not
    done again.
    """

    num_calls: int
    num_tokens: int
    num_skipped: int
    differences: tuple[Difference, ...]
    num_contests: int = 0
    """Votes and races whose decision was looked at, too."""

    @property
    def is_same(self) -> bool:
        """Whether every call gave the same tokens, and every select the same option."""
        return not self.differences


@dataclass(frozen=True, slots=True)
class Recording:
    """A run that is over: where it ran, what it posted, what came of it."""

    origin: RunOrigin
    ops: tuple[wire.Op, ...]
    calls: Mapping[int, KeptCall]
    """Those that were answered, by their numbers in the ops."""
    contests: tuple[SavedContest, ...] = ()

    @classmethod
    def of(cls, scope: Scope) -> Recording:
        welcome = scope.client.welcome
        own = {gen.call.id for gen in scope.gens}
        calls: dict[int, KeptCall] = {}
        for number, gen in enumerate(scope.gens, 1):
            outcome = gen.call.wait(0) if gen.call.done() else None
            if isinstance(outcome, wire.CallReply):
                label = gen.name or f"{gen.kind} {number}"
                calls[gen.call.id] = KeptCall(gen.key, "", label, outcome)
        contests = tuple(
            SavedContest(contest.rule, contest.calls, contest.won)
            for contest in scope.contests
            if contest.won is not None
            and own.issuperset(contest.calls)  # also of runs within this one
        )
        ops = tuple(_alone(op, scope, own) for op in list(scope.posted))
        origin = RunOrigin("", {}, {}, welcome.model, welcome.vocab_size, scope.seed)
        return cls(origin, ops, calls, contests)

    # --- files

    def write(self, path: Path) -> None:
        lines: list[Line] = [*map(SavedOp, self.ops), *self.calls.values(), *self.contests]
        checkpoint_file.write(path, self.origin, lines, "saved run")

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Raises `RequestRejected` for a file that is no saved run, `ProtocolError` for one of
        another version.
        """
        saved = RunCheckpoint.read(path, "saved run")
        calls = {one.reply.call: one for one in saved.kept if isinstance(one, KeptCall)}
        asked = {op.call for op in saved.ops if isinstance(op, Asking)}
        contests = tuple(saved.contests)
        told = {*calls, *(call for one in contests for call in one.calls)}
        if told - asked or any(one.won not in {*one.calls} & {*calls} for one in contests):
            raise RequestRejected(f"{str(path)!r} is no saved run: it has results of no calls")
        return cls(saved.origin, tuple(saved.ops), calls, contests)

    # --- doing it again

    def replay(self, backend: Backend) -> Replayed:
        """Does all calls again at once; blocks. Raises `ModelError` where the backend has another
        model.
        """
        client = backend.client
        another = self.origin.another_model(client.welcome)
        if another is not None:
            raise ModelError(f"the run {another}; replay it on a runtime with the run's model")
        numbers = defaultdict[int, int](client.number)
        asked: dict[int, ClientCall] = {}
        journal = Journal()
        for op in self.ops:
            journal.add(op)
        with client.together():
            for op in journal.rebuilt(self.calls):
                again = renumbered(op, numbers.__getitem__)
                if isinstance(op, Asking) and isinstance(again, Asking):
                    asked[op.call] = client.call(again)
                else:
                    client.post(again)
        client.flush()  # not at the end of an event loop's turn: its thread waits here
        try:
            outcomes = {call: pending.wait() for call, pending in asked.items()}
        finally:
            branches = (numbers[branch] for op in self.ops for branch in _made_by(op))
            client.post(*map(wire.Close, branches))
            client.flush()
        differences = []
        for call, outcome in outcomes.items():
            op, before = journal.calls[call], self.calls[call]
            if not is_same(op, before.reply, outcome):
                told = _described(op, before.reply), _described(op, outcome)
                differences.append(Difference(before.label, *told))
        differences += [
            Difference(
                f"the {contest.rule} of {len(contest.calls)}",
                self.calls[contest.won].label,
                self.calls[now_won].label,
            )
            for contest in self.contests
            if (now_won := _won_again(contest, outcomes)) != contest.won
        ]
        results = [one.reply for one in self.calls.values()]
        outputs = [one.outputs for one in results if isinstance(one, wire.CallDone)]
        num_tokens = sum(len(output.tokens) for several in outputs for output in several)
        num_skipped = len(journal.calls) - len(asked)
        counts = len(asked), num_tokens, num_skipped
        return Replayed(*counts, tuple(differences), len(self.contests))


def _won_again(contest: SavedContest, outcomes: Mapping[int, object]) -> int:
    """Who wins with these outcomes."""
    if contest.rule == "first":
        return contest.won  # the first in time: a fact of that run
    ended = {at: outcomes[call] for at, call in enumerate(contest.calls) if call in outcomes}
    texts = {
        at: done.outputs[0].text.strip()
        for at, done in ended.items()
        if isinstance(done, wire.CallDone)
    }
    place = majority(texts, 0)
    if place is None or texts[place] == texts.get(contest.calls.index(contest.won)):
        return contest.won  # of equal results, the one that was there when it was decided
    return contest.calls[place]


def _made_by(op: wire.Op) -> tuple[int, ...]:
    """The branches that come with it."""
    if isinstance(op, wire.Open):
        return (op.branch,)
    return op.children if isinstance(op, wire.Fork) else ()


def _alone(op: wire.Op, scope: Scope, own: Container[int]) -> wire.Op:
    """The op with the results of other runs, such as the one around this one, as their texts."""
    if not isinstance(op, wire.Append):
        return op

    def known(piece: wire.Piece) -> wire.Piece:
        if not isinstance(piece, wire.Ref) or piece.call in own:
            return piece
        gen = scope.referenced[piece.call]
        return (
            wire.letters(gen.texts[piece.index]) if gen.done() and gen.failure() is None else piece
        )

    return wire.Append(op.branch, tuple(known(piece) for piece in op.pieces))


def _described(op: ProgramCall, outcome: object) -> str:
    """What is compared of an outcome, as text."""
    if isinstance(outcome, wire.Chosen):
        return f"option {outcome.index}"
    if isinstance(outcome, wire.CallDone):
        outputs = [
            (wire.text_with_calls(output.text, output.calls), output.tokens)
            for output in wanted_outputs(op, outcome)
        ]
        return " and ".join(f"{text!r} {list(tokens)}" for text, tokens in outputs)
    return (
        f"{type(outcome).__name__}: {outcome}"
        if isinstance(outcome, LmprogError)
        else repr(outcome)
    )


def replay(path: str | Path, backend: Backend | None = None) -> Replayed:
    """Does a run that `run.save(path)` wrote again, on `backend`, that of the calling program, or
    the default one; blocks.

    Raises `ModelError` where the backend has another model.
    """
    return Recording.read(Path(path)).replay(uncached_backend_of(backend))
