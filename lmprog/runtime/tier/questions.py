"""What others have put into a shared store: asked for when a sequence needs it, and entered into
the index of what is stored.

A question is answered by the store's thread. The sequence that asked waits a moment for it; an
answer that comes later is for the next one. Knows tokens, keys and handles; loads nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from lmprog.radix import PageAllocator, RadixTree, Tokens
from lmprog.runtime.tier.page_store import LoadEnd, PageKey, PageStore, page_keys, root_of

FIND_SECONDS = 0.02
"""A sequence waits so long at most for an answer."""
ASK_AGAIN_SECONDS = 1.0
"""What nobody had stored is not asked for again for so long."""
MOST_MISSING = 4096
"""Pages that are remembered as such."""


@dataclass(frozen=True, slots=True)
class TierQuestion:
    """How many of `keys` are stored, which are the pages of `tokens` from number `first` on."""

    tokens: Tokens
    salt: str
    first: int
    keys: list[PageKey]
    ends: float
    """When nobody waits for the answer any more."""


class TierQuestions:
    """Those to `store`, whose pages `index` knows under `handles`."""

    def __init__(
        self,
        store: PageStore,
        index: RadixTree,
        handles: PageAllocator,
        pays: Callable[[int, int], bool],
        clock: Callable[[], float],
    ) -> None:
        """`pays` says whether so many tokens, on so many pages, are worth loading."""
        self._store = store
        self._index = index
        self._handles = handles
        self._pays = pays
        self._clock = clock
        self._open: dict[int, TierQuestion] = {}
        self._late: dict[int, TierQuestion] = {}
        self._missing: OrderedDict[bytes, float] = OrderedDict()
        """Pages that nobody had stored, and when that was; the oldest first."""

    def is_open(self, ticket: int) -> bool:
        """Whether that question is not answered, and somebody waits for it."""
        return ticket in self._open

    def ask(self, tokens: Tokens, salt: str, known: int, limit: int) -> int | None:
        """Asks whether others have stored more whole pages of `tokens[:limit]` than the index has;
        the pool has the first `known` tokens. None where that is not worth it, or was answered a
        moment ago.
        """
        size, root = self._index.page_size, root_of(salt)
        end = limit - limit % size
        first = self._index.match(tokens, root.hex(), end).length // size
        gain = end - max(known, first * size)
        if gain <= 0 or not self._pays(gain, -(-gain // size)):
            return None
        keys = page_keys(root, tokens[:end].tobytes(), size)[first:]
        now = self._clock()
        if now - self._missing.get(keys[0].id, now - ASK_AGAIN_SECONDS) < ASK_AGAIN_SECONDS:
            return None
        for ticket, other in self._open.items():
            if other.keys[0] == keys[0]:
                return ticket
        asked = self._store.find(keys)
        if asked is not None:
            self._open[asked] = TierQuestion(tokens[:end], salt, first, keys, now + FIND_SECONDS)
        return asked

    def take(self, answer: LoadEnd) -> int:
        """How many pages have become known by it; none where it answers no question."""
        asked = self._open.pop(answer.ticket, None) or self._late.pop(answer.ticket, None)
        return 0 if asked is None else self._learn(asked, answer.num_good)

    def overdue(self) -> list[int]:
        """Questions for whose answers nobody waits from now on."""
        if not self._open:
            return []
        now = self._clock()
        late = {ticket: asked for ticket, asked in self._open.items() if asked.ends < now}
        for ticket in late:
            del self._open[ticket]
        self._late |= late
        return list(late)

    def _learn(self, asked: TierQuestion, num_there: int) -> int:
        """The first `num_there` pages are stored. Returns how many of them were not known."""
        size, salt = self._index.page_size, root_of(asked.salt).hex()
        if num_there < len(asked.keys):
            self._missing[asked.keys[num_there].id] = self._clock()
            if len(self._missing) > MOST_MISSING:
                self._missing.popitem(last=False)
        tokens = asked.tokens[: (asked.first + num_there) * size]
        known = self._index.match(tokens, salt)
        count = len(tokens) // size - known.length // size
        if known.length // size < asked.first or count <= 0:
            return 0  # what is before them is not known any more, or they are known by now
        lock = self._index.lock(known.node, known.length)
        self._index.evict(max(0, count - self._handles.num_free))
        handles = self._handles.allocate(min(count, self._handles.num_free)) or []
        if handles:
            table = [*known.pages, *handles]
            self._index.insert(tokens[: len(table) * size], table, salt)
        self._index.unlock(lock)
        return len(handles)
