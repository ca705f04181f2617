"""A client of the simulation: issues random programs op by op, and checks every reply on
arrival.
"""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Literal

from lmprog import wire
from lmprog.simulation import oracle
from lmprog.simulation.reply_checks import BranchMirror, IssuedCall, ReplyChecks

_WEIGHTS = {
    "append": 10,
    "gen": 12,
    "select": 4,
    "fork": 4,
    "close": 5,
    "cancel": 2,
    "read": 1,
    "refer": 3,
    "contest": 1,
}
_KINDS, _UP_TO = list(_WEIGHTS), list(accumulate(_WEIGHTS.values()))
FLOOD_OPS = 40
ADAPTERS = {"one": "1", "two": "2"}
"""Those of worlds that have any, with their digests."""


_OF_NO_BRANCH = (
    wire.TokensAre,
    wire.Welcome,
    wire.Described,
    wire.Snapshot,
    wire.PrefixesAre,
)


class SimClient:
    """`act` gives the next ops, `receive` takes a reply."""

    def __init__(
        self,
        name: bytes,
        rng: random.Random,
        checks: ReplyChecks,
        adapting: random.Random | None = None,
    ) -> None:
        """`adapting` chooses among the adapters; None: there are none."""
        self.name = name
        self._adapting = adapting
        self.rng = rng
        self.checks = checks
        self.open: dict[int, BranchMirror] = {}
        self.calls: dict[int, IssuedCall] = {}
        self._unanswered: dict[int, IssuedCall] = {}
        self.num_replies = 0
        self.silent_until = 0
        """Number of the step until which its programs think."""
        self._numbers = 0
        self._suspended: list[int] = []
        self._prefixes = [
            "".join(rng.choices("abcdefgh ", k=rng.randrange(4, 40))) for _ in range(4)
        ]

    @property
    def waiting(self) -> list[IssuedCall]:
        """Calls without their last reply, in the order of issue."""
        return list(self._unanswered.values())

    @property
    def num_waiting(self) -> int:
        return len(self._unanswered)

    def act(self) -> list[wire.Op]:
        """A few random ops, as one frame."""
        ops: list[wire.Op] = []
        for _ in range(self.rng.randrange(1, 5)):
            ops += self._one()
        return ops

    def flood(self) -> list[wire.Op]:
        """A frame of questions that are answered without the model, in the number's range."""
        ops: list[wire.Op] = [
            wire.Encode(self._number(), self._words(12)) for _ in range(FLOOD_OPS - 1)
        ]
        return [*ops, wire.Describe(self._number())]

    def read_slowly(self, dice: random.Random) -> list[wire.Op]:
        """Suspends one of its calls, or has one go on."""
        if self._suspended and dice.random() < 0.5:
            return [wire.Suspend(self._suspended.pop(), is_on=False)]
        if not self._unanswered:
            return []
        self._suspended.append(dice.choice(list(self._unanswered)))
        return [wire.Suspend(self._suspended[-1])]

    def read_all(self) -> list[wire.Op]:
        """All that it has suspended goes on."""
        calls, self._suspended = self._suspended, []
        return [wire.Suspend(call, is_on=False) for call in calls]

    def leave(self) -> list[wire.Op]:
        """Closes every branch."""
        ops: list[wire.Op] = [wire.Close(number) for number in self.open]
        for mirror in self.open.values():
            self._closed(mirror)
        self.open.clear()
        return ops

    def receive(self, reply: wire.Reply) -> None:
        """Checks one reply against what it must be."""
        self.num_replies += 1
        if isinstance(reply, _OF_NO_BRANCH):
            return
        assert reply.call is not None, f"the connection failed: {reply}"
        issued = self.calls[reply.call]
        assert not issued.ended, f"call {reply.call} was answered after its last reply: {reply}"
        if isinstance(reply, wire.Delta):
            issued.deltas[reply.index] = issued.deltas.get(reply.index, "") + reply.text
            return
        issued.ended = True
        del self._unanswered[reply.call]
        if isinstance(reply, wire.Failed):
            issued.failed = reply.code
            self.checks.check_failure(issued, reply)
        elif isinstance(reply, wire.CallDone):
            self.checks.check_done(issued, reply)
        elif isinstance(reply, wire.Chosen):
            self.checks.check_chosen(issued, reply)
        else:
            issued.texts = [reply.text]
            assert reply.text == issued.mirror.text(issued.place), (
                "a branch's text is what its script says"
            )

    # --- ops

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _priority(self) -> int:
        return self.rng.choice([0, 0, 0, 0, 1, -1, 5])

    def _words(self, most: int) -> str:
        return "".join(self.rng.choices("abcdefghijklm ", k=self.rng.randrange(1, most)))

    def _one(self) -> list[wire.Op]:
        rng = self.rng
        if not self.open or (len(self.open) < 4 and rng.random() < 0.2):
            return self._new()
        mirror = rng.choice(list(self.open.values()))
        kind = rng.choices(_KINDS, cum_weights=_UP_TO)[0]
        if kind == "append":
            words = self._words(12)
            mirror.script.append(words)
            as_tokens = rng.random() < 0.2  # one letter is one token
            piece = (
                wire.TokensPiece(tuple(oracle.LETTERS.encode(words)))
                if as_tokens
                else wire.TextPiece(words)
            )
            return [wire.Append(mirror.number, (piece,), early=mirror.number % 2 == 0)]
        if kind == "refer" and self.calls:
            return self._refer(mirror)
        if kind == "fork" and len(self.open) < 24:
            return self._fork(mirror)
        if kind == "close":
            del self.open[mirror.number]
            self._closed(mirror)
            return [wire.Close(mirror.number, forget=mirror.number % 2 == 1)]
        if kind == "cancel" and self._unanswered:
            issued = rng.choice(self.waiting)
            issued.cancelled = True
            return [wire.Cancel(issued.op.call)]
        if kind == "contest" and self.num_waiting > 1:
            entrants = rng.sample(self.waiting, 2)
            for issued in entrants:
                issued.cancelled = True  # if it loses
            return [
                wire.Contest(
                    tuple(issued.op.call for issued in entrants), rng.choice(["first", "majority"])
                )
            ]
        if kind == "read":
            return [self._issue(wire.Read(mirror.number, self._number()), mirror)]
        if kind == "select":
            return [self._issue(self._select(mirror.number), mirror)]
        return [self._issue(self._gen(mirror.number), mirror)]

    def _new(self) -> list[wire.Op]:
        mirror = BranchMirror(self._number(), self.rng.choice(["", "", "", "salt"]))
        self.open[mirror.number] = mirror
        words = self.rng.choice(self._prefixes)
        mirror.script.append(words)
        return [
            wire.Open(
                mirror.number,
                mirror.salt,
                weight=1.0 + mirror.number % 3,
                session=("", "", "work")[mirror.number % 3],
                turn=None if mirror.number % 4 else "",
                lora=self._adapted([mirror]) or "",
            ),
            wire.Append(mirror.number, (wire.TextPiece(words),)),
        ]

    def _fork(self, mirror: BranchMirror) -> list[wire.Op]:
        children = [
            BranchMirror(self._number(), mirror.salt, mirror, len(mirror.script))
            for _ in range(self.rng.randrange(1, 7))
        ]
        self.open.update({child.number: child for child in children})
        for child in children:
            child.adapter = mirror.adapter
        changes = self._adapting is not None and self._adapting.random() < 0.3
        lora = self._adapted(children) if changes else None
        return [wire.Fork(mirror.number, tuple(child.number for child in children), lora)]

    def _adapted(self, mirrors: list[BranchMirror]) -> str | None:
        """The name of an adapter, perhaps "", which computes these from now on; None: there are
        none.
        """
        if self._adapting is None:
            return None
        adapter = self._adapting.randrange(len(ADAPTERS) + 1)
        for mirror in mirrors:
            mirror.adapter = adapter
        return ["", *ADAPTERS][adapter]

    def _refer(self, mirror: BranchMirror) -> list[wire.Op]:
        """Only to calls of open branches, and only backwards in time, so that nothing waits in a
        cycle.
        """
        issued = self.rng.choice(list(self.calls.values()))
        if issued.mirror.closed or issued.mirror is mirror or isinstance(issued.op, wire.Read):
            return []
        count = (
            issued.op.sampling.n
            if isinstance(issued.op, wire.Generate) and issued.op.keep == "first"
            else 1
        )
        index = self.rng.randrange(count)
        mirror.script.append((issued, index))
        return [wire.Append(mirror.number, (wire.Ref(issued.op.call, index),))]

    def _gen(self, branch: int) -> wire.Generate:
        rng = self.rng
        beams = self._beams() if rng.random() < 0.1 else None
        sampling = wire.SamplingParams(
            temperature=rng.choice([0.0, 0.0, 1.0]),
            seed=rng.randrange(1000),
            max_tokens=rng.choice([1, 2, 3, 5, 9, 17, 30] if beams is None else [1, 3, 9]),
            min_tokens=rng.choice([0, 0, 3]),
            stop=rng.choice([(), (), ("a",), ("ab", " ", "q")]),
            ignore_eos=rng.random() < 0.5,
            n=rng.choice([1, 1, 1, 2, 5] if beams is None else [1, beams.width]),
            beams=beams,
        )
        timeout = rng.uniform(0.5, 20.0) if rng.random() < 0.05 else None
        keep: wire.Keep = rng.choice(["first", "first", "best", "fastest", "majority"])
        stream, heal = rng.random() < 0.5, rng.random() < 0.5
        if beams is not None:
            keep, heal = "first", False
        return wire.Generate(
            branch,
            self._number(),
            sampling,
            stream=stream,
            timeout=timeout,
            heal=heal,
            keep=keep,
            priority=self._priority(),
        )

    def _beams(self) -> wire.Beams:
        early: bool | Literal["never"] = self.rng.choice([False, True, "never"])
        return wire.Beams(self.rng.choice([1, 2, 3, 5]), self.rng.choice([1.0, 0.0, -0.6]), early)

    def _select(self, branch: int) -> wire.Select:
        choices = tuple(dict.fromkeys(self._words(6) for _ in range(self.rng.randrange(1, 5))))
        temperature = self.rng.choice([0.0, 0.0, 2.0])
        return wire.Select(
            branch,
            self._number(),
            choices,
            temperature=temperature,
            seed=self.rng.randrange(1000),
            priority=self._priority(),
        )

    def _issue(self, op: wire.Generate | wire.Select | wire.Read, mirror: BranchMirror) -> wire.Op:
        issued = IssuedCall(
            op, mirror, len(mirror.script), self.checks.clock(), self.checks.num_faults()
        )
        self.calls[op.call] = self._unanswered[op.call] = issued
        mirror.script.append(issued)
        return op

    def _closed(self, mirror: BranchMirror) -> None:
        mirror.closed = True
        for issued in self.waiting:
            if issued.mirror is mirror:
                issued.cancelled = True
