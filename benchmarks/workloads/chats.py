"""Multi-turn chats that share nothing, in a memory that does not hold all of them."""

from __future__ import annotations

from benchmarks.workloads.agents import Serial, in_lockstep, take_turns
from benchmarks.workloads.shape import Peer, Workload, at_once
from benchmarks.workloads.text import Writer
from lmprog.backends import Backend

NUM_TURNS = 4


class _Chat(Workload):
    held = 0.5  # of all tokens
    num_tokens: int

    def prepare(self, w: Writer) -> None:
        number = w.number(20, least=8)
        questions = [w.texts(NUM_TURNS, 256, 512) for _ in range(number)]
        size = w.size(self.num_tokens)
        self.items = [Serial("", own[0], own[1:] + own[:1], size) for own in questions]
        lengths = [w.pieces.length("".join(own)) + NUM_TURNS * size for own in questions]
        self.memory = max(round(self.held * sum(lengths)), 2 * max(lengths))

    def run(self, backend: Backend) -> list[str]:
        return at_once(take_turns, self.items, backend)

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
