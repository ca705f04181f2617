"""The waiting queue, and whose turn it is: sequences in admission order, apart by client and by
whether their program is in memory; and clients by what they were served.

Pushing and removing cost a binary search; nothing is sorted again in a step. Only under `lpm` do
keys change while a sequence waits (another one computed its prefix): a few sequences are looked up
again in each step, in turn.

A queue is as long as it may be for all clients together. When it is full, a call of a client that
has fewer waiting displaces the newest ones of the client that has most, by their weights, so that
nobody can keep others out.

Each client has an account: the seconds of its work, divided by its weight, whatever became of its
calls. Its part of a step is charged when the step is planned, by what steps cost of late, and put
right when the step is measured; work of the host is charged when it is done. *Virtual time* is the
lowest account of those whose calls wait, or else of those with anything open, and never goes back.
A client whose call comes has at most `MOST_CREDIT` less than that on its account: who asks little
begins at once, and nobody saves up more. If it has more than that, it keeps it, so nobody gets rid
of what it was served: while it has nothing open, half of the rest is forgotten in each `HALF_LIFE`.
A new client has no credit. The accounts of those with nothing open are bounded: the first to go
would be reached the soonest. The shares are work-conserving: they order clients and never hold
anybody back.

The order of admission and of preemption are pure functions from a sequence to a key; the smaller
key goes first. Preempted sequences go before new ones. A level of priority is worth `ageing`
seconds of waiting, so priorities never stop a call for ever.

- `fcfs`: in order of arrival. A sequence is overtaken only by sequences of a priority higher by `p`
  that came at most `p * ageing` seconds after it.
- `lpm`: longest cached prefix first. A prefix that is cached is worth its part of the context times
  `ageing` seconds, so the bound is `(p + 1) * ageing` seconds.
- `dfs`: a sweep through the waiting sequences in the order of their tokens, which is a depth-first
  walk of the tree they form: sequences with a common prefix are neighbours. Sequences that arrive
  during a sweep wait for the next one; a level of priority is worth a sweep. A sequence is
  overtaken only by those of its own sweep or, by priority, of `p` later ones.

These bounds are for the calls of one client. `admission` adds one `ageing` for programs that are in
memory already, and for turns by what programs were served; with several sequences that wait, a
program waits since the last one of them was admitted.

Knows keys, sequences, clients by weights and seconds; asks the tree through a given `look_up`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import chain
from math import inf
from operator import itemgetter
from typing import TypeAlias

from lmprog.config import PolicyName
from lmprog.errors import Overloaded
from lmprog.runtime.scheduling.plan import StepPart
from lmprog.runtime.scheduling.sequence import Client, Sequence, SequenceGroup, name_of
from lmprog.runtime.scheduling.stats import AccountTotals, WaitClock

LOOKED_UP_PER_STEP = 16
MOST_IDLE = 4096
"""Accounts of clients with nothing open. Beyond them those with the least on them are forgotten."""
MOST_NAMES = 1024
"""Of clients whose totals are told apart."""
HALF_LIFE = 30.0
"""Seconds with nothing open after which half of what a client was served more is forgotten."""
MOST_CREDIT = 0.2
"""Seconds less than virtual time that a client may have on its account when its call comes."""

Price: TypeAlias = Callable[[int], tuple[float, float]]
Key = tuple[int, float, bytes, int]
"""(not preempted, rank, tokens, arrival number), compared from left to right."""

PREEMPTIONS_BY_AGE = 2
"""Preemptions of a sequence by older programs; then only sequences admitted earlier preempt it."""
DFS_PREFIX_TOKENS = 4096
"""dfs: tokens that count for the order; beyond them sequences keep their order of arrival."""


@dataclass(frozen=True, slots=True)
class AdmissionOrder:
    """Keys under one policy. `margin`: by how much of rank a program in memory goes first."""

    policy: PolicyName
    ageing: float
    context_len: int

    @property
    def margin(self) -> float:
        return 1.0 if self.policy == "dfs" else self.ageing

    @property
    def key(self) -> Callable[[Sequence, int], Key]:
        """Key of a sequence that is the `int`-th to arrive."""
        return {"fcfs": self.fcfs, "lpm": self.lpm, "dfs": self.dfs}[self.policy]

    def fcfs(self, sequence: Sequence, number: int) -> Key:
        rank = sequence.queued_at - self.ageing * sequence.group.priority
        return _class(sequence), rank, b"", number

    def lpm(self, sequence: Sequence, number: int) -> Key:
        bonus = sequence.group.priority + sequence.matched / self.context_len
        return _class(sequence), sequence.queued_at - self.ageing * bonus, b"", number

    def dfs(self, sequence: Sequence, number: int) -> Key:
        tokens = sequence.tokens[:DFS_PREFIX_TOKENS].tobytes()
        return _class(sequence), float(sequence.sweep - sequence.group.priority), tokens, number

    def overtaking_bound(self, priority_difference: int) -> float:
        """fcfs and lpm: most seconds by which a sequence that overtakes another may have come after
        it, and after the last one of its program that was admitted, if its priority is higher by so
        much. Programs in memory and turns are reckoned with.
        """
        prefix = 1 if self.policy == "lpm" else 0
        return self.ageing * (1 + prefix + max(0, priority_difference))


def _class(sequence: Sequence) -> int:
    return 0 if sequence.admission_order else 1


def preemption_order(sequence: Sequence) -> tuple[bool, int, int]:
    """The greatest is preempted first: the youngest program's, unless it was often enough."""
    is_protected = sequence.num_memory_preemptions >= PREEMPTIONS_BY_AGE
    age = 0 if is_protected else abs(sequence.group.program or 0)
    return not is_protected, age, sequence.admission_order


_key_of = itemgetter(0)


class OrderedSequences:
    """Sequences by key."""

    __slots__ = ("entries", "most_priority")

    def __init__(self) -> None:
        self.entries: list[tuple[Key, Sequence]] = []
        self.most_priority = -inf
        """Of those that have been here."""

    def insert(self, key: Key, sequence: Sequence) -> None:
        self.most_priority = max(self.most_priority, sequence.group.priority)
        insort(self.entries, (key, sequence), key=_key_of)

    def take_out(self, key: Key, sequence: Sequence) -> None:
        index = bisect_left(self.entries, key, key=_key_of)
        assert self.entries[index][1] is sequence, "keys are unique and kept while it waits"
        del self.entries[index]

    @property
    def least_rank(self) -> float:
        """Of the preempted sequences the head's, of the others the least; inf where none are."""
        first_new = bisect_left(self.entries, (1,), key=_key_of)
        return min(
            (self.entries[at][0][1] for at in {0, first_new} if at < len(self.entries)), default=inf
        )

    @property
    def head(self) -> tuple[Key, Sequence] | None:
        return self.entries[0] if self.entries else None


_Short = tuple[float, Key, Sequence]


class OtherSequences(OrderedSequences):
    """Those of programs that are not in memory; also the shortest, once they are asked for."""

    __slots__ = ("_came", "_shortest")

    def __init__(self) -> None:
        super().__init__()
        self._came: list[tuple[Key, Sequence]] = []
        """Since the shortest were asked for last."""
        self._shortest: list[_Short] = []
        """A heap by seconds; those that have left are still there."""

    def insert(self, key: Key, sequence: Sequence) -> None:
        super().insert(key, sequence)
        self._came.append((key, sequence))

    def take_out(self, key: Key, sequence: Sequence) -> None:
        super().take_out(key, sequence)
        if not self.entries:
            self._came.clear()
            self._shortest.clear()

    def shortest(self, seconds: Callable[[Sequence], float], count: int) -> list[_Short]:
        """So many of them, those first that take the fewest seconds, with what they took when they
        came.
        """
        heap, found = self._shortest, list[_Short]()
        for key, sequence in self._came:
            heappush(heap, (seconds(sequence), key, sequence))
        self._came.clear()
        if len(heap) > 2 * len(self.entries) + count:
            heap[:] = [one for one in heap if self._has(one)]
            heapify(heap)
        while heap and len(found) < count:
            one = heappop(heap)
            if self._has(one):
                found.append(one)
        for one in found:
            heappush(heap, one)
        return found

    def _has(self, entry: _Short) -> bool:
        _, key, sequence = entry
        index = bisect_left(self.entries, key, key=_key_of)
        return index < len(self.entries) and self.entries[index][1] is sequence


@dataclass(frozen=True, slots=True)
class ClientQueue:
    """The waiting sequences of one client."""

    client: Hashable
    active: OrderedSequences
    """Of programs in memory."""
    others: OtherSequences
    programs: dict[int | None, OrderedSequences] = field(default_factory=dict)  # of `active`
    queued: dict[Sequence, None] = field(default_factory=dict)
    """All of them, the one that was queued last at the end."""

    @property
    def weight(self) -> float:
        return next(reversed(self.queued)).group.weight

    def newest_calls(self) -> Iterator[SequenceGroup]:
        """Those of which nothing was begun, the newest first."""
        seen: set[SequenceGroup] = set()
        for sequence in reversed(self.queued):
            group = sequence.group
            if group in seen or group.goes_on:
                continue
            seen.add(group)
            if all(one in self.queued and not one.admission_order for one in group.sequences):
                yield group


class WaitingQueue:
    """Waiting sequences. A sequence is in the queue from `push` to `remove`."""

    def __init__(
        self, order: AdmissionOrder, look_up: Callable[[Sequence], int], limit: int
    ) -> None:
        """`limit`: sequences for which there is room; preempted ones and those of calls that go on
        wait beside them.
        """
        self.order = order
        self.limit = limit
        self._look_up = look_up
        self._clients: dict[Hashable, ClientQueue] = {}
        self.places: dict[Sequence, tuple[Key, OrderedSequences]] = {}
        """Of those that wait: the key, and where they stand by it."""
        self._numbers: dict[Sequence, int] = {}
        self._by_program: dict[int | None, dict[Sequence, None]] = {}
        self.clock = WaitClock()
        self._arrivals = 0
        self._sweep = 0
        self._turn = 0

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Sequence]:
        """Client by client, each in its order."""
        for queue in self._clients.values():
            for _, sequence in chain(queue.active.entries, queue.others.entries):
                yield sequence

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self.places

    def clients(self) -> list[ClientQueue]:
        """Those that have waiting sequences."""
        return list(self._clients.values())

    def queue_of(self, client: Hashable) -> ClientQueue | None:
        """None where the client has no waiting sequences."""
        return self._clients.get(client)

    def has(self, client: Hashable) -> bool:
        """Whether a sequence of the client waits."""
        return client in self._clients

    def has_beside(self, client: Hashable) -> bool:
        """Whether a sequence of another client waits."""
        return len(self._clients) > (client in self._clients)

    def full(self) -> Overloaded:
        """The error of a call for which there is no room."""
        return Overloaded(
            f"{len(self):,} calls are waiting, the limit is {self.limit:,}; try again later.",
            retry_after=1.0,
        )

    def displaced_by(self, group: SequenceGroup, num_more: int = 0) -> list[SequenceGroup]:
        """The calls that lose their places to `group`, of which `num_more` sequences are not known
        yet; none where there is room. Raises `Overloaded` where its client would have most waiting.
        """
        num_own = len(group.sequences) + num_more
        num_missing = len(self) + num_own - self.limit
        if num_missing <= 0 or group.goes_on:
            return []
        queues = {queue.client: queue for queue in self.clients()}
        mine = queues.pop(group.client, None)
        own = (num_own + (len(mine.queued) if mine else 0)) / group.weight
        counts = {client: len(queue.queued) / queue.weight for client, queue in queues.items()}
        newest = {client: queue.newest_calls() for client, queue in queues.items()}
        found: list[SequenceGroup] = []
        while num_missing > 0:
            most = max(counts, key=counts.__getitem__, default=None)
            if most is None or counts[most] <= own:
                raise self.full()
            call = next(newest[most], None)
            if call is None:
                del counts[most]
                continue
            found.append(call)
            num_missing -= len(call.sequences)
            counts[most] -= len(call.sequences) / queues[most].weight
        return found

    def push(self, sequence: Sequence, *, is_active: bool) -> None:
        """`is_active`: its program is in memory."""
        self._arrivals += 1
        self._numbers[sequence] = self._arrivals
        if self.order.policy == "dfs" and not sequence.admission_order:
            sequence.sweep = self._current_sweep() + 1
        self._by_program.setdefault(sequence.group.program, {})[sequence] = None
        self._insert(sequence, is_active)
        self._clients[sequence.group.client].queued[sequence] = None

    def remove(self, sequence: Sequence) -> None:
        self._take_out(sequence)
        del self._numbers[sequence]
        program = self._by_program[sequence.group.program]
        del program[sequence]
        if not program:
            del self._by_program[sequence.group.program]
        queue = self._clients[sequence.group.client]
        del queue.queued[sequence]
        if not queue.queued:
            del self._clients[sequence.group.client]

    def move_program(self, program: int, *, is_active: bool) -> None:
        """The program has won or lost its place in memory."""
        for sequence in self._by_program.get(program, ()):
            self._take_out(sequence)
            self._insert(sequence, is_active)

    def refresh(self) -> None:
        """Looks a few sequences up again, the front and then all in turn, and moves those whose
        cached prefix has changed.
        """
        if self.order.policy != "lpm":
            return
        for queue in self._clients.values():
            for part in (queue.active, queue.others):
                if part.entries:
                    self._refresh(part)

    def _refresh(self, part: OrderedSequences) -> None:
        size, half = len(part.entries), LOOKED_UP_PER_STEP // 2
        front = [sequence for _, sequence in part.entries[:half]]
        turn = [part.entries[(self._turn + i) % size][1] for i in range(min(size, half))]
        self._turn += len(turn)
        for sequence in dict.fromkeys(front + turn):
            found = self._look_up(sequence)
            if found != sequence.matched:
                self._take_out(sequence)
                sequence.matched = found
                self._insert_in(part, sequence)

    def _current_sweep(self) -> int:
        """dfs: the sweep that is under way; it never goes back."""
        heads = [
            part.head for queue in self._clients.values() for part in (queue.active, queue.others)
        ]
        sweeps = [head[1].sweep for head in heads if head is not None]
        self._sweep = max(self._sweep, min(sweeps, default=0))
        return self._sweep

    def _insert(self, sequence: Sequence, is_active: bool) -> None:
        client = sequence.group.client
        queue = self._clients.get(client)
        if queue is None:
            queue = ClientQueue(client, OrderedSequences(), OtherSequences())
            self._clients[client] = queue
        self._insert_in(queue.active if is_active else queue.others, sequence)

    def _insert_in(self, part: OrderedSequences, sequence: Sequence) -> None:
        key = self.order.key(sequence, self._numbers[sequence])
        part.insert(key, sequence)
        self.places[sequence] = key, part
        queue, program = self._clients[sequence.group.client], sequence.group.program
        if part is queue.active:
            own = queue.programs.get(program)
            if own is None:
                own = queue.programs[program] = OrderedSequences()
            own.insert(key, sequence)

    def _take_out(self, sequence: Sequence) -> None:
        key, part = self.places.pop(sequence)
        part.take_out(key, sequence)
        queue, program = self._clients[sequence.group.client], sequence.group.program
        if part is queue.active:
            own = queue.programs[program]
            own.take_out(key, sequence)
            if not own.entries:
                del queue.programs[program]


@dataclass(slots=True)
class _Account:
    served: float
    totals: AccountTotals
    weight: float = 1.0
    num_open: int = 0
    idle_since: float = 0.0


class StepBill:
    """Who has which part of the step that is being planned. `price` is what a row and each token
    are charged.
    """

    __slots__ = ("_parts", "_price", "_shares")

    def __init__(self, shares: ClientShares, price: tuple[float, float]) -> None:
        self._shares = shares
        self._price = price
        self._parts: dict[Client, list[float]] = {}

    def charge(self, client: Client, num_rows: int, num_tokens: int) -> None:
        row, token = self._price
        seconds = row * num_rows + token * num_tokens
        self._shares.serve(client, seconds)
        part = self._parts.get(client)
        if part is None:
            self._parts[client] = [num_rows, num_tokens, seconds]
        else:
            part[0] += num_rows
            part[1] += num_tokens
            part[2] += seconds

    def parts(self) -> tuple[StepPart, ...]:
        found = []
        for client, (rows, tokens, charged) in self._parts.items():
            found.append(StepPart(client, int(rows), int(tokens), charged))
        return tuple(found)


class ClientShares:
    """The accounts of clients that have sequences, and of those that had some of late."""

    def __init__(self) -> None:
        self._accounts: dict[Client, _Account] = {}
        self._open: dict[Client, _Account] = {}
        """Of these, those of clients that have sequences ..."""
        self.are_several = False
        """... and whether there are more than one."""
        self._virtual_time = 0.0
        self._most_idle = MOST_IDLE
        self.totals: dict[str, AccountTotals] = {}
        """By the names of clients; all without a name together are ""."""

    def __len__(self) -> int:
        return len(self._accounts)

    def submit(
        self,
        client: Client,
        num_sequences: int,
        weight: float = 1.0,
        waiting: Iterable[Client] = (),
        now: float = 0.0,
    ) -> None:
        """A call of the client arrived; from now on the client has that weight. `waiting`: those
        with calls that wait already, which nobody who comes goes before.
        """
        others = [self.served(other) for other in waiting]
        if not others and client not in self._open:
            others = [one.served for one in self._open.values()]
        self._pass(others)
        account = self._account(client)
        debt = max(-MOST_CREDIT, account.served - self._virtual_time)
        if not account.num_open:
            self._open[client] = account
            self.are_several = len(self._open) > 1
            debt *= 0.5 ** (max(0.0, now - account.idle_since) / HALF_LIFE) if debt > 0.0 else 1.0
        account.served = self._virtual_time + debt
        account.weight = weight
        account.num_open += num_sequences

    def end(self, client: Client, now: float = 0.0) -> None:
        """A sequence of the client ended."""
        account = self._accounts[client]
        account.num_open -= 1
        if not account.num_open:
            account.idle_since = now
            del self._open[client]
            self.are_several = len(self._open) > 1
            self._forget()

    def serve(self, client: Client, seconds: float) -> None:
        """A step computes for the client, and that is expected to take so long."""
        account = self._accounts[client]
        account.served += seconds / account.weight

    def settle(
        self, parts: Items[StepPart], seconds: float, price: Price, line: WaitingQueue | None = None
    ) -> None:
        """The clients pay for their parts what the step has really taken: `seconds`, of which a row
        and each token count as `price` says for so many rows. Those in `line` waited for them.
        """
        if line is not None and line.places and self.are_several:
            self._blame(parts, seconds, line.clients())
        if len(parts) == 1:  # as mostly
            client, _, _, charged = parts[0]
            one = self._accounts.get(client)
            if one is not None:
                one.served += (seconds - charged) / one.weight
                one.totals.step_seconds += seconds
            return
        row, token = price(sum([part.num_rows for part in parts]))
        counts = [row * part.num_rows + token * part.num_tokens for part in parts]
        rate = seconds / (sum(counts) or 1.0)
        for part, count in zip(parts, counts, strict=True):
            account = self._accounts.get(part.client)
            if account is not None:  # it may have ended long ago
                account.served += (count * rate - part.charged) / account.weight
                account.totals.step_seconds += count * rate

    def work(self, client: Client, seconds: float) -> None:
        """The host has worked for the client, beside steps."""
        if seconds > 0.0:
            account = self._account(client)
            account.served += seconds / account.weight
            account.totals.host_seconds += seconds

    def wait(self, client: Client, since: Items[float], until: Items[float]) -> None:
        """A sequence of the client has waited between two readings of the wait clock."""
        waited = self._accounts[client].totals.waited
        for index, (begin, end) in enumerate(zip(since, until, strict=True)):
            waited[index] += end - begin

    def _blame(self, parts: Items[StepPart], seconds: float, waiting: list[ClientQueue]) -> None:
        rate = seconds / (sum([part.charged for part in parts]) or 1.0)
        known = [(self._accounts.get(part.client), part.charged * rate) for part in parts]
        others = [(one.totals.name, took) for one, took in known if one is not None]
        for queue in waiting:
            self._accounts[queue.client].totals.wait_for(others, len(queue.queued))

    def figures(self) -> dict[str, dict[str, float]]:
        """The totals by name, in seconds."""
        return {name: one.figures() for name, one in self.totals.items()}

    def served(self, client: Client) -> float:
        account = self._accounts.get(client)
        return self._virtual_time if account is None else account.served

    def least_served_first(self, waiting: Iterable[Client]) -> list[Client]:
        """The clients whose calls wait."""
        found = sorted(waiting, key=self.served)
        if found:
            self._pass([self.served(found[0])])
        return found

    def _account(self, client: Client) -> _Account:
        """That of the client, with nothing on it where there was none."""
        found = self._accounts.get(client)
        if found is None:
            name = name_of(client)
            if name and name not in self.totals and len(self.totals) >= MOST_NAMES:
                name = ""
            totals = self.totals.setdefault(name, AccountTotals(name))
            found = self._accounts[client] = _Account(self._virtual_time, totals)
            self._forget(client)
        return found

    def _pass(self, waiting: list[float]) -> None:
        """Moves virtual time on to the least that one of those who wait was served."""
        self._virtual_time = max(self._virtual_time, min(waiting, default=0.0))

    def _forget(self, but: Client = None) -> None:
        """Where there are too many accounts without anything open, half of them: those that have
        the least on them.
        """
        if len(self._accounts) - len(self._open) <= self._most_idle:
            return
        idle = [one for one, account in self._accounts.items() if not account.num_open]
        for client in sorted(idle, key=self.served)[: len(idle) // 2]:
            if client != but:
                del self._accounts[client]
