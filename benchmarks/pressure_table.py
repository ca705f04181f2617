"""Chats with and without pauses in a memory that does not hold all of them, as one table: the
runtime on a model beside the simulator, which knows the same chats and computes nothing.

`python -m benchmarks.programs --pauses 0,10,100` prints it. A pause between two turns is exponential
with so many steps of `memory_pressure.FIXED` seconds in the mean. A cell has percent of possible
hits / tokens computed over the lower bound / steps / seconds to the last answer / seconds of
computing: processor time of the runtime (`chat_admission`), virtual time of the simulator
(`memory_pressure`). Knows how the table looks; both runs are made elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks import chat_admission, memory_pressure
from benchmarks.chat_admission import FITS, FOR_ALL, UNLIMITED, Case
from benchmarks.memory_pressure import Outcome

SIDES = (UNLIMITED, FITS, FOR_ALL)
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


def table(asked: Pressure) -> Iterator[str]:
    """Its lines, each as soon as it is known."""
    yield (
        "| memory | answer, pause | "
        + " | ".join(SIDES)
        + " | simulated: "
        + (" | simulated: ".join(POLICIES) + " | bars |")
    )
    yield "|-|-|" + "-|" * (len(SIDES) + len(POLICIES) + 1)
    for memory in asked.memory:
        for answer in asked.answers:
            for pause in asked.pauses:
                case = Case(asked.model, round(answer), pause, memory, asked.scale)
                yield _line(case, asked.repeat)


def _line(case: Case, repeat: int) -> str:
    found = chat_admission.measured(case, repeat, tier=False)
    cells = [_cell(found[name], 2) for name in SIDES]
    for name in POLICIES:
        one = memory_pressure.outcome(name, 1, case.answer, case.think, case.memory, case.scale)
        cells.append(_cell(one, 1))
    told = chat_admission.verdicts(case.think, found[FITS], found[UNLIMITED], found[FOR_ALL])
    bars = ", ".join(f"{what}: {'met' if is_met else 'missed'}" for what, is_met in told)
    where = f"| {case.memory:.0%} | {case.answer}, {case.think:g} | "
    return where + " | ".join([*cells, bars]) + " |"


def _cell(one: Outcome, digits: int) -> str:
    return (
        f"{one.hits:.0%} / {one.computed:.2f} / {one.steps:.0f} / {one.wall:.{digits}f} / "
        f"{one.busy:.{digits}f}"
    )
