"""What a runtime asks of a store that others share, and what it knows of the answers.

What others have put there is asked for when a sequence needs it. The sequence that asked waits a
moment for the answer of the store's thread; one that comes later is for the next sequence.

Whole pages become known in the index, as if they had been stored here. **Parts of pages** do not: a
page has its name by its tokens there, so texts that part inside a page have no page in common. At
such a place the tokens before it are stored once more, as a page of fewer tokens (`StoredParts`).
Who looks for more behind whole pages asks for all lengths that such a part can have.

Knows keys and the index; knows no file and no network.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lmprog.radix import PageAllocator, RadixTree, Tokens
from lmprog.runtime.tier.page_store import (
    HELD_UP_SECONDS,
    TOKEN_BYTES,
    LoadEnd,
    PageKey,
    PageStore,
    page_keys,
    root_of,
)
from lmprog.runtime.tier.stored_states import StoredStates, make_room

FIND_SECONDS = 0.02
"""A sequence waits so long at most for an answer."""
ASK_AGAIN_SECONDS = 1.0
"""What nobody had stored is not asked for again for so long."""
MOST_MISSING = 4096
"""Pages that are remembered as such."""
MOST_PARTS = 4096
"""Parts of pages that are known to be stored."""


@dataclass(frozen=True, slots=True)
class TierQuestion:
    """How many of `keys` are stored, which are the pages of `tokens` from number `first` on."""

    tokens: Tokens
    salt: str
    first: int
    keys: list[PageKey]
    ends: float
    """When nobody waits for the answer any more."""


class StoredParts:
    """Parts of pages that are stored, each the first tokens of a page behind whole ones; as far as
    this runtime knows.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._known: OrderedDict[tuple[int, bytes], set[PageKey]] = OrderedDict()
        """By the page's place on its path and its first token, those used last at the end: who
        goes past a place without any computes no digest."""
        self._count = 0

    def has(self, key: PageKey) -> bool:
        return key in self._known.get(_place(key), ())

    def learn(self, key: PageKey) -> None:
        """It is stored."""
        there = self._known.setdefault(_place(key), set())
        self._count += key not in there
        there.add(key)
        while self._count > MOST_PARTS:
            self._count -= len(self._known.popitem(last=False)[1])

    def forget(self, keys: Sequence[PageKey]) -> None:
        for key in keys:
            there = self._known.get(_place(key), set())
            if key in there:
                there.remove(key)
                self._count -= 1
            if not there:
                self._known.pop(_place(key), None)

    def longest(self, tokens: Tokens, salt: str, end: int, limit: int) -> int:
        """How many of `tokens[end:limit]`, behind the whole pages up to `end`, are stored as a part
        of a page.
        """
        size = self._page_size
        first = tokens[end : end + 1].tobytes()
        if not end or end >= limit or not self._known.get((end // size, first)):
            return 0
        self._known.move_to_end((end // size, first))
        beginning = tokens[: min(end + size - 1, limit)].tobytes()
        key = page_keys(root_of(salt), beginning, size)[-1]
        return max((len(one.tokens) for one in self._on((key,))), default=0) // TOKEN_BYTES

    def _on(self, keys: Sequence[PageKey]) -> list[PageKey]:
        """Those that these pages of a path begin with."""
        places = [(key, self._known.get(_place(key), ())) for key in keys if key.tokens]
        return [
            one
            for key, there in places
            for one in there
            if one.parent == key.parent and key.tokens.startswith(one.tokens)
        ]

    def with_parts(self, keys: list[PageKey]) -> list[PageKey]:
        """The pages of a path, and the parts that they begin with, which are forgotten."""
        parts = self._on(keys)
        self.forget(parts)
        return keys + parts


def _place(key: PageKey) -> tuple[int, bytes]:
    return key.index, key.tokens[:TOKEN_BYTES]


class TierQuestions:
    """Those to `store`, whose pages `index` knows under `handles`."""

    def __init__(
        self,
        store: PageStore,
        index: RadixTree,
        handles: PageAllocator,
        pays: Callable[[int, int], bool],
        clock: Callable[[], float],
        states: StoredStates | None = None,
        parts: StoredParts | None = None,
    ) -> None:
        """`pays` says whether so many tokens, on so many pages, are worth loading. `states` are
        those of a model with recurrent layers: then it is asked for pages up to one that others
        have stored, between two pages. `parts` are those of pages, of any other model.
        """
        self._states = states
        self._parts = parts
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
        """Asks whether others have stored more of `tokens[:limit]` than the index has; the pool has
        the first `known` tokens. None where that is not worth it, or was answered a moment ago.
        """
        size, root = self._index.page_size, root_of(salt)
        end = limit - limit % size
        match, num_parts = self._index.match(tokens, root.hex(), end), 0
        first = match.length // size
        if self._states is not None:
            first, num_parts = self._states.last(match) // size, self._states.num_parts
        gain = end - max(known, first * size)
        if gain <= 0 or not self._pays(gain, -(-gain // size) + num_parts):
            return None
        if self._parts is not None:
            end = limit
        keys = page_keys(root, tokens[:end].tobytes(), size)[first:]
        now = self._clock()
        if now - self._missing.get(keys[0].id, now - ASK_AGAIN_SECONDS) < ASK_AGAIN_SECONDS:
            return None
        for ticket, other in self._open.items():
            if other.keys[0] == keys[0]:
                return ticket
        states = [replace(key, part=num_parts) for key in keys] if num_parts else ()
        asked = self._store.find(keys, states)
        if asked is not None:
            self._open[asked] = TierQuestion(tokens[:end], salt, first, keys, now + FIND_SECONDS)
        return asked

    def take(self, answer: LoadEnd) -> int:
        """How many pages have become known by it; none where it answers no question."""
        asked = self._open.pop(answer.ticket, None) or self._late.pop(answer.ticket, None)
        return 0 if asked is None else self._learn(asked, answer)

    def overdue(self) -> list[int]:
        """Questions that have been abandoned: nobody waits for their answers from now on."""
        if not self._open:
            return []
        now = self._clock()
        late = {
            ticket: asked
            for ticket, asked in self._open.items()
            if asked.ends < now
            and self._store.abandon(ticket, is_patient=now < asked.ends + HELD_UP_SECONDS)
        }
        for ticket in late:
            del self._open[ticket]
        self._late |= late
        return list(late)

    def _learn(self, asked: TierQuestion, answer: LoadEnd) -> int:
        """Returns how many of the pages that are stored were not known."""
        size, salt = self._index.page_size, root_of(asked.salt).hex()
        num_there, whole = answer.num_good, len(asked.tokens) // size - asked.first
        if self._parts is not None and num_there > whole:
            self._parts.learn(asked.keys[whole])
        elif self._parts is not None and answer.part:
            key = asked.keys[num_there]
            self._parts.learn(replace(key, tokens=key.tokens[: answer.part * TOKEN_BYTES]))
        num_there = min(num_there, whole)
        if num_there < len(asked.keys):
            self._missing[asked.keys[num_there].id] = self._clock()
            if len(self._missing) > MOST_MISSING:
                self._missing.popitem(last=False)
        tokens = asked.tokens[: (asked.first + num_there) * size]
        known = self._index.match(tokens, salt)
        count = len(tokens) // size - known.length // size
        if known.length // size < asked.first or (count <= 0 and self._states is None):
            return 0  # what is before them is not known any more, or they are known by now
        node = self._index.lock(known.node, known.length)
        make_room(self._index, self._handles, self._states, count)
        handles = self._handles.allocate(min(count, self._handles.num_free)) or []
        table = [*known.pages, *handles]
        if handles:
            inserted = self._index.insert(tokens[: len(table) * size], table, salt)
            lock = self._index.lock(inserted.node)
            self._index.unlock(node)
            node = lock
        num_known = len(handles)
        if self._states is not None and num_there and len(table) * size == len(tokens):
            num_known += self._states.learn(node, len(tokens))
        self._index.unlock(node)
        return num_known
