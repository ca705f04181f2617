"""What a step costs, measured while running: seconds = fixed + per_token * tokens.

A least squares fit over recent steps: those that only decode and those with prefills are forgotten
apart, so that a long time of decoding does not leave what a prefill costs to chance. Of steps that
must not last longer than some time it is also measured how far they are from the fit, as their
median, and how far from that one by one: the more they vary, the less of that time is planned. How
many tokens of prompts a step may have follows from that (`tokens_beside`, `tokens_alone`), and how
many rows may decode while several accounts have calls (`decodes_beside`): whoever comes waits for
the step under way, so that none lasts longer than makes what it takes by itself little. Nothing
is known before the first step, so that is a small one, and each may be twice the largest so far.

By these costs the calls of one client take turns (`CallTurns`). In the same way it is learned from
programs that have ended how large others become (`ProgramSizes`).

Knows counts and seconds; has no clock of its own.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import accumulate
from math import exp, inf, log, sqrt
from typing import NamedTuple

from lmprog.runtime.scheduling.plan import Row
from lmprog.runtime.scheduling.sequence import Client, Sequence

REMEMBERED = 256
"""Programs that ended last."""
SIZE_BITS = 6
"""Of a size that tell it from others."""
DECAY = 0.99
"""Weight of the past at each new step of a kind: about the last hundred steps count."""
NUM_RECENT = 5
"""Bounded steps whose median says how far such steps are from the fit: two that were disturbed, by
what else the machine does, do not make the steps after them shorter."""
SPREAD_WEIGHT = 0.05
"""Weight of the newest bounded step in how much they vary."""
MOST_SPREADS = 3.0
"""A step that is apart by more than so many times the spread counts as that."""
LEAST_APART = 0.2
"""So much always counts, so that a small spread can grow."""
HEADROOM = 1.5
"""A bounded step is planned to last so many times the spread less than it may."""
FIRST_SPREAD = 0.15
"""How much they are taken to vary before any was measured."""
MOST_APART = 2.0
"""A step that took longer than so many times what was expected counts as that: it was disturbed."""
LEAST_PART = 0.1
"""One that took a smaller part of it counts as that: a coarse clock may see no time pass."""
FEWEST_DECODES = 16
"""Steps that only decode before their cost is known."""
FIRST_CHUNK = 8
"""Half of the tokens that a step may have before any larger step has been measured."""
SHARE_BESIDE = 0.5
"""The least part of a step's time that prompts get beside decodes, however short steps are ..."""
WANTED_BESIDE = 2 / 3
"""... what they get where the step takes no longer than two may ..."""
SHARE_ALONE = 0.75
"""... and without any decodes: the fixed cost takes the rest."""
UNKNOWN = 0.001
"""Seconds that a token counts until a step has been measured."""
SHORT_ALONE = 0.04
"""Seconds that a step with the calls of one account alone may last, whatever the model ..."""
TIMES_ALONE = 25.0
"""... and so many times what a step takes by itself, which is little of it then."""
TIMES_SHARED = 10.0
"""The same where several accounts have calls: what comes waits for three of these steps."""
EXPLORING = 4.0
"""Steps may last so many times longer while no fixed cost is told from that of tokens."""


QUANTUM = 0.1
"""Seconds of steps for which a program keeps its turn while other calls of its client wait."""
TIMES_LONGER = 2.0
"""A call is short beside one that takes so many times as long."""
MOST_AHEAD = 1.0
"""Seconds of short calls that may go before long ones; as many more as those are served."""


class _Sums:
    """Of the steps of one kind, the older the less. The first one, which touches much memory for
    the first time, counts until there is another.
    """

    __slots__ = ("num_steps", "products", "seconds", "squares", "tokens", "weight")

    def __init__(self) -> None:
        self.num_steps = 0
        self._clear()

    def _clear(self) -> None:
        self.weight = self.tokens = self.seconds = self.squares = self.products = 0.0

    def add(self, num_tokens: int, seconds: float) -> None:
        self.num_steps += 1
        if self.num_steps == 2:
            self._clear()
        self.weight = self.weight * DECAY + 1.0
        self.tokens = self.tokens * DECAY + num_tokens
        self.seconds = self.seconds * DECAY + seconds
        self.squares = self.squares * DECAY + num_tokens * num_tokens
        self.products = self.products * DECAY + num_tokens * seconds


class StepCosts:
    """Until steps of different sizes were seen, all of the time counts as the tokens'."""

    def __init__(self) -> None:
        self._decodes = _Sums()
        self._prefills = _Sums()
        self._most = 2 * FIRST_CHUNK
        """Twice the tokens of the largest step: what was not measured may cost more."""
        self.fixed = 0.0
        """Seconds of a step that do not depend on its tokens."""
        self.per_token = 0.0
        """Seconds that one more token takes."""
        self._ratios: deque[float] = deque([1.0] * NUM_RECENT, NUM_RECENT)
        """Seconds of the newest bounded steps over those of the fit; as expected before any was."""
        self._drift = 1.0
        """Their median."""
        self._spread = FIRST_SPREAD
        """How far a bounded step is from that, as a part of it, in the mean."""
        self._alone: deque[tuple[float, int]] = deque(maxlen=NUM_RECENT)
        """Seconds and tokens of the newest other steps with prefills."""
        self._smallest = 0
        """Tokens of the smallest step."""
        self._shortest = inf
        """Seconds of the shortest one: the smallest takes no longer, unless it was disturbed."""

    def observe(
        self, num_tokens: int, seconds: float, num_decoded: int = 1, *, is_bounded: bool = False
    ) -> None:
        """A step of `num_tokens` tokens took `seconds`; it had a prefill where these are more than
        `num_decoded`. `is_bounded`: `tokens_within` chose how many.
        """
        has_prefill = num_tokens > num_decoded
        expected = self.fixed + self.per_token * num_tokens
        if is_bounded and has_prefill:
            seconds = self._compared(seconds, expected)
        elif has_prefill:
            self._alone.append((seconds, num_tokens))
        if num_tokens < self._smallest or not self._smallest:
            self._smallest = num_tokens
        if seconds < self._shortest:
            self._shortest = seconds
        kind = self._prefills if has_prefill else self._decodes
        kind.add(num_tokens, seconds)
        if 2 * num_tokens > self._most:
            self._most = 2 * num_tokens
        self._fit()

    def _compared(self, seconds: float, expected: float) -> float:
        """What a bounded step counts as, which took `seconds` and not `expected`."""
        if expected <= 0.0:
            return seconds
        ratio = max(LEAST_PART, min(MOST_APART * self._drift, seconds / expected))
        most = max(LEAST_APART, MOST_SPREADS * self._spread)
        apart = min(most, abs(ratio / self._drift - 1.0))
        self._spread += SPREAD_WEIGHT * (apart - self._spread)
        self._ratios.append(ratio)
        self._drift = sorted(self._ratios)[len(self._ratios) // 2]
        return ratio * expected

    def _fit(self) -> None:
        """One more observation of nothing in no time keeps the slope sane where sizes are alike."""
        a, b = self._decodes, self._prefills
        tokens, seconds, steps = a.tokens + b.tokens, a.seconds + b.seconds, a.weight + b.weight
        weight = steps + 1.0
        mean_tokens, mean_seconds = tokens / weight, seconds / weight
        variance = (a.squares + b.squares) / weight - mean_tokens**2
        covariance = (a.products + b.products) / weight - mean_tokens * mean_seconds
        slope = covariance / variance if variance > 0.0 else 0.0
        most = seconds / tokens if tokens else 0.0
        self.per_token = min(max(slope, 0.0), most)
        self.fixed = max(0.0, (seconds - self.per_token * tokens) / steps)

    @property
    def are_known(self) -> bool:
        """Whether enough steps were measured to decide by them what they should share."""
        return self._prefills.num_steps > 0 and self._decodes.num_steps >= FEWEST_DECODES

    def price(self, num_rows: int) -> tuple[float, float]:
        """What each of so many rows has of a step's seconds, and each token: rows have equal parts
        of those that do not depend on tokens.
        """
        if self.fixed <= 0.0 and self.per_token <= 0.0:
            return 0.0, UNKNOWN
        return self.fixed / (num_rows or 1), self.per_token

    def token_cost(self) -> float:
        """`per_token` as it is when it is asked for."""
        return self.per_token

    def tokens_beside(self, num_decodes: int, seconds: float) -> int:
        """Tokens of prompts in a step with so many decodes that is to last about `seconds`; up to
        twice as long, or longer, where prompts would have less than their shares of its time.
        """
        rest, per_token = self._decoding(num_decodes), self.per_token * max(1.0, self._drift)
        within = self.tokens_within(seconds) - num_decodes
        wanted = self._share(rest, WANTED_BESIDE, per_token)
        if within >= wanted:
            return within
        within_two = self.tokens_within(2 * seconds) - num_decodes
        return max(within, min(wanted, within_two), self._share(rest, SHARE_BESIDE, per_token))

    def _decoding(self, num_decodes: int) -> float:
        """Seconds of so many decodes alone: as such steps took, or by the fit before any."""
        mean, tokens = self.fixed, 0.0
        if (steps := self._decodes).weight:
            mean, tokens = steps.seconds / steps.weight, steps.tokens / steps.weight
        return max(0.0, mean + self.per_token * (num_decodes - tokens))

    def tokens_alone(self, most: float, beside: float | None = None) -> int:
        """Tokens of a step without decodes that is to last at most so long, or longer likewise; and
        no longer than makes what it takes by itself little. By what such steps took of late: far
        into long texts tokens cost more than the fit knows. `beside`: as long as those with
        decodes, since other accounts have calls, too.
        """
        fixed, per_token, are_apart = self._costs_alone()
        if per_token <= 0.0:
            return self._most
        seconds, times = SHORT_ALONE, TIMES_ALONE
        if beside is not None:
            most, seconds, times = min(most, beside), beside / 2, TIMES_SHARED
        seconds = self._short(seconds, times, (fixed, per_token, are_apart))
        seconds = min(most, seconds) * (1.0 if are_apart else EXPLORING)
        wanted = max(0, int((seconds - fixed) / per_token))
        return min(self._most, max(wanted, self._share(fixed, SHARE_ALONE, per_token)))

    def _costs_alone(self) -> tuple[float, float, bool]:
        """Fixed seconds and those of a token: by the newest steps that are much larger than the
        smallest. Without such ones the two are not told apart, and all is the tokens'.
        """
        least, shortest = self._smallest, self._shortest
        each = sorted(
            (seconds - shortest) / (count - least)
            for seconds, count in self._alone
            if count >= 2 * least
        )
        if each:
            per_token = each[(len(each) - 1) // 2]
            return max(0.0, shortest - per_token * least), per_token, True
        each = sorted(seconds / count for seconds, count in self._alone)
        return 0.0, each[(len(each) - 1) // 2] if each else self.per_token, False

    def shared(self, most: float) -> float:
        """Seconds that a step may last, for prompts, while several accounts have calls."""
        return min(most, self._short(most / 2, TIMES_SHARED, self._costs_alone()))

    def decodes_beside(self, most: float) -> int:
        """Rows that may decode while several accounts have calls; as `shared`, but never so few
        that what a step takes by itself would be more than a little.
        """
        return self.tokens_within(self._short(most / 2, TIMES_SHARED, self._costs_alone()))

    def _short(self, seconds: float, times: float, costs_alone: tuple[float, float, bool]) -> float:
        """So long, or so many times what a step takes by itself; and no shorter than tells that
        from what tokens take.
        """
        fixed, per_token, are_apart = costs_alone
        if not are_apart:
            return max(seconds, times * self._shortest)
        return max(seconds, times * fixed, fixed + 3 * self._smallest * per_token)

    def _share(self, rest: float, share: float, per_token: float) -> int:
        """Tokens that take `share` of a step of which anything else takes `rest` seconds."""
        if per_token <= 0.0:
            return 0
        return min(self._most, int(rest / per_token * share / (1.0 - share)))

    def tokens_within(self, seconds: float) -> int:
        """Tokens that a step may have to last about `seconds`: by one and a half times what steps
        vary less. At most twice the largest step measured so far."""
        if self.per_token <= 0.0:
            return self._most
        planned = seconds / (1.0 + HEADROOM * self._spread) / self._drift
        return min(self._most, max(0, int((planned - self.fixed) / self.per_token)))


@dataclass(eq=False, slots=True)
class _Turns:
    """Of one client."""

    time: float = 0.0
    """What a program would have been served that always had its part."""
    num_programs: int = 0
    ahead: float = MOST_AHEAD
    """What short calls may be served yet before long ones."""


@dataclass(eq=False, slots=True)
class _Turn:
    """Of one program with something open."""

    client: Client
    begun: float
    served: float
    admitted: float = -inf
    """When its last sequence was."""
    is_short: bool = False
    """It went before others that take much longer."""


class CallTurns:
    """What programs with open sequences were served while calls waited, by client. One begins where
    the fair part of its client's programs is: it has saved nothing up and owes nothing.

    A call that is short beside another goes before it, whatever either was served, so that it does
    not wait for a large batch of its own client: for as long together as others were served
    meanwhile.
    """

    def __init__(self) -> None:
        self._clients: dict[Client, _Turns] = {}
        self.programs: dict[int, _Turn] = {}

    def begin(self, program: int, client: Client) -> None:
        turns = self._clients.setdefault(client, _Turns())
        turns.num_programs += 1
        self.programs[program] = _Turn(client, turns.time, turns.time)

    def end(self, program: int) -> None:
        """It has nothing open."""
        client = self.programs.pop(program).client
        turns = self._clients[client]
        turns.num_programs -= 1
        if not turns.num_programs:
            del self._clients[client]

    def serve(
        self, rows: Items[Row], seconds: float, price: Callable[[int], tuple[float, float]]
    ) -> None:
        """A step with these rows took so long while calls waited."""
        row, token = price(len(rows))
        tokens = sum([one.end - one.start for one in rows])
        rate = seconds / (row * len(rows) + token * tokens or 1.0)
        for one in rows:
            turn = self.programs.get(one.sequence.group.program or 0)
            if turn is not None:  # it may have ended meanwhile
                cost = (row + token * (one.end - one.start)) * rate
                turn.served += cost
                turns = self._clients[turn.client]
                turns.time += cost / turns.num_programs
                if not turn.is_short:
                    turns.ahead = min(MOST_AHEAD, turns.ahead + cost)

    def _of(self, sequence: Sequence) -> _Turn:
        return self.programs[sequence.group.program or 0]

    def turn_of(self, sequence: Sequence) -> int:
        """How many turns its program has used up; the least goes first among its client's."""
        turn = self._of(sequence)
        return -1 if turn.is_short else int(turn.served / QUANTUM)

    def is_short(self, client: Client, seconds: float, beside: float) -> bool:
        """Whether a call of the client that is expected to take so many seconds may go before one
        that takes as many as `beside`.
        """
        return TIMES_LONGER * seconds <= beside and seconds <= self._clients[client].ahead

    def go_ahead(self, sequence: Sequence, seconds: float) -> None:
        """It goes before others, and is expected to take so long."""
        turn = self._of(sequence)
        turn.is_short = True
        self._clients[turn.client].ahead -= seconds

    def served(self, sequence: Sequence) -> float:
        """By what its program takes its turn, among those of its client."""
        return self._of(sequence).served

    def waited(self, sequence: Sequence) -> float:
        """Since when its program waits for this sequence: no other one was admitted since."""
        turn = self._of(sequence)
        return max(sequence.queued_at, turn.admitted)

    def is_before(self, waiting: Sequence, other: Sequence) -> bool:
        """Whether a sequence that waits goes before one of a program of its client that has a place
        in memory: that has used its turn up, and more than the first one's.
        """
        turn = self._of(other)
        used = turn.served - max(turn.begun, self.served(waiting))
        return used > QUANTUM


class ProgramSizes:
    """`longest` is the longest sequence, in tokens."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []
        self._sums: list[int] = [0]
        """Sums of the first sizes of `_sorted`."""
        self.num_ended = 0

    def ended(self, size: int) -> None:
        """A program ended with `size` tokens."""
        self.num_ended += 1
        if len(self._recent) == REMEMBERED:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(size)
        insort(self._sorted, size)
        self._sums = [0, *accumulate(self._sorted)]

    def expected_growth(self, size: float) -> float:
        """Tokens that a program of `size` tokens will still add."""
        first = bisect_left(self._sorted, size)
        count = len(self._sorted) - first
        total = self._sums[-1] - self._sums[first]
        return (total + self._guess(size)) / (count + 1) - size

    def _guess(self, size: float) -> float:
        """The mean of a size that exceeds k times `size` with a chance of 1/k, up to the
        longest.
        """
        low = max(1.0, size)
        return low * (1.0 + log(max(1.0, self._longest / low)))


class Growth(NamedTuple):
    """What programs are expected to add: `known` tokens that their sequences will have, and later
    ones: programs of `size` tokens in all will have added `later` when all of them have ended.
    """

    known: float
    size: float
    later: float

    @property
    def most(self) -> float:
        """Tokens beyond those of now for which there must be memory: programs leave it while others
        grow. In units of the mean time that one has left, `size + later * t` is what they have
        after a time `t`, and `(1 + 2 * t) * exp(-2 * t)` is the part of them that is still there:
        each ends at random, but not at once. That is most at the time found here.
        """
        size, later = self.size, self.later
        if later <= 0.0:
            return self.known
        half = later - 2.0 * size
        time = (half + sqrt(half * half + 4.0 * later * later)) / (4.0 * later)
        most = (size + later * time) * (1.0 + 2.0 * time) * exp(-2.0 * time)
        return self.known + max(0.0, most - size)

    def plus(self, other: Growth, times: int = 1) -> Growth:
        known, size, later = other
        return Growth(
            self.known + times * known, self.size + times * size, self.later + times * later
        )


class PausedSizes:
    """The sizes of programs that have a place in memory and do not run, and what these will add:
    a step asks for it, and there may be thousands of them.
    """

    def __init__(self, sizes: ProgramSizes) -> None:
        self._sizes = sizes
        self.numbers: Counter[int] = Counter()
        """How many programs have about that size."""
        self._total = 0
        self._later: tuple[int, float] | None = None
        """What they will add, and how many programs had ended when it was reckoned."""

    def change(self, before: int | None, after: int | None) -> None:
        """The size of one program; None: it does not count."""
        self._later = None
        for size, sign in ((before, -1), (after, 1)):
            if size is not None:
                self._total += sign * size
                about = _about(size)
                self.numbers[about] += sign
                if not self.numbers[about]:
                    del self.numbers[about]

    @property
    def growth(self) -> Growth:
        if self._later is None or self._later[0] != self._sizes.num_ended:
            grown = self._sizes.expected_growth
            later = sum(count * grown(about) for about, count in self.numbers.items())
            self._later = self._sizes.num_ended, later
        return Growth(0.0, self._total, self._later[1])

    def check(self, sizes: Iterable[int | None]) -> None:
        """These are the sizes; AssertionError otherwise."""
        known = [size for size in sizes if size is not None]
        assert self._total == sum(known), "the sum of sizes"
        assert self.numbers == Counter(map(_about, known)), "how many have each size"


def _about(size: int) -> int:
    """The size without what is less than a part in `1 << SIZE_BITS - 1`."""
    rest = max(0, size.bit_length() - SIZE_BITS)
    return size >> rest << rest
