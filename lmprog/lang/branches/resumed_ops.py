"""What a resumed run sends to its backend, so that every branch stands where it stood.

As long as all that the program asks is known, nothing is sent. With the first call that is not,
the branches that are still open are built: text as it is, results as what they left
(`wire.own_pieces`), so that all of it is one prefill and nothing is computed twice; services and
caches are told how their calls were answered instead. A branch on which a call had failed is not
built: what is asked of it fails for the same reason. Knows ops and replies; knows no programs.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TypeAlias

from lmprog import wire
from lmprog.backends import Backend, Remembers
from lmprog.backends.client import ClientCall
from lmprog.errors import LmprogError, RequestRejected

CallReply: TypeAlias = wire.CallDone | wire.Chosen


@dataclass(frozen=True, slots=True)
class ToldAgain:
    """A call that is posted for what it leaves in its branch: the backend is told its reply."""

    op: wire.Generate | wire.Select
    reply: CallReply


Step: TypeAlias = wire.Op | ToldAgain


class ResumedOps:
    """The ops of one run on one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._held: list[Step] | None = []
        self._num_again = 0
        """Calls told again. Until they are done no branch is closed: others stand on it."""
        self._to_close: list[wire.Close] = []
        self._dead: dict[int, LmprogError] = {}
        """By branch: why no call of it can be answered."""
        self._failed: dict[int, LmprogError] = {}
        """By call: why it has no text that could be referred to."""
        self._lock = threading.RLock()

    def post(self, op: wire.Op) -> None:
        """An op that makes, changes or closes a branch."""
        if isinstance(op, wire.Append):
            why = next(filter(None, map(self._why_missing, op.pieces)), None)
            if why is not None:
                self._dead.setdefault(op.branch, why)
                return
        elif isinstance(op, wire.Fork) and op.branch in self._dead:
            self._dead.update(dict.fromkeys(op.children, self._dead[op.branch]))
        self._take(op)

    def _why_missing(self, piece: wire.Piece) -> LmprogError | None:
        """Why the text that a piece refers to will not come; None where it may."""
        if isinstance(piece, wire.Ref):
            return self._failed.get(piece.call)
        return self._dead.get(piece.branch) if isinstance(piece, wire.Gained) else None

    def failed(self, op: wire.Generate | wire.Select, error: LmprogError) -> None:
        """The call had failed before. Where it was only refused, its branch goes on."""
        self._failed[op.call] = error
        if not isinstance(error, RequestRejected):
            self._dead[op.branch] = error

    def why_dead(self, branch: int) -> LmprogError | None:
        """Why no call of the branch can be answered; None where it can."""
        return self._dead.get(branch)

    def answered(self, op: wire.Generate | wire.Select, reply: CallReply) -> None:
        """The call was answered before: its branch goes on behind its result."""
        if isinstance(self._backend, Remembers):
            self._take(ToldAgain(op, reply))
        elif self._backend.client.welcome.vocab_size > 0:
            self._take(wire.Append(op.branch, wire.own_pieces(op, reply)))
        else:  # branches are texts, as the double's are
            self._take(wire.Append(op.branch, (wire.letters(wire.result_texts(op, reply)[0]),)))

    def go_live(self) -> None:
        """Something is to be asked now: the branches are built."""
        with self._lock:
            held, self._held = self._held, None
            for step in needed(held or []):
                self._send(step)

    def _take(self, step: Step) -> None:
        with self._lock:
            if self._held is None:
                self._send(step)
            else:
                self._held.append(step)

    def _send(self, step: Step) -> None:
        client = self._backend.client
        if isinstance(step, wire.Close) and self._num_again:
            self._to_close.append(step)
        elif not isinstance(step, ToldAgain):
            client.post(step)
        else:
            assert isinstance(self._backend, Remembers), "no other is told"
            self._backend.remember(step.op.call, step.reply)
            call = ClientCall(step.op.call)
            call.when_done(self._is_done)
            self._num_again += 1
            client.begin(step.op, call)

    def _is_done(self) -> None:
        with self._lock:
            self._num_again -= 1
            if self._num_again == 0:
                self._backend.client.post(*self._to_close)
                self._to_close = []
                self._backend.client.hurry()


def needed(steps: list[Step]) -> list[Step]:
    """The steps without those that only concern branches which are closed again."""
    closed = {step.branch for step in steps if isinstance(step, wire.Close)}
    wanted = {step.branch for step in steps if isinstance(step, wire.Open)} - closed
    wanted |= {
        child for step in steps if isinstance(step, wire.Fork) for child in step.children
    } - closed
    kept: list[Step] = []
    for step in reversed(steps):  # who needs a branch comes after what is needed of it
        if isinstance(step, wire.Fork):
            children = tuple(child for child in step.children if child in wanted)
            if children:
                wanted.add(step.branch)
                kept.append(wire.Fork(step.branch, children, step.lora))
        elif isinstance(step, wire.Append) and step.branch in wanted:
            wanted |= {piece.branch for piece in step.pieces if isinstance(piece, wire.Gained)}
            kept.append(step)
        elif isinstance(step, wire.Close) or _branch_of(step) in wanted:
            kept.append(step)
    kept.reverse()
    return [step for step in kept if _branch_of(step) in wanted]


def _branch_of(step: Step) -> int | None:
    return step.op.branch if isinstance(step, ToldAgain) else getattr(step, "branch", None)
