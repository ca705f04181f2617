"""A plain-text runtime in this process: runs ops over branches that are strings, with answers from
an `Answerer`.

It implements the client channel, so programs, client and wire messages are the same as with a real
runtime: ops of a branch run in order, references wait for their values, each call gets exactly one
final reply, and a failed call fails its branch. It knows no tokens, no cache and no model.
Everything runs inside `send`.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from lmprog import wire
from lmprog.backends import gained
from lmprog.backends.gained import GainedLater, GainingAppend, GainingPiece
from lmprog.backends.majority import kept_first
from lmprog.errors import (
    Cancelled,
    LmprogError,
    NotSupported,
    ProgramError,
    RequestRejected,
    RuntimeGone,
)
from lmprog.transport.channel import ops_frames

BranchCall: TypeAlias = wire.Generate | wire.Select | wire.Read
Step: TypeAlias = GainingAppend[str] | GainedLater[str] | wire.Fork | BranchCall


@dataclass(frozen=True, slots=True)
class TextAnswer:
    """The texts of a generation (`n` of them), or the scores of a select's options; the highest
    wins.
    """

    texts: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()


class Answerer(Protocol):
    def answer(
        self, prompt: str, op: wire.Generate | wire.Select
    ) -> TextAnswer | LmprogError | None:
        """The model's answer to `prompt`; None: not yet, `TextRuntime.release` will be called."""
        ...


@dataclass(slots=True)
class _Branch:
    text: str = ""
    base: int = 0  # length of the text at the fork
    born: bool = True  # False until the fork that makes it has run
    running: int | None = None  # the call that the branch waits for
    failed: LmprogError | None = None
    todo: deque[Step] = field(default_factory=deque)


class TextRuntime:
    """The runtime and the channel of its single client in one object."""

    def __init__(
        self,
        answerer: Answerer,
        model: str = "text",
        tools: wire.ToolSupport = wire.ToolSupport(),  # noqa: B008  (immutable)
    ) -> None:
        self.frames: list[tuple[wire.Op, ...]] = []  # all frames that were sent, for inspection
        self._answerer = answerer
        no_tokens = 0  # token counts are in words
        self.info = wire.Welcome(
            wire.PROTOCOL_VERSION, model, 2**20, no_tokens, 1, 2**20, 0, tools=tools
        )
        self._lock = threading.RLock()
        self._branches: dict[int, _Branch] = {}
        self._results: dict[int, tuple[str, ...] | LmprogError] = {}
        self._held: dict[int, tuple[int, wire.Generate | wire.Select]] = {}  # call -> branch, op
        self._replies: queue.SimpleQueue[wire.Reply | None] = queue.SimpleQueue()
        self._gone: str | None = None

    # --- a client channel

    def send(self, ops: Sequence[wire.Op]) -> None:
        ops_frames(ops)  # raises for what the wire would reject
        with self._lock:
            if self._gone is not None:
                raise RuntimeGone(self._gone)
            self.frames.append(tuple(ops))
            for op in ops:
                if isinstance(op, wire.Close | wire.Cancel):
                    self._go_on()  # runs what comes before it, as far as possible
                self._take(op)
            self._go_on()

    def receive(self, timeout: float) -> list[wire.Reply]:
        try:
            reply = self._replies.get(timeout=timeout)
        except queue.Empty:
            return []
        if reply is None:
            self._replies.put(None)
            raise RuntimeGone(self._gone or "the runtime is gone")
        return [reply]

    def close(self) -> None:
        self.die("the channel was closed")

    def die(self, why: str) -> None:
        """Simulates that the runtime is gone, with reason `why`."""
        self._gone = self._gone or why
        self._replies.put(None)

    # --- for the answerer

    def held(self) -> list[int]:
        """The calls without an answer, oldest first."""
        return list(self._held)

    def open_branches(self) -> int:
        return len(self._branches)

    def release(self, call: int, answer: TextAnswer | LmprogError) -> None:
        """Answers a held call."""
        with self._lock:
            number, op = self._held.pop(call)
            self._finish(number, op, answer)
            self._go_on()

    # --- ops

    def _take(self, op: wire.Op) -> None:
        if isinstance(op, wire.Open):
            self._branches[op.branch] = _Branch()
        elif isinstance(op, wire.Close):
            self._close(op.branch)
        elif isinstance(op, wire.Cancel):
            self._cancel(op.call)
        elif isinstance(op, wire.Hello | wire.Contest | wire.SharePrefix | wire.AwaitPrefixes):
            pass  # no greeting is needed; the client decides contests itself; there is one client
        elif isinstance(op, wire.Describe | wire.Flush):
            self._replies.put(wire.Described(op.call, {"branches": float(len(self._branches))}))
        elif isinstance(op, wire.Inspect):
            self._fail(
                op.call, NotSupported("this backend has no prefix tree that could be looked at.")
            )
        elif isinstance(op, wire.Encode | wire.Decode):
            self._fail(op.call, NotSupported("this backend has no tokens."))
        elif op.branch in self._branches:
            todo = self._branches[op.branch].todo
            if isinstance(op, wire.Append):
                todo.append(gained.bound(op.pieces, self._branches))
            else:
                todo.append(op)
            if isinstance(op, wire.Fork):
                self._branches.update({child: _Branch(born=False) for child in op.children})
        elif isinstance(op, wire.Generate | wire.Select | wire.Read):
            self._fail(op.call, ProgramError(f"there is no branch {op.branch}"))

    def _go_on(self) -> None:
        """Runs every branch as far as possible, until none can advance."""
        while sum(self._run(number) for number in list(self._branches)):
            pass

    def _run(self, number: int) -> bool:
        moved = False
        branch = self._branches.get(number)
        while branch is not None and branch.born and branch.running is None and branch.todo:
            op = branch.todo[0]
            if isinstance(op, GainingAppend):
                text = self._resolved(branch, op.pieces)
                if text is None:
                    break
                branch.text += text
            branch.todo.popleft()
            moved = True
            if isinstance(op, wire.Fork):
                for child in op.children:
                    if child in self._branches:
                        born = self._branches[child]
                        born.text, born.base, born.born, born.failed = (
                            branch.text,
                            len(branch.text),
                            True,
                            branch.failed,
                        )
            elif isinstance(op, GainedLater):
                op.text, op.error = branch.text[branch.base :], branch.failed
            elif not isinstance(op, GainingAppend):
                self._call(number, branch, op)
        return moved

    def _resolved(self, branch: _Branch, pieces: Iterable[GainingPiece[str]]) -> str | None:
        """The pieces as text; None while one of them is unresolved. A failed one fails the
        branch.
        """
        parts: list[str] = []
        for piece in pieces:
            if isinstance(piece, wire.TextPiece):
                parts.append(piece.text)
            elif isinstance(piece, wire.Ref):
                texts = self._results.get(piece.call)
                if texts is None:
                    return None
                found = gained.result(texts, piece)
                if isinstance(found, LmprogError):
                    branch.failed = branch.failed or found
                else:
                    parts.append(found)
            elif isinstance(piece, GainedLater):
                if not piece.is_known:
                    return None
                branch.failed = branch.failed or piece.error
                parts.append(piece.text or "")
            elif isinstance(piece, wire.TokensPiece | wire.Conversation | wire.Gained):
                about = f"this backend has no {type(piece).__name__}"
                branch.failed = branch.failed or NotSupported(about)
            else:
                parts.append(f"<|{piece.role}|>\n" if isinstance(piece, wire.RoleBegin) else "\n")
        return "".join(parts)

    def _call(
        self, number: int, branch: _Branch, op: wire.Generate | wire.Select | wire.Read
    ) -> None:
        if branch.failed is not None:
            self._fail(op.call, branch.failed)
        elif isinstance(op, wire.Read):
            self._replies.put(wire.TextIs(op.call, branch.text, len(branch.text.split())))
        else:
            branch.running = op.call
            answer = self._answerer.answer(branch.text, op)
            if answer is None:
                self._held[op.call] = (number, op)
            else:
                self._finish(number, op, answer)

    # --- completing calls

    def _finish(
        self, number: int, op: wire.Generate | wire.Select, answer: TextAnswer | LmprogError
    ) -> None:
        branch = self._branches[number]
        branch.running = None
        if isinstance(answer, LmprogError):
            if not isinstance(
                answer, RequestRejected
            ):  # a rejected call had no effect: the branch goes on
                branch.failed = answer
            self._fail(op.call, answer)
            return
        prompt = len(branch.text.split())
        if isinstance(op, wire.Select):
            best = max(range(len(op.choices)), key=lambda index: answer.scores[index])
            rest = (1.0 - 0.9) / max(len(op.choices) - 1, 1)
            options = tuple(
                wire.ScoredChoice(
                    score, (0.9 if index == best else rest) if len(op.choices) > 1 else 1.0
                )
                for index, score in enumerate(answer.scores)
            )
            texts: tuple[str, ...] = (op.choices[best],)
            self._replies.put(
                wire.Chosen(op.call, best, options, wire.Usage(prompt=prompt, computed=prompt))
            )
        else:
            texts = tuple(answer.texts[place] for place in kept_first(op.keep, answer.texts))
            if op.sampling.max_tokens == 0:
                texts = ("",) * len(texts)
            if op.stream:
                self._stream(op.call, texts)
            generated = sum(len(text.split()) for text in texts)
            usage = wire.Usage(prompt=prompt, generated=generated, computed=prompt + generated)
            outputs = tuple(wire.Output(text, (), "stop") for text in texts)
            self._replies.put(wire.CallDone(op.call, outputs, usage))
        self._results[op.call] = texts
        branch.text += texts[0]

    def _stream(self, call: int, texts: Sequence[str]) -> None:
        for index, text in enumerate(texts):
            for count, word in enumerate(text.split(" ")):
                delta = word if count == 0 else " " + word
                if delta:
                    self._replies.put(wire.Delta(call, index, delta, 1))

    def _fail(self, call: int, error: LmprogError) -> None:
        self._results[call] = error
        self._replies.put(wire.Failed(call, error.code, error.message, error.details()))

    def _cancel(self, call: int) -> None:
        if call in self._held:
            number, op = self._held.pop(call)
            self._finish(number, op, Cancelled("the call was cancelled"))

    def _close(self, number: int) -> None:
        branch = self._branches.pop(number, None)
        if branch is None:
            return
        waiting = [
            op.call for op in branch.todo if isinstance(op, wire.Generate | wire.Select | wire.Read)
        ]
        if branch.running is not None:
            self._held.pop(branch.running, None)
            waiting.insert(0, branch.running)
        for call in waiting:
            self._fail(call, Cancelled("the call was cancelled"))
        gained.close(branch.todo)
