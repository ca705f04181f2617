"""What is evicted first: unlocked nodes in queues, and the policy that says which queue goes next.

Each queue is in the order of last use. Without a policy there is one, and that is LRU.
`ExpectedReuse` has a queue for each kind of node and learns how soon nodes of that kind are used
again: the end of a queue goes of which least use is to be expected. While nothing is known, that
depends on age alone, so that LRU is what it begins with; and it falls back to LRU while that would
have found more.

Knows nodes, their pages and times; knows no tokens, and changes no node but for its kind and past.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace, merge
from math import inf, log2
from operator import attrgetter
from typing import Protocol

from lmprog.radix.node import Node, Past


class EvictionPolicy(Protocol):
    """Which queue a node waits in (`Node.kind`), and what it is worth to keep."""

    num_queues: int

    def worth(self, node: Node, now: float) -> float:
        """The node at an end of its queue that is worth least goes next: itself, or a leaf below
        it.
        """
        ...

    def added(self, leaf: Node) -> None:
        """A new leaf, which is not in a queue yet."""
        ...

    def removed(self, node: Node) -> None:
        """The node, which still knows its parent, is not in the tree any more."""
        ...

    def ended(self, node: Node, prompt_end: int, now: float) -> list[Node]:
        """A request whose prompt ended at `prompt_end` ended in `node`. The policy may change the
        kind of every node of the path, and of those that it returns; the caller moves them to their
        queues.
        """
        ...


RANKED_FOR = 1.0 / 16
"""Seconds for which the order of the queues is kept: ages are told apart no finer."""


class EvictionOrder:
    """All unlocked nodes of a tree, not only leaves, in LRU queues: those of unpinned nodes, one
    for each kind, and then that of pinned ones. Callers must remove a node before its pins change
    between none and some, and add it again afterwards.

    When a path is used, its nodes are touched from the lower end upwards. So a node is always
    behind its descendants in its queue, and the head of the only queue of a kind is a leaf. What is
    below a head of which least is expected is used no sooner than it, and goes first.

    The queues are linked through the nodes themselves (`older`, `newer`), which matters when a tree
    is far larger than the processor's cache.
    """

    def __init__(self, policy: EvictionPolicy | None = None) -> None:
        self.policy = policy
        self._plain = [_queue() for _ in range(1 if policy is None else policy.num_queues)]
        self._pinned = _queue()
        self._ranked: list[tuple[float, int, bool]] = []
        """Both ends of the queues by what they were worth at a time: a heap."""
        self._ranked_at = 0.0
        self.num_pages = 0  # of all nodes here
        self.num_pinned = 0  # of the pinned ones
        self.now = 0.0  # written to `Node.used`; only policies read it

    def add(self, node: Node) -> None:
        """`node` is unlocked, and was used just now."""
        count = len(node.pages)
        node.used = self.now
        self.num_pages += count
        if node.pins:
            self.num_pinned += count
        end = self._pinned if node.pins else self._plain[node.kind]
        newest = end.older
        node.older, node.newer = newest, end
        newest.newer = end.older = node

    def remove(self, node: Node) -> None:
        count = len(node.pages)
        self.num_pages -= count
        if node.pins:
            self.num_pinned -= count
        older, newer = node.older, node.newer
        older.newer, newer.older = newer, older
        del node.older, node.newer

    def resized(self, node: Node, by: int) -> None:
        """`node`, which is queued, owns `by` pages more than before."""
        self.num_pages += by
        if node.pins:
            self.num_pinned += by

    def touch(self, node: Node) -> None:
        """The path from the root to `node` was used just now. Locked nodes and roots are not
        queued.
        """
        plain, pinned, now = self._plain, self._pinned, self.now
        while (parent := node.parent) is not None:
            if not node.locks:
                older, newer = node.older, node.newer
                older.newer, newer.older = newer, older
                node.used = now
                end = pinned if node.pins else plain[node.kind]
                newest = end.older  # no call for each node of a path
                node.older, node.newer = newest, end
                newest.newer = end.older = node
            node = parent

    def next_victim(self) -> Node | None:
        """The leaf to evict next; it stays queued. None when every node is locked."""
        if self.num_pages > self.num_pinned:
            node = self._plain[0].newer if self.policy is None else self._least(self.policy)
            while node.children:
                node = next(iter(node.children.values()))
            return node
        return None if self._pinned.newer is self._pinned else self._pinned.newer

    def _least(self, policy: EvictionPolicy) -> Node:
        """The end of a queue that is worth least. Ends become worth more when what was there is
        gone; what becomes worth less is found when they are ranked again.
        """
        now = self.now
        if now - self._ranked_at > RANKED_FOR:
            self._ranked.clear()
        while True:
            if not self._ranked:
                self._rank(policy)
            worth, kind, is_newest = self._ranked[0]
            end = self._plain[kind]
            node = end.older if is_newest else end.newer
            if node is end:
                heappop(self._ranked)
                continue
            found = policy.worth(node, now)
            if found <= worth:
                return node
            heapreplace(self._ranked, (found, kind, is_newest))

    def _rank(self, policy: EvictionPolicy) -> None:
        now, ranked = self.now, self._ranked
        for kind, end in enumerate(self._plain):
            if end.newer is not end:
                ranked.append((policy.worth(end.newer, now), kind, False))
                ranked.append((policy.worth(end.older, now), kind, True))
        heapify(ranked)
        self._ranked_at = now

    def oldest_first(self) -> Iterator[Node]:
        """All nodes, unpinned ones before the others, each kind in the order in which it is
        evicted; the order must not change meanwhile.
        """
        yield from merge(*map(_oldest_first, self._plain), key=attrgetter("used"))
        yield from _oldest_first(self._pinned)

    def newest_first(self) -> Iterator[Node]:
        """All nodes, pinned ones before the others; the order must not change meanwhile."""
        yield from _newest_first(self._pinned)
        newest = map(_newest_first, self._plain)
        yield from merge(*newest, key=attrgetter("used"), reverse=True)

    def check(self, nodes: list[Node]) -> None:
        """`nodes` are all nodes of the tree, roots left out."""
        pinned = {node for node in nodes if node.pins and not node.locks}
        plain = {node for node in nodes if not node.pins and not node.locks}
        assert self.num_pinned == sum(len(node.pages) for node in pinned)
        assert self.num_pages == self.num_pinned + sum(len(node.pages) for node in plain)
        queued: set[Node] = set()
        for end in (self._pinned, *self._plain):
            seen: set[Node] = set()
            for node in _oldest_first(end):
                assert node.parent not in seen, f"{node} would be evicted after its parent"
                assert node.newer.older is node
                assert end is (self._pinned if node.pins else self._plain[node.kind]), "its queue"
                seen.add(node)
            assert seen == pinned or end is not self._pinned, "the queue holds the pinned nodes"
            queued |= seen
        assert queued == plain | pinned, "the queues hold the unlocked nodes"


def _queue() -> Node:
    """An empty queue: a ring of one sentinel node. The least recently used is its `newer`."""
    end = Node(None, "", 0, b"", [])
    end.older = end.newer = end
    return end


def _oldest_first(end: Node) -> Iterator[Node]:
    node = end.newer
    while node is not end:
        yield node
        node = node.newer


def _newest_first(end: Node) -> Iterator[Node]:
    node = end.older
    while node is not end:
        yield node
        node = node.older


# -- expected reuse

MOST_TURN = 6
NUM_USERS = 8
_LEFT_BEHIND = 1 + 2 * MOST_TURN
_SHARED = 1 + _LEFT_BEHIND
"""Kinds of nodes: never used by a request that ended; the end of a request, by turn and whether it
added little; an end that the next request of its text did not go on from; and what several requests
began with, by how many, in powers of two."""
NUM_AGES = 48
_WIDTHS = [(2 ** ((age + 1) / 2) - 2 ** (age / 2)) * RANKED_FOR for age in range(NUM_AGES)]
"""Seconds of each age: each is longer by a factor of the square root of two."""
_MIDDLES = [(2 ** (age / 2) - 1.0) * RANKED_FOR + long / 2 for age, long in enumerate(_WIDTHS)]
HALF_LIFE = 65_536
"""Pages of a kind whose use ended after that of one, until that one counts half."""
UNKNOWN = 0.01
"""Uses at each age that were seen before any was ..."""
NOTHING_SEEN = 500.0
"""... of so many pages of that age."""
LIKE_OTHERS = 2000.0
"""Pages of a kind, until what was seen of it counts as much as what was seen of all."""
LITTLE = 0.5
"""Of what requests add in the mean."""
MEAN_WEIGHT = 0.02
"""Of the newest request in that mean."""
MOST_NOTED = 256
"""Times at which it is known how many pages of a kind had been left; twice that for late ones."""
MOST_GHOSTS = 65_536
"""Evicted nodes that are remembered."""
COMPARED = 8
"""The comparison with LRU goes over so many times the pages of the pool, the older the less ..."""
LEAST_LEAD = -0.0075
"""... and that part of the pages asked for it may find less."""


class ReuseTimes:
    """How long after a use the nodes of one kind are used again, as far as they are; by pages. What
    was left a short time ago says nothing of what happens later.
    """

    __slots__ = ("_due", "_left", "_like", "_ratio", "_worth", "left", "next_note", "reuses")

    def __init__(self, like: ReuseTimes | None = None, ratio: float = 1.0) -> None:
        """Until more is known they are used again `ratio` times as often as those of `like`."""
        self._like = like
        self._ratio = ratio
        self.left = 0.0
        """Pages whose use ended: since then the next one is waited for."""
        self._left = [(0.0, 0.0)]
        """The same at some times ..."""
        self.next_note = 1.0
        """... and when the next of them is."""
        self.reuses = [0.0] * NUM_AGES
        """Of these, by age, those that were used again."""
        self._worth: list[float] = []
        self._due = 0.0

    def note(self, now: float) -> None:
        """So many were left by now."""
        if now >= self.next_note:
            self.next_note = now + 1.0
            self._left.append((now, self.left))
            if len(self._left) > 2 * MOST_NOTED:
                del self._left[1:MOST_NOTED:2]

    def worth(self, age: int) -> float:
        """Uses to be expected in a second that a page of this age is kept, for as long as is best
        for it. Found anew when an eighth more is known; the older counts the less.
        """
        if self.left >= self._due:
            while self.left > 2 * HALF_LIFE:
                self.left /= 2
                self.reuses = [count / 2 for count in self.reuses]
                self._left = [(at, left / 2) for at, left in self._left]
            self._due = 1.125 * self.left + 1.0
            self._worth = self._find()
        return self._worth[age]

    def chances(self) -> list[float]:
        """Of each age: that a page that reaches it is used again then."""
        seen, unseen = [0.0] * NUM_AGES, NOTHING_SEEN
        if self._like is not None:
            unseen = LIKE_OTHERS
            seen = [unseen * self._ratio * chance for chance in self._like.chances()]
        now, stays, found = self._left[-1][0], 1.0, list[float]()
        for age, count in enumerate(self.reuses):
            place = bisect_right(self._left, (now - _MIDDLES[age], inf)) - 1
            reached = max(count, stays * self._left[max(0, place)][1])
            chance = min(1.0, (count + UNKNOWN + seen[age]) / (reached + unseen))
            found.append(chance)
            stays *= 1.0 - chance
        return found

    def _find(self) -> list[float]:
        chances, found = self.chances(), list[float]()
        for age in range(NUM_AGES):
            stays, uses, seconds, best = 1.0, 0.0, 0.0, 0.0
            for chance, long in zip(chances[age:], _WIDTHS[age:], strict=True):
                used = stays * chance
                uses += used
                seconds += long * (stays - used / 2)
                stays -= used
                best = max(best, uses / seconds)
            found.append(best)
        return found


def age_of(seconds: float) -> int:
    return min(NUM_AGES - 1, int(2 * log2(1.0 + seconds / RANKED_FOR)))


def _again(times: int) -> float:
    """How much likelier one more use is after so many than after one, by the rule of succession: it
    is what is expected while a kind is not known.
    """
    return 3.0 * times / (times + 2)


class ExpectedReuse:
    """Evicts where least use is to be expected for the page and second that it is kept. `num_pages`
    are those of the pool.
    """

    num_queues = _SHARED + NUM_USERS

    def __init__(self, num_pages: int) -> None:
        self._all = ReuseTimes()
        """Of ends of requests and what never was one."""
        like = self._all
        turns = [ReuseTimes(like, _again(1 + n // 2)) for n in range(2 * MOST_TURN)]
        shared = [ReuseTimes(like, _again(2**n)) for n in range(1, NUM_USERS + 1)]
        self._times = [ReuseTimes(like), *turns, ReuseTimes(), *shared]
        self._mean_added = 0.0
        """Tokens that a request adds to those that it goes on from."""
        self._ghosts: OrderedDict[tuple[int, int], tuple[int, int, Past]] = OrderedDict()
        """By the number of the parent and the first token: number, kind and past of evicted nodes.
        """
        self._returned: set[int] = set()
        """Numbers of nodes that came back and have not been counted yet."""
        self._lru: OrderedDict[int, int] = OrderedDict()
        """What LRU would have kept: numbers of nodes with their pages, the one used last at the
        end ..."""
        self._lru_room = num_pages
        """... and the pages that it would have left."""
        self._window = COMPARED * num_pages
        self._asked = self._lead = 0.0
        """Pages of requests, and how many more of them were found than LRU would have."""
        self._rest = self._next_rest = self._window
        self.is_lru = False
        """Whether it evicts as LRU does, for a rest that doubles each time."""

    def worth(self, node: Node, now: float) -> float:
        if self.is_lru:
            return node.used
        return self._times[node.kind].worth(age_of(now - node.used))

    def added(self, leaf: Node) -> None:
        assert leaf.parent is not None
        known = self._ghosts.pop((leaf.parent.number, leaf.first_token), None)
        if known is not None:
            leaf.number, leaf.kind, leaf.past = known
            self._returned.add(leaf.number)

    def removed(self, node: Node) -> None:
        self._returned.discard(node.number)
        if node.past is None or node.parent is None:
            return
        ghosts = self._ghosts
        ghosts[node.parent.number, node.first_token] = node.number, node.kind, node.past
        if len(ghosts) > MOST_GHOSTS:
            ghosts.popitem(last=False)

    def ended(self, node: Node, prompt_end: int, now: float) -> list[Node]:
        last = node
        while last.past is None and last.parent is not None:
            last = last.parent
        past = last.past
        goes_on = past is not None and past.turn > 0 and node.end >= past.prompt_end
        times, pool, left_behind = self._times, self._all, list[Node]()
        turn, added = 1, node.end
        if past is not None and goes_on:
            turn, added = past.turn + 1, node.end - past.prompt_end
            for one in last.children.values():
                if one.past and one.past.at == past.at:
                    one.kind = _LEFT_BEHIND
                    times[_LEFT_BEHIND].left += len(one.pages)
                    left_behind.append(one)
        self._mean_added += MEAN_WEIGHT * (added - self._mean_added)
        kind = 2 * min(turn, MOST_TURN) - (added <= LITTLE * self._mean_added)
        own = Past(now, turn, prompt_end, 1, node.end)
        lead, asked, lru, returned = 0, 0, self._lru, self._returned
        room = self._lru_room
        while (parent := node.parent) is not None:  # no calls in here: it is on the way of each gen
            num_pages, past, number = len(node.pages), node.past, node.number
            found = lru.pop(number, 0)
            lru[number] = num_pages
            room += found - num_pages
            asked += num_pages
            lead -= found if found < num_pages else num_pages
            if past is None:
                above = parent.past
                if above is not None and above.turn and above.end > parent.end:  # it was shortened
                    again = num_pages * min(1.0, (above.end - parent.end) / (node.end - parent.end))
                    age = min(NUM_AGES - 1, int(2 * log2(1.0 + (now - above.at) / RANKED_FOR)))
                    times[parent.kind].reuses[age] += again
                    pool.reuses[age] += again
                node.kind, node.past = kind, own
            else:
                if number in returned:
                    returned.discard(number)
                else:
                    lead += num_pages
                again = float(num_pages)
                if past.end < node.end:  # the rest of a node that came back is new
                    again *= (past.end - node.begin) / (node.end - node.begin)
                age = min(NUM_AGES - 1, int(2 * log2(1.0 + (now - past.at) / RANKED_FOR)))
                times[node.kind].reuses[age] += again
                if node.kind < _SHARED:
                    pool.reuses[age] += again
                users = past.users + (not goes_on)
                if users > 1:
                    node.kind = _SHARED + min(NUM_USERS, users.bit_length() - 1) - 1
                    node.past = Past(now, 0, 0, users, node.end)
                    times[node.kind].note(now)
                else:
                    node.kind, node.past = kind, own
            times[node.kind].left += num_pages
            if node.kind < _SHARED:
                pool.left += num_pages
            node = parent
        for some in (times[kind], pool):
            if now >= some.next_note:
                some.note(now)
        while room < 0:
            room += lru.popitem(last=False)[1]
        self._lru_room = room
        self._asked += asked
        self._lead += lead
        if self.is_lru or self._asked > self._window / 8:
            self._compare(asked)
        return left_behind

    def _compare(self, asked: int) -> None:
        """With LRU, after a request for so many pages."""
        if self.is_lru:
            self._rest -= asked
            if self._rest <= 0:
                self.is_lru, self._asked, self._lead = False, 0.0, 0.0
        elif self._lead < LEAST_LEAD * self._window:
            self.is_lru, self._rest = True, self._next_rest
            self._next_rest *= 2
        if self._asked > self._window:
            self._asked, self._lead = self._asked / 2, self._lead / 2
