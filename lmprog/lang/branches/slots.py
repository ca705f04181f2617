"""Slots: named places of a program that tuning fills, with demonstrations or with an instruction.

A slot that nothing fills is its default: demonstrations are none, and an instruction is the text
that the program gives. A tuned program is a JSON file of what fills its slots; it is refused where
the program's slots are others now. Knows texts and rows; runs nothing.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from lmprog.errors import ProgramError, hint, not_allowed

FORMAT = "lmprog tuned program 1"
Demonstration: TypeAlias = Mapping[str, Any]
Format: TypeAlias = str | Callable[[Demonstration], object]
SlotKind: TypeAlias = Literal["examples", "instruction"]


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot as a program has it."""

    name: str
    kind: SlotKind
    default: str = ""
    """Of an instruction."""
    columns: tuple[str, ...] = ()
    """That a format given as text shows of a row."""
    answer: str = ""
    """The column that has the answer, where the program names one."""
    is_searched: bool = False
    """Whether the program says what demonstrations are to be like."""

    def as_json(self) -> dict[str, Any]:
        told = {
            "kind": self.kind,
            "default": self.default,
            "columns": list(self.columns),
            "answer": self.answer,
            "is_searched": self.is_searched,
        }
        return {key: one for key, one in told.items() if one}

    @classmethod
    def of_json(cls, name: str, told: Mapping[str, Any]) -> Slot:
        return cls(name, **{**told, "columns": tuple(told.get("columns", ()))})


@dataclass(frozen=True, slots=True)
class Filling:
    """What stands in a slot."""

    text: str | None = None
    """An instruction."""
    rows: tuple[Demonstration, ...] = ()
    nearest: int | None = None
    """How many of `rows`, those that are most like the question; None: all, in their order."""

    def as_json(self) -> dict[str, Any]:
        told = {"text": self.text, "rows": list(map(dict, self.rows)), "nearest": self.nearest}
        return {key: one for key, one in told.items() if one not in (None, [])}

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> Filling:
        return cls(told.get("text"), tuple(told.get("rows", ())), told.get("nearest"))


@dataclass(frozen=True, slots=True)
class Tuned:
    """What fills the slots of a program: `program.using(tuned=...)`."""

    program: str
    fillings: Mapping[str, Filling] = field(default_factory=dict)
    """By slot; those left out are as the program has them."""
    slots: Mapping[str, Slot] | None = None
    """Those that the program had; None: whatever it has."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """How it was found: scores, seeds, versions. For people."""

    def with_filling(self, name: str, filling: Filling) -> Tuned:
        return replace(self, fillings={**self.fillings, name: filling})

    def filling(self, slot: Slot) -> Filling | None:
        """Raises `ProgramError` where the program had another slot when it was tuned."""
        if self.slots is not None:
            known = self.slots.get(slot.name)
            if known is None:
                raise ProgramError(
                    f"the tuned program {self.program!r} knows no slot {slot.name!r}"
                    f"{hint(slot.name, self.slots)}; tune it again, or leave tuned= out"
                )
            if known != slot:
                was, now = known.as_json(), slot.as_json()
                changed = next(key for key in (*was, *now) if was.get(key) != now.get(key))
                raise ProgramError(
                    f"the slot {slot.name!r} has changed since {self.program!r} was tuned: its "
                    f"{changed} was {was.get(changed)!r} and is {now.get(changed)!r}; tune it "
                    "again, or leave tuned= out"
                )
        return self.fillings.get(slot.name)

    def as_json(self) -> dict[str, Any]:
        """Without how it was found."""
        return {
            "format": FORMAT,
            "program": self.program,
            "slots": {name: slot.as_json() for name, slot in (self.slots or {}).items()},
            "fillings": {name: one.as_json() for name, one in self.fillings.items()},
        }

    def save(self, path: str | Path) -> None:
        told = {**self.as_json(), "about": self.about}
        text = json.dumps(told, ensure_ascii=False, indent=1)
        Path(path).expanduser().write_text(f"{text}\n", encoding="utf-8")

    @classmethod
    def of(cls, given: object) -> Tuned:
        """Of a file, or of what one has. Raises `InvalidParameter` and `ProgramError`."""
        if isinstance(given, Tuned):
            return given
        if isinstance(given, Mapping):
            return cls._of_json(given, "this")
        if not isinstance(given, str | Path):
            allowed = "the path of a file that tune(...) has saved"
            raise not_allowed("tuned", type(given).__name__, allowed)
        path = Path(given).expanduser()
        if not path.is_file():
            raise not_allowed("tuned", str(given), "the path of a file that is there")
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ProgramError(f"{path} is no JSON: {error}") from None
        return cls._of_json(told, str(path))

    @classmethod
    def _of_json(cls, told: Any, where: str) -> Tuned:
        try:
            if told["format"] != FORMAT:
                raise ValueError(f"its format is {told['format']!r}")
            return cls(
                told["program"],
                {name: Filling.of_json(one) for name, one in told["fillings"].items()},
                {name: Slot.of_json(name, one) for name, one in told["slots"].items()},
                told.get("about", {}),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProgramError(f"{where} is no tuned program ({FORMAT}): {error}") from None


@dataclass(slots=True)
class MetSlots:
    """The slots that the runs of a program have come to."""

    slots: dict[str, Slot] = field(default_factory=dict)

    def meet(self, slot: Slot) -> None:
        """Raises `ProgramError` where a name stands for two."""
        before = self.slots.setdefault(slot.name, slot)
        if before != slot:
            raise ProgramError(
                f"two slots are named {slot.name!r}, and they are not the same; give each a name"
            )


def examples_slot(name: str, form: Format, answer: str, *, is_searched: bool) -> Slot:
    """Raises `ProgramError` for a format that cannot show a row."""
    columns: tuple[str, ...] = ()
    if isinstance(form, str):
        try:
            parsed = list(string.Formatter().parse(form))
        except ValueError as error:
            raise ProgramError(f"the format of the slot {name!r}: {error}") from None
        columns = tuple(dict.fromkeys(re.split(r"[.\[]", one)[0] for _, one, _, _ in parsed if one))
        if not columns:
            raise ProgramError(
                f"the format of the slot {name!r} shows no column; write one like "
                r'"Q: {question}\nA: {answer}\n\n"'
            )
    elif not callable(form):
        raise not_allowed("format", form, "a text with {columns}, or a function of a row")
    return Slot(name, "examples", "", columns, answer, is_searched)


def shown(form: Format, row: Demonstration) -> object:
    """A demonstration, as it is appended."""
    return form.format_map(row) if isinstance(form, str) else form(row)


def nearest(rows: Sequence[Demonstration], question: str, num: int) -> list[Demonstration]:
    """The most alike comes last, next to the question. Likeness is that of runs of three letters,
    rare ones counting more.
    """
    grams = [_grams(" ".join(map(str, row.values()))) for row in rows]
    common = Counter(gram for one in grams for gram in one)
    asked = _grams(question)

    def likeness(place: int) -> tuple[float, int]:
        shared = sum(1 / common[gram] for gram in grams[place] & asked)
        return shared / (len(grams[place]) or 1) ** 0.5, -place

    best = sorted(range(len(rows)), key=likeness, reverse=True)[:num]
    return [rows[place] for place in reversed(best)]


def _grams(text: str) -> set[str]:
    plain = f" {' '.join(text.lower().split())} "
    return {plain[at : at + 3] for at in range(max(1, len(plain) - 2))}
