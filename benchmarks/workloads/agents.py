"""Agents: react, generative agents, programs that arrive over time (chats, tool users, tree
searches), and chats in too little memory.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import lmprog
from benchmarks.workloads.shape import Peer, Workload, forced
from benchmarks.workloads.text import Writer
from lmprog.backends import Backend


@dataclass(frozen=True, slots=True)
class Serial:
    """A prompt and then turns: each a generation and the text that follows it (the last one's is
    not used).
    """

    shared: str
    own: str
    observations: list[str]
    num_tokens: int
    arrival: float = 0.0
    """Seconds after the workload's start."""


@lmprog.function
async def take_turns(s: lmprog.Branch, item: Serial) -> list[str]:
    await asyncio.sleep(item.arrival)
    s.append(item.shared, item.own)
    found = []
    for observation in item.observations:
        found.append(await s.gen(**forced(item.num_tokens)))
        s.append(observation)
    return found


def in_lockstep(peer: Peer, items: list[Serial]) -> list[str]:
    """The turns of all items side by side on a peer; who has ended leaves the batch."""
    shared = items[0].shared
    rows = peer.start([shared]).fork(len(items)) if shared else peer.start([""] * len(items))
    rows.extend([item.own for item in items])
    found: list[list[str]] = [[] for _ in items]
    alive, turn = list(range(len(items))), 0
    while alive:
        for index, text in zip(alive, rows.generate(items[0].num_tokens), strict=True):
            found[index].append(text)
        turn += 1
        staying = [
            place for place, index in enumerate(alive) if len(items[index].observations) > turn
        ]
        if staying and len(staying) < len(alive):
            rows.keep(staying)
        alive = [alive[place] for place in staying]
        if alive:
            rows.extend([items[index].observations[turn - 1] for index in alive])
    return [text for texts in found for text in texts]


class React(Workload):
    program = take_turns
    items: list[Serial]
    name = "react"
    about = (
        "constant 1,750 + question 40; 2-5 serial steps of gen 100 and an observation of "
        "60-160; 100 programs"
    )

    def prepare(self, w: Writer) -> None:
        shared, size = w.text(1750), w.size(100)
        number = w.number(100, least=4)
        self.items = [
            Serial(shared, w.text(40), w.texts(w.between(2, 5), 60, 160), size)
            for _ in range(number)
        ]

    def peer(self, peer: Peer) -> list[str]:
        return in_lockstep(peer, self.items)


@dataclass(frozen=True, slots=True)
class Function:
    """One of the five functions of a generative agent."""

    constant: str
    num_tokens: int


@lmprog.function
def event(s: lmprog.Branch, function: Function, what: str) -> str:
    s.append(function.constant, what)
    return str(s.gen(**forced(function.num_tokens)).value)


class GenerativeAgents(Workload):
    name = "generative agents"
    about = (
        "five one-gen functions with constants 31-450, events of 30, outputs 2-20, "
        "strictly serial; 1,000 events"
    )

    def prepare(self, w: Writer) -> None:
        sizes = [(31, 2), (120, 20), (240, 10), (360, 5), (450, 16)]
        self.functions = [Function(w.text(size), w.size(out)) for size, out in sizes]
        self.events = w.texts(w.number(1000), 30)

    def run(self, backend: Backend) -> list[str]:
        greedy = event.using(backend=backend, temperature=0.0, ignore_eos=True)
        return [greedy.run(self.functions[i % 5], what).value for i, what in enumerate(self.events)]

    def peer(self, peer: Peer) -> list[str]:
        kept = [peer.start([function.constant]) for function in self.functions]
        found = []
        for index, what in enumerate(self.events):
            rows = kept[index % 5].fork(1)
            rows.extend([what])
            found += rows.generate(self.functions[index % 5].num_tokens)
        return found


class Agents(Workload):
    program = take_turns
    name = "agents"
    about = (
        "chats of 6-8 calls (256 in, 277 out) and tool users of 10-12 calls (735 in, 34 out), "
        "Poisson arrivals; 2 x 20"
    )
    mean_gap = 0.05

    def prepare(self, w: Writer) -> None:
        number = w.number(20)
        self.chats = self._programs(w, number, 7, (256, 277))
        self.tools = self._programs(w, number, 11, (735, 34))
        self.items = [*self.chats, *self.tools]

    def _programs(self, w: Writer, number: int, calls: int, sizes: tuple[int, int]) -> list[Serial]:
        arrivals = w.gaps(number, self.mean_gap)
        inputs = [[w.text(sizes[0]) for _ in range(calls + w.between(-1, 1))] for _ in arrivals]
        return [
            Serial("", own[0], own[1:] + own[:1], w.size(sizes[1]), t)
            for own, t in zip(inputs, arrivals, strict=True)
        ]

    def peer(self, peer: Peer) -> list[str]:
        """A peer need not wait for arrivals: it has all programs at once, which is in its favor."""
        return [*in_lockstep(peer, self.chats), *in_lockstep(peer, self.tools)]


NUM_TURNS = 4


class _Chat(Workload):
    """Chats of several turns that share nothing, in a memory that does not hold all of them."""

    program = take_turns
    items: list[Serial]
    held = 0.5  # of all tokens
    num_tokens: int

    def prepare(self, w: Writer) -> None:
        number = w.number(20, least=8)
        questions = [w.texts(NUM_TURNS, 256, 512) for _ in range(number)]
        size = w.size(self.num_tokens)
        self.items = [Serial("", own[0], own[1:] + own[:1], size) for own in questions]
        lengths = [w.pieces.length("".join(own)) + NUM_TURNS * size for own in questions]
        self.memory = max(round(self.held * sum(lengths)), 2 * max(lengths))

    def peer(self, peer: Peer) -> list[str]:
        """The peer's memory is not limited."""
        return in_lockstep(peer, self.items)


class ShortChat(_Chat):
    name = "multi-turn chat, short"
    about = "4 turns, question 256-512, answer 8, 20 programs; the memory holds half"
    num_tokens = 8


class LongChat(_Chat):
    name = "multi-turn chat, long"
    about = "4 turns, question 256-512, answer 384, 20 programs; the memory holds half"
    num_tokens = 384
