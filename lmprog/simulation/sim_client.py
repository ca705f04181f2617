"""A client of the simulation: issues random programs op by op, and knows what every answer must be.

For each branch it keeps the script of what it asked; a call's prompt is the text that the script
has produced before it, known once the answers of earlier calls are. It checks each reply on arrival
and raises AssertionError, with the seed's context added by the world.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from lmprog import wire
from lmprog.errors import BY_CODE, RequestRejected
from lmprog.simulation import oracle


class SpoiledBranch(Exception):
    """The branch was spoiled by an earlier failure; `code` says which."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(eq=False, slots=True)
class IssuedCall:
    """A call and what is known of it."""

    op: wire.Generate | wire.Select | wire.Read
    mirror: BranchMirror
    place: int
    time: float
    faults: int
    cancelled: bool = False
    ended: bool = False
    texts: list[str] = field(default_factory=list)
    failed: str | None = None
    deltas: dict[int, str] = field(default_factory=dict)


Said = str | tuple[IssuedCall, int] | IssuedCall
"""Literal text; the text of another call's result; a call of the branch itself."""


@dataclass(eq=False, slots=True)
class BranchMirror:
    """What the client knows of one branch: where it came from and what it was told to do since."""

    number: int
    salt: str
    parent: BranchMirror | None = None
    place: int = 0
    script: list[Said] = field(default_factory=list)
    closed: bool = False

    def text(self, place: int | None = None) -> str:
        """The branch's text before script entry `place`. Raises `SpoiledBranch`."""
        parts = [self.parent.text(self.place)] if self.parent else []
        for said in self.script[:place]:
            if isinstance(said, str):
                parts.append(said)
                continue
            asked, index = said if isinstance(said, tuple) else (said, 0)
            assert asked.ended, "a later call was answered before an earlier one"
            refused = asked.failed is not None and issubclass(
                BY_CODE[asked.failed], RequestRejected
            )
            if asked.failed is not None and not (refused and asked is said):
                raise SpoiledBranch(asked.failed)
            if asked.texts and not isinstance(asked.op, wire.Read):
                parts.append(asked.texts[index])
        return "".join(parts)


class SimClient:
    """`act` gives the next ops, `hear` takes a reply. `faults` counts the faults injected so far
    into the world.
    """

    def __init__(
        self,
        name: bytes,
        rng: random.Random,
        longest: int,
        clock: Callable[[], float],
        faults: Callable[[], int],
    ) -> None:
        self.name = name
        self.rng = rng
        self.longest = longest
        self.open: dict[int, BranchMirror] = {}
        self.asked: dict[int, IssuedCall] = {}
        self.num_replies = 0
        self._numbers = 0
        self._clock = clock
        self._faults = faults
        self._prefixes = [
            "".join(rng.choices("abcdefgh ", k=rng.randrange(4, 40))) for _ in range(4)
        ]

    @property
    def waiting(self) -> list[IssuedCall]:
        return [asked for asked in self.asked.values() if not asked.ended]

    def act(self) -> list[wire.Op]:
        """A few random ops, as one frame."""
        ops: list[wire.Op] = []
        for _ in range(self.rng.randrange(1, 5)):
            ops += self._one()
        return ops

    def leave(self) -> list[wire.Op]:
        """Closes everything."""
        ops: list[wire.Op] = [wire.Close(number) for number in self.open]
        for mirror in self.open.values():
            self._closed(mirror)
        self.open.clear()
        return ops

    def hear(self, reply: wire.Reply) -> None:
        """Checks one reply against what it must be."""
        self.num_replies += 1
        if isinstance(reply, wire.Welcome | wire.Described | wire.Snapshot | wire.TokensAre):
            return
        assert reply.call is not None, f"the connection failed: {reply}"
        asked = self.asked[reply.call]
        assert not asked.ended, f"call {reply.call} was answered after its last reply: {reply}"
        if isinstance(reply, wire.Delta):
            asked.deltas[reply.index] = asked.deltas.get(reply.index, "") + reply.text
            return
        asked.ended = True
        if isinstance(reply, wire.Failed):
            asked.failed = reply.code
            self._check_failure(asked, reply)
        elif isinstance(reply, wire.CallDone):
            self._check_done(asked, reply)
        elif isinstance(reply, wire.Chosen):
            self._check_chosen(asked, reply)
        else:
            asked.texts = [reply.text]
            assert reply.text == asked.mirror.text(asked.place), (
                "a branch's text is what its script says"
            )

    # --- what it asks
    # --------------------------------------------------------------------------------------------

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _words(self, most: int) -> str:
        return "".join(self.rng.choices("abcdefghijklm ", k=self.rng.randrange(1, most)))

    def _one(self) -> list[wire.Op]:
        rng = self.rng
        if not self.open or (len(self.open) < 4 and rng.random() < 0.2):
            return self._new()
        mirror = rng.choice(list(self.open.values()))
        kind = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        if kind == "append":
            words = self._words(12)
            mirror.script.append(words)
            as_tokens = rng.random() < 0.2  # one letter is one token
            piece = (
                wire.TokensPiece(tuple(oracle.LETTERS.encode(words)))
                if as_tokens
                else wire.TextPiece(words)
            )
            return [wire.Append(mirror.number, (piece,))]
        if kind == "refer" and self.asked:
            return self._refer(mirror)
        if kind == "fork" and len(self.open) < 24:
            return self._fork(mirror)
        if kind == "close":
            del self.open[mirror.number]
            self._closed(mirror)
            return [wire.Close(mirror.number)]
        if kind == "cancel" and self.waiting:
            asked = rng.choice(self.waiting)
            asked.cancelled = True
            return [wire.Cancel(asked.op.call)]
        if kind == "contest" and len(self.waiting) > 1:
            entrants = rng.sample(self.waiting, 2)
            for asked in entrants:
                asked.cancelled = True  # if it loses
            return [
                wire.Contest(
                    tuple(asked.op.call for asked in entrants), rng.choice(["first", "majority"])
                )
            ]
        if kind == "read":
            return [self._ask(wire.Read(mirror.number, self._number()), mirror)]
        if kind == "select":
            return [self._ask(self._select(mirror.number), mirror)]
        return [self._ask(self._gen(mirror.number), mirror)]

    def _new(self) -> list[wire.Op]:
        mirror = BranchMirror(self._number(), self.rng.choice(["", "", "", "salt"]))
        self.open[mirror.number] = mirror
        words = self.rng.choice(self._prefixes)
        mirror.script.append(words)
        return [
            wire.Open(mirror.number, mirror.salt),
            wire.Append(mirror.number, (wire.TextPiece(words),)),
        ]

    def _fork(self, mirror: BranchMirror) -> list[wire.Op]:
        children = [
            BranchMirror(self._number(), mirror.salt, mirror, len(mirror.script))
            for _ in range(self.rng.randrange(1, 7))
        ]
        self.open.update({child.number: child for child in children})
        return [wire.Fork(mirror.number, tuple(child.number for child in children))]

    def _refer(self, mirror: BranchMirror) -> list[wire.Op]:
        """Only to calls of open branches, and only backwards in time, so that nothing waits in a
        ring.
        """
        asked = self.rng.choice(list(self.asked.values()))
        if asked.mirror.closed or asked.mirror is mirror or isinstance(asked.op, wire.Read):
            return []
        count = (
            asked.op.sampling.n
            if isinstance(asked.op, wire.Generate) and asked.op.keep == "first"
            else 1
        )
        index = self.rng.randrange(count)
        mirror.script.append((asked, index))
        return [wire.Append(mirror.number, (wire.Ref(asked.op.call, index),))]

    def _gen(self, branch: int) -> wire.Generate:
        rng = self.rng
        sampling = wire.SamplingParams(
            temperature=rng.choice([0.0, 0.0, 1.0]),
            seed=rng.randrange(1000),
            max_tokens=rng.choice([1, 2, 3, 5, 9, 17, 30]),
            min_tokens=rng.choice([0, 0, 3]),
            stop=rng.choice([(), (), ("a",), ("ab", " ", "q")]),
            ignore_eos=rng.random() < 0.5,
            n=rng.choice([1, 1, 1, 2, 5]),
        )
        timeout = rng.uniform(0.5, 20.0) if rng.random() < 0.05 else None
        keep: wire.Keep = rng.choice(["first", "first", "best", "fastest", "majority"])
        stream, heal = rng.random() < 0.5, rng.random() < 0.5
        return wire.Generate(
            branch, self._number(), sampling, stream=stream, timeout=timeout, heal=heal, keep=keep
        )

    def _select(self, branch: int) -> wire.Select:
        choices = tuple(dict.fromkeys(self._words(6) for _ in range(self.rng.randrange(1, 5))))
        temperature = self.rng.choice([0.0, 0.0, 2.0])
        return wire.Select(
            branch, self._number(), choices, temperature=temperature, seed=self.rng.randrange(1000)
        )

    def _ask(self, op: wire.Generate | wire.Select | wire.Read, mirror: BranchMirror) -> wire.Op:
        asked = IssuedCall(op, mirror, len(mirror.script), self._clock(), self._faults())
        self.asked[op.call] = asked
        mirror.script.append(asked)
        return op

    def _closed(self, mirror: BranchMirror) -> None:
        mirror.closed = True
        for asked in self.waiting:
            if asked.mirror is mirror:
                asked.cancelled = True

    # --- what it checks
    # ------------------------------------------------------------------------------------------

    def _check_failure(self, asked: IssuedCall, reply: wire.Failed) -> None:
        if reply.code == "cancelled" and (asked.cancelled or _over_closed(asked.mirror)):
            return
        if reply.code == "model" and self._faults() > asked.faults:
            return
        op = asked.op
        timeout = None if isinstance(op, wire.Read) else op.timeout
        if (
            reply.code == "deadline"
            and timeout is not None
            and self._clock() >= asked.time + timeout
        ):
            return
        cause, prompt = _prompt(asked)
        if cause is not None:
            assert reply.code == cause, (
                f"a spoiled branch names its cause: {reply.code}, not {cause}"
            )
            return
        if reply.code == "context_overflow":
            assert self._needs(op, prompt) > self.longest, (
                f"refused though it fits: {reply.message}"
            )
            return
        raise AssertionError(
            f"call {reply.call} failed without a cause: {reply.code}: {reply.message}"
        )

    def _needs(self, op: wire.Generate | wire.Select | wire.Read, prompt: str) -> int:
        if isinstance(op, wire.Generate):
            return len(prompt) + (op.sampling.max_tokens or 1)
        return len(prompt) + (max(map(len, op.choices)) if isinstance(op, wire.Select) else 0)

    def _check_done(self, asked: IssuedCall, reply: wire.CallDone) -> None:
        op = asked.op
        assert isinstance(op, wire.Generate)
        asked.texts = [output.text for output in reply.outputs]
        prompt = asked.mirror.text(asked.place)
        assert self._needs(op, prompt) <= self.longest, "what can never fit is refused"
        if op.keep != "first":
            self._check_kept(asked, prompt, reply)
            return
        assert len(reply.outputs) == op.sampling.n
        for index, output in enumerate(reply.outputs):
            expected = oracle.generated(prompt, op, (op.sampling.seed or 0) + index)
            assert output.text == expected.text, (
                f"call {op.call}[{index}]: {output.text!r} is not {expected.text!r}"
            )
            assert output.finish == expected.finish
            assert oracle.LETTERS.decode(output.tokens) == output.text, "its tokens are its text"
            if op.stream:
                assert asked.deltas.get(index, "") == output.text, "the deltas joined are the text"
        usage = reply.usage
        assert usage.prompt == len(prompt)
        assert 0 <= usage.cached <= usage.prompt * op.sampling.n

    def _check_kept(self, asked: IssuedCall, prompt: str, reply: wire.CallDone) -> None:
        """Which one ends first is the scheduler's business; that every one is right, and the
        majority, is checked.
        """
        op = asked.op
        assert isinstance(op, wire.Generate)
        seeds = range(op.sampling.seed or 0, (op.sampling.seed or 0) + op.sampling.n)
        everyone = [oracle.generated(prompt, op, seed).text for seed in seeds]
        assert set(asked.texts) <= set(everyone)
        if op.keep == "majority":
            stripped = [text.strip() for text in everyone]
            most = max(stripped.count(text) for text in stripped)
            assert stripped.count(asked.texts[0].strip()) == most, "most agree with what is kept"
        if op.stream:
            assert asked.deltas.get(0, "") == asked.texts[0], "the deltas joined are the text"

    def _check_chosen(self, asked: IssuedCall, reply: wire.Chosen) -> None:
        op = asked.op
        assert isinstance(op, wire.Select)
        asked.texts = [op.choices[reply.index]]
        prompt = asked.mirror.text(asked.place)
        for option, score in zip(reply.options, oracle.scores(prompt, op), strict=True):
            assert abs(option.score - score) < 1e-6, f"option scored {option.score}, not {score}"
        assert reply.index in oracle.chosen(prompt, op), "the best option wins"


def _prompt(asked: IssuedCall) -> tuple[str | None, str]:
    """Why the call's branch was spoiled before it (None: it was not), and the call's prompt."""
    try:
        return None, asked.mirror.text(asked.place)
    except SpoiledBranch as spoiled:
        return spoiled.code, ""


_WEIGHTS = {
    "append": 10,
    "gen": 12,
    "select": 4,
    "fork": 4,
    "close": 5,
    "cancel": 2,
    "read": 1,
    "refer": 3,
} | {"contest": 1}


def _over_closed(mirror: BranchMirror | None) -> bool:
    """A child of a branch that was closed before the fork was reached never lives."""
    while mirror is not None:
        if mirror.closed:
            return True
        mirror = mirror.parent
    return False
