"""Which programs have a place in memory: the active set.

A program is *active* from the admission of its first sequence until it ends or loses its place. New
programs are admitted while what the active ones use and are expected to add still fits. A program
that pauses between two calls keeps its place as long as nobody else could use the machine; it loses
it, youngest first, when computing its tokens again would cost less than what the machine loses
meanwhile. Costs are measured: seconds per token, seconds per step, seconds of a pause.

Knows numbers of programs, tokens and seconds; knows no tree and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.pins import Pins
from lmprog.runtime.scheduling.program_sizes import ProgramSizes
from lmprog.runtime.scheduling.sequence import Sequence
from lmprog.runtime.scheduling.step_costs import StepCosts
from lmprog.runtime.tier.second_tier import SecondTier

MEAN_WEIGHT = 0.1
"""Weight of the newest value in a mean."""
TIMES_LOST = 2.0
"""How often a token that there is no memory for is expected to be computed again: programs that do
not all fit lose tokens more than once."""
TIMES_LOST_WITHOUT_PAUSES = 4.0
"""The same where programs do not pause, so that nobody's memory is free for others meanwhile."""


@dataclass(eq=False, slots=True)
class ProgramPlace:
    """One program. `size`: tokens that it has added to memory, its running sequences' left out."""

    number: int
    size: int = 0
    num_open: int = 0
    """Sequences waiting or running."""
    num_running: int = 0
    paused_at: float = 0.0
    """When its last open sequence ended."""
    is_active: bool = False
    is_kept: bool = False
    """It has lost its place, and what it stands on has not been needed yet."""


class ActivePrograms:
    """All programs that have sequences or pins. `longest` is the longest sequence, and memory has
    room for `capacity` tokens.
    """

    def __init__(
        self, longest: int, capacity: int, costs: StepCosts, tier: SecondTier | None = None
    ) -> None:
        self.sizes = ProgramSizes(longest)
        self._capacity = capacity
        self._costs = costs
        self._cost_of_return = costs.token_cost if tier is None else tier.cost_of_return
        """Seconds for a token of a program that has lost its place and returns."""
        self._places: dict[int, ProgramPlace] = {}
        self._num_anonymous = 0
        self._active: dict[int, ProgramPlace] = {}
        self._mean_pause = 0.0
        self._generated_part = 1.0
        """Tokens that generations made over those they might have made, in the mean."""
        self._idle: list[int] = []
        """Programs that had no open sequence left some time since `finish` was called last."""
        self.kept_tokens = 0
        """Of programs that have lost their place and nothing else."""

    def __len__(self) -> int:
        return len(self._active)

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

    def submit(self, number: int, num_sequences: int, now: float) -> None:
        """A call of the program arrived."""
        place = self._places.get(number)
        if place is None:
            place = self._places[number] = ProgramPlace(number)
        elif not place.num_open:
            self._mean_pause += MEAN_WEIGHT * (now - place.paused_at - self._mean_pause)
        place.num_open += num_sequences

    def admit(self, sequence: Sequence) -> bool:
        """The sequence begins to run; True when its program was not active before."""
        place = self._places[self.number_of(sequence)]
        place.num_running += 1
        was_active, place.is_active = place.is_active, True
        self._active[place.number] = place
        self._keep(place, is_kept=False)
        return not was_active

    def preempt(self, number: int) -> None:
        """A sequence of the program is preempted. The program loses its place if no other runs."""
        place = self._places[number]
        place.num_running -= 1
        if not place.num_running:
            self.deactivate(number, is_kept=True)

    def end(self, sequence: Sequence, was_running: bool, now: float) -> None:
        """A sequence of the program ended."""
        place = self._places[self.number_of(sequence)]
        place.num_open -= 1
        place.num_running -= was_running
        if was_running:
            place.size += added_tokens(sequence)
            if isinstance(sequence.task, Generation):
                part = sequence.num_generated / max(1, sequence.task.settings.max_tokens)
                self._generated_part += MEAN_WEIGHT * (part - self._generated_part)
        if not place.num_open:
            place.paused_at = now
            self._idle.append(place.number)

    def finish(self, pins: Pins) -> None:
        """Forgets programs that have neither sequences nor pins: their branches are closed."""
        for number in dict.fromkeys([*self._idle, *pins.released]):
            place = self._places.get(number)
            if place is not None and not place.num_open and number not in pins:
                self._keep(place, is_kept=False)
                del self._places[number]
                self._active.pop(number, None)
                if place.size:
                    self.sizes.ended(place.size)
        self._idle.clear()
        pins.released.clear()

    def deactivate(self, number: int, *, is_kept: bool) -> None:
        """The program loses its place, unless it is running; `is_kept`: and nothing else."""
        place = self._places.get(number)
        if place is not None and not place.num_running:
            place.is_active = False
            self._active.pop(number, None)
            self._keep(place, is_kept=is_kept)

    def _keep(self, place: ProgramPlace, *, is_kept: bool) -> None:
        self.kept_tokens += place.size * (is_kept - place.is_kept)
        place.is_kept = is_kept

    # --- who fits

    def expected_growth(self, running: Iterable[Sequence]) -> float:
        """Tokens that the active programs are expected to add to those that have pages now."""
        added: dict[int, float] = {}
        known = 0.0
        for sequence in running:
            number = self.number_of(sequence)
            expected = self._expected_tokens(sequence)
            added[number] = added.get(number, 0.0) + added_tokens(sequence) + expected
            known += sequence.remaining + expected
        growth = self.sizes.expected_growth
        return known + sum(
            growth(place.size + added.get(number, 0))
            for number, place in self._active.items()
            if number > 0  # programs of one group end with it
        )

    def growth_of(self, sequence: Sequence) -> float:
        """Tokens that a waiting sequence's program is expected to add beyond that sequence."""
        place = self._places[self.number_of(sequence)]
        expected = self._expected_tokens(sequence)
        if place.number <= 0:
            return expected
        size = place.size + added_tokens(sequence) + expected
        return expected + self.sizes.expected_growth(size)

    def is_worth_exceeding(self, sequence: Sequence, missing: float, num_running: int) -> bool:
        """Whether a waiting sequence should run though `missing` tokens of memory will be lacking
        later: sharing the fixed cost of its steps saves more than computing so many again costs, or
        all of its own.
        """
        if not self._costs.are_known:
            return False
        expected = self._expected_tokens(sequence)
        lost = min(missing, len(sequence.tokens) + expected)
        fixed, num_rows = self._costs.fixed, num_running + 1
        is_pausing = self._mean_pause > fixed + self._costs.per_token * num_rows
        times = TIMES_LOST if is_pausing else TIMES_LOST_WITHOUT_PAUSES
        return expected * fixed / num_rows > times * lost * self._cost_of_return()

    def _expected_tokens(self, sequence: Sequence) -> float:
        """Tokens that the sequence is expected to generate yet."""
        task = sequence.task
        return self._generated_part * task.left if isinstance(task, Generation) else 0.0

    def replaceable(self, num_running: int, now: float, *, force: bool) -> list[ProgramPlace]:
        """Paused programs that should lose their place to one that waits, youngest first.

        Another running sequence shares the fixed cost of a step with `num_running` others for as
        long as the pause lasts; with none, the machine idles until the first of the paused programs
        returns. That is weighed against computing the program's tokens again. A pause is expected
        to last as long as the mean one, or once more as long as it has lasted. Of what they added
        more may be gone than is there, since branches ended: together they lose no more than memory
        holds. `force`: all paused programs.
        """
        paused = [place for place in self._active.values() if not place.num_open]
        held = min(1.0, self._capacity / max(1, sum(place.size for place in paused)))
        costs, shared_by = self._costs, num_running + 1
        step = costs.fixed + costs.per_token * shared_by
        if num_running:
            gain = costs.fixed / step / shared_by if step > 0.0 else 0.0
        else:
            gain = 1.0 / max(1, len(paused))
        found = [
            place
            for place in paused
            if force
            or gain * max(self._mean_pause, now - place.paused_at)
            >= self._cost_of_return() * held * place.size
        ]
        return sorted(found, key=_number, reverse=True)

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
        kept = sum(place.size for place in self._places.values() if place.is_kept)
        assert kept == self.kept_tokens, "tokens of programs without a place"


def added_tokens(sequence: Sequence) -> int:
    """Tokens that the sequence adds to those that its branch or others had computed before."""
    return max(0, len(sequence.tokens) - max(sequence.num_found, sequence.num_settled))


def _number(place: ProgramPlace) -> int:
    return place.number
