"""The branches and calls of one request, the replies to them, and the record of how it went.

A request opens an `Exchange`, sends its ops, and takes replies from it as they come; leaving the
exchange closes its branches, which cancels what still runs and frees its pages. All methods belong
to the event loop's thread.

Its `RequestRecord` says who asked, how far it is, how it ended: numbers and a few short names, and
the beginnings of its answers only where the server shows texts. Records of requests under way
belong to their exchanges; the last ones that ended are kept for a while.

Knows messages and numbers; knows no connection's life and no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Protocol, Self, TypeAlias

import msgspec

from lmprog import wire
from lmprog.errors import (
    Cancelled,
    LmprogError,
    Overloaded,
    ProtocolError,
    RuntimeGone,
    from_wire,
)
from lmprog.launch import Connection
from lmprog.server.fairness.accounts import HeldBytes, MemoryPool
from lmprog.server.fairness.dispatch import Dispatcher, Flow

log = logging.getLogger("lmprog.server")

KEPT = 256
"""Requests that have ended and are remembered."""
KEPT_SECONDS = 900.0
"""For so long."""
KEPT_CHARS = 4096
"""Of the answers of each, where the server shows texts."""
MOST_QUEUED = 8 * 1024 * 1024
"""Bytes of deltas that may wait for one reader; beyond it the exchange is broken off. A text of a
hundred thousand tokens is half a megabyte: only log-probabilities come near this.
"""
CREDIT = 64 * 1024
"""Bytes of deltas that may wait for a reader before their calls make no more of them; they go on
when half of that is left. Only what is under way then comes beyond it.
"""
QUEUES_SPARE = 4 * 1024 * 1024
"""Deltas may have so much beyond what bodies and results may: who sends large bodies ends no stream
by that.
"""
MOST_ROWS_JOINED = 64
"""Tokens with log-probabilities of one joined delta: what is being written for a reader who takes
nothing is no longer counted, so that it must be little.
"""
LEAST_JOINED = 64
"""Replies that wait before their deltas are joined while they wait."""
_LOGPROB_BYTES = 160
_DELTA_BYTES = 256
_TOKEN_BYTES = 36
"""What one takes in memory, about."""
Answer: TypeAlias = wire.Reply
"""To a call: `Delta`s, and then one that is none."""


class RequestOrigin(msgspec.Struct, frozen=True):
    """Who asked, and for what. `key` is the name of the key, `caller` a digest of it; both are
    empty where there are no keys. `account` is who is charged for memory.
    """

    request_id: str = ""
    route: str = ""
    key: str = ""
    caller: str = ""
    account: str = ""


NOBODY = RequestOrigin()
calling_request: ContextVar[RequestOrigin] = ContextVar("calling_request", default=NOBODY)
"""The request that this context serves."""


class RequestRecord(msgspec.Struct, eq=False):
    """One request. Times by the gateway's clock; tokens are those of calls that have ended."""

    number: int
    origin: RequestOrigin
    began: float
    ended: float | None = None
    failure: str = ""
    """The code of the first error of a call, or why the request ended early."""
    branches: int = 0
    calls: int = 0
    done: int = 0
    """Calls with a result."""
    prompt: int = 0
    cached: int = 0
    computed: int = 0
    generated: int = 0
    forced: int = 0
    queued_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    """Of all calls together, which may have run side by side."""
    finishes: dict[str, int] = {}
    """Results by why they ended."""
    room: int = 0
    """For so many characters more of its answers, which others may read."""
    texts: list[str] = []
    """The beginnings of its answers, as far as there was room."""

    def take(self, reply: wire.Reply) -> None:
        """The last reply to a call."""
        if isinstance(reply, wire.CallDone):
            finishes = self.finishes
            for output in reply.outputs:
                finishes[output.finish] = finishes.get(output.finish, 0) + 1
                if self.room > 0:
                    self.texts.append(output.text[: self.room])
                    self.room -= len(self.texts[-1]) + 1
        elif isinstance(reply, wire.Chosen):
            self.finishes["selected"] = self.finishes.get("selected", 0) + 1
        if isinstance(reply, wire.CallDone | wire.Chosen):
            usage = reply.usage
            self.prompt += usage.prompt
            self.cached += usage.cached
            self.computed += usage.computed
            self.generated += usage.generated
            self.forced += usage.forced
            self.queued_ms += usage.queued_ms
            self.prefill_ms += usage.prefill_ms
            self.decode_ms += usage.decode_ms
        elif isinstance(reply, wire.Failed):
            self.failure = self.failure or reply.code
            return
        self.done += 1

    @property
    def state(self) -> str:
        """How it ended."""
        return self.failure or ("done" if self.done == self.calls else "left")


def nobodys() -> RequestRecord:
    """The record of what the server asks for itself."""
    return RequestRecord(0, NOBODY, 0.0)


class RecordKeeper:
    """Numbers requests and keeps those that have ended. Belongs to the event loop's thread."""

    def __init__(self, clock: Callable[[], float], text_chars: int = 0) -> None:
        """Of each request's answers so many characters are kept."""
        self._clock = clock
        self._text_chars = text_chars
        self._ended: deque[RequestRecord] = deque(maxlen=KEPT)
        self.num_begun = 0
        self.num_ended = 0

    def begin(self, origin: RequestOrigin) -> RequestRecord:
        """The record of a new request."""
        self.num_begun += 1
        return RequestRecord(self.num_begun, origin, self._clock(), room=self._text_chars)

    def end(self, record: RequestRecord) -> None:
        """The request has ended. The server's own, and what asked for nothing, is not
        remembered.
        """
        if record.ended is not None or not record.calls or not record.number:
            return
        record.ended = self._clock()
        self.num_ended += 1
        self._ended.append(record)

    def ended(self) -> Iterator[RequestRecord]:
        """Those that ended a while ago at most, the last ones first."""
        oldest = self._clock() - KEPT_SECONDS
        for record in reversed(self._ended):
            if record.ended is None or record.ended < oldest:
                return
            yield record


class Account(Flow, Protocol):
    """A key's account: what its requests may ask for, and what they have used."""

    def check(self, ops: Sequence[wire.Op]) -> None:
        """Raises InvalidParameter for what it may not ask for."""
        ...

    def use(self, prompt: int, generated: int, model: str = "") -> None:
        """These tokens were computed, or found in the cache, for it, by that model."""
        ...


class ExchangeLink(Protocol):
    """What an exchange needs of its link."""

    turns: Dispatcher | None
    memory: MemoryPool

    def number(self) -> int:
        """A new one, for a branch or a call."""
        ...

    def slowest(self, account: str) -> Exchange:
        """That of the account for which most waits."""
        ...

    def listen(self, call: int, exchange: Exchange) -> None:
        """Replies to `call` go to `exchange`."""
        ...

    def unlisten(self, call: int) -> None: ...

    def leave(self, exchange: Exchange) -> None:
        """The exchange has ended."""
        ...

    def send(self, connection: Connection, ops: Sequence[wire.Op], served_name: str = "") -> None:
        """Sends them to the model of that name, and what has waited to go with others. Raises what
        the connection raises.
        """
        ...

    def close_branches(
        self, connection: Connection, closing: Sequence[wire.Close], is_urgent: bool
    ) -> None:
        """Closes branches now, or with what is sent next."""
        ...

    def restarted(self) -> RuntimeGone:
        """Why work ends whose runtime went."""
        ...


class Exchange:
    """The branches and calls of one request. Use it with `with`: its end closes them."""

    def __init__(
        self,
        link: ExchangeLink,
        connection: Connection,
        account: Account | None,
        record: RequestRecord,
        session: str = "",
        model: tuple[str, str] = ("", ""),
    ) -> None:
        """Branches of one `session` run on the same runtime, where there are several; the `model`
        of that name, and its adapter, compute them.
        """
        self.record = record
        """What came of the request so far; others read it."""
        self._link = link
        self._session = session
        self._served_name, self._adapter = model
        self._connection = connection
        self._account = account
        self._payer = record.origin.account if account is None else account.name
        """Of whom branches are: the key, or without keys the address that asks."""
        self._streamed: dict[int, int] = {}  # call -> tokens that its deltas had
        self._branches: list[int] = []
        self.following: dict[int, wire.Conversation] = {}
        """By branch: what is expected to follow when it is closed."""
        self._calls: set[int] = set()
        self._inbox: deque[Answer] = deque()
        self._queued = 0
        self._suspended: set[int] = set()
        """Calls whose deltas its reader does not take."""
        self._told_at = 0
        self._join_at = LEAST_JOINED
        self._held = HeldBytes(link.memory, record.origin.account)
        """Deltas that wait, and the results that have come."""
        self._failure: Exception | None = None
        self._is_closed = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def queued_bytes(self) -> int:
        """Of the deltas that wait for its reader, about."""
        return self._queued

    def held(self) -> Iterator[tuple[str, str, int]]:
        """See `MemoryPool.parts`."""
        yield self._held.account, "queued", self._queued
        yield self._held.account, "answers", self._held.count - self._queued

    def branch(self) -> int:
        """A number for a new branch; closed with the exchange."""
        number = self._link.number()
        self._branches.append(number)
        self.record.branches += 1
        return number

    def call(self) -> int:
        """A number for a new call, whose replies come here."""
        number = self._link.number()
        self._calls.add(number)
        self.record.calls += 1
        self._link.listen(number, self)
        return number

    @property
    def open_calls(self) -> frozenset[int]:
        """Calls without a last reply."""
        return frozenset(self._calls)

    def send(self, *ops: wire.Op) -> None:
        """Sends `ops` in their order, in one frame where nobody else waits. Raises
        `InvalidParameter` for what cannot be sent, `Overloaded`, `RuntimeGone`.
        """
        if self._is_closed:
            raise self._why_ended()
        account, turns = self._account, self._link.turns
        if self._session or self._adapter or self._served_name or self._payer:
            ops = tuple(self._as_own(op) for op in ops)
        if account is not None:
            account.check(ops)
            if turns is not None:
                turns.put(self, account, ops)
                return
        self.send_now(ops)

    def _as_own(self, op: wire.Op) -> wire.Op:
        """New branches are of this session, model and adapter, and on the account of who asks."""
        served = self._served_name
        if not isinstance(op, wire.Open):
            if isinstance(op, wire.Encode | wire.Decode):
                account = op.account or self._payer
                return msgspec.structs.replace(op, served_name=served, account=account)
            return op
        session, lora = self._session or op.session, self._adapter or op.lora
        account = op.account or self._payer
        weight = op.weight if self._account is None else self._account.weight
        return msgspec.structs.replace(
            op, session=session, weight=weight, lora=lora, account=account, served_name=served
        )

    def send_now(self, ops: Sequence[wire.Op]) -> None:
        """The same at once; the dispatcher decides when."""
        try:
            self._link.send(self._connection, ops, self._served_name)
        except RuntimeGone as error:  # its own words name our paths
            log.info("%s", error)
            raise self._link.restarted() from None

    async def answer(self) -> Answer:
        """The next reply of any call, a `Failed` too. Raises what ended the connection."""
        inbox = self._inbox
        while not inbox:
            if self._is_closed:
                raise self._why_ended()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        reply = inbox.popleft()
        if not isinstance(reply, wire.Delta):
            return reply
        if not inbox:
            self._release(self._queued)
            return reply
        # What came while nobody read is one piece: less work for all just when there is too much.
        run = _taken_with(reply, inbox)
        self._release(sum(map(_size_of, run)))
        return wire.joined_deltas(run)

    async def next(self) -> Answer:
        """The next reply. Raises what a `Failed` says."""
        reply = await self.answer()
        if isinstance(reply, wire.Failed):
            raise from_wire(reply.code, reply.message, reply.details)
        return reply

    @property
    def waiting(self) -> int:
        """Calls that have no last reply yet, or whose last reply has not been taken."""
        return len(self._calls) + sum(not isinstance(reply, wire.Delta) for reply in self._inbox)

    def take(self, reply: Answer) -> None:
        """For the link: one more reply."""
        if self._account is not None:
            self._charge(self._account, reply)
        inbox = self._inbox
        if isinstance(reply, wire.Delta):  # by far the most
            size = _size_of(reply)
            self._queued += size
            self._held.add(size)
            inbox.append(reply)
            if len(inbox) >= self._join_at:
                self._join()
            if self._queued > CREDIT:
                self._suspend(reply.call)
            if self._queued > MOST_QUEUED:
                self._break_off(_too_slow(self._queued))
                return
            if not self._link.memory.makes_room(self._held.account, -QUEUES_SPARE):
                slowest = self._link.slowest(self._held.account)
                slowest._break_off(_too_slow(slowest.queued_bytes))
        else:
            if not isinstance(reply, wire.Welcome) and reply.call is not None:
                self._calls.discard(reply.call)
                self.record.take(reply)
                if not self._hold(reply):
                    return
            inbox.append(reply)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _join(self) -> None:
        """Joins the deltas that wait. Called when their number has doubled, so that one that waits
        is joined few times.
        """
        inbox, kept = self._inbox, deque[Answer]()
        while inbox:
            reply = inbox.popleft()
            if isinstance(reply, wire.Delta):
                reply = wire.joined_deltas(_taken_with(reply, inbox))
            kept.append(reply)
        inbox.extend(kept)
        self._join_at = max(LEAST_JOINED, 2 * len(inbox))
        left = sum(_size_of(reply) for reply in inbox if isinstance(reply, wire.Delta))
        self._release(self._queued - left)

    def _release(self, size: int) -> None:
        """So many bytes wait no longer."""
        size = min(size, self._queued)  # what is taken after the end is counted no more
        self._queued -= size
        self._held.add(-size)
        if self._suspended and self._queued <= CREDIT // 2:
            going_on = self._suspended & self._calls
            self._suspended.clear()
            self._tell(wire.Suspend(call, is_on=False) for call in sorted(going_on))

    def _suspend(self, call: int) -> None:
        """The call waits for its reader. That is said again when as much has come once more, as
        where it has moved to another runtime.
        """
        if call in self._suspended and self._queued <= self._told_at + CREDIT:
            return
        self._told_at = self._queued
        self._suspended.add(call)
        self._tell([wire.Suspend(call)])

    def _tell(self, ops: Iterable[wire.Op]) -> None:
        with contextlib.suppress(RuntimeGone):  # then the exchange hears of that as all do
            if found := list(ops):
                self._connection.send(found)

    def _hold(self, reply: Answer) -> bool:
        """Counts a result until the exchange is closed. Whether there is room for it."""
        size = wire.count_logprobs(reply) * _LOGPROB_BYTES
        if isinstance(reply, wire.CallDone):
            for one in reply.outputs:
                size += len(one.text) + len(one.tokens) * _TOKEN_BYTES
        try:
            self._held.take(size)
        except Overloaded as error:
            self._break_off(error)
            return False
        return True

    def _break_off(self, error: LmprogError) -> None:
        """Ends the exchange, and holds nothing of what has come."""
        self._inbox.clear()
        self.cancel(error)

    def _charge(self, account: Account, reply: Answer) -> None:
        """Counts tokens when they come, so that those of a call that is left are counted too."""
        match reply:
            case wire.Delta(call=call, num_tokens=num_tokens):
                self._streamed[call] = self._streamed.get(call, 0) + num_tokens
                account.use(0, num_tokens, self._served_name)
            case wire.CallDone(call=call, usage=usage) | wire.Chosen(call=call, usage=usage):
                rest = usage.generated - self._streamed.pop(call, 0)
                account.use(usage.prompt, max(0, rest), self._served_name)

    def fail(self, error: Exception) -> None:
        """Ends the exchange: what has come can still be taken, then `error` is raised."""
        if not self._is_closed:
            self._is_closed, self._failure = True, error
            if self._calls and isinstance(error, LmprogError):
                self.record.failure = self.record.failure or error.code
        self._wake()

    def cancel(self, error: Exception) -> None:
        """Ends the exchange from outside: its branches are closed at once, and whoever waits for
        its replies gets `error`.
        """
        self.record.failure = Cancelled.code
        self._close(error)

    def close(self) -> None:
        """Closes its branches; the runtime frees what they held. Safe to repeat."""
        self._close(None)

    def _why_ended(self) -> Exception:
        return self._failure or ProtocolError("this exchange was closed")

    def _close(self, error: Exception | None) -> None:
        self._queued = 0
        self._held.leave()
        turns = None if self._account is None else self._link.turns
        never_opened = turns.leave(self) if turns is not None else frozenset[int]()
        calls, self._calls = self._calls, set()
        for number in calls:
            self._link.unlisten(number)
        branches, self._branches = self._branches, []
        if never_opened:
            branches = [number for number in branches if number not in never_opened]
        self._link.leave(self)
        if branches and not self._is_closed:
            try:
                following = self.following.get
                closing = [wire.Close(one, next=following(one)) for one in branches]
                self._link.close_branches(self._connection, closing, bool(calls))
            except RuntimeGone:
                log.debug("the runtime went before its branches were closed")
        if error is None:
            self._is_closed = True
            self._wake()
        else:
            self.fail(error)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def _too_slow(size: int) -> Cancelled:
    return Cancelled(
        f"The stream was ended since its client reads too slowly: {size:,} bytes waited for it. "
        "Ask for fewer log-probabilities, or read faster."
    )


def _size_of(delta: wire.Delta) -> int:
    """Bytes that it takes while it waits, about."""
    if not delta.logprobs:
        return _DELTA_BYTES + len(delta.text)
    return _DELTA_BYTES + len(delta.text) + wire.count_logprobs(delta) * _LOGPROB_BYTES


def _taken_with(first: wire.Delta, inbox: deque[Answer]) -> list[wire.Delta]:
    """`first`, and those taken from the inbox that go on with it."""
    run, rows = [first], len(first.logprobs)
    while inbox and rows < MOST_ROWS_JOINED:
        following = inbox[0]
        if not isinstance(following, wire.Delta):
            break
        if following.call != first.call or following.index != first.index:
            break
        inbox.popleft()
        run.append(following)
        rows += len(following.logprobs)
    return run
