"""Requests about runtimes that belong to no program: figures of all replicas, tokens of any one.

Knows the names of replicas and which of them have answered; sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lmprog import wire

EveryReplica = wire.Describe | wire.Flush
AnyReplica = wire.Encode | wire.Decode | wire.Inspect

ALIKE = {"page_size", "pid", "step_seconds", "token_seconds"}
"""Figures of which a sum means nothing."""


def summed(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The figures of several runtimes as those of one."""
    found: dict[str, float] = {}
    for of_one in figures:
        for name, value in of_one.items():
            before = found.get(name, 0.0)
            found[name] = max(before, value) if name in ALIKE else before + value
    return found


@dataclass(eq=False, slots=True)
class _Question:
    op: EveryReplica | AnyReplica
    waiting: set[str]
    figures: dict[str, float] = field(default_factory=dict)
    accounts: dict[str, dict[str, float]] = field(default_factory=dict)


class Questions:
    """Those that are not answered, by the number of their call."""

    def __init__(self) -> None:
        self._open: dict[int, _Question] = {}
        self._shown = ""
        """The replica whose tree was looked at last."""
        self._postponed: list[EveryReplica | AnyReplica] = []

    def is_asked(self, call: int) -> bool:
        return call in self._open

    def ask(
        self, op: EveryReplica | AnyReplica, loads: Mapping[str, int], homes: Sequence[str] = ()
    ) -> list[str]:
        """Which replicas to ask; none where there is none, and the question is kept for later.

        A picture of the tree is asked of the busiest one, a part of it where the last whole one
        came from, texts of calls of the first of `homes`: where these run.
        """
        if not loads:
            self._postponed.append(op)
            return []
        names = list(loads)
        if isinstance(op, AnyReplica):
            busiest = max(loads, key=lambda name: loads[name])
            names = [next(iter(homes), busiest)]
            if isinstance(op, wire.Inspect) and op.below and self._shown in loads:
                names = [self._shown]
            elif isinstance(op, wire.Inspect) and not op.texts_of:
                self._shown = busiest
        self._open[op.call] = _Question(op, set(names))
        return names

    @property
    def waited_for(self) -> set[str]:
        """The models of which a runtime is waited for, to say what tokens are."""
        kept = self._postponed
        return {one.served_name for one in kept if isinstance(one, wire.Encode | wire.Decode)}

    def postponed(self) -> list[EveryReplica | AnyReplica]:
        """Those to ask again, now that somebody may answer; they are no longer kept."""
        found, self._postponed = self._postponed, []
        return found

    def take(self, name: str, call: int, reply: wire.Reply) -> list[wire.Reply]:
        """The final reply, when all that were asked have answered."""
        question = self._open[call]
        question.waiting.discard(name)
        if not isinstance(reply, wire.Described):
            del self._open[call]
            return [reply]
        question.figures = summed([question.figures, reply.figures])
        for account, figures in reply.accounts.items():
            before = question.accounts.get(account, {})
            question.accounts[account] = summed([before, figures])
        return self._finished(call)

    def without(self, name: str) -> list[wire.Reply]:
        """A replica is gone: requests to it alone are postponed; for the others the sum of the
        remaining answers is enough.
        """
        replies: list[wire.Reply] = []
        for call, question in list(self._open.items()):
            if name not in question.waiting:
                continue
            question.waiting.discard(name)
            if question.figures or question.waiting:
                replies += self._finished(call)
            else:
                del self._open[call]
                self._postponed.append(question.op)
        return replies

    def _finished(self, call: int) -> list[wire.Reply]:
        question = self._open[call]
        if question.waiting:
            return []
        del self._open[call]
        return [wire.Described(call, question.figures, question.accounts)]
