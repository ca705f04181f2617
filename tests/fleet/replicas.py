"""Replicas without processes: the real core on the fake model, stepped by hand, behind a router."""

from __future__ import annotations

import random
from typing import Any

from lmprog import wire
from lmprog.fleet.router import Router
from tests.runtime.talk import Talk

WELCOME = wire.Welcome(wire.PROTOCOL_VERSION, "fake", 200, 64, 4, 64, 1)


class Fleet:
    """`say` hands ops in, `until_idle` gives all replies; `kill` ends a replica between two
    steps.
    """

    def __init__(self, num_replicas: int = 3, seed: int = 1, **changes: Any) -> None:
        self._changes = changes
        self._num_made = 0
        self.now = 0.0
        self.router = Router(random.Random(seed), lambda: self.now)
        self.replicas: dict[str, Talk] = {}
        self.steps = 0
        for _ in range(num_replicas):
            self.add()

    def add(self) -> str:
        """One more replica."""
        name = f"replica-{self._num_made}"
        self._num_made += 1
        self.replicas[name] = Talk(**self._changes)
        self.router.join(name, WELCOME, slots=8)
        return name

    def kill(self, name: str) -> None:
        """The replica dies; what it had answered and nobody read is lost with it."""
        del self.replicas[name]
        self.router.lose(name)

    def say(self, *ops: wire.Op) -> None:
        self.router.take_ops(ops)

    def step(self) -> list[wire.Reply]:
        """One step of every replica; what the client hears."""
        self.steps += 1
        while self.router.outgoing:
            name, ops = self.router.outgoing.popleft()
            self.replicas[name].say(*ops)
        for name, talk in list(self.replicas.items()):
            self.router.take_replies(name, talk.step())
        heard = list(self.router.replies)
        self.router.replies.clear()
        return heard

    def until_idle(self, most: int = 500) -> list[wire.Reply]:
        heard = []
        for _ in range(most):
            heard += self.step()
            if not self.router.outgoing and all(one.scheduler.idle for one in self._talks):
                return heard + self.step()
        raise AssertionError("the fleet does not come to rest")

    @property
    def _talks(self) -> list[Talk]:
        return list(self.replicas.values())

    def where(self, branch: int) -> str:
        """The replica that a branch's program is at."""
        home = self.router._branches[branch].home
        assert home is not None
        return home.name


class RandomProgram:
    """Frames of ops of one program: appends, generations, selections, forks and references.

    What it asks does not depend on what is answered, so the same program can be run with and
    without deaths.
    """

    def __init__(self, rng: random.Random, first: int) -> None:
        self._rng = rng
        self._next = first
        self.root = self._number()
        self._open = [self.root]
        self._gens: dict[int, list[int]] = {self.root: []}
        self.streamed: set[int] = set()
        self.frames: list[list[wire.Op]] = [[wire.Open(self.root), self._text(self.root)]]
        for _ in range(rng.randrange(3, 9)):
            self.frames.append(self._frame())
        self.frames.append([wire.Read(branch, self._number()) for branch in self._open])
        self.frames.append([wire.Close(branch) for branch in self._open])

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _text(self, branch: int) -> wire.Append:
        letters = "".join(self._rng.choices("abcdefghij ", k=self._rng.randrange(1, 7)))
        return wire.Append(branch, (wire.TextPiece(letters),))

    def _frame(self) -> list[wire.Op]:
        branch = self._rng.choice(self._open)
        ops: list[wire.Op] = []
        for _ in range(self._rng.randrange(1, 4)):
            ops += self._ops(branch)
        return ops

    def _ops(self, branch: int) -> list[wire.Op]:
        kind = self._rng.randrange(7)
        if kind == 0:
            return [self._text(branch)]
        if kind == 1 and len(self._open) < 5:
            children = tuple(self._number() for _ in range(self._rng.randrange(1, 3)))
            self._open += children
            for child in children:
                self._gens[child] = list(self._gens[branch])
            return [wire.Fork(branch, children)]
        if kind == 2:
            return [wire.Select(branch, self._number(), ("ab", "c", "ddd"))]
        if kind == 3 and self._gens[branch]:
            ref = wire.Ref(self._rng.choice(self._gens[branch]))
            return [wire.Append(branch, (ref,))]
        if kind == 4 and len(self._open) > 1:
            other = self._rng.choice([one for one in self._open if one != branch])
            return [wire.Append(branch, (wire.Gained(other),))] if other > branch else []
        call = self._number()
        self._gens[branch].append(call)
        stream = self._rng.random() < 0.5
        if stream:
            self.streamed.add(call)
        sampling = wire.SamplingParams(
            temperature=self._rng.choice([0.0, 1.0]),
            max_tokens=self._rng.randrange(1, 9),
            seed=self._rng.randrange(2**31),
            n=self._rng.choice([1, 1, 2]),
            stop=self._rng.choice([(), ("a",)]),
            ignore_eos=self._rng.random() < 0.5,
            logprobs=self._rng.choice([None, 0]),
        )
        heal = self._rng.random() < 0.3
        return [wire.Generate(branch, call, sampling, stream=stream, heal=heal)]


def outcome(replies: list[wire.Reply]) -> dict[int, Any]:
    """What the client was told, without figures of work: by call, each final reply once."""
    found: dict[int, Any] = {}
    for reply in replies:
        if isinstance(reply, wire.Delta):
            continue
        call = getattr(reply, "call", None)
        assert call is not None
        assert call not in found, f"call {call} was answered twice"
        match reply:
            case wire.CallDone(outputs=outputs):
                found[call] = outputs
            case wire.Chosen(index=index, options=options):
                found[call] = index, [round(one.score, 9) for one in options]
            case wire.TextIs(text=text, num_tokens=num_tokens):
                found[call] = text, num_tokens
            case wire.Failed(code=code):
                found[call] = code
    return found


def streamed(replies: list[wire.Reply]) -> dict[tuple[int, int], tuple[str, int, int]]:
    """Per result: its deltas joined, their tokens, their log-probabilities."""
    found: dict[tuple[int, int], tuple[str, int, int]] = {}
    for reply in replies:
        if isinstance(reply, wire.Delta):
            text, tokens, logprobs = found.get((reply.call, reply.index), ("", 0, 0))
            found[reply.call, reply.index] = (
                text + reply.text,
                tokens + reply.num_tokens,
                logprobs + len(reply.logprobs),
            )
    return found
