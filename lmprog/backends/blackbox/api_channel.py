"""The client channel of an API: carries out the ops of branches on its own event loop, in one
thread.

To the client it behaves like a runtime: ops of one branch run in order, those of different branches
run concurrently, references wait for their values, every call gets exactly one final reply, and a
failed call fails its branch unless the call was rejected. Each branch is a coroutine; all share the
one thread.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Coroutine, Sequence

from lmprog import wire
from lmprog.backends.blackbox import api_branch as steps
from lmprog.backends.blackbox.answer_state import AnswerState
from lmprog.backends.blackbox.api import TextListener
from lmprog.backends.blackbox.api_branch import ApiBranch, ApiCall, Texts
from lmprog.backends.blackbox.call_answers import CallAnswers
from lmprog.backends.blackbox.remembered import KnownReply, remembered
from lmprog.backends.blackbox.transcript import Item, ResultText, Transcript, TurnBegin, TurnEnd
from lmprog.errors import (
    Cancelled,
    DeadlineExceeded,
    LmprogError,
    NotSupported,
    ProgramError,
    ProtocolError,
    RequestRejected,
    RuntimeGone,
)
from lmprog.transport.channel import ops_frames

BYTES_PER_TOKEN = 4  # an estimate: clients do not have an API's tokenizer


class BlackBox:
    """Owns its thread, its event loop and the API. `send` may be called from any thread."""

    def __init__(self, answering: CallAnswers) -> None:
        self._answering = answering
        self._replies: queue.SimpleQueue[wire.Reply | None] = queue.SimpleQueue()
        self._branches: dict[int, ApiBranch] = {}
        self._speculating: dict[int, int] = {}  # branch -> tokens, set before the branch opens
        self._remembered: dict[int, KnownReply] = {}  # by call, set before the call is sent
        self._results: dict[int, Texts] = {}
        self._calls: dict[int, ApiCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = threading.Lock()
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._work, name="lmprog-api", daemon=True)
        self._thread.start()

    # --- a client channel

    def send(self, ops: Sequence[wire.Op]) -> None:
        ops_frames(ops)  # raises for what the wire would reject
        with self._closing:
            if self._is_closed:
                raise RuntimeGone("the backend was closed")
            self._loop.call_soon_threadsafe(self._take_all, tuple(ops))

    def receive(self, timeout: float) -> list[wire.Reply]:
        try:
            reply = self._replies.get(timeout=timeout)
        except queue.Empty:
            return []
        if reply is None:
            self._replies.put(None)
            raise RuntimeGone("the backend was closed")
        return [reply]

    def close(self) -> None:
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                self._loop.call_soon_threadsafe(self._stopped.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._replies.put(None)

    def speculate(self, branch: int, num_tokens: int) -> None:
        """Sets how many tokens the calls of `branch` may generate for later calls. Must be called
        before `branch` is opened or its fork is sent.
        """
        self._speculating[branch] = num_tokens

    def remember(self, call: int, reply: KnownReply) -> None:
        """The call of that number is not asked; see `Remembers`."""
        self._remembered[call] = reply

    # --- the loop's thread

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._until_closed())

    async def _until_closed(self) -> None:
        self._loop.set_exception_handler(
            lambda _, context: self._break(context.get("exception") or context["message"])
        )
        await self._stopped.wait()
        for task in [
            *self._tasks,
            *(call.task for call in self._calls.values() if call.task is not None),
        ]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._answering.api.close()

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._is_over)

    def _is_over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._break(task.exception())

    def _break(self, why: object) -> None:
        """Handles an internal error: fails every waiting call, so that none of them hangs."""
        error = ProtocolError(f"the backend is broken: {type(why).__name__}: {why}")
        self._replies.put(wire.Failed(None, error.code, error.message, error.details()))

    # --- taking ops

    def _take_all(self, ops: Sequence[wire.Op]) -> None:
        for op in ops:
            self._take(op)

    def _take(self, op: wire.Op) -> None:
        if isinstance(op, wire.Open):
            opened = self._open(op.branch)
            now = getattr(self._answering.api, "fingerprint", "")  # of servers that tell one
            tokens = self._speculating.pop(op.branch, 0)
            opened.begin(AnswerState(Transcript(fingerprint=now), tokens))
            _refuse_lora(opened, op.lora)
        elif isinstance(op, wire.Generate | wire.Select | wire.Read):
            self._take_call(op)
        elif isinstance(op, wire.Append | wire.Fork | wire.Close):
            branch = self._branches.get(op.branch)
            if branch is not None:
                self._take_step(branch, op)
        elif isinstance(op, wire.Cancel):
            if op.call in self._calls:
                self._end(self._calls[op.call], Cancelled("the call was cancelled"))
        elif isinstance(op, wire.Describe):
            self._replies.put(wire.Described(op.call, self._figures()))
        elif isinstance(op, wire.Flush):
            self._start(self._flush(op))
        elif (call := getattr(op, "call", None)) is not None:
            self._fail(
                call, NotSupported(f"an API as a backend does not answer {type(op).__name__}")
            )

    @property
    def info(self) -> wire.Welcome:
        """The service in the words of a runtime; it has no tokens and no pages."""
        api = self._answering.api
        tools = wire.ToolSupport(is_native=api.kind in ("chat", "both"))
        return wire.Welcome(
            wire.PROTOCOL_VERSION, api.model, api.context_len, 0, 1, 0, os.getpid(), tools=tools
        )

    def _open(self, number: int) -> ApiBranch:
        branch = ApiBranch(number)
        self._branches[number] = branch
        self._start(self._live(branch))
        return branch

    def _take_call(self, op: wire.Generate | wire.Select | wire.Read) -> None:
        branch = self._branches.get(op.branch)
        if branch is None:
            self._fail(op.call, ProgramError(f"there is no branch {op.branch}"))
            return
        timeout = None if isinstance(op, wire.Read) else op.timeout
        call = ApiCall(
            op, self._loop.create_future(), None if timeout is None else self._loop.time() + timeout
        )
        self._calls[op.call] = self._results_of(branch, call)
        branch.put(call)
        if timeout is not None:
            late = DeadlineExceeded(f"the call did not end within timeout={timeout:g} s")
            timer = self._loop.call_later(timeout, self._end, call, late)
            call.texts.add_done_callback(lambda _: timer.cancel())

    def _results_of(self, branch: ApiBranch, call: ApiCall) -> ApiCall:
        branch.calls.append(call)
        self._results[call.op.call] = call.texts
        return call

    def _take_step(self, branch: ApiBranch, op: wire.Append | wire.Fork | wire.Close) -> None:
        if isinstance(op, wire.Append):
            try:
                branch.put(steps.QueuedAppend(tuple(self._piece(piece) for piece in op.pieces)))
            except LmprogError as error:
                branch.put(steps.QueuedFailure(error))
        elif isinstance(op, wire.Fork):
            children = tuple(self._open(child) for child in op.children)
            branch.put(steps.QueuedFork(children))
            for child in children:
                _refuse_lora(child, op.lora or "")
        else:
            del self._branches[branch.number]
            branch.close()
            for call in branch.calls:
                if call.why is not None and call.task is None and not call.texts.done():
                    self._conclude(call, call.why)

    def _piece(self, piece: wire.Piece) -> steps.Piece:
        if isinstance(piece, wire.TextPiece):
            if piece.calls:
                output = wire.Output(piece.text, (), "stop", calls=piece.calls)
                return ResultText(piece.text, output, own=False)
            return wire.Letters(piece.text) if piece.quoted else piece.text
        if isinstance(piece, wire.RoleBegin):
            return TurnBegin(piece.role)
        if isinstance(piece, wire.RoleEnd):
            return TurnEnd(piece.role)
        if isinstance(piece, wire.Ref):
            if piece.call not in self._results:
                raise ProgramError(
                    f"there is no call {piece.call} whose result could be put into a text"
                )
            return steps.QueuedRef(self._results[piece.call], piece.index)
        if isinstance(piece, wire.Gained):
            child = self._branches.get(piece.branch)
            if child is None:
                raise ProgramError(
                    f"there is no branch {piece.branch} whose text could be appended"
                )
            items: asyncio.Future[tuple[Item, ...] | LmprogError] = self._loop.create_future()
            child.put(steps.QueuedRead(items))
            return steps.QueuedGained(items)
        raise NotSupported(f"an API as a backend does not support {type(piece).__name__}")

    # --- branches

    async def _live(self, branch: ApiBranch) -> None:
        """Runs the steps of one branch until it is closed."""
        while (step := await branch.next()) is not None:
            if isinstance(step, ApiCall):
                await self._carry_out(branch, step)
            elif isinstance(step, steps.QueuedAppend):
                await self._append(branch, step)
            elif isinstance(step, steps.QueuedFork):
                states = branch.state.forked(len(step.children))
                for child, state in zip(step.children, states, strict=True):
                    tokens = self._speculating.pop(child.number, state.num_spec_tokens)
                    child.begin(state.speculating(tokens), branch.failed)
                branch.state = branch.state.after_fork()
            elif isinstance(step, steps.QueuedRead):
                step.items.set_result(branch.gained())
            else:
                branch.failed = branch.failed or step.error
        for call in branch.calls:
            del self._results[call.op.call]

    async def _append(self, branch: ApiBranch, step: steps.QueuedAppend) -> None:
        items = await steps.known(step.pieces)
        if branch.failed is not None:
            return
        try:
            if isinstance(items, LmprogError):
                raise items
            before, branch.state = branch.state, branch.state.plus(items, self._answering.api)
            if before.speculated is not None and branch.state.speculated is None:
                self._answering.drop(before.speculated)
        except LmprogError as error:
            branch.failed = error

    async def _carry_out(self, branch: ApiBranch, call: ApiCall) -> None:
        if call.texts.done():  # it was cancelled while it waited
            branch.failed = branch.failed or call.why
        elif branch.failed is not None:
            self._conclude(call, branch.failed)
        elif isinstance(call.op, wire.Read):
            text = branch.state.transcript.plain
            self._conclude(
                call, wire.TextIs(call.op.call, text, -(-len(text.encode()) // BYTES_PER_TOKEN))
            )
        else:
            call.task = self._loop.create_task(self._request(branch, call.op))
            await asyncio.wait([call.task])
            outcome = steps.outcome_of(call)
            if isinstance(outcome, LmprogError) and not isinstance(outcome, RequestRejected):
                branch.failed = outcome
            self._conclude(call, outcome)

    async def _request(
        self, branch: ApiBranch, op: wire.Generate | wire.Select
    ) -> wire.CallDone | wire.Chosen:
        known = self._remembered.pop(op.call, None)
        if known is not None:
            branch.state, known = remembered(branch.state, op, known, self._answering.api.kind)
            return known
        if isinstance(op, wire.Select):
            branch.state, chosen = await self._answering.select(branch.state, op)
            return chosen
        branch.state, done = await self._answering.gen(
            branch.state, op, self._on_text(op) if op.stream else None
        )
        if isinstance(done, LmprogError):
            raise done
        return done

    def _on_text(self, op: wire.Generate) -> TextListener:
        return lambda index, text, num: self._replies.put(wire.Delta(op.call, index, text, num))

    # --- completing calls

    def _end(self, call: ApiCall, why: LmprogError) -> None:
        """Cancels a call with error `why`."""
        if not call.texts.done():
            call.end(why)
            if call.task is None:
                self._conclude(call, why)

    def _conclude(
        self, call: ApiCall, outcome: wire.CallDone | wire.Chosen | wire.TextIs | LmprogError
    ) -> None:
        """Sends the final reply of a call."""
        self._calls.pop(call.op.call, None)
        if isinstance(outcome, LmprogError):
            self._fail(call.op.call, outcome)
            call.texts.set_result(outcome)
        else:
            self._replies.put(outcome)
            call.texts.set_result(wire.result_texts(call.op, outcome))

    def _fail(self, call: int, error: LmprogError) -> None:
        self._replies.put(wire.Failed(call, error.code, error.message, error.details()))

    async def _flush(self, op: wire.Flush) -> None:
        try:
            await self._answering.api.flush()
        except LmprogError as error:
            self._fail(op.call, error)
        else:
            self._replies.put(wire.Described(op.call, self._figures()))

    def _figures(self) -> dict[str, float]:
        counters = self._answering.counters
        figures = {name: float(getattr(counters, name)) for name in counters.__slots__}
        return {**figures, "open_branches": float(len(self._branches))}


def _refuse_lora(branch: ApiBranch, lora: str) -> None:
    """The branch fails where it is to be computed by an adapter."""
    if lora:
        message = (
            f"lora={lora!r} is for runtimes of lmprog; a service knows adapters as models: "
            f"give its backend model={lora!r}"
        )
        branch.put(steps.QueuedFailure(NotSupported(message)))
