"""Programs and what they keep in memory: which have a place there, what their branches pin, and how
large they become.

A program is *active* from the admission of its first sequence until it ends or loses its place. New
programs are admitted while what the active ones use and are expected to add, as much of it as there
is at a time (`Growth`), still fits. A program that pauses between two calls keeps its place as long
as nobody else could use the machine; it loses it, youngest first, when computing its tokens again
would cost less than the machine loses meanwhile. Costs are measured: seconds per token, seconds per
step, seconds of a pause. The calls of one client take turns by what each was served (`CallTurns`).

Live branches pin softly what they stand on, and the tree evicts pinned nodes last. When pinned
pages must go, taking a little from every program would be the worst choice: programs that take
turns would all miss. So pins are dropped program by program, those first that have no place in
memory, then the youngest, and the older programs keep everything, finish and leave.

Knows numbers of programs, tokens, seconds and the tree's pins; knows no branches and no clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from math import erf, exp, inf, pi, sqrt
from typing import TYPE_CHECKING

from lmprog.config import SchedulerConfig
from lmprog.radix import Node, PageAllocator, RadixTree
from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.page_tables import PageTables
from lmprog.runtime.scheduling.sequence import Client, Sequence
from lmprog.runtime.scheduling.stats import Stats
from lmprog.runtime.scheduling.step_costs import (
    CallTurns,
    Growth,
    PausedSizes,
    ProgramSizes,
    StepCosts,
)

if TYPE_CHECKING:
    from lmprog.runtime.scheduling.recurrent import RecurrentStates
    from lmprog.runtime.tier.second_tier import SecondTier

MEAN_WEIGHT = 0.1
"""Weight of the newest value in a mean."""
MOST_KINDS = 4096
"""Of generations whose lengths are told apart."""
GUESSED = -1
"""Stands for the kind of those whose clients guess how long they are: their part is of that."""
TIMES_LOST = 2.0
"""How often a token that there is no memory for is expected to be computed again: programs that do
not all fit lose tokens more than once."""
TIMES_LOST_WITHOUT_PAUSES = 4.0
"""The same where programs do not pause, so that nobody's memory is free for others meanwhile."""
IDLE_SECONDS = 1.0
"""So long at most a machine that has nothing to compute waits for programs that pause."""


@dataclass(eq=False, slots=True)
class Pin:
    """One branch's pin on `node`; not `active` once it was given back or dropped."""

    node: Node
    program: int
    """A larger number is a younger program."""
    active: bool = True
    end: int = 0
    """Where the path to `node` ended when it was pinned."""


class Pins:
    """The pins of all programs."""

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._pins: dict[int, dict[Pin, None]] = {}
        """By program: pins that were not given back, dropped ones included. Their order decides
        what is evicted first.
        """
        self._youngest: list[int] = []
        """A heap of the negative numbers of programs that may have active pins."""
        self._demoted: set[int] = set()
        self._youngest_demoted: list[int] = []
        """The same of programs that may have been demoted."""
        self._num_active: dict[int, int] = {}
        self.released: list[int] = []
        """Programs that have given back their last pin; the reader empties it."""

    def __contains__(self, program: int) -> bool:
        """Whether a branch of `program` has a pin, dropped or not."""
        return program in self._pins

    def of(self, program: int) -> Iterable[Pin]:
        return self._pins.get(program, ())

    def pin(self, node: Node, program: int) -> Pin:
        """Pins the path to `node` for a branch of `program`."""
        pin = Pin(node, program, end=node.end)
        self._tree.pin(node)
        self._pins.setdefault(program, {})[pin] = None
        self._num_active[program] = self._num_active.get(program, 0) + 1
        if self._num_active[program] == 1:
            heapq.heappush(self._youngest, -program)
        return pin

    def unpin(self, pin: Pin) -> None:
        """Gives a pin back, dropped or not."""
        pins = self._pins[pin.program]
        del pins[pin]
        self._drop(pin)
        if not pins:
            del self._pins[pin.program], self._num_active[pin.program]
            self._demoted.discard(pin.program)
            self.released.append(pin.program)

    def demote(self, program: int) -> None:
        """The program has lost its place in memory: its pins are dropped before those of others."""
        if self._num_active.get(program) and program not in self._demoted:
            self._demoted.add(program)
            heapq.heappush(self._youngest_demoted, -program)

    def restore(self, program: int) -> None:
        """The program has a place again."""
        self._demoted.discard(program)

    def drop_for(self, count: int) -> list[int]:
        """Drops pins until `count` unpinned pages can be evicted. Returns the programs that lost
        theirs.
        """
        dropped = []
        while self._tree.num_evictable - self._tree.num_pinned < count:
            program = self._next_to_drop()
            if program is None:
                break
            for pin in self._pins[program]:
                self._drop(pin)
            self._demoted.discard(program)
            dropped.append(program)
        return dropped

    def _next_to_drop(self) -> int | None:
        """The youngest program with active pins, of the demoted ones if there are any."""
        while self._youngest_demoted:
            program = -heapq.heappop(self._youngest_demoted)
            if program in self._demoted and self._num_active.get(program):
                return program
        while self._youngest:
            program = -heapq.heappop(self._youngest)
            if self._num_active.get(program):
                return program
        return None

    def _drop(self, pin: Pin) -> None:
        if pin.active:
            pin.active = False
            self._num_active[pin.program] -= 1
            self._tree.unpin(pin.node)


@dataclass(frozen=True, slots=True)
class Memory:
    """The pages and everything that keeps them."""

    config: SchedulerConfig
    pages: PageAllocator
    tree: RadixTree
    tables: PageTables
    pins: Pins
    stats: Stats
    tier: SecondTier | None = None

    @property
    def num_obtainable(self) -> int:
        """Pages that are free or can be evicted, pinned ones too."""
        return self.pages.obtainable(self.tree.num_evictable)

    @property
    def num_used(self) -> int:
        """Pages that are locked, private or pinned."""
        return self.pages.num_pages - self.num_obtainable + self.pages.cost(self.tree.num_pinned)


@dataclass(eq=False, slots=True)
class ProgramPlace:
    """One program. `size`: tokens that it has added to memory, its running sequences' left out."""

    number: int
    client: Client = None
    size: int = 0
    num_open: int = 0
    """Sequences waiting or running."""
    num_running: int = 0
    paused_at: float = 0.0
    """When its last open sequence ended."""
    pause: float | None = None
    """How long it is expected to pause then; None: as long as the mean."""
    returns: Callable[[float], float] = lambda _: 1.0
    """The chance that it comes back once it has paused for so many seconds."""
    is_active: bool = False
    is_kept: bool = False
    """It has lost its place, and what it stands on has not been needed yet."""
    counted: int | None = None
    """Its size as `PausedSizes` has it."""


class ActivePrograms:
    """All programs that have sequences or pins. `longest` is the longest sequence, and memory has
    room for `capacity` tokens.
    """

    def __init__(
        self, longest: int, capacity: int, costs: StepCosts, tier: SecondTier | None = None
    ) -> None:
        self.sizes = ProgramSizes(longest)
        self.capacity = capacity
        self._costs = costs
        self._cost_of_return = costs.token_cost if tier is None else tier.cost_of_return
        """Seconds for a token of a program that has lost its place and returns."""
        self._places: dict[int, ProgramPlace] = {}
        self._num_anonymous = 0
        self._active: dict[int, ProgramPlace] = {}
        self._paused_sizes = PausedSizes(self.sizes)
        self._mean_pause = 0.0
        self._generated_part = 1.0
        """Tokens that generations made over those they might have made, in the mean."""
        self._part_of_kind: dict[tuple[Client, int], float] = {}
        """The same by kind, the one that was seen last at the end."""
        self.idle: list[int] = []
        """Programs that had no open sequence left some time since `finish` was called last."""
        self.paused: dict[Client, dict[int, ProgramPlace]] = {}
        """Programs without an open sequence; of each client the one that paused first is first."""
        self.kept_tokens = 0
        """Of programs that have lost their place and nothing else."""
        self.turns = CallTurns()

    def __len__(self) -> int:
        return len(self._active)

    @property
    def num_states(self) -> int:
        """Sequences of the active programs that run, and one for each program that pauses."""
        return sum(max(1, place.num_running) for place in self._active.values())

    def is_active(self, number: int) -> bool:
        return number in self._active

    @staticmethod
    def number_of(sequence: Sequence) -> int:
        number = sequence.group.program
        assert number is not None, "a submitted group has a program"
        return number

    # --- what happens to programs

    def new_number(self) -> int:
        """For a group that is a program of its own; such programs have negative numbers."""
        self._num_anonymous += 1
        return -self._num_anonymous

    def submit(self, number: int, num_sequences: int, now: float, client: Client = None) -> None:
        """A call of the program arrived."""
        place = self._places.get(number)
        if place is None:
            place = self._places[number] = ProgramPlace(number, client)
        elif not place.num_open:
            self._goes_on(place)
            self._mean_pause += MEAN_WEIGHT * (now - place.paused_at - self._mean_pause)
        if not place.num_open:
            self.turns.begin(number, client)
        place.num_open += num_sequences

    def admit(self, sequence: Sequence, now: float = 0.0) -> bool:
        """The sequence begins to run; True when its program was not active before."""
        place = self._places[sequence.group.program or 0]
        self.turns.programs[place.number].admitted = now
        place.num_running += 1
        was_active, place.is_active = place.is_active, True
        self._active[place.number] = place
        self._keep(place, is_kept=False)
        if place.counted is not None:
            self._count(place)
        return not was_active

    def preempt(self, number: int) -> None:
        """A sequence of the program is preempted. The program loses its place if no other runs."""
        place = self._places[number]
        place.num_running -= 1
        if not place.num_running:
            self.deactivate(number, is_kept=True)

    def end(self, sequence: Sequence, was_running: bool, now: float) -> None:
        """A sequence of the program ended."""
        place = self._places[sequence.group.program or 0]
        place.num_open -= 1
        place.num_running -= was_running
        if was_running:
            place.size += added_tokens(sequence)
            if isinstance(sequence.task, Generation):
                count, guess = sequence.num_generated, sequence.group.expected
                part = count / max(1, sequence.task.settings.max_tokens)
                self._generated_part += MEAN_WEIGHT * (part - self._generated_part)
                learned = [(_kind(sequence, sequence.task), part, self._generated_part)]
                if guess is not None:
                    learned.append(((sequence.group.client, GUESSED), count / guess, count / guess))
                for kind, part, prior in learned:
                    before = self._part_of_kind.pop(kind, prior)
                    self._part_of_kind[kind] = before + MEAN_WEIGHT * (part - before)
                    if len(self._part_of_kind) > MOST_KINDS:
                        del self._part_of_kind[next(iter(self._part_of_kind))]
        self._count(place)
        if not place.num_open:
            self.turns.end(place.number)
            place.paused_at = now
            self.idle.append(place.number)
            self.paused.setdefault(place.client, {})[place.number] = place

    def _goes_on(self, place: ProgramPlace) -> None:
        del self.paused[place.client][place.number]
        if not self.paused[place.client]:
            del self.paused[place.client]

    def expect(self, number: int, seconds: float, returns: Callable[[float], float]) -> None:
        """The program is expected to pause so long; `returns` as its place has it."""
        if number in self._places:
            self._places[number].pause, self._places[number].returns = seconds, returns

    def finish(self, pins: Pins) -> None:
        """Forgets programs that have neither sequences nor pins: their branches are closed."""
        for number in dict.fromkeys([*self.idle, *pins.released]):
            place = self._places.get(number)
            if place is not None and not place.num_open and number not in pins:
                self._keep(place, is_kept=False)
                del self._places[number]
                self._goes_on(place)
                self._active.pop(number, None)
                place.is_active = False
                self._count(place)
                if place.size:
                    self.sizes.ended(place.size)
        self.idle.clear()
        pins.released.clear()

    def deactivate(self, number: int, *, is_kept: bool) -> None:
        """The program loses its place, unless it is running; `is_kept`: and nothing else."""
        place = self._places.get(number)
        if place is not None and not place.num_running:
            place.is_active = False
            self._active.pop(number, None)
            self._keep(place, is_kept=is_kept)
            self._count(place)

    def _count(self, place: ProgramPlace) -> None:
        """Programs of one group end with it, and add nothing later."""
        has_grown = place.is_active and not place.num_running and place.number > 0
        size = place.size if has_grown else None
        if size != place.counted:
            self._paused_sizes.change(place.counted, size)
            place.counted = size

    def _keep(self, place: ProgramPlace, *, is_kept: bool) -> None:
        self.kept_tokens += place.size * (is_kept - place.is_kept)
        place.is_kept = is_kept

    # --- who fits

    def expected_growth(self, running: Iterable[Sequence]) -> Growth:
        """What the active programs are expected to add to the tokens that have pages now."""
        added: dict[int, float] = {}
        known = size = growth = 0.0
        for sequence in running:
            number = self.number_of(sequence)
            expected = self.expected_tokens(sequence)
            added[number] = added.get(number, 0.0) + added_tokens(sequence) + expected
            known += sequence.remaining + expected
        for number, more in added.items():
            if number > 0:
                own = self._places[number].size + more
                size += own
                growth += self.sizes.expected_growth(own)
        found, paused = Growth(known, size, growth), self._paused_sizes
        return found.plus(paused.growth) if paused.numbers else found

    def growth_of(self, sequence: Sequence) -> Growth:
        """The same of a waiting sequence's program, beyond that sequence."""
        place = self._places[self.number_of(sequence)]
        expected = self.expected_tokens(sequence)
        if place.number <= 0:
            return Growth(expected, 0.0, 0.0)
        size = place.size + added_tokens(sequence) + expected
        return Growth(expected, size, self.sizes.expected_growth(size))

    def growth_of_paused(self, place: ProgramPlace) -> Growth:
        """The same of a program that pauses."""
        return Growth(0.0, place.size, self.sizes.expected_growth(place.size))

    def later_tokens(self, sequence: Sequence) -> float:
        """Tokens that the program of a waiting sequence is expected to add once that has ended, if
        it makes all that it may.
        """
        place = self._places[self.number_of(sequence)]
        left = sequence.task.left if isinstance(sequence.task, Generation) else 0
        size = place.size + added_tokens(sequence) + left
        return 0.0 if place.number <= 0 else self.sizes.expected_growth(size)

    def expected_missing(
        self, missing: float, now: float, losers: Container[ProgramPlace]
    ) -> float:
        """Of so many tokens that there is no memory for, those that will be missing all the same,
        in the mean, when each program that pauses, `losers` left out, has come back or not: as if
        what these leave together were normally distributed.
        """
        mean, variance = missing, 0.0
        for place in self._active.values():
            if not place.num_open and place not in losers:
                chance = place.returns(now - place.paused_at)
                mean -= (1.0 - chance) * place.size
                variance += chance * (1.0 - chance) * place.size**2
        if variance <= 0.0:
            return max(0.0, mean)
        spread = sqrt(variance)
        at = mean / spread
        density = exp(-at * at / 2.0) / sqrt(2.0 * pi)
        return min(missing, mean * (1.0 + erf(at / sqrt(2.0))) / 2.0 + spread * density)

    def is_worth_exceeding(self, sequence: Sequence, missing: float, num_running: int) -> bool:
        """Whether a waiting sequence should run though `missing` tokens of memory will be lacking
        later: sharing the fixed cost of its steps saves more than computing so many again costs, or
        all of its own.
        """
        if not self._costs.are_known:
            return False
        expected = self.expected_tokens(sequence)
        lost = min(missing, len(sequence.tokens) + expected)
        fixed, num_rows = self._costs.fixed, num_running + 1
        is_pausing = self._mean_pause > fixed + self._costs.per_token * num_rows
        times = TIMES_LOST if is_pausing else TIMES_LOST_WITHOUT_PAUSES
        return expected * fixed / num_rows > times * lost * self._cost_of_return()

    def expected_tokens(self, sequence: Sequence) -> float:
        """Tokens that the sequence is expected to generate yet: as its client guesses, corrected by
        what such guesses were worth; else as the calls of its client that asked for about as many,
        else as all calls.
        """
        task, guess = sequence.task, sequence.group.expected
        if not isinstance(task, Generation):
            return 0.0
        if guess is not None:
            part = self._part_of_kind.get((sequence.group.client, GUESSED), 0.0)
            left = part * guess - sequence.num_generated
            if left > 0.0:
                return min(left, task.left)
        return self._part_of_kind.get(_kind(sequence, task), self._generated_part) * task.left

    def seconds_left(self, sequence: Sequence) -> float:
        """Of steps that the sequence is expected to take, if it does not share them. inf: no step
        has been measured.
        """
        if not self._costs.fixed + self._costs.per_token:
            return inf
        row, token = self._costs.price(1)
        expected = self.expected_tokens(sequence)
        known = len(sequence.tokens) - max(sequence.computed, sequence.matched)
        return row + token * known + expected * (row + token)

    def missing_slots(self, sequence: Sequence, states: RecurrentStates | None) -> int:
        """How many slots are lacking for recurrent states, of which each program in memory needs
        one: that of a sequence that runs, or the snapshot to go on from.
        """
        if states is None or self.is_active(self.number_of(sequence)):
            return 0
        return self.num_states + 1 - states.num_lasting

    def steps_until_freed(self, running: Iterable[Sequence], missing: float) -> float:
        """After how many steps those that run are expected to have freed so many tokens of memory;
        all of them where that is less.
        """
        freed = steps = 0.0
        for steps, length in sorted(
            (self.expected_tokens(one), len(one.tokens)) for one in running
        ):
            freed += length + steps
            if freed >= missing:
                break
        return steps

    def replaceable(self, num_running: int, now: float, *, force: bool) -> list[ProgramPlace]:
        """Paused programs that should lose their place to one that waits, youngest first.

        Another running sequence shares the fixed cost of a step with `num_running` others for as
        long as the pause lasts; with none, the machine idles until the first of the paused programs
        returns. That is weighed against computing the program's tokens again. A pause is expected
        to last as long as the mean one, or once more as long as it has lasted, and the tokens count
        as far as the program is expected back (`ProgramPlace.returns`). No machine idles for
        more than `IDLE_SECONDS` while somebody waits. Of what they added more may be gone than is
        there, since branches ended: they lose no more than memory holds. `force`: all of them.
        """
        paused = [place for place in self._active.values() if not place.num_open]
        held = min(1.0, self.capacity / max(1, sum(place.size for place in paused)))
        costs, shared_by = self._costs, num_running + 1
        step = costs.fixed + costs.per_token * shared_by
        if num_running:
            gain = costs.fixed / step / shared_by if step > 0.0 else 0.0
        else:
            gain = 1.0 / max(1, len(paused))
        idle = 0.0 if num_running else now - max((one.paused_at for one in paused), default=now)
        found = [
            place
            for place in paused
            if force
            or gain * max(self.pause_of(place), now - place.paused_at)
            >= self._cost_of_return() * held * place.size * place.returns(now - place.paused_at)
        ]
        if not found and idle >= IDLE_SECONDS:
            found = paused
        return sorted(found, key=_number, reverse=True)

    def pause_of(self, place: ProgramPlace) -> float:
        """Seconds that it is expected to pause."""
        return self._mean_pause if place.pause is None else place.pause

    def check(self, running: Iterable[Sequence], waiting: Iterable[Sequence]) -> None:
        """The counts are those of the sequences; AssertionError otherwise."""
        num_running: dict[int, int] = {}
        num_open: dict[int, int] = {}
        for sequence in running:
            number = self.number_of(sequence)
            num_running[number] = num_running.get(number, 0) + 1
            num_open[number] = num_open.get(number, 0) + 1
        for sequence in waiting:
            number = self.number_of(sequence)
            num_open[number] = num_open.get(number, 0) + 1
        assert set(num_open) <= set(self._places), "a program with sequences was forgotten"
        for number, place in self._places.items():
            assert place.num_running == num_running.get(number, 0), "running sequences of a program"
            assert place.num_open == num_open.get(number, 0), "open sequences of a program"
            assert place.is_active == (number in self._active)
            assert place.is_active or not place.num_running, "a running program is active"
            assert not (place.is_active and place.is_kept), "a program with a place is not kept"
            pauses = place.is_active and not place.num_running and number > 0
            assert place.counted == (place.size if pauses else None), "sizes of those that pause"
        kept = sum(place.size for place in self._places.values() if place.is_kept)
        assert kept == self.kept_tokens, "tokens of programs without a place"
        self._paused_sizes.check([one.counted for one in self._places.values()])


def added_tokens(sequence: Sequence) -> int:
    """Tokens that the sequence adds to those that its branch or others had computed before."""
    return max(0, len(sequence.tokens) - max(sequence.num_found, sequence.num_settled))


def _kind(sequence: Sequence, task: Generation) -> tuple[Client, int]:
    """Whose it is, and about how many tokens were asked for."""
    return sequence.group.client, task.settings.max_tokens.bit_length()


def _number(place: ProgramPlace) -> int:
    return place.number
