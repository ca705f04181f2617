"""The models of a fleet: one for each name that its replicas serve, and who has another one.

All replicas of a name have the model of the first one, by its fingerprint; one of a later
generation begins an update. Names are there on purpose: where the first replica has one, each has,
and where it has none, there is one model. Knows greetings; knows no connections and no programs.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from lmprog import wire
from lmprog.errors import InvalidParameter, RuntimeGone
from lmprog.fleet.members import FORGET_SECONDS

log = logging.getLogger("lmprog")

Kind = tuple[str, str]
"""What a replica has and a program stays with: the name of a model, and its digest."""


def kind_of(welcome: wire.Welcome) -> Kind:
    """A replica's, by its greeting."""
    return welcome.served_name, welcome.digest


@dataclass(eq=False, slots=True)
class ModelLine:
    """What serves under one name."""

    first: wire.Welcome
    """Of its newest generation."""
    first_name: str
    """Which replica that was."""
    is_open: bool = False
    """Its model is gone, and the next one that comes is taken."""
    gone_since: float | None = None
    """When it was seen that no member serves it any more."""


class ModelLines:
    """Not thread-safe: its fleet's lock is held."""

    def __init__(self) -> None:
        self._lines: dict[str, ModelLine] = {}
        self._refused: dict[str, tuple[str, str]] = {}
        """Members with another model: the name that they serve, and what differs."""
        self._names: dict[str, str] = {}
        """What each member served when it answered last."""
        self.default = ""
        """The name of who names none: that of the first replica."""

    @property
    def firsts(self) -> Mapping[str, wire.Welcome]:
        """The newest greeting of each name, the default's first."""
        found = {name: line.first for name, line in self._lines.items()}
        return {self.default: found[self.default], **found} if found else {}

    @property
    def refused(self) -> dict[str, str]:
        """Members that have another model, and what differs."""
        return {name: difference for name, (_, difference) in self._refused.items()}

    @property
    def tried(self) -> Collection[str]:
        """Members that have answered, if only to be refused."""
        return self._names.keys()

    def served_by(self, member: str) -> str | None:
        """What a member served when it answered last; None: it never has."""
        return self._names.get(member)

    def admits(self, member: str, info: wire.Welcome) -> bool:
        """Whether a replica has the model of its name, or a later one, which its name has then."""
        name = info.served_name
        self._names[member] = name
        line = self._lines.get(name)
        if line is None and self._lines and "" in (name, self.default):
            line = self._lines[self.default]
            difference = f"name ({name or 'none'} instead of {self.default or 'none'})"
            name = self.default if len(self._lines) == 1 else name
            if line.is_open and len(self._lines) == 1:
                self._lines.clear()
                line = None
        elif line is not None:
            difference = info.difference(line.first)
            if info.generation > line.first.generation:
                if difference:
                    log.info(
                        "replica %s begins generation %d: %s", member, info.generation, difference
                    )
                line = None
            elif not difference:
                self._refused.pop(member, None)
                line.is_open = False
                return True
        if line is None or line.is_open:
            self._begin(member, info)
            return True
        if self._refused.get(member) != (name, difference):
            log.error(
                "replica %s is refused, since it has another model than %s, with which this fleet "
                "began%s: %s",
                *(member, line.first_name, f" to serve {name!r}" if name else "", difference),
            )
        self._refused[member] = name, difference
        return False

    def _begin(self, member: str, info: wire.Welcome) -> None:
        """From now on the name's model is this one."""
        name = info.served_name
        if not self._lines:
            self.default = name
        self._lines[name] = ModelLine(info, member)
        self._refused.pop(member, None)
        self._refused = {at: why for at, why in self._refused.items() if why[0] != name}

    def is_current(self, info: wire.Welcome) -> bool:
        """Whether new programs of its name get this model."""
        line = self._lines.get(info.served_name)
        return line is not None and line.first.digest == info.digest

    def prefer(self, members: Sequence[str]) -> None:
        """The first of these that serves decides which model is the default."""
        names = (self._names[one] for one in members if one in self._names)
        self.default = next((one for one in names if one in self._lines), self.default)

    def stranded(self, members: Collection[str], linked: Collection[str], size: int) -> list[str]:
        """The names of which no replica is left, while each member that there should be has another
        model, or serves another name.
        """
        known = self._refused.keys() | linked
        if not self._refused or not known.issuperset(members) or not 0 < size <= len(known):
            return []
        there = {self._names[one] for one in linked}
        names = {name for name, _ in self._refused.values()}
        return [name for name in names - there if name in self._lines]

    def open(self, name: str) -> None:
        """The name takes the model of the next replica that serves under it."""
        self._lines[name].is_open = True
        self._refused = {at: why for at, why in self._refused.items() if why[0] != name}

    def forget(self, members: Collection[str], now: float) -> list[str]:
        """Names besides the default that no member has served for a while: they are served no more.
        One whose member is there and does not answer is waited for.
        """
        there = {self._names[one] for one in members if one in self._names} | {self.default}
        for name, line in self._lines.items():
            line.gone_since = None if name in there else line.gone_since or now
        found = [
            name
            for name, line in self._lines.items()
            if line.gone_since is not None and now - line.gone_since > FORGET_SECONDS
        ]
        for name in found:
            del self._lines[name]
        return found

    def no_such_model(self, name: str) -> RuntimeGone:
        """Why programs of a stranded name fail."""
        found = {at: why for at, (of, why) in self._refused.items() if of == name}
        others = "; ".join(f"{at}: {why}" for at, why in sorted(found.items()))
        served = f" to serve {name!r}" if name else ""
        return RuntimeGone(
            f"no replica is left with the model that this fleet began with{served}; others have "
            f"another one, by {others}"
        )

    def check(self) -> None:
        """Raises InvalidParameter where a member was refused."""
        for member, (name, difference) in self._refused.items():
            first = self._lines.get(name, self._lines[self.default]).first_name
            raise InvalidParameter(
                f"the runtimes of a fleet have one model{f' called {name!r}' if name else ''}, and "
                f"{member} has another than {first}: {difference}. To serve several, start each "
                "with a name of its own (served_model_name).",
                name="model",
                value=member,
            )
