"""A backend over an API: branches in this process, whose calls are requests, all on one event loop
in one thread; and the options common to all APIs.

To the client its channel behaves like a runtime. Knows tasks, deadlines and the end of everything;
how ops are run, the machine knows, and how a call is answered, `CallAnswers`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeAlias, TypedDict

import msgspec

from lmprog import wire
from lmprog.backends.blackbox.api import Api, TextListener
from lmprog.backends.blackbox.call_answers import CallAnswers, Constraints
from lmprog.backends.blackbox.retry_policy import RetryCounters, RetryPolicy
from lmprog.backends.blackbox.speculation import AnswerState
from lmprog.backends.blackbox.transcript import Transcript
from lmprog.backends.branch_machine import BranchCall, BranchMachine, ReplyQueue, TextBranch
from lmprog.backends.branch_text import BranchPiece, shown
from lmprog.backends.client import Client
from lmprog.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidParameter,
    LmprogError,
    NotSupported,
    ProtocolError,
    RuntimeGone,
    hint,
)
from lmprog.transport.channel import ops_frames

Answered: TypeAlias = tuple[AnswerState, wire.CallReply | LmprogError]
"""What a branch holds behind a request, and what came of it."""
ADDRESS = ("api_key", "base_url")
"""Parameters of a backend that are no options."""
BYTES_PER_TOKEN = 4  # an estimate: clients do not have an API's tokenizer


class ApiOptions(TypedDict, total=False):
    """Options of every API backend."""

    timeout: float
    """Seconds for one answer, or for the next piece of a stream, before the request is retried.
    Deadlines of calls apply in addition.
    """
    retries: int
    """How often a request is retried after 408, 409, 429, 5xx, a lost connection or a timeout."""
    concurrency: int
    """Maximum number of requests in flight; further calls wait."""
    constraints: Constraints
    """"best_effort": if the API cannot enforce a constraint, request without it, validate the text,
    and retry.
    """
    tries: int
    """Maximum number of requests for a text that satisfies its constraint; then `ValidationFailed`.
    """


def check_options(
    who: str, options: ApiOptions, declared: type[ApiOptions], also: Collection[str] = ()
) -> None:
    """Raises InvalidParameter for an option that `declared` does not have; `also` are parameters
    that may have been meant.
    """
    known = set(declared.__annotations__)
    for name in sorted(set(options) - known):
        raise InvalidParameter(
            f"{who} has no option {name!r}{hint(name, {*known, *also})}",
            name=name,
            allowed=", ".join(sorted(known)),
        )


def retry_policy_of(options: ApiOptions) -> RetryPolicy:
    return RetryPolicy(timeout=options.get("timeout", 600.0), retries=options.get("retries", 3))


class ApiBackend:
    """Owns a client over `api`. A context manager: leaving it closes the client and the API's
    connections.
    """

    identity: tuple[object, ...] = ()
    """What besides the model decides on answers: address, settings of every request. No keys."""

    def __init__(self, api: Api, retry_policy: RetryPolicy, options: ApiOptions) -> None:
        self.branches_are_tokens = api.kind == "pieces"
        """Whether a branch goes on from a result's tokens, and not from its text."""
        answering = CallAnswers(
            api,
            retry_policy.counters,
            constraints=options.get("constraints", "enforced"),
            tries=options.get("tries", 3),
            concurrency=options.get("concurrency", 64),
        )
        self.counters: RetryCounters = retry_policy.counters
        """Requests, retries and tokens so far; also in `lmprog.get_server_info`."""
        self._channel = BlackBox(answering)
        self._client = Client(self._channel)

    @property
    def client(self) -> Client:
        return self._client

    @property
    def token_usage(self) -> RetryCounters:
        """SGLang's name of `counters`: `prompt_tokens`, `completion_tokens`, `reset()`."""
        return self.counters

    def speculate(self, branch: int, num_tokens: int) -> None:
        """For programs with `num_api_spec_tokens`; called before `branch` is opened."""
        self._channel.speculate(branch, num_tokens)

    def learn(self, context_len: int, fingerprint: wire.Fingerprint) -> None:
        """The model behind the API, where that tells it; from now on another one, where it does so
        again.
        """
        self._client.welcome = msgspec.structs.replace(
            self._client.welcome, context_len=context_len, fingerprint=fingerprint
        )

    def remember(self, call: int, reply: wire.CallReply) -> None:
        """The call of that number was answered before: it is not asked."""
        self._channel.remember(call, reply)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class BlackBox:
    """Owns its thread, its event loop and the API. `send` may be called from any thread."""

    def __init__(self, answering: CallAnswers) -> None:
        self._answering = answering
        self._replies = ReplyQueue()
        self._machine = BranchMachine(self, self._put)
        self._speculating: dict[int, int] = {}  # branch -> tokens, set before the branch opens
        self._remembered: dict[int, wire.CallReply] = {}  # by call, set before the call is sent
        self._requests: dict[int, asyncio.Task[Answered]] = {}  # by call
        self._flushes: set[asyncio.Task[None]] = set()
        self._deadlines: dict[int, asyncio.TimerHandle] = {}  # by call
        self._closing = threading.Lock()
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._work, name="lmprog-api", daemon=True)
        self._thread.start()

    @property
    def info(self) -> wire.Welcome:
        """The service in the words of a runtime; it has no tokens and no pages."""
        api = self._answering.api
        tools = wire.ToolSupport(is_native=api.kind in ("chat", "both"))
        return wire.Welcome(
            wire.PROTOCOL_VERSION, api.model, api.context_len, 0, 1, 0, os.getpid(), tools=tools
        )

    # --- a client channel

    def send(self, ops: Sequence[wire.Op]) -> None:
        ops_frames(ops)  # raises for what the wire would reject
        with self._closing:
            if self._is_closed:
                raise RuntimeGone("the backend was closed")
            self._loop.call_soon_threadsafe(self._take, tuple(ops))

    def receive(self, timeout: float) -> list[wire.Reply]:
        return self._replies.take(timeout)

    def close(self) -> None:
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                self._loop.call_soon_threadsafe(self._stopped.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._replies.end("the backend was closed")

    def speculate(self, branch: int, num_tokens: int) -> None:
        """Sets how many tokens the calls of `branch` may generate for later calls. Must be called
        before `branch` is opened or its fork is sent.
        """
        self._speculating[branch] = num_tokens

    def remember(self, call: int, reply: wire.CallReply) -> None:
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
        tasks = [*self._requests.values(), *self._flushes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._answering.api.close()

    def _break(self, why: object) -> None:
        """Handles an internal error: fails every waiting call, so that none of them hangs."""
        error = ProtocolError(f"the backend is broken: {type(why).__name__}: {why}")
        self._replies.put(wire.Failed(None, error.code, error.message, error.details()))

    def _take(self, ops: Sequence[wire.Op]) -> None:
        for op in ops:
            if isinstance(op, wire.Generate | wire.Select) and op.timeout is not None:
                late = self._loop.call_later(op.timeout, self._expire, op.call, op.timeout)
                self._deadlines[op.call] = late
        self._machine.take(ops)

    def _expire(self, call: int, seconds: float) -> None:
        why = f"the call did not end within its timeout of {seconds:.3g} s."
        self._machine.end(call, DeadlineExceeded(why))

    def _put(self, reply: wire.Reply) -> None:
        """A final reply of the machine's."""
        call = getattr(reply, "call", None)
        if call in self._deadlines:
            self._deadlines.pop(call).cancel()
        self._replies.put(reply)

    # --- what the machine asks

    def begin(
        self, branch: TextBranch[AnswerState], parent: TextBranch[AnswerState] | None
    ) -> AnswerState:
        """The first child of a fork takes the text that was generated ahead along."""
        if branch.lora:
            raise NotSupported(
                f"lora={branch.lora!r} is for runtimes of lmprog; a service knows adapters as "
                f"models: give its backend model={branch.lora!r}"
            )
        if parent is None:
            now = getattr(self._answering.api, "fingerprint", "")  # of servers that tell one
            tokens = self._speculating.pop(branch.number, 0)
            return AnswerState(self._answering.api.kind, Transcript(fingerprint=now), tokens)
        state, parent.text = parent.text, parent.text.after_fork()
        tokens = self._speculating.pop(branch.number, state.num_spec_tokens)
        return replace(state, num_spec_tokens=tokens)

    def append(self, text: AnswerState, pieces: Sequence[BranchPiece]) -> AnswerState:
        appended = text.plus(pieces)
        if text.speculated is not None and appended.speculated is None:
            self._answering.drop(text.speculated)
        return appended

    def answer(self, call: BranchCall[AnswerState]) -> None:
        op, state = call.op, call.branch.text
        if isinstance(op, wire.Read):
            text = shown(state.pieces)
            num_tokens = -(-len(text.encode()) // BYTES_PER_TOKEN)
            self._machine.finish(call, wire.TextIs(op.call, text, num_tokens))
        elif op.call in self._remembered:
            known = msgspec.structs.replace(self._remembered.pop(op.call), call=op.call)
            self._machine.finish(call, known, state.with_result(op, known))
        else:
            task = self._loop.create_task(self._request(state, op))
            self._requests[op.call] = task
            task.add_done_callback(lambda task: self._answered(call, task))

    def cancel(self, call: BranchCall[AnswerState]) -> None:
        self._requests[call.op.call].cancel()

    def other(self, op: wire.Op) -> None:
        call = getattr(op, "call", None)
        if isinstance(op, wire.Describe):
            self._replies.put(wire.Described(op.call, self._figures()))
        elif isinstance(op, wire.Flush):
            task = self._loop.create_task(self._flush(op))
            self._flushes.add(task)
            task.add_done_callback(self._flushed)
        elif call is not None:
            about = f"an API as a backend does not answer {type(op).__name__}"
            self._machine.fail(call, NotSupported(about))

    # --- requests

    async def _request(self, state: AnswerState, op: wire.Generate | wire.Select) -> Answered:
        if isinstance(op, wire.Select):
            return await self._answering.select(state, op)
        return await self._answering.gen(state, op, self._on_text(op) if op.stream else None)

    def _answered(self, call: BranchCall[AnswerState], task: asyncio.Task[Answered]) -> None:
        del self._requests[call.op.call]
        if task.cancelled():
            self._machine.finish(call, Cancelled("the call was cancelled."))
            return
        error = task.exception()
        if error is None:
            state, outcome = task.result()
            self._machine.finish(call, outcome, state)
        elif isinstance(error, LmprogError):
            self._machine.finish(call, error)
        else:
            about = f"the API's answer was not understood: {type(error).__name__}: {error}"
            self._machine.finish(call, ProtocolError(about))

    def _on_text(self, op: wire.Generate) -> TextListener:
        return lambda index, text, num: self._replies.put(wire.Delta(op.call, index, text, num))

    async def _flush(self, op: wire.Flush) -> None:
        try:
            await self._answering.api.flush()
        except LmprogError as error:
            self._machine.fail(op.call, error)
        else:
            self._replies.put(wire.Described(op.call, self._figures()))

    def _flushed(self, task: asyncio.Task[None]) -> None:
        self._flushes.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._break(task.exception())

    def _figures(self) -> dict[str, float]:
        counters = self._answering.counters
        figures = {name: float(getattr(counters, name)) for name in counters.__slots__}
        return {**figures, "open_branches": float(len(self._machine.branches))}
