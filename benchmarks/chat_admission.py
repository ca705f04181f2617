"""The chats of `memory_pressure` on a real model: which programs are in memory, and what that costs.

    python -m benchmarks.chat_admission [--model nano|random:768x12|FOLDER] [--answers 8,384]
        [--thinks 0,10,100] [--memory 0.5,0.25] [--scale S] [--tier] [--repeat R]

20 programs of 4 turns in a memory that holds a part of what they need; between two turns a program
thinks for an exponential time with a mean of so many steps of `FIXED` seconds. The runtime computes
in this thread and its clock is the processor's time; where it only waits, time passes without
work. `memory for all` is the same runtime with memory for all programs: nothing can do with less.
Columns: percent of possible hits / tokens computed over the lower bound / steps / seconds to
the last answer / seconds of processor time. Sides take turns; with `--repeat` the best times count.
Beside them stand the same chats in virtual time (`virtual_time pressure`), and which bars are met.

The bars, for programs that fit: 95 % of possible hits and 1.1 times the lower bound without pauses,
and 0.7 of unlimited admission's processor time; with pauses 0.8 of its processor time, and its time
to the last answer times 1.05.
"""

from __future__ import annotations

import heapq
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any

from benchmarks import runner
from benchmarks.models import prepared
from benchmarks.own_loop import OwnLoop
from benchmarks.virtual_time import PAGE, Chat, Outcome, chats, outcome, pages_for
from lmprog import wire

UNLIMITED, FITS, FOR_ALL = "unlimited", "programs that fit", "memory for all"
TIERED = "with the second tier"
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
        self.own.finish(warm)
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
            for came in self.own.turn():
                if isinstance(came.reply, wire.CallDone):
                    self._answered(self.calls.pop(came.reply.call), came.reply)
            if stats.steps == before and not self.own.is_idle:
                self.own.skip(WAIT)
        wall, busy = self.own.now() - began, time.process_time() - busy
        self.own.loop.stop()
        hits = self.cached / sum(one.num_possible for one in self.chats)
        least = sum(one.length - 1 for one in self.chats)
        share = (stats.computed_tokens - computed) / least
        return Outcome(hits, share, stats.steps - steps, wall, busy)

    def _ask(self, chat: Chat) -> None:
        branch, call = chat.number, 100 * chat.turn + chat.number
        question = tuple(token % MODEL_WORDS for token in chat.questions[chat.turn])
        sampling = wire.SamplingParams(
            temperature=0.0, max_tokens=chat.answer, min_tokens=chat.answer, ignore_eos=True
        )
        self.calls[call] = chat
        self.own.say(
            b"chats",
            *([] if chat.turn else [wire.Open(branch)]),
            wire.Append(branch, (wire.TokensPiece(question),)),
            wire.Generate(branch, call, sampling, heal=False),
        )

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

    def with_tier() -> Outcome:
        with tempfile.TemporaryDirectory(prefix="lmprog-tier-") as folder:
            return ChatRun(case, kv_disk_mb=4096, kv_disk_folder=folder).run()

    roomy = replace(case, memory=1.5)
    sides: dict[str, Callable[[], Outcome]] = {
        UNLIMITED: lambda: ChatRun(case, admission="unlimited").run(),
        FITS: lambda: ChatRun(case, admission="programs").run(),
        **({TIERED: with_tier} if tier else {}),
        FOR_ALL: lambda: ChatRun(roomy, admission="unlimited").run(),
    }
    found = runner.in_turn(sides, repeat)
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
    hits = (f"hits {fits.hits:.0%}", fits.hits >= 0.95)
    return [hits, (f"computed {fits.computed:.2f}", fits.computed <= 1.1), processor]


def bars(case: Case, found: dict[str, Outcome]) -> str:
    told = verdicts(case.think, found[FITS], found[UNLIMITED], found[FOR_ALL])
    return ", ".join(f"{what}: {runner.verdict(is_met)}" for what, is_met in told)


POLICIES = ("unlimited, lpm", "programs that fit")
"""The simulator's names for the first two sides."""


@dataclass(frozen=True)
class Pressure:
    """What the table asks: all combinations of these, `repeat` times in turn."""

    model: str
    answers: Sequence[float]
    pauses: Sequence[float]
    memory: Sequence[float]
    scale: float
    repeat: int = 1
    has_tier: bool = False

    def cases(self) -> Iterator[Case]:
        for memory, answer, pause in product(self.memory, self.answers, self.pauses):
            yield Case(self.model, round(answer), pause, memory, self.scale)


def table(asked: Pressure) -> Iterator[str]:
    """The runtime beside the simulator: its lines, each as soon as it is known."""
    sides = [UNLIMITED, FITS, *([TIERED] if asked.has_tier else []), FOR_ALL]
    columns = [*sides, *(f"simulated: {name}" for name in POLICIES), "bars"]
    yield runner.row("memory", "answer, pause", *columns)
    yield "|-|-|" + "-|" * len(columns)
    for case in asked.cases():
        found = measured(case, asked.repeat, asked.has_tier)
        cells = [_cell(found[name], 2) for name in sides]
        for name in POLICIES:
            fields = (case.answer, case.think, case.memory, case.scale)
            cells.append(_cell(outcome(name, 1, *fields), 1))
        about = (f"{case.memory:.0%}", f"{case.answer}, {case.think:g}")
        yield runner.row(*about, *cells, bars(case, found))


def _cell(one: Outcome, digits: int) -> str:
    times = f"{one.wall:.{digits}f} / {one.busy:.{digits}f}"
    return f"{one.hits:.0%} / {one.computed:.2f} / {one.steps:.0f} / {times}"


@runner.command
def main(
    *,
    model: str = "nano",
    answers: runner.Floats = (8, 384),
    thinks: runner.Floats = (0, 10, 100),
    memory: runner.Floats = (0.5, 0.25),
    scale: float = 0.25,
    repeat: int = 1,
    tier: Annotated[bool, "also with a file of evicted pages"] = False,
) -> None:
    with prepared(model) as (name, _):
        for line in table(Pressure(name, answers, thinks, memory, scale, repeat, tier)):
            print(line, flush=True)
