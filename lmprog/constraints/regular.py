"""A constraint on this package's own automaton; caches masks and transitions with their states.

The engine turns moves by bytes into token masks and numbers its states. This
class hands out one `State` per number and keeps weak references to them. When the memory of the
engine is full, the referenced states and those of the most recently used masks are moved to a fresh
memory; all others are discarded. The mask cache is bounded in bytes, least recently used first out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Event, Lock
from typing import TypeVar
from weakref import ref

from lmprog.constraints.automaton import DEAD, Automaton, MemoryFull, RawMask
from lmprog.constraints.constraint import (
    CompileLimits,
    Constraint,
    Doubts,
    MaskRow,
    MaskWork,
    State,
    forcible,
    with_late_masks,
)
from lmprog.constraints.net import UNREACHABLE
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import GrammarError, LmprogError

_MAX_FORCED = 512
_MAX_ADVANCES = 1 << 13
"""Tokens whose next state is kept; about 500 bytes each, with the state."""
_FEW_STATES = 1 << 12
"""From so many on, the weak references to states that are gone are looked for and dropped."""

_Found = TypeVar("_Found")


class _MaskApart:
    """A mask that another thread makes."""

    def __init__(self, engine: Automaton, state: State, budget: int | None) -> None:
        self.state = state  # held, so that its number stays what it is
        self.budget = budget
        self.made: RawMask | LmprogError | None = None
        """None where the memory is full."""
        self.is_over = Event()
        self._engine = engine
        self._of = state.number, _most(budget)
        self._begun = Lock()

    def give_up(self) -> bool:
        """True: it has not begun, and never does."""
        return self._begun.acquire(blocking=False)

    def __call__(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        try:
            self.made = self._engine.mask_apart(*self._of)
        except MemoryFull:
            pass
        except LmprogError as error:
            self.made = error
        except Exception as error:  # noqa: BLE001  the thread's border: the call must fail
            what = f"a mask could not be made: {type(error).__name__}: {error}"
            self.made = GrammarError(what, position=None)
            self.made.__cause__ = error
        finally:
            self.is_over.set()


def _most(budget: int | None) -> int:
    return UNREACHABLE if budget is None else budget - 1


class RegularConstraint:
    engine = "lmprog"

    def __init__(
        self,
        engine: Automaton,
        vocabulary: Vocabulary,
        limits: CompileLimits,
        left_out: tuple[str, ...] = (),
    ) -> None:
        self._engine = engine
        self.left_out = left_out
        self._vocabulary = vocabulary
        self._tokens = vocabulary.tokens
        self._states: dict[int, ref[State]] = {}
        self._most_states = _FEW_STATES
        self._with_mask: OrderedDict[State, None] = OrderedDict()
        """The states whose masks are kept, the least recently used first."""
        self._narrowed: OrderedDict[tuple[State, int], MaskRow] = OrderedDict()
        """Masks near the end of a budget, by what is left of it."""
        self._advances: dict[int, State] = {}
        """The next states, by state number and token as one integer."""
        self._max_masks = max(16, limits.max_mask_bytes // (4 * vocabulary.num_words + 256))
        self.work: MaskWork | None = None
        self._apart: _MaskApart | None = None
        """One at a time; until it is taken, nothing else makes masks or forgets states."""
        self._failed: dict[tuple[State, int | None], LmprogError] = {}
        """Masks that were too large for another thread, until somebody asks for them."""
        self.num_collections = 0
        """How often states were forgotten."""
        self._start = self._state(engine.start)

    @property
    def start(self) -> State:
        return self._start

    @property
    def num_states(self) -> int:
        """The number of states in the engine's memory."""
        return self._engine.num_states

    @property
    def num_bytes(self) -> int:
        """An estimate of the memory of the automaton and the cached masks."""
        num_masks = len(self._with_mask) + len(self._narrowed)
        return (
            self._engine.num_bytes
            + num_masks * (4 * self._vocabulary.num_words + 256)
            + 256 * len(self._states)
            + 100 * len(self._advances)
        )

    def mask(self, state: State, budget: int | None = None) -> MaskRow:
        row = state.row
        if row is None:
            row = self._made(state)
        else:
            self._with_mask.move_to_end(state)
        return row if budget is None or budget > state.worst else self._narrow(state, budget)

    def is_ready(self, state: State, budget: int | None = None) -> bool:
        work = self.work
        if state.row is None and work is not None and not self._is_made(state, None, work):
            return False
        if budget is None or budget > state.worst or (state, budget) in self._narrowed:
            return True
        return work is None or self._is_made(state, budget, work)

    def _is_made(self, state: State, budget: int | None, work: MaskWork) -> bool:
        """Makes the mask of `state` if that is little work, else has it made."""
        if self._apart is not None:
            if not self._apart.is_over.is_set():
                return False
            self._take(work)
            return self.is_ready(state, budget)
        if (state, budget) in self._failed:
            return True  # whoever asks for it is told
        if work.left > 0:
            try:
                made, used = self._engine.mask_within(state.number, _most(budget), work.left)
            except MemoryFull:
                self._collect()
                made, used = None, 0
            work.left -= used
            if made is not None:
                if made.like:
                    twin = self._state(made.like)
                    if not self.is_ready(twin):
                        return False
                    if (twin, None) in self._failed:
                        self._failed[state, budget] = self._failed.pop((twin, None))
                        return True
                self._keep(state, budget, made)
                return True
        self._begin(state, budget, work)
        return False

    def _take(self, work: MaskWork | None = None) -> None:
        """What was made in another thread, once that is over; what waits there for other masks is
        given up. With `work`, the mask that it is like is made next.
        """
        apart, self._apart = self._apart, None
        if apart is None or apart.give_up():
            return
        apart.is_over.wait()
        made = apart.made
        if isinstance(made, LmprogError):
            self._failed[apart.state, apart.budget] = made
        elif isinstance(made, RawMask):
            twin = self._state(made.like) if made.like else None
            if twin is None or twin.row is not None:
                self._keep(apart.state, apart.budget, made)
            elif work is not None:
                self._begin(twin, None, work)

    def _begin(self, state: State, budget: int | None, work: MaskWork) -> None:
        apart = _MaskApart(self._engine, state, budget)
        if work.begin(apart):
            self._apart = apart

    def _raise_failed(self, state: State, budget: int | None) -> None:
        error = self._failed.pop((state, budget), None) if self._failed else None
        if error is not None:
            raise error

    def _keep(self, state: State, budget: int | None, made: RawMask) -> MaskRow:
        row, worst = made.row, made.worst
        if made.like:
            twin = self._state(made.like)
            row, worst = self.mask(twin), twin.worst
        assert row is not None, "a mask that is not like another was made"
        if budget is None:
            state.row, state.worst = row, worst
            self._with_mask[state] = None
        else:
            self._narrowed[state, budget] = row
        if len(self._with_mask) + len(self._narrowed) > self._max_masks:
            self._drop_mask()
        return row

    def _made(self, state: State) -> MaskRow:
        self._take()
        if state.row is not None:
            return state.row
        self._raise_failed(state, None)
        try:
            made = self._engine.raw_mask(state.number)
        except MemoryFull:
            self._collect()
            made = self._engine.raw_mask(state.number)
        return self._keep(state, None, made)

    def _narrow(self, state: State, budget: int) -> MaskRow:
        found = self._narrowed.get((state, budget))
        if found is not None:
            self._narrowed.move_to_end((state, budget))
            return found
        self._take()
        self._raise_failed(state, budget)
        return self._keep(
            state, budget, self._call(lambda: self._engine.raw_mask(state.number, budget - 1))
        )

    def _drop_mask(self) -> None:
        """Evicts the least recently used mask, of the kind with more of them."""
        if len(self._narrowed) > len(self._with_mask):
            self._narrowed.popitem(last=False)
        else:
            self._with_mask.popitem(last=False)[0].row = None

    def advance(self, state: State, token: int) -> State:
        tokens = self._tokens
        if 0 <= token < len(tokens):
            found = self._advances.get(state.number * len(tokens) + token)
            if found is not None:
                return found
            text = tokens[token]
            after = None if text is None else self.advance_bytes(state, text)
            if after is not None:
                if len(self._advances) >= _MAX_ADVANCES:
                    self._advances.clear()
                self._advances[state.number * len(tokens) + token] = after
                return after
        text = tokens[token] if 0 <= token < len(tokens) else None
        raise ValueError(f"token {token} ({text!r}) is not allowed in state {state.number}")

    def advance_bytes(self, state: State, text: bytes) -> State | None:
        try:
            number = self._engine.run(state.number, text)
        except MemoryFull:
            self._collect()
            number = self._engine.run(state.number, text)
        return None if number == DEAD else self._state(number)

    def forced(self, state: State) -> bytes:
        found = state.forced
        if found is None:
            found = self._call(lambda: self._engine.forced(state.number, _MAX_FORCED))
            state.forced = found
        return found

    def doubts(self, state: State) -> Doubts:
        found = state.doubts
        if found is None:
            forced = self.forced(state)
            found = Doubts(self._call(lambda: self._engine.doubts(state.number, forced)))
            state.doubts = found
        return found

    def follow(self, state: State, tokens: Sequence[int], left: int) -> tuple[int, State]:
        texts = [self._tokens[token] or b"" for token in tokens]
        taken, number = self._call(lambda: self._engine.follow(state.number, texts, left))
        return taken, self._state(number)

    def is_final(self, state: State) -> bool:
        found = state.final
        if found is None:
            found = state.final = self._engine.is_final(state.number)
        return found

    def is_done(self, state: State) -> bool:
        if not self.is_final(state):
            return False
        found = state.done
        if found is None:
            found = state.done = not self._engine.num_positions(state.number)
        return found

    def distance(self, state: State) -> int:
        return self._engine.cost(state.number)

    def row(self, state: State) -> list[int]:
        """For each byte, the number of the next state, or 0; the numbers are told apart only."""
        return self._call(lambda: self._engine.row(state.number))

    def stands_at(self, state: State, leaf_state: int) -> bool:
        """Whether the state may go on with that leaf state of the net."""
        return self._engine.stands_at(state.number, leaf_state)

    def _state(self, number: int) -> State:
        held = self._states.get(number)
        state = None if held is None else held()
        if state is None:
            if len(self._states) >= self._most_states:
                self._states = {state.number: ref(state) for state in self._held()}
                self._most_states = max(_FEW_STATES, 2 * len(self._states))
            state = State(number)
            self._states[number] = ref(state)
        return state

    def _held(self) -> list[State]:
        """The states that are referenced."""
        return [state for one in self._states.values() if (state := one()) is not None]

    def _call(self, work: Callable[[], _Found]) -> _Found:
        """Runs engine work that may create states, collecting states if the memory is full.

        State numbers may change during a collection, so `work` must read them itself.
        """
        try:
            return work()
        except MemoryFull:
            self._collect()
            return work()

    def _collect(self) -> None:
        """Discards unreferenced states, except for those of the most recently used masks."""
        self._take()
        self.num_collections += 1
        self._advances.clear()
        self._narrowed.clear()
        masks = [(state.number, state.row, state.worst) for state in reversed(self._with_mask)]
        while self._with_mask:
            self._with_mask.popitem()[0].row = None
        held = self._held()  # by others: no cache here refers to any now
        wanted = [number for number, _, _ in masks]
        numbers = self._engine.collect([state.number for state in held], wanted)
        self._states.clear()
        for state, number in zip(held, numbers, strict=False):
            state.number = number
            self._states[number] = ref(state)
        kept = list(zip(masks, numbers[len(held) :], strict=True))
        for (_, row, worst), number in reversed(kept):
            if number != DEAD:
                state = self._state(number)
                state.row, state.worst = row, worst
                self._with_mask[state] = None


class ContinuedConstraint:
    """Another constraint from a later state on. Its states are the other's."""

    def __init__(self, whole: Constraint, start: State) -> None:
        self._late = with_late_masks(whole)
        self.start = start
        self.left_out = whole.left_out
        self.engine = whole.engine
        self.mask = whole.mask
        self.advance = whole.advance
        self.forced = whole.forced
        self.is_final = whole.is_final
        self.is_done = whole.is_done
        self.distance = whole.distance
        self.advance_bytes = whole.advance_bytes
        at_once = forcible(whole)
        if at_once is not None:
            self.doubts, self.follow = at_once.doubts, at_once.follow

    @property
    def work(self) -> MaskWork | None:
        return None if self._late is None else self._late.work

    @work.setter
    def work(self, work: MaskWork | None) -> None:
        if self._late is not None:
            self._late.work = work

    def is_ready(self, state: State, budget: int | None = None) -> bool:
        return self._late is None or self._late.is_ready(state, budget)
