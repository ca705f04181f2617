"""The chats of `memory_pressure` on a real model: which programs are in memory, and what that costs.

    python -m benchmarks.chat_admission [--model nano|random:768x12|FOLDER] [--answers 8,384]
        [--thinks 0,10,100] [--memory 0.5,0.25] [--scale S] [--tier] [--repeat R]

20 programs of 4 turns in a memory that holds a part of what they need; between two turns a program
thinks for an exponential time with a mean of so many steps of `FIXED` seconds. The runtime computes
in this thread and its clock is the processor's time; where it only waits, time passes without
work. `memory for all` is the same runtime with memory for all programs: nothing can do with less.
Columns: percent of possible hits / tokens computed over the lower bound / steps / seconds to
the last answer / seconds of processor time. Sides take turns; with `--repeat` the best times count.

The bars, for programs that fit: 95 % of possible hits and 1.1 times the lower bound without pauses,
and 0.7 of unlimited admission's processor time; with pauses 0.8 of its processor time, and its time
to the last answer times 1.05.
"""

from __future__ import annotations

import argparse
import heapq
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.checkpoints import checkpoint
from benchmarks.memory_pressure import PAGE, Chat, Outcome, chats
from benchmarks.own_loop import OwnLoop
from lmprog import wire

UNLIMITED, FITS, FOR_ALL = "unlimited", "programs that fit", "memory for all"
WAIT = 0.001
"""Seconds that the runtime's loop waits where it keeps the place of a program that thinks."""
MODEL_WORDS = 2000
"""Tokens of a question are below that; every model of the benchmarks has as many."""


@dataclass(frozen=True)
class Case:
    """One cell of the table."""

    model: str
    answer: int
    think: float
    memory: float
    scale: float


def lengths_of(some: list[Chat]) -> list[int]:
    """Tokens of each at its end."""
    return [sum(map(len, one.questions)) + 4 * one.answer for one in some]


def pages_for(some: list[Chat], memory: float) -> int:
    """Pages for that part of what they need, and for two of them at least."""
    lengths = lengths_of(some)
    return -(-max(int(memory * sum(lengths)), 2 * max(lengths)) // PAGE)


class ChatRun:
    """All chats of a case on a fresh runtime; a chat is a branch and a client of its own loop."""

    def __init__(self, case: Case, **fields: Any) -> None:
        self.chats = chats(1, case.answer, case.think, case.scale)
        num_pages = pages_for(self.chats, case.memory)
        self.own = OwnLoop(case.model, num_pages=num_pages, page_size=PAGE, **fields)
        self.calls: dict[int, Chat] = {}
        self.paused: list[tuple[float, int, Chat]] = []
        self.num_open = len(self.chats)
        self.cached = 0
        warm = self.own.ask(b"warm", "warm up", 4)
        while not any(one.reply.call == warm for one in self._turn(wire.CallDone)):
            pass
        self.own.say(b"warm", wire.Close(warm), wire.Flush(warm + 1))
        self.own.turn()

    def run(self) -> Outcome:
        stats = self.own.loop.scheduler.stats
        steps, computed = stats.steps, stats.computed_tokens
        began, busy = self.own.now(), time.process_time()
        for chat in self.chats:
            self._ask(chat)
        while self.num_open:
            now = self.own.now()
            if self.own.is_idle and self.paused[0][0] > now:
                self.own.skip(self.paused[0][0] - now)
            while self.paused and self.paused[0][0] <= self.own.now():
                self._ask(heapq.heappop(self.paused)[2])
            before = stats.steps
            for came in self._turn(wire.CallDone):
                self._answered(self.calls.pop(came.reply.call), came.reply)
            if stats.steps == before and not self.own.is_idle:
                self.own.skip(WAIT)
        wall, busy = self.own.now() - began, time.process_time() - busy
        self.own.loop.stop()
        lengths = lengths_of(self.chats)
        possible = sum(  # the last token of an answer is computed with the next question
            sum(map(len, one.questions[:turn])) + one.answer * turn - 1
            for one in self.chats
            for turn in range(1, 4)
        )
        least = sum(lengths) - len(lengths)
        return Outcome(
            self.cached / possible,
            (stats.computed_tokens - computed) / least,
            stats.steps - steps,
            wall,
            busy,
        )

    def _turn(self, wanted: type[wire.CallDone]) -> list[Any]:
        """One step; the calls that it ended."""
        came = self.own.turn()
        for one in came:
            if isinstance(one.reply, wire.Failed):
                raise RuntimeError(one.reply.message)
        return [one for one in came if isinstance(one.reply, wanted)]

    def _ask(self, chat: Chat) -> None:
        branch, call = chat.number, 100 * chat.turn + chat.number
        ops: list[wire.Op] = [] if chat.turn else [wire.Open(branch)]
        question = [token % MODEL_WORDS for token in chat.questions[chat.turn]]
        sampling = wire.SamplingParams(
            temperature=0.0, max_tokens=chat.answer, min_tokens=chat.answer, ignore_eos=True
        )
        self.calls[call] = chat
        ops += [
            wire.Append(branch, (wire.TokensPiece(tuple(question)),)),
            wire.Generate(branch, call, sampling, heal=False),
        ]
        self.own.say(b"chats", *ops)

    def _answered(self, chat: Chat, reply: wire.CallDone) -> None:
        self.cached += reply.usage.cached
        chat.turn += 1
        if chat.turn == len(chat.questions):
            self.own.say(b"chats", wire.Close(chat.number))
            self.num_open -= 1
        else:
            heapq.heappush(self.paused, (self.own.now() + chat.pauses.pop(), chat.number, chat))


def measured(case: Case, repeat: int, tier: bool) -> dict[str, Outcome]:
    """The best times of each side."""
    found: dict[str, list[Outcome]] = {}
    for _ in range(repeat):
        for admission, name in (("unlimited", UNLIMITED), ("programs", FITS)):
            found.setdefault(name, []).append(ChatRun(case, admission=admission).run())
        if tier:
            with tempfile.TemporaryDirectory(prefix="lmprog-tier-") as folder:
                run = ChatRun(case, kv_disk_mb=4096, kv_disk_folder=folder)
                found.setdefault("with the second tier", []).append(run.run())
        floor = ChatRun(replace(case, memory=1.5), admission="unlimited")
        found.setdefault(FOR_ALL, []).append(floor.run())
    return {name: min(runs, key=lambda one: one.busy) for name, runs in found.items()}


def verdicts(
    think: float, fits: Outcome, unlimited: Outcome, for_all: Outcome
) -> list[tuple[str, bool]]:
    """What the bars ask of a case, and whether it holds. Beside a part of unlimited admission's
    processor time, what memory for all programs takes of that: no order can do with much less.
    """
    cpu, last = fits.busy / unlimited.busy, fits.wall / unlimited.wall
    aim, floor = (0.8 if think else 0.7), for_all.busy / unlimited.busy
    processor = (f"processor {cpu:.2f} <= {aim} (for all {floor:.2f})", cpu <= aim)
    if think:
        return [processor, (f"last {last:.2f}", last <= 1.05)]
    return [
        (f"hits {fits.hits:.0%}", fits.hits >= 0.95),
        (f"computed {fits.computed:.2f}", fits.computed <= 1.1),
        processor,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="nano")
    parser.add_argument("--answers", default="8,384")
    parser.add_argument("--thinks", default="0,10,100")
    parser.add_argument("--memory", default="0.5,0.25")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--tier", action="store_true", help="also with a file of evicted pages")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lmprog-bench-") as scratch:
        model, _ = checkpoint(asked.model, Path(scratch))
        for memory in map(float, asked.memory.split(",")):
            for answer in map(int, asked.answers.split(",")):
                for think in map(float, asked.thinks.split(",")):
                    case = Case(model, answer, think, memory, asked.scale)
                    found = measured(case, asked.repeat, asked.tier)
                    print(f"\nmemory {memory:.0%}, answer {answer}, think {think:g}")
                    for name, one in found.items():
                        print(
                            f"  {name} | {one.hits:.0%} | {one.computed:.2f} | {one.steps:.0f} | "
                            f"{one.wall:.2f} s | {one.busy:.2f} s"
                        )
                    told = verdicts(think, found[FITS], found[UNLIMITED], found[FOR_ALL])
                    print(
                        "  "
                        + ", ".join(f"{what}: {'met' if ok else 'missed'}" for what, ok in told),
                        flush=True,
                    )


if __name__ == "__main__":
    main()
