"""A plain-text runtime in this process: branches are strings, with answers from a `TextAnswerer`.

It implements the client channel, so programs, client and wire messages are the same as with a real
runtime. It knows no tokens, no cache and no model. Everything runs inside `send`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

from lmprog import wire
from lmprog.backends.branch_machine import BranchCall, BranchMachine, ReplyQueue, TextBranch
from lmprog.backends.branch_text import BranchPiece, BranchText, shown
from lmprog.backends.majority import kept_first
from lmprog.errors import LmprogError, NotSupported, RuntimeGone
from lmprog.transport.channel import ops_frames


@dataclass(frozen=True, slots=True)
class TextAnswer:
    """The texts of a generation (`n` of them), or the scores of a select's options; the highest
    wins.
    """

    texts: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()


class TextAnswerer(Protocol):
    def answer(
        self, prompt: str, op: wire.Generate | wire.Select
    ) -> TextAnswer | LmprogError | None:
        """The model's answer to `prompt`; None: not yet, `TextRuntime.release` will be called."""
        ...


@dataclass(frozen=True, slots=True)
class ShownText(BranchText):
    """A branch whose text is at hand, however many pieces it has."""

    text: str = ""

    def plus(self, pieces: Sequence[BranchPiece]) -> Self:
        text = self.text + shown(pieces)
        return replace(self, pieces=(*self.pieces, *pieces), text=text)


class TextRuntime:
    """The runtime and the channel of its single client in one object."""

    def __init__(
        self,
        answerer: TextAnswerer,
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
        self._held: dict[int, BranchCall[ShownText]] = {}
        self._replies = ReplyQueue()
        self._machine = BranchMachine(self, self._replies.put)
        self._gone: str | None = None

    # --- a client channel

    def send(self, ops: Sequence[wire.Op]) -> None:
        ops_frames(ops)  # raises for what the wire would reject
        with self._lock:
            if self._gone is not None:
                raise RuntimeGone(self._gone)
            self.frames.append(tuple(ops))
            self._machine.take(ops)

    def receive(self, timeout: float) -> list[wire.Reply]:
        return self._replies.take(timeout)

    def close(self) -> None:
        self.die("the channel was closed")

    def die(self, why: str) -> None:
        """Simulates that the runtime is gone, with reason `why`."""
        self._gone = self._gone or why
        self._replies.end(self._gone)

    # --- for the answerer

    def held(self) -> list[int]:
        """The calls without an answer, oldest first."""
        return list(self._held)

    def open_branches(self) -> int:
        return len(self._machine.branches)

    def release(self, number: int, answer: TextAnswer | LmprogError) -> None:
        """Answers a held call."""
        with self._lock:
            self._finish(self._held.pop(number), answer)

    # --- what the machine asks

    def begin(
        self, branch: TextBranch[ShownText], parent: TextBranch[ShownText] | None
    ) -> ShownText:
        return ShownText() if parent is None else parent.text

    def append(self, text: ShownText, pieces: Sequence[BranchPiece]) -> ShownText:
        for piece in pieces:
            if isinstance(piece, wire.TokensPiece | wire.Conversation):
                raise NotSupported(f"this backend has no {type(piece).__name__}")
        return text.plus(pieces)

    def answer(self, call: BranchCall[ShownText]) -> None:
        prompt = call.branch.text.text
        if isinstance(call.op, wire.Read):
            self._machine.finish(call, wire.TextIs(call.op.call, prompt, len(prompt.split())))
            return
        answer = self._answerer.answer(prompt, call.op)
        if answer is None:
            self._held[call.op.call] = call
        else:
            self._finish(call, answer)

    def cancel(self, call: BranchCall[ShownText]) -> None:
        del self._held[call.op.call]

    def other(self, op: wire.Op) -> None:
        if isinstance(op, wire.Describe | wire.Flush):
            figures = {"branches": float(self.open_branches())}
            self._replies.put(wire.Described(op.call, figures))
        elif isinstance(op, wire.Inspect):
            about = "this backend has no prefix tree that could be looked at."
            self._machine.fail(op.call, NotSupported(about))
        elif isinstance(op, wire.Encode | wire.Decode):
            self._machine.fail(op.call, NotSupported("this backend has no tokens."))
        # no greeting is needed; the client decides contests itself; there is one client

    # --- replies

    def _finish(self, call: BranchCall[ShownText], answer: TextAnswer | LmprogError) -> None:
        op, text = call.op, call.branch.text
        assert not isinstance(op, wire.Read), "a read is answered at once"
        if isinstance(answer, LmprogError):
            self._machine.finish(call, answer)
            return
        num_words = len(text.text.split())
        reply: wire.CallReply
        if isinstance(op, wire.Select):
            reply = _chosen(op, answer.scores, num_words)
        else:
            reply = _done(op, answer.texts, num_words)
            if op.stream:
                self._stream(reply)
        self._machine.finish(call, reply, text.with_result(op, reply))

    def _stream(self, reply: wire.CallDone) -> None:
        for index, output in enumerate(reply.outputs):
            for count, word in enumerate(output.text.split(" ")):
                delta = word if count == 0 else " " + word
                if delta:
                    self._replies.put(wire.Delta(reply.call, index, delta, 1))


def _chosen(op: wire.Select, scores: Sequence[float], num_words: int) -> wire.Chosen:
    best = max(range(len(op.choices)), key=lambda index: scores[index])
    rest = (1.0 - 0.9) / max(len(op.choices) - 1, 1)
    options = tuple(
        wire.ScoredChoice(score, (0.9 if index == best else rest) if len(op.choices) > 1 else 1.0)
        for index, score in enumerate(scores)
    )
    return wire.Chosen(op.call, best, options, wire.Usage(prompt=num_words, computed=num_words))


def _done(op: wire.Generate, given: Sequence[str], num_words: int) -> wire.CallDone:
    texts = [given[place] for place in kept_first(op, given)]
    if op.sampling.max_tokens == 0:
        texts = [""] * len(texts)
    generated = sum(len(text.split()) for text in texts)
    usage = wire.Usage(prompt=num_words, generated=generated, computed=num_words + generated)
    return wire.CallDone(op.call, tuple(wire.Output(text, (), "stop") for text in texts), usage)
