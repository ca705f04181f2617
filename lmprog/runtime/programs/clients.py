"""The clients of a runtime: what each one has open, its calls under way, what waits to be handled,
what they tell each other.

A call is an op of a client, and while the scheduler has it, its run; how its results are written
as wire messages stands here too.

A client's ops are handled in their order. Of the clients that have ops, the one goes next whose
ops have taken the least time: who sends many or costly ops delays itself and not the others. A
client that begins to send again has no credit for the time in which it sent nothing.

An op is taken in at once; what it has its branch do, as to tokenise a prompt, is done when all that
has come was taken in. What takes long on the host for one call is done between steps, a piece at a
time (`HostWork`). Of both (`ReadyBranches`) the client goes next that was served least, by the
account on which it is, whichever connection it has asked on; what takes too long for one turn goes
on in the next.

Clients tell each other of the programs that they send here: fleets, mostly, which lead programs
to where their prefixes are. Keys are passed on, whatever they stand for.

Knows clients, their numbers and seconds; does not know what ops mean, runs nothing, and does not
decide when anything happens.
"""

from __future__ import annotations

import heapq
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

from lmprog import wire
from lmprog.constraints.constraint import Constraint
from lmprog.constraints.search import TextSearch
from lmprog.errors import LmprogError, Overloaded, ProtocolError, UnknownName
from lmprog.runtime.programs.branch import (
    Awaited,
    BoundAppend,
    BoundGained,
    BoundPiece,
    Promise,
    QueuedOp,
    RuntimeBranch,
    unknown_branch,
)
from lmprog.runtime.programs.compile_pool import Pending
from lmprog.runtime.programs.result_selection import ResultSelector, RunningContest
from lmprog.runtime.programs.select_scoring import Ballot
from lmprog.runtime.scheduling.generation import Generation, ScoredToken
from lmprog.runtime.scheduling.sequence import Client, Sequence, SequenceGroup
from lmprog.runtime.scheduling.waiting_queue import ClientShares
from lmprog.runtime.text.stream import TextEnd, TextStream
from lmprog.runtime.text.tokenizer import Tokenizer
from lmprog.transport import ClientId, Gone, Received
from lmprog.wire import Failed, Generate, Output, Read, Select, TokenLogprob, Usage

TURN_SECONDS = 0.005
"""By which a step may be delayed; the piece that is begun last may go beyond."""
MOST_AT_ONCE = 32
"""Ops, children of a fork or calls of what is closed that are one piece of work."""
NOBODY: ClientId = b""
"""Whom calls of clients that are gone belong to."""

T = TypeVar("T")
Pieces: TypeAlias = Generator[None, None, None]


def in_pieces(do: Callable[[T], object], items: Iterable[T]) -> Pieces:
    """Does it with each of them."""
    for number, item in enumerate(items, 1):
        do(item)
        if not number % MOST_AT_ONCE:
            yield


@dataclass(eq=False, slots=True)
class _Work:
    payer: Client
    pieces: Pieces
    is_wanted: Callable[[], bool]


class HostWork:
    """What is done for all clients."""

    def __init__(self, shares: ClientShares, clock: Callable[[], float]) -> None:
        self._shares = shares
        self._clock = clock
        self.under_way: list[_Work] = []

    def begin(self, payer: Client, pieces: Pieces, is_wanted: Callable[[], bool]) -> None:
        """The first piece is done in the next turn."""
        self.under_way.append(_Work(payer, pieces, is_wanted))

    def begin_at_once(self, payer: Client, pieces: Pieces) -> None:
        """The first piece is done now."""
        if next(pieces, self) is not self:
            self.begin(payer, pieces, lambda: True)

    def turn(self) -> None:
        now = self._clock()
        ends = now + TURN_SECONDS
        while self.under_way and now < ends:
            work = min(self.under_way, key=lambda one: self._shares.served(one.payer))
            if not work.is_wanted() or next(work.pieces, self) is self:
                work.pieces.close()
                self.under_way.remove(work)
            before, now = now, self._clock()
            self._shares.work(work.payer, now - before)


class _Stretch(OrderedDict[RuntimeBranch, None]):
    """Branches that go on before the next end."""

    number = 0
    """How many ends had come, of whomever, when it began."""


class ReadyBranches:
    """Branches that may go on: each account's in their order.

    What ends a call or a branch has its place in that order (`after`). Before it, all that the
    account has sent earlier is carried out as far as that can be without a step, with what follows
    from that; after it, what came later and what steps bring meanwhile (`behind`, `wake`). So it
    finds the same whether a turn, or many, are needed to come to it.
    """

    def __init__(self, shares: ClientShares, clock: Callable[[], float]) -> None:
        self._shares = shares
        self._clock = clock
        self.waiting: dict[Client, _Stretch] = {}
        """Those that go on first."""
        self._later: dict[Client, deque[tuple[Callable[[], object], _Stretch]]] = {}
        """What is done once they wait for something else, and who goes on then."""
        self._at: _Stretch | None = None
        """Of the account that is served now."""
        self._payer: Client = None
        self._num_ends = 0

    def append(self, branch: RuntimeBranch) -> None:
        payer = branch.payer
        if self._at is not None and payer == self._payer:
            self._at[branch] = None
        elif self._later and payer in self._later:
            self._later[payer][-1][1][branch] = None
        else:
            branches = self.waiting.get(payer)
            if branches is None:
                branches = self.waiting[payer] = _Stretch()
                branches.number = self._num_ends
            branches[branch] = None

    def wake(self, branch: RuntimeBranch) -> None:
        """What it waited for is there: a step has brought it, or a thread, or another branch."""
        payer = branch.payer
        if self._later and payer in self._later and not self._serves(payer):
            branch.not_before = self._later[payer][-1][1].number
        self.append(branch)

    def queue(self, branch: RuntimeBranch | None, op: QueuedOp) -> None:
        """Ops on a branch that is not open are dropped: every call on it is refused."""
        if branch is not None:
            branch.queue.append(op)
            self.append(branch)

    def after(self, payer: Client, end: Callable[[], object]) -> None:
        """Has `end` done after all that the account has sent until now."""
        if payer in self.waiting:
            stretch = _Stretch()
            self._num_ends = stretch.number = self._num_ends + 1
            self._later.setdefault(payer, deque()).append((end, stretch))
        else:
            end()

    def behind(self, payer: Client, do: Callable[[], object]) -> None:
        """What a step has brought for others of the account is told after the ends that wait."""
        if payer in self._later and not self._serves(payer):
            self.after(payer, do)
        else:
            do()

    def _serves(self, payer: Client) -> bool:
        return self._at is not None and payer == self._payer

    def turn(self, run: Callable[[RuntimeBranch, float], bool]) -> None:
        """Runs branches, which may make others ready; those of which it says so have more to do."""
        now = self._clock()
        ends = now + TURN_SECONDS
        while self.waiting and now < ends:
            payer = min(self.waiting, key=self._shares.served)
            before, now = now, self._go_on(payer, run, now)
            self._shares.work(payer, now - before)

    def _go_on(
        self, payer: Client, run: Callable[[RuntimeBranch, float], bool], now: float
    ) -> float:
        """The time at its end."""
        self._payer, self._at = payer, self.waiting[payer]
        if self._at:
            branch, _ = self._at.popitem(last=False)
            if branch.not_before <= self._at.number and run(branch, now):
                self._at[branch] = None
        else:
            later = self._later[payer]
            end, self._at = later.popleft()
            self.waiting[payer] = self._at
            if not later:
                del self._later[payer]
            end()
        if not self._at and payer not in self._later:
            del self.waiting[payer]
        self._at = None
        return self._clock()


@dataclass(eq=False, slots=True)
class GenerateRun:
    """A gen in the scheduler. `streams` and `outputs` are by the number of the result."""

    group: SequenceGroup
    streams: list[TextStream]
    selector: ResultSelector | None
    """Decides which result is kept; None where that is the first."""
    outputs: list[Output | None] = field(default_factory=list)
    num_sent_logprobs: dict[int, int] = field(default_factory=dict)
    """Log-probabilities of each result that have been streamed."""
    more: Callable[[], SequenceGroup | None] | None = None
    """Makes further results, to be selected from too; None as long as not all others have ended,
    and where there are no more."""

    def __post_init__(self) -> None:
        self.outputs = [None] * len(self.streams)


@dataclass(eq=False, slots=True)
class SelectRun:
    """A select in the scheduler."""

    group: SequenceGroup
    ballot: Ballot
    num_left: int = 0
    """Of its sequences, those that are not scored yet."""


class SteeredRun(Protocol):
    """A call in the scheduler that another module moves on."""

    group: SequenceGroup

    def ended(self, call: ActiveCall, sequence: Sequence, now: float) -> None:
        """A sequence of the group has ended."""
        ...

    def let_go(self) -> None:
        """The call has failed, and its sequences have ended: gives back what the run holds."""
        ...

    def task_of(self, sequence: Sequence) -> Generation:
        """What a sequence of the group works at."""
        ...


Run = GenerateRun | SelectRun | SteeredRun


@dataclass(eq=False, slots=True)
class ActiveCall(QueuedOp):
    """One call of a client, from its arrival to its last reply."""

    client: ClientId
    op: Generate | Select | Read
    branch: RuntimeBranch
    promises: tuple[Promise, ...] = ()
    """The texts of its results, for appends that refer to them."""
    constraint: Pending[Constraint] | None = None
    stops: tuple[Pending[TextSearch], ...] = ()
    """Its stop patterns."""
    run: Run | None = None
    """None before the branch has come to the call, and after its end."""
    contest: RunningContest[ActiveCall] | None = None
    """None where it takes part in none."""
    is_reached: bool = False
    """Its branch has come to it."""
    is_done: bool = False
    """It has had its last reply."""
    ends_with: LmprogError | None = None
    """It is to end with that, unless it has a result as soon as its branch comes to it."""
    error: LmprogError | None = None
    """Why it ended without a result."""

    @property
    def id(self) -> int:
        return self.op.call

    def missing(self) -> Awaited | None:
        """The constraint or a stop pattern, while it is compiled and the call still needs it."""
        if self.error is not None:
            return None
        for pending in self.compiled:
            if not pending.is_known:
                return pending
        return None

    @property
    def compiled(self) -> tuple[Pending[Constraint] | Pending[TextSearch], ...]:
        """What has to be compiled for it."""
        return self.stops if self.constraint is None else (self.constraint, *self.stops)

    @property
    def needs_tokens(self) -> bool:
        return self.error is None

    @property
    def is_for_others(self) -> bool:
        return isinstance(self.op, Read)

    @property
    def endings(self) -> tuple[str, ...]:
        return self.op.choices if isinstance(self.op, Select) else ()


def usage_of(group: SequenceGroup) -> Usage:
    """The work of `group` as a wire message; times in milliseconds."""
    timing = group.timing
    ended = timing.ended if timing.ended is not None else timing.submitted
    admitted = timing.admitted if timing.admitted is not None else ended
    first = timing.first_token if timing.first_token is not None else ended
    generated = forced = 0
    for sequence in group.sequences:
        if isinstance(sequence.task, Generation):
            generated += sequence.task.generated
            forced += sequence.task.forced
    return Usage(
        prompt=group.prompt_len,
        cached=group.cached,
        generated=generated,
        forced=forced,
        computed=group.computed,
        drafted=group.drafted,
        accepted=group.accepted,
        preemptions=group.preemptions,
        recomputed=group.recomputed,
        queued_ms=1e3 * (admitted - timing.submitted),
        prefill_ms=1e3 * (first - admitted),
        decode_ms=1e3 * (ended - first),
    )


def output_of(
    sequence: Sequence,
    ended: TextEnd,
    stream: TextStream,
    tokenizer: Tokenizer,
    *,
    logprobs: bool = True,
    score: float | None = None,
    with_ends: bool = False,
) -> Output:
    """The result of a finished sequence whose `stream` gave `ended`.

    Only tokens wholly inside the text are listed.
    """
    stopped_by = stream.stopped_by
    task = sequence.task
    assert isinstance(task, Generation)
    num_tokens = max(0, ended.num_tokens - task.num_seam_tokens)
    return Output(
        text=ended.text,
        tokens=tuple(sequence.tokens[task.prompt_len : task.prompt_len + num_tokens]),
        finish="stop" if stopped_by is not None and not task.is_cut else task.finish or "length",
        stopped_by=stopped_by if stopped_by is not None else task.stopped_by,
        logprobs=tuple([logprob_of(one, tokenizer) for one in task.logprobs[:num_tokens]])
        if logprobs
        else (),
        forced=_forced_text(task, stream, len(ended.text)) if task.forced_runs else (),
        seam=stream.seam_after(task.num_seam_tokens) if num_tokens else "",
        rest=ended.rest,
        score=score,
        healed=_healed(sequence.tokens, task, ended.num_tokens),
        tags=stream.tags_in(ended.text),
        ends=stream.ends_from(task.num_seam_tokens) if with_ends else (),
    )


def _healed(tokens: array[int], task: Generation, num_kept: int) -> tuple[int, ...] | None:
    """The tokens inside the seam, unless that is what it was before."""
    seam, begin = task.settings.seam, task.settings.prompt_len
    if seam is None:
        return None
    found = tuple(tokens[begin : begin + min(num_kept, task.num_seam_tokens)])
    return None if found == (seam.token,) else found


def _forced_text(task: Generation, stream: TextStream, length: int) -> tuple[tuple[int, int], ...]:
    """Characters of the text, which is cut at `length`, that forced tokens spell."""
    spans = (stream.span(begin, end) for begin, end in task.forced_runs)
    return tuple((begin, min(end, length)) for begin, end in spans if begin < min(end, length))


def logprob_of(scored: ScoredToken, tokenizer: Tokenizer) -> TokenLogprob:
    """One scored token, with the texts of it and of its alternatives."""
    top = tuple((token, tokenizer.token_text(token), logprob) for token, logprob in scored.top)
    return TokenLogprob(scored.token, tokenizer.token_text(scored.token), scored.logprob, top)


def next_logprobs(task: Generation, tokenizer: Tokenizer) -> tuple[tuple[int, str, float], ...]:
    """The likeliest tokens after a prompt that nothing is generated after, where wanted."""
    if task.settings.max_tokens or not task.logprobs:
        return ()
    return logprob_of(task.logprobs[0], tokenizer).top


def failed(call_id: int | None, error: LmprogError) -> Failed:
    """The last reply of a call that ended with `error`."""
    return Failed(call_id, error.code, error.message, error.details())


MAX_BRANCHES = 65_536
"""Open branches of one client."""
MAX_CALLS = 65_536
"""Calls of one client on open branches, done or not."""
MOST_UNTOLD = 4096
"""Programs that are kept for a client that does not ask; the oldest go first."""


@dataclass(eq=False, slots=True)
class _ClientOps:
    client: ClientId
    ops: deque[tuple[int, Received]] = field(default_factory=deque)
    """With their numbers in the order of arrival."""
    spent: float = 0.0
    """Seconds that its ops have taken; raised to what others had spent when it began to send."""
    is_queued: bool = False
    is_gone: bool = False
    """Its last message says that it is gone."""


class Inbox:
    """Waiting ops by client. After each `next` comes a `done`."""

    def __init__(self) -> None:
        self._clients: dict[ClientId, _ClientOps] = {}
        self._heap: list[tuple[float, int, _ClientOps]] = []
        self._num_arrived = 0
        self._least_spent = 0.0
        """What the client of the last op had spent before it: none that waited had spent less."""
        self.num_ops = 0

    def add(self, messages: Iterable[tuple[ClientId, Received]]) -> None:
        """Of a client that is gone only that is kept: nobody waits for its other ops."""
        for client, message in messages:
            one = self._clients.get(client)
            if one is None:
                one = self._clients[client] = _ClientOps(client)
            if isinstance(message, Gone):
                self.num_ops -= len(one.ops)
                one.ops.clear()
            one.is_gone = isinstance(message, Gone)
            self._num_arrived += 1
            self.num_ops += 1
            one.ops.append((self._num_arrived, message))
            if not one.is_queued:
                one.spent = max(one.spent, self._least_spent)
                self._queue(one)

    def next(self) -> tuple[ClientId, Received] | None:
        """The next op and its client; None where no op waits."""
        if not self._heap:
            return None
        one = heapq.heappop(self._heap)[2]
        self.num_ops -= 1
        self._least_spent = one.spent
        return one.client, one.ops.popleft()[1]

    def done(self, client: ClientId, seconds: float) -> None:
        """The op that `next` gave for `client` took that long."""
        one = self._clients[client]
        one.spent += seconds
        one.is_queued = False
        if one.ops:
            self._queue(one)
        elif one.is_gone:
            del self._clients[client]

    def _queue(self, one: _ClientOps) -> None:
        one.is_queued = True
        heapq.heappush(self._heap, (one.spent, one.ops[0][0], one))


@dataclass(slots=True)
class ClientState:
    """What one client has open. A call is known as long as its branch is open, done or not."""

    branches: dict[int, RuntimeBranch] = field(default_factory=dict)
    calls: dict[int, ActiveCall] = field(default_factory=dict)
    _calls_of: dict[int, list[ActiveCall]] = field(default_factory=dict)
    """By the number of their branch."""

    def add(self, call: ActiveCall) -> None:
        """A call on an open branch."""
        self.calls[call.id] = call
        self._calls_of.setdefault(call.branch.id, []).append(call)

    def take_calls(self, branch: int) -> list[ActiveCall]:
        """Takes out all calls of a branch, and gives those that are not done."""
        taken = self._calls_of.pop(branch, [])
        for call in taken:
            del self.calls[call.id]
        return [call for call in taken if not call.is_done]

    def branch_of(self, op: Generate | Select | Read) -> RuntimeBranch | LmprogError:
        """That of a new call, or why there is none."""
        branch = self.branches.get(op.branch)
        if branch is None:
            return self.missing_branch(op.branch)
        if op.call in self.calls:
            return ProtocolError(f"call {op.call} was made twice.")
        if len(self.calls) >= MAX_CALLS:
            return Overloaded(
                f"this client has {len(self.calls):,} calls on open branches of at most "
                f"{MAX_CALLS:,}; close branches, or use several clients.",
                retry_after=1.0,
            )
        return branch

    def bind(self, pieces: tuple[wire.Piece, ...], ready: ReadyBranches) -> BoundAppend:
        """References become promises on arrival, so that later closings cannot take them away."""
        bound: list[BoundPiece] = []
        for piece in pieces:
            if isinstance(piece, wire.Ref):
                bound.append(self.promise(piece))
            elif isinstance(piece, wire.Gained):
                other = self.branches.get(piece.branch)
                error = unknown_branch(piece.branch) if other is None else None
                promise = Promise(error=error)
                ready.queue(other, BoundGained(promise))
                bound.append(promise)
            else:
                bound.append(piece)
        return BoundAppend(tuple(bound))

    def missing_branch(self, number: int) -> UnknownName | Overloaded:
        """It is not open, or there was no room for it."""
        if len(self.branches) < MAX_BRANCHES:
            return unknown_branch(number)
        return Overloaded(
            f"branch {number} is not open, and this client has {len(self.branches):,} open "
            f"branches of at most {MAX_BRANCHES:,}; close some, or use several clients.",
            retry_after=1.0,
        )

    def promise(self, ref: wire.Ref) -> Promise:
        """The text that `ref` refers to; one with an error where there is no such result."""
        call = self.calls.get(ref.call)
        if call is None or ref.index >= len(call.promises):
            error = UnknownName(
                f"text refers to call {ref.call}, which is not known.", name=str(ref.call)
            )
            return Promise(error=error)
        return call.promises[ref.index]


def payer_of(client: ClientId, account: str) -> Client:
    """The account of that name, whichever connection asks for it; without a name the client's."""
    return (b"" if account else client, account)


class PrefixNews:
    """`send` hands a reply to a client."""

    def __init__(self, send: Callable[[ClientId, wire.Reply], None]) -> None:
        self._send = send
        self._untold: dict[ClientId, deque[tuple[int, ...]]] = {}
        """Of clients that have ever asked."""
        self._waiting: dict[ClientId, int] = {}  # their calls that wait for the next program

    def share(self, client: ClientId, keys: tuple[int, ...]) -> None:
        """A program that the client has sent: for all others that have ever asked."""
        for other, untold in self._untold.items():
            if other == client:
                continue
            untold.append(keys)
            call = self._waiting.pop(other, None)
            if call is not None:
                self.answer(other, call)

    def answer(self, client: ClientId, call: int) -> None:
        """Tells what the client does not know yet, now or with the next program."""
        untold = self._untold.setdefault(client, deque(maxlen=MOST_UNTOLD))
        if not untold:
            self._waiting[client] = call
            return
        self._send(client, wire.PrefixesAre(call, tuple(untold)))
        untold.clear()

    def forget(self, client: ClientId) -> None:
        """The client is gone."""
        self._untold.pop(client, None)
        self._waiting.pop(client, None)
