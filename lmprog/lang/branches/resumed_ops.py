"""What a resumed run sends to its backend, so that every branch stands where it stood.

As long as all that the program asks is known, nothing is sent. With the first call that is not,
the branches that are still open are built: text as it is, results as the tokens that they were, so
that all of it is one prefill. A result that its tokens do not spell exactly (the seam before it
was healed, a stop cut a token, an option was chosen) is computed again with its seed, and compared;
services and caches are told it instead. A branch on which a call had failed is not built: what is
asked of it fails for the same reason. Knows ops and replies; knows no programs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from lmprog import wire
from lmprog.backends import Backend, Remembers
from lmprog.backends.caching.caching_backend import CachingBackend
from lmprog.backends.client import ClientCall
from lmprog.errors import CheckpointMismatch, LmprogError, RequestRejected

CallReply: TypeAlias = wire.CallDone | wire.Chosen


@dataclass(frozen=True, slots=True)
class CalledAgain:
    """A call that is posted only for what it leaves in its branch, and what it left before."""

    op: wire.Generate | wire.Select
    before: CallReply


Step: TypeAlias = wire.Op | CalledAgain


class ResumedOps:
    """The ops of one run on one backend."""

    def __init__(self, backend: Backend, fail: Callable[[LmprogError], None]) -> None:
        """`fail` ends the run, where the backend does not give again what it gave."""
        self._backend = backend
        self._fail = fail
        self._held: list[Step] | None = []
        self._num_again = 0
        """Calls that run again. Until they are done no branch is closed: others stand on it."""
        self._to_close: list[wire.Close] = []
        self._dead: dict[int, LmprogError] = {}
        """By branch: why no call of it can be answered."""
        self._lock = threading.RLock()

    def post(self, op: wire.Op) -> None:
        """An op that makes, changes or closes a branch."""
        if isinstance(op, wire.Append):
            gained = [piece.branch for piece in op.pieces if isinstance(piece, wire.Gained)]
            why = next((self._dead[branch] for branch in gained if branch in self._dead), None)
            if why is not None:
                self._dead.setdefault(op.branch, why)
                return
        elif isinstance(op, wire.Fork) and op.branch in self._dead:
            self._dead.update(dict.fromkeys(op.children, self._dead[op.branch]))
        self._take(op)

    def failed(self, op: wire.Generate | wire.Select, error: LmprogError) -> None:
        """The call had failed before. Where it was only refused, its branch goes on."""
        if not isinstance(error, RequestRejected):
            self._dead[op.branch] = error

    def why_dead(self, branch: int) -> LmprogError | None:
        """Why no call of the branch can be answered; None where it can."""
        return self._dead.get(branch)

    def answered(self, op: wire.Generate | wire.Select, reply: CallReply) -> None:
        """The call was answered before: its branch goes on behind its result."""
        piece = self._standing(op, reply)
        if piece is None:
            self._take(CalledAgain(op, reply))
        elif piece.text or piece.calls if isinstance(piece, wire.TextPiece) else piece.ids:
            self._take(wire.Append(op.branch, (piece,)))

    def _standing(
        self, op: wire.Generate | wire.Select, reply: CallReply
    ) -> wire.TextPiece | wire.TokensPiece | None:
        """How the result can be written; None where it is to be called again."""
        backend = self._backend
        if isinstance(reply, wire.Chosen):
            assert isinstance(op, wire.Select)
            text = wire.TextPiece(op.choices[reply.index], quoted=True)
            is_cache = isinstance(backend, CachingBackend)
            return text if is_cache or self._is_text() else None
        output = reply.outputs[0]
        if isinstance(backend, CachingBackend):
            return backend.standing(output)
        if self._is_text():
            return wire.TextPiece(output.text, quoted=True)
        if isinstance(backend, Remembers) or not output.is_spelled:
            return None
        return wire.TokensPiece(output.tokens)

    def _is_text(self) -> bool:
        """Whether branches of the backend are texts, as the double's are."""
        has_tokens = self._backend.client.welcome.vocab_size > 0
        return not has_tokens and not isinstance(self._backend, Remembers)

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
        elif not isinstance(step, CalledAgain):
            client.post(step)
        else:
            if isinstance(self._backend, Remembers):
                self._backend.remember(step.op.call, step.before)
            call = ClientCall(step.op.call)
            call.on_last = lambda now: self._compare(step.before, now)
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

    def _compare(self, before: CallReply, now: object) -> None:
        """A call that fails now (its branch was closed, say) is told of by those behind it."""
        if isinstance(now, LmprogError) or _same(before, now):
            return
        self._fail(
            CheckpointMismatch(
                f"the backend does not give again what it gave: it was {_shown(before)}, now "
                f"{_shown(now)}; go on with the model, and the settings of the runtime, that the "
                "checkpoint was made with"
            )
        )


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
    return step.op.branch if isinstance(step, CalledAgain) else getattr(step, "branch", None)


def _same(before: CallReply, now: object) -> bool:
    """Whether the branch is the same behind both."""
    if isinstance(before, wire.CallDone) and isinstance(now, wire.CallDone):
        return before.outputs[0].tokens == now.outputs[0].tokens
    return (
        isinstance(before, wire.Chosen)
        and isinstance(now, wire.Chosen)
        and before.index == now.index
    )


def _shown(reply: object) -> str:
    if isinstance(reply, wire.CallDone):
        return repr(reply.outputs[0].text)
    return f"option {reply.index}" if isinstance(reply, wire.Chosen) else repr(reply)
