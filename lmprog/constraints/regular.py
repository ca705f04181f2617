"""A constraint on our own automaton: masks cached per state, advances cached per state and token.

The engine (native or plain) makes rows of bytes into masks of tokens; this class keeps what it made
and turns it into the protocol. The cache of masks is bounded in bytes and forgets the least
recently used first.
"""

from __future__ import annotations

from collections import OrderedDict

from lmprog.constraints.automaton import DEAD
from lmprog.constraints.constraint import CompileLimits, MaskRow
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.constraints.walk import MaskEngine, RawMask

_MAX_FORCED = 4096
_MAX_ADVANCES = 1 << 18
_NO_BUDGET = -1


class RegularConstraint:
    engine = "lmprog"

    def __init__(self, engine: MaskEngine, vocabulary: Vocabulary, limits: CompileLimits) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._tokens = vocabulary.tokens
        self._masks: OrderedDict[tuple[int, int], MaskRow] = OrderedDict()
        self._worst: dict[int, int] = {}
        self._advances: dict[tuple[int, int], int] = {}
        self._forced: dict[int, bytes] = {}
        self._final: dict[int, bool] = {}
        self._done: dict[int, bool] = {}
        self._max_masks = max(16, limits.max_mask_bytes // (4 * vocabulary.num_words + 256))

    @property
    def start(self) -> int:
        return self._engine.start

    @property
    def num_states(self) -> int:
        """States met so far."""
        return self._engine.num_states

    @property
    def num_bytes(self) -> int:
        """About how much memory the automaton and the kept masks take."""
        return self._engine.num_bytes + len(self._masks) * (4 * self._vocabulary.num_words + 256)

    def mask(self, state: int, budget: int | None = None) -> MaskRow:
        key = (
            state,
            _NO_BUDGET if budget is None or budget > self._worst.get(state, budget) else budget,
        )
        found = self._masks.get(key)
        if found is not None:
            self._masks.move_to_end(key)
            return found
        if budget is None or state not in self._worst:
            made = self._engine.raw_mask(state)
            self._worst[state] = made.worst
            row = self._keep((state, _NO_BUDGET), made)
            return row if budget is None else self.mask(state, budget)
        return self._keep(key, self._engine.raw_mask(state, budget - 1))

    def _keep(self, key: tuple[int, int], made: RawMask) -> MaskRow:
        made.bits.flags.writeable = False
        if made.ids is not None:
            made.ids.flags.writeable = False
        row = self._masks[key] = MaskRow(made.bits, made.ids, made.count)
        if len(self._masks) > self._max_masks:
            self._masks.popitem(last=False)
        return row

    def advance(self, state: int, token: int) -> int:
        key = (state, token)
        found = self._advances.get(key)
        if found is None:
            text = self._tokens[token] if 0 <= token < len(self._tokens) else None
            found = DEAD if text is None else self._engine.run(state, text)
            if found == DEAD:
                raise ValueError(f"token {token} ({text!r}) is not allowed in state {state}")
            if len(self._advances) >= _MAX_ADVANCES:
                self._advances.clear()
            self._advances[key] = found
        return found

    def advance_bytes(self, state: int, text: bytes) -> int | None:
        return self._engine.run(state, text) or None

    def forced(self, state: int) -> bytes:
        found = self._forced.get(state)
        if found is None:
            if len(self._forced) >= _MAX_ADVANCES:
                self._forced.clear()
            found = self._forced[state] = self._engine.forced(state, _MAX_FORCED)
        return found

    def is_final(self, state: int) -> bool:
        found = self._final.get(state)
        if found is None:
            found = self._final[state] = self._engine.is_final(state)
        return found

    def is_done(self, state: int) -> bool:
        if not self.is_final(state):
            return False
        found = self._done.get(state)
        if found is None:
            found = self._done[state] = not any(self._engine.row(state))
        return found

    def distance(self, state: int) -> int:
        return self._engine.cost(state)
