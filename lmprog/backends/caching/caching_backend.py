"""A backend that asks another one only what is not in a folder of replies yet.

Each call is asked by itself: on a branch that holds what stands before it, literal text and what
earlier calls left there. So a reply is a function of the call and the text before it, and that,
with the model, is what it is kept under. Branches are kept here; the other backend sees one for
each call that it is asked, and its own cache finds what they share. Contests are left to the
language, as on every backend that knows none.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from lmprog import wire
from lmprog.backends import Backend, gained
from lmprog.backends.caching.cached_branch import (
    AskedElsewhere,
    BranchCall,
    CachedBranch,
    LeftBehind,
    Said,
    pieces_of,
    post,
)
from lmprog.backends.caching.kept_questions import (
    Question,
    deltas,
    identity,
    temperature_of,
)
from lmprog.backends.caching.kept_replies import KeptReplies
from lmprog.backends.client import Client, ClientCall
from lmprog.backends.gained import GainedLater, GainingAppend, GainingPiece
from lmprog.errors import (
    Cancelled,
    LmprogError,
    NotSupported,
    ProgramError,
    RequestRejected,
    RuntimeGone,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunCache:
    """The folder of a run, and whether the run was given a seed."""

    folder: Path
    seeded: bool

    def over(self, backend: Backend, around: Backend | None = None) -> CachingBackend:
        """`backend` with this cache; that of the run `around` where it is the same."""
        plain = backend.inner if isinstance(backend, CachingBackend) else backend
        if (
            isinstance(around, CachingBackend)
            and around.inner is plain
            and around.folder == self.folder
        ):
            return around
        return CachingBackend(plain, self.folder, seeded=self.seeded)


class CachingBackend:
    """`inner` with the replies of `folder`, for one run and the runs within it.

    `seeded`: whether the run was given a seed. Without one, what a runtime samples at a temperature
    above 0 is not kept; what a service answers is, and the nth time that the same is asked gets the
    nth answer.
    """

    def __init__(self, inner: Backend, folder: Path, *, seeded: bool) -> None:
        self.inner = inner
        self.from_cache: set[int] = set()
        """The calls that were answered from the folder."""
        self.folder = folder
        self._kept = KeptReplies(folder)
        self._seeded = seeded
        self._asks = inner.client
        self.info = self._asks.welcome
        self._is_service = self.info.vocab_size == 0
        self._has_tokens = not self._is_service or getattr(inner, "branches_are_tokens", False)
        self._identity = identity(inner)
        self._adapters = inner.client.welcome.adapters
        self._times: Counter[str] = Counter()
        self._lock = threading.RLock()  # guards all below; never held while `inner` is called
        self._branches: dict[int, CachedBranch] = {}
        self._results: dict[int, tuple[str, ...] | LmprogError] = {}
        self._asked: dict[int, AskedElsewhere] = {}
        self._remembered: dict[int, wire.CallDone | wire.Chosen] = {}
        self._to_send: list[Callable[[], None]] = []
        self.replies: queue.SimpleQueue[wire.Reply] = queue.SimpleQueue()
        self._client = _CachingClient(self)

    @property
    def client(self) -> Client:
        return self._client

    def close(self) -> None:
        """Ends what is still asked; the other backend stays open."""
        self._client.close()
        with self._lock:
            for number in list(self._branches):
                self._close(number)
        self._send()

    def remember(self, call: int, reply: wire.CallDone | wire.Chosen) -> None:
        """The call of that number was answered before the run stopped; see `Remembers`."""
        self._remembered[call] = reply

    # --- from the client

    def take(self, ops: Sequence[wire.Op]) -> None:
        with self._lock:
            for op in ops:
                if isinstance(op, wire.Close):
                    self._go_on()  # what comes before a close, as far as possible
                self._take(op)
            self._go_on()
        self._send()

    def _take(self, op: wire.Op) -> None:
        if isinstance(op, wire.Open):
            self._branches[op.branch] = CachedBranch(op.salt, op.lora)
        elif isinstance(op, wire.Close):
            self._close(op.branch)
        elif isinstance(op, wire.Cancel):
            asked = self._asked.get(op.call)
            if asked is not None:
                self._cancel(asked)
        elif isinstance(op, wire.Append | wire.Fork | BranchCall):
            branch = self._branches.get(op.branch)
            if branch is not None:
                if isinstance(op, wire.Append):
                    branch.todo.append(gained.bound(op.pieces, self._branches))
                else:
                    branch.todo.append(op)
                if isinstance(op, wire.Fork):
                    lora = branch.lora if op.lora is None else op.lora
                    made = {child: CachedBranch(branch.salt, lora, False) for child in op.children}
                    self._branches.update(made)
            elif isinstance(op, BranchCall):
                self._fail(op.call, ProgramError(f"there is no branch {op.branch}"))
        elif not isinstance(op, wire.Hello | wire.Contest | wire.SharePrefix) and getattr(
            op, "call", None
        ):
            error = NotSupported(f"a run with a cache does not answer {type(op).__name__}")
            self._fail(op.call, error)

    # --- branches

    def _go_on(self) -> None:
        """Runs every branch as far as possible, until none can advance."""
        while sum(self._run(number) for number in list(self._branches)):
            pass

    def _run(self, number: int) -> bool:
        moved = False
        branch = self._branches[number]
        while branch.is_born and branch.running is None and branch.todo:
            op = branch.todo[0]
            if isinstance(op, GainingAppend):
                said = self._resolved(branch, op.pieces)
                if said is None:
                    break
                branch.said += said
            branch.todo.popleft()
            moved = True
            if isinstance(op, wire.Fork):
                for child in op.children:
                    born = self._branches.get(child)
                    if born is not None:
                        born.is_born, born.said, born.base = True, branch.said, len(branch.said)
                        born.failed, born.tools = branch.failed, branch.tools
            elif isinstance(op, GainedLater):
                op.text, op.error = branch.gained(), branch.failed
            elif isinstance(op, BranchCall):
                self._ask(number, branch, op)
        return moved

    def _resolved(
        self, branch: CachedBranch, pieces: Iterable[GainingPiece[tuple[Said, ...]]]
    ) -> tuple[Said, ...] | None:
        """The pieces with results in place of references; None while one is not known."""
        found: list[Said] = []
        for piece in pieces:
            if isinstance(piece, wire.Ref):
                texts = self._results.get(piece.call)
                if texts is None:
                    return None
                result = gained.result(texts, piece)
                if isinstance(result, LmprogError):
                    branch.failed = branch.failed or result
                else:
                    found.append(wire.letters(result))
            elif isinstance(piece, GainedLater):
                if not piece.is_known:
                    return None
                branch.failed = branch.failed or piece.error
                found += piece.text or ()
            else:
                found.append(piece)
        return tuple(found)

    def _close(self, number: int) -> None:
        branch = self._branches.pop(number, None)
        if branch is None:
            return
        for op in branch.todo:
            if isinstance(op, BranchCall):
                self._fail(op.call, Cancelled("the call was cancelled"))
        gained.close(branch.todo)
        if branch.running is not None:
            self._cancel(self._asked[branch.running])

    # --- calls

    def _ask(self, number: int, branch: CachedBranch, op: BranchCall) -> None:
        if branch.failed is not None:
            self._fail(op.call, branch.failed)
            return
        known = self._remembered.pop(op.call, None)
        if known is not None:
            self._finish(branch, op, msgspec.structs.replace(known, call=op.call))
            return
        key: str | None = None
        tools = branch.tools
        if isinstance(op, wire.Generate):
            tools = branch.tools = op.tools or branch.tools
        if not isinstance(op, wire.Read):
            key = self._key(branch, op)
            kept = None if key is None else self._kept.find(key, op)
            if kept is not None:
                self.from_cache.add(op.call)
                for delta in deltas(op, kept):
                    self.replies.put(delta)
                self._finish(branch, op, kept)
                return
        client = self._asks
        call = ClientCall(client.number(), lambda delta: self._hear(op.call, delta))
        asked = AskedElsewhere(
            number,
            op,
            branch.said,
            branch.salt,
            branch.lora,
            tools,
            key,
            client.number(),
            call,
        )
        branch.running = op.call
        self._asked[op.call] = asked
        call.when_done(lambda: self._ended(asked))
        self._to_send.append(lambda: post(self.inner, asked))

    def _key(self, branch: CachedBranch, op: wire.Generate | wire.Select) -> str | None:
        """What the reply is kept under; None where it is a matter of chance."""
        is_chance = temperature_of(op) > 0 and not self._seeded
        if is_chance and not self._is_service:
            return None
        lora = self._adapters.get(branch.lora, branch.lora)
        pieces = pieces_of(branch.said, has_tokens=self._has_tokens)
        question = Question(self._identity, branch.salt, pieces, branch.tools, lora)
        name = question.key(op, with_seed=not is_chance)
        nth = self._times[name] if is_chance else 0
        self._times[name] += 1
        return f"{name}-{nth}" if nth else name

    def _hear(self, call: int, delta: wire.Delta) -> None:
        self.replies.put(msgspec.structs.replace(delta, call=call))
        self._client.hand_out()

    def _ended(self, asked: AskedElsewhere) -> None:
        """The other backend has answered, on whatever thread."""
        outcome = asked.call.wait(0)
        if self._asks.welcome.fingerprint != self.info.fingerprint:
            outcome = RuntimeGone("the model was replaced, and this run had begun with another")
        if asked.key is not None and isinstance(outcome, wire.CallDone | wire.Chosen):
            try:
                self._kept.keep(asked.key, outcome)
            except OSError as error:  # the answer is there: only the next run has to ask again
                _log.warning("an answer could not be kept in %s: %s", self.folder, error)
        with self._lock:
            self._asked.pop(asked.op.call, None)
            self._to_send.append(lambda: self._asks.post(wire.Close(asked.branch)))
            branch = self._branches.get(asked.number)
            reply = (
                outcome
                if isinstance(outcome, LmprogError)
                else msgspec.structs.replace(outcome, call=asked.op.call)
            )
            self._finish(branch, asked.op, reply)
            self._go_on()
        self._send()
        self._client.hand_out()

    def _finish(self, branch: CachedBranch | None, op: BranchCall, reply: Any) -> None:
        """`branch` is None where it was closed meanwhile."""
        if branch is not None:
            branch.running = None
        if isinstance(reply, LmprogError):
            if branch is not None and not isinstance(reply, RequestRejected):
                branch.failed = reply
            self._fail(op.call, reply)
            return
        self.replies.put(reply)
        self._results[op.call] = wire.result_texts(op, reply)
        if branch is not None and not isinstance(op, wire.Read):
            branch.said += (LeftBehind(op, reply),)

    def _cancel(self, asked: AskedElsewhere) -> None:
        self._to_send.append(lambda: self._asks.post(wire.Cancel(asked.call.id)))

    def _fail(self, call: int, error: LmprogError) -> None:
        self._results[call] = error
        self.replies.put(wire.Failed(call, error.code, error.message, error.details()))

    def _send(self) -> None:
        """Sends what the other backend is to do."""
        with self._lock:
            todo, self._to_send = self._to_send, []
        if todo:
            with self._asks.together():
                for send in todo:
                    send()
            self._asks.flush()


class _CachingChannel:
    """The way of a caching client to its backend; replies are handed out by the client."""

    def __init__(self, backend: CachingBackend) -> None:
        self.info = backend.info
        self._backend = backend

    def send(self, ops: Sequence[wire.Op]) -> None:
        self._backend.take(ops)

    def receive(self, timeout: float) -> list[wire.Reply]:
        return []

    def close(self) -> None:
        """There is nothing of its own to be closed."""


class _CachingClient(Client):
    """A client without a thread: whoever brings replies hands them out, one thread at a time."""

    def __init__(self, backend: CachingBackend) -> None:
        self._replies = backend.replies
        self._handing = threading.Lock()
        super().__init__(_CachingChannel(backend), reads=False)

    def flush(self) -> None:
        super().flush()
        self.hand_out()

    def hand_out(self) -> None:
        """Never waits for another thread that does it: that one looks again before it leaves."""
        while not self._replies.empty() and self._handing.acquire(blocking=False):
            try:
                while not self._replies.empty():
                    self._deliver(self._replies.get())
            finally:
                self._handing.release()
