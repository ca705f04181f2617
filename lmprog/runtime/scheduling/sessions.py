"""Sessions of harnesses that send each turn as a request of its own: they are programs too.

A request *goes on* from an earlier one where its prompt repeats what that one computed. The tree
says so by itself: the end of its cached prefix lies behind the earlier prompt, or so far in a text
that nobody else has that only a little of it is asked anew. A harness may also name its sessions;
then a name that a client has used before tells the session, and the tree tells which of its agents.
Such a request belongs to the program of the one before it, of which each agent is a branch. A name
that the texts do not confirm makes no request part of an older program: older programs keep more.

Between two requests a session *pauses*. For how long, and whether it comes back at all, is learned
for each client by the tool that was called last, else by the number of turns. While it is more
likely than not to come back, the end of its last request is pinned as a program's branch is.

A name or a text is looked up among those of the same client only, all that is learned is by client,
and none keeps more than its share of memory: what one says of itself moves nothing for others.
Knows nodes, programs and times; knows no texts and no clock.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from lmprog.radix.eviction import NUM_AGES, RANKED_FOR, age_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmprog.radix import Match, Node
    from lmprog.runtime.scheduling.active_programs import ActivePrograms, Pin, Pins
    from lmprog.runtime.scheduling.sequence import Client, Sequence, SequenceGroup, SessionTurn

MOST_ANEW = 1 / 6
"""Part of an earlier prompt's end that may be replaced: some harnesses say at the end of each
prompt what is asked now, and leave it out of the next one."""
MOST_LOOKED_AT = 32
"""Nodes, or ends that are evicted, among which the end of an earlier request is looked for."""
MOST_PAUSES = 4096
"""Ends of requests that are remembered."""
MOST_KINDS = 4096
"""Of pauses that are told apart."""
MOST_TURN = 3
RATHER, HARDLY = 0.5, 0.95
"""Chances that it never ends."""
HALF_LIFE = 64.0
"""Pauses of a kind and an age, until what was before them counts half."""
PRIOR_SECONDS = 60.0
"""Up to this a pause of which nothing is known may end at any age; later that is unlikely."""
PRIOR_BEFORE, PRIOR_AFTER = 0.15, 0.001
"""The chance that it ends at an age, before that and after it: the less, the more have ended."""


class ExpectedPause(NamedTuple):
    """Of a pause: how long it lasts if it ends, after how long it rather will not, and after how
    long it hardly will."""

    seconds: float
    late: float
    limit: float
    returns: tuple[float, ...]
    """By age: the chance that it ends at all once it has lasted so long."""

    def chance_after(self, seconds: float) -> float:
        return self.returns[age_of(max(0.0, seconds))]


class PauseTimes:
    """How long the pauses of one kind are, where some are not over yet and some never will be: for
    each age, how many reached it and how many ended then."""

    __slots__ = ("_ended", "_expected", "_prior", "_reached")

    def __init__(self, prior: list[float]) -> None:
        """`prior`: the chance of each age that a pause ends, while none has."""
        self._prior = prior
        self._reached = [1.0] * NUM_AGES
        self._ended = [0.0] * NUM_AGES
        self._expected: ExpectedPause | None = None

    def saw(self, first: int, last: int, *, ended: bool) -> None:
        """A pause was at the ages `first` to `last`, and ended then or not."""
        reached = self._reached
        for age in range(first, last + 1):
            reached[age] += 1.0
            if reached[age] > 2 * HALF_LIFE:
                reached[age] /= 2
                self._ended[age] /= 2
        self._ended[last] += ended
        self._expected = None

    @property
    def expected(self) -> ExpectedPause:
        if self._expected is None:
            self._expected = self._find()
        return self._expected

    def _find(self) -> ExpectedPause:
        unknown = 1.0 / (1.0 + sum(self._ended))
        chances = [
            (ended + unknown * prior) / reached
            for ended, prior, reached in zip(self._ended, self._prior, self._reached, strict=True)
        ]
        stays, late, limit, returns = 1.0, 0.0, 0.0, list[float]()
        for age in range(NUM_AGES - 1, -1, -1):
            stays *= 1.0 - chances[age]
            returns.append(1.0 - stays)
            if not limit and stays < HARDLY:
                limit = _begin(age + 1)
            if not late and stays < RATHER:
                late = _begin(age + 1)
        left, total, seconds = 1.0, 0.0, 0.0
        for age in range(age_of(limit)):
            chance = left * chances[age]
            left -= chance
            total += chance
            seconds += chance * _begin(age + 1)
        mean = seconds / total if total else 0.0
        return ExpectedPause(mean, late, limit, tuple(reversed(returns)))


def _begin(age: int) -> float:
    """Seconds with which an age begins."""
    return float((2 ** (age / 2) - 1.0) * RANKED_FOR)


_LIKELY = [PRIOR_BEFORE if _begin(age) < PRIOR_SECONDS else PRIOR_AFTER for age in range(NUM_AGES)]
_UNLIKELY = [0.0] * NUM_AGES


class PauseKind(NamedTuple):
    """Whose pause, after which turn, whether of a session with a name, and the tool called last."""

    client: Client
    turn: int
    is_named: bool
    tool: str

    @property
    def is_likely(self) -> bool:
        """Whether somebody who is not known is expected back: not after a first request, whatever
        is said of it."""
        return self.turn > 1


@dataclass(eq=False, slots=True)
class Session:
    """`number`: of its first program. `name`, `label`: as `SessionTurn` has them."""

    number: int
    client: Client
    name: str = ""
    label: str = ""
    ends: dict[Pause, None] = field(default_factory=dict)
    """Of its agents' last requests."""
    num_open: int = 0
    """Requests that are under way."""
    num_confirmed: int = 0
    """Requests that went on from others by their text ..."""
    num_new: int = 0
    """... and those that did not."""


@dataclass(eq=False, slots=True)
class Pause:
    """A session since a request of it ended in `node`."""

    session: Session
    number: int
    """Of the program."""
    node: Node
    pin: Pin | None
    """None: it is not expected back."""
    prompt_end: int
    prompt: int
    turn: int
    kind: PauseKind
    since: float
    seen: int = 0
    """Ages of it that were counted."""
    num_next: int = 0
    """Requests under way that go on from it."""
    ahead: Node | None = None
    """Where what its next request begins with was computed for it."""


class OpenTurn(NamedTuple):
    session: Session
    follows: Pause | None
    """The end of the request from which it goes on."""


class Sessions:
    """All sessions that run or pause."""

    def __init__(
        self,
        pins: Pins,
        programs: ActivePrograms,
        find: Callable[[Sequence], Match],
    ) -> None:
        """`find`: the cached prefix of a sequence."""
        self._pins = pins
        self._programs = programs
        self._find = find
        self._named: dict[tuple[Client, str], Session] = {}
        self._pauses: OrderedDict[Pause, None] = OrderedDict()
        """The one that began last at the end."""
        self._open: dict[SessionTurn, OpenTurn] = {}
        """Requests that are under way."""
        self._of_client: dict[Client, dict[Pause, None]] = {}
        self._at: dict[Node, Pause] = {}
        self._present: OrderedDict[Client, float] = OrderedDict()
        """Clients of late, and when their last request came."""
        self._kept: dict[Client, dict[Pause, None]] = {}
        """Those that are pinned, the one that began last at the end ..."""
        self._kept_tokens: dict[Client, int] = {}
        """... and the tokens of their prompts."""
        self._last: dict[int, Pause] = {}
        """Of each program."""
        self._times: dict[Client, OrderedDict[PauseKind, PauseTimes]] = {}
        """By whose they are, the one that was used last at the end."""
        self._num_kinds = 0
        self.limits: list[tuple[float, int, bool, Pause]] = []
        """A heap: when pins are given up."""
        self._num_limits = 0

    @property
    def num_pauses(self) -> int:
        return len(self._pauses)

    @property
    def numbers(self) -> set[int]:
        """Of programs that pause."""
        return {pause.number for pause in self._pauses}

    @property
    def kinds(self) -> list[PauseKind]:
        """Of pauses of which something is known."""
        return [kind for own in self._times.values() for kind in own]

    def computed_ahead(self, pause: Pause, node: Node) -> None:
        """What the pause's next request begins with is there up to `node`, which need not be behind
        the pause's own: a template may write the answer anew.
        """
        if pause in self._pauses and node not in self._at:
            self._unmark(pause)
            self._at[node], pause.ahead = pause, node

    def _unmark(self, pause: Pause) -> None:
        if pause.ahead is not None and self._at.get(pause.ahead) is pause:
            del self._at[pause.ahead]
        pause.ahead = None

    def last_of(self, program: int) -> Pause | None:
        """Its newest pause, where it is a session's."""
        return self._last.get(program)

    # --- a request begins

    def join(self, group: SequenceGroup, turn: SessionTurn, now: float) -> None:
        """The group, which has a number of its own as a program, is the next turn of a session that
        is known, or else the first one of a new session.
        """
        client, present = group.client, self._present
        present[client] = now
        present.move_to_end(client)
        while next(iter(present.values())) < now - PRIOR_SECONDS:
            present.popitem(last=False)
        named = self._named.get((client, turn.name)) if turn.name else None
        found, is_guess = self._followed(group, turn, named), False
        if found is None:
            found, is_guess = self._lost(group, turn, named)
            if is_guess and named is not None and named.num_confirmed < named.num_new:
                found = None
        session = found.session if named is None and found is not None else named
        if session is None:
            assert group.program is not None
            session = Session(group.program, client, turn.name, turn.label)
            if turn.name:
                self._named[client, turn.name] = session
        self._open[turn] = OpenTurn(session, found)
        turn.prompt_end = group.prompt_len
        turn.prompt = hash(group.sequences[0].tokens[: group.prompt_len].tobytes())
        if found is not None and not is_guess:
            session.num_confirmed += 1
            group.program = found.number
        elif not session.num_open and session.num_confirmed >= session.num_new:
            group.program = session.number
        session.num_new += found is None or is_guess
        session.num_open += 1
        assert group.program is not None
        turn.number = group.program
        if found is not None:
            self._count(found, now, ended=True)
            found.num_next += 1

    def _followed(
        self, group: SequenceGroup, turn: SessionTurn, named: Session | None
    ) -> Pause | None:
        match, client = self._find(group.sequences[0]), group.client
        length = match.length
        repeats = group.prompt_len if length >= group.prompt_len - 1 else 0
        best: Pause | None = None
        near = dict[int, Pause]()
        """By program: ends of which a little would have to be asked anew."""
        todo, looked_at = [match.node], 0
        while todo and looked_at < MOST_LOOKED_AT:
            node = todo.pop()
            looked_at += 1
            todo += node.children.values()
            pause = self._at.get(node)
            if pause is None or not self._may_be(pause, client, turn, named):
                continue
            end = pause.prompt_end
            if end >= repeats > 0:  # asked once more
                continue
            if length < end <= length * (1.0 + MOST_ANEW):
                near[pause.number] = pause
            elif end <= length and (best is None or pause.since > best.since):
                best = pause
        if best is None and len(near) == 1:  # else it is what several have in common
            (best,) = near.values()
        above = match.node.parent
        while best is None and above is not None:
            pause = self._at.get(above)
            if pause is not None and self._may_be(pause, client, turn, named):
                best = pause
            above = above.parent
        return best

    def _lost(
        self, group: SequenceGroup, turn: SessionTurn, named: Session | None
    ) -> tuple[Pause | None, bool]:
        """One whose end the tree has no more, by its prompt, or by its name alone: a guess."""
        pauses = self._of_client.get(group.client, {}) if named is None else named.ends
        tokens, looked_at = group.sequences[0].tokens, 0
        named_only: Pause | None = None
        for pause in reversed(pauses):
            is_lost = not pause.node.alive or pause.node.end < pause.prompt_end
            if is_lost and self._may_be(pause, group.client, turn, named):
                looked_at += 1
                if looked_at > MOST_LOOKED_AT:
                    break
                end = pause.prompt_end
                if end < group.prompt_len and hash(tokens[:end].tobytes()) == pause.prompt:
                    return pause, False
                named_only = named_only or (pause if named is not None else None)
        return named_only, True

    @staticmethod
    def _may_be(pause: Pause, client: Client, turn: SessionTurn, named: Session | None) -> bool:
        session = pause.session
        if named is not None:
            return session is named
        hints = turn.name or session.name, turn.label, session.label
        return session.client == client and not hints[0] and hints[1] == hints[2]

    # --- a request ends

    def pause(self, turn: SessionTurn, node: Node | None, now: float) -> None:
        """The request of `turn` has ended in `node`; None: nothing stays of it."""
        session, before = self._open.pop(turn)
        session.num_open -= 1
        if before is not None and before in self._pauses:
            before.num_next -= 1
            self._limit(before, now)
        if node is None:
            self._forget_if_over(session)
            return
        number = 1 if before is None else before.turn + 1
        kind = PauseKind(session.client, min(number, MOST_TURN), bool(turn.name), turn.tool)
        expected = self._times_of(kind).expected
        pin = self._pins.pin(node, turn.number) if expected.limit > 0.0 else None
        pause = Pause(
            session, turn.number, node, pin, turn.prompt_end, turn.prompt, number, kind, now
        )
        session.ends[pause] = self._pauses[pause] = None
        self._of_client.setdefault(session.client, {})[pause] = None
        self._at[node] = self._last[turn.number] = pause
        if before is not None and before in self._pauses:
            self._forget(before)
        self._limit(pause, now)
        if pin is not None:
            self._keep(pause)
        self._programs.expect(turn.number, expected.seconds, expected.chance_after)
        if len(self._pauses) > MOST_PAUSES:
            own = self._of_client[session.client]
            is_more = len(own) * len(self._of_client) > MOST_PAUSES  # than an equal share
            oldest = next(iter(own if is_more else self._pauses))
            self._count(oldest, now, ended=False)
            self._forget(oldest)

    def _keep(self, pause: Pause) -> None:
        """The client keeps one more; no more than its share of memory where others are there too,
        whatever its hints say.
        """
        client = pause.session.client
        kept = self._kept.setdefault(client, {})
        kept[pause] = None
        self._kept_tokens[client] = self._kept_tokens.get(client, 0) + pause.prompt_end
        while (
            len(self._present) > 1
            and kept
            and self._kept_tokens[client] * len(self._present) > self._programs.capacity
        ):
            self._unpin(next(iter(kept)))

    def _unpin(self, pause: Pause) -> None:
        if pause.pin is None:
            return
        self._pins.unpin(pause.pin)
        pause.pin = None
        client = pause.session.client
        del self._kept[client][pause]
        self._kept_tokens[client] -= pause.prompt_end
        if not self._kept[client]:
            del self._kept[client], self._kept_tokens[client]

    def _limit(self, pause: Pause, now: float) -> None:
        expected = self._times_of(pause.kind).expected
        if pause.pin is None:
            self._push(pause, now + PRIOR_SECONDS, is_late=False)
        else:
            self._push(pause, now + expected.late, is_late=True)
            self._push(pause, now + max(expected.late, expected.limit), is_late=False)

    def _push(self, pause: Pause, at: float, *, is_late: bool) -> None:
        self._num_limits += 1
        heapq.heappush(self.limits, (at, self._num_limits, is_late, pause))

    def tick(self, now: float) -> None:
        """What those that are late stand on goes first where memory is short; those hardly expected
        back any more lose their pins.
        """
        limits = self.limits
        while limits and limits[0][0] <= now:
            _, _, is_late, pause = heapq.heappop(limits)
            if pause.num_next or pause not in self._pauses:
                continue
            if not is_late:
                self._count(pause, now, ended=False)
                self._unpin(pause)
            elif pause.pin is not None and not pause.session.num_open:
                self._pins.demote(pause.number)

    def check(self) -> None:
        """Each client keeps what it has pinned, and that is counted; AssertionError otherwise."""
        kept: dict[Client, dict[Pause, None]] = {}
        for pause in self._pauses:
            assert pause in pause.session.ends, "a pause is one of its session's"
            if pause.pin is not None:
                kept.setdefault(pause.session.client, {})[pause] = None
        assert kept == self._kept, "pinned pauses are kept"
        for client, pauses in kept.items():
            assert sum(pause.prompt_end for pause in pauses) == self._kept_tokens[client]

    def _count(self, pause: Pause, now: float, *, ended: bool) -> None:
        """What is known of the pause now, and was not counted before."""
        age = age_of(max(0.0, now - pause.since))
        if ended or age > pause.seen:
            first = min(pause.seen, age)
            self._times_of(pause.kind).saw(first, age - (not ended), ended=ended)
            pause.seen = age

    def _times_of(self, kind: PauseKind) -> PauseTimes:
        own = self._times.setdefault(kind.client, OrderedDict())
        times = own.get(kind)
        if times is not None:
            own.move_to_end(kind)
            return times
        times = own[kind] = PauseTimes(_LIKELY if kind.is_likely else _UNLIKELY)
        self._num_kinds += 1
        if self._num_kinds > MOST_KINDS:
            self._forget_kind(kind.client)
        return times

    def _forget_kind(self, client: Client) -> None:
        """The client has one kind more than there is room for: it forgets one of its own if it has
        more than an equal share, else who has most of them does.
        """
        if len(self._times[client]) * len(self._times) <= MOST_KINDS:
            client = max(self._times, key=lambda one: len(self._times[one]))
        own = self._times[client]
        own.popitem(last=False)
        self._num_kinds -= 1
        if not own:
            del self._times[client]

    def _forget(self, pause: Pause) -> None:
        session = pause.session
        del session.ends[pause], self._pauses[pause], self._of_client[session.client][pause]
        if not self._of_client[session.client]:
            del self._of_client[session.client]
        if self._at.get(pause.node) is pause:
            del self._at[pause.node]
        self._unmark(pause)
        if self._last[pause.number] is pause:
            del self._last[pause.number]
        self._unpin(pause)
        self._forget_if_over(session)

    def _forget_if_over(self, session: Session) -> None:
        if not (session.ends or session.num_open):
            self._named.pop((session.client, session.name), None)
