"""One row that was evaluated: what the program made of it, how good that is, what it took; and the
checkpoint of an evaluation, a file of the rows that are done, and beside it one for each run that
is not.

Reads and writes it as JSON. Runs nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

from lmprog import wire
from lmprog.errors import CheckpointMismatch, ProgramError
from lmprog.evaluation.rows import Row, as_json
from lmprog.lang.branches.scope import total
from lmprog.lang.runs.results import Run
from lmprog.lang.runs.work_view import ShownPart, branches_of
from lmprog.lang.streaming import branch_name

FORMAT = "lmprog evaluated rows 1"


def run_file(path: Path, index: int, what: str) -> Path:
    return path.with_name(f"{path.name}.{what}-{index}")


class RowFile:
    """The rows that are done, a line each, and the files of the runs that are not. A last line that
    was not written to its end counts as absent.
    """

    def __init__(self, path: Path, origin: Mapping[str, Any]) -> None:
        """Raises `CheckpointMismatch` where the file is of another evaluation."""
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[int, dict[str, Any]] = {}
        told = {"format": FORMAT, **origin}
        end = self._read(told) if path.exists() else 0
        self._file: IO[str] = path.open("a", encoding="utf-8")
        self._file.truncate(end)
        if end == 0:
            self._write(told)

    def _read(self, told: Mapping[str, Any]) -> int:
        """Gives the place up to which lines are whole."""
        end = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file):
                if not line.endswith(b"\n"):
                    break
                try:
                    found = json.loads(line)
                    if number:
                        self._known[int(found["index"])] = found
                except (ValueError, KeyError, TypeError) as error:
                    raise ProgramError(f"{self._path}, line {number + 1}: {error}") from None
                if not number:
                    self._check(told, found)
                end += len(line)
        return end

    def _check(self, told: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        for name, now in told.items():
            if found.get(name) != now:
                raise CheckpointMismatch(
                    f"the checkpoint {str(self._path)!r} is of an evaluation with {name} "
                    f"{found.get(name)!r}, and this one has {now!r}; give it a file of its own"
                )

    def known(self, index: int, row: Row) -> EvaluatedRow | None:
        """A row that is done."""
        found = self._known.pop(index, None)
        if found is None:
            return None
        if found["row"] != as_json(row):
            raise CheckpointMismatch(
                f"the checkpoint {str(self._path)!r} has another row {index}: {found['row']!r}, "
                f"and not {row!r}; rows must come in the same order"
            )
        self._forget_runs(index)  # the process may have died just before
        return EvaluatedRow.of_json(found)

    def run_file(self, index: int) -> Path:
        """Of a row that is under way."""
        return run_file(self._path, index, "run")

    def add(self, row: EvaluatedRow) -> None:
        """A row is done; its run needs no file any more."""
        self._write(row.as_json())
        self._forget_runs(row.index)

    def _forget_runs(self, index: int) -> None:
        for what in ("run", "judge"):
            run_file(self._path, index, what).unlink(missing_ok=True)

    def _write(self, told: Mapping[str, Any]) -> None:
        line = json.dumps(told, ensure_ascii=False)
        with self._lock:
            self._file.write(f"{line}\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


ELSEWHERE = "runs inside"
"""In place of a branch's name: the work of the runs that the program started by `.run(...)`."""
Transcript: TypeAlias = dict[str, list[ShownPart]]


class Prices(NamedTuple):
    """Of a million tokens, in whatever currency: of the prompt, cached ones of it, generated."""

    prompt: float
    cached: float
    generated: float

    def of(self, usage: wire.Usage) -> float:
        computed = (usage.prompt - usage.cached) * self.prompt
        rest = usage.cached * self.cached + usage.generated * self.generated
        return (computed + rest) / 1e6


@dataclass(frozen=True, slots=True)
class RowWork:
    """What something took. `cost` is None where a model has no price."""

    usage: wire.Usage = field(default_factory=wire.Usage)
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class EvaluatedRow:
    """One row: what the program made of it, and how good that is."""

    index: int
    row: Row
    value: Any
    scores: dict[str, float]
    """By name; the first is the one that counts. Empty where the row failed."""
    failure: str = ""
    """The kind of what was raised; empty where all went well."""
    message: str = ""
    work: RowWork = field(default_factory=RowWork)
    judging: RowWork = field(default_factory=RowWork)
    """That of the judge."""
    seconds: float = 0.0
    seed: int = 0
    num_calls: int = 0
    """Of the program itself; those of runs inside it are not counted."""
    named: dict[str, Any] = field(default_factory=dict)
    """What the program gave a name to, as JSON has it."""
    num_from_cache: int = 0
    """Calls answered from a folder or a checkpoint."""
    branches: dict[str, RowWork] = field(default_factory=dict)
    transcript: Transcript = field(default_factory=dict)
    """By branch."""

    @property
    def score(self) -> float:
        """The one that counts; 0 for a row that failed."""
        return next(iter(self.scores.values()), 0.0)

    @property
    def usage(self) -> wire.Usage:
        return self.work.usage

    @property
    def cost(self) -> float | None:
        return self.work.cost

    def as_json(self) -> dict[str, Any]:
        told = {
            "index": self.index,
            "row": as_json(self.row),
            "value": as_json(self.value),
            "scores": self.scores,
            "failure": self.failure,
            "message": self.message,
            "work": _work_as_json(self.work),
            "judging": _work_as_json(self.judging),
            "seconds": self.seconds,
            "seed": self.seed,
            "num_calls": self.num_calls,
            "named": self.named,
            "num_from_cache": self.num_from_cache,
            "branches": {name: _work_as_json(one) for name, one in self.branches.items()},
            "transcript": {
                name: [[part.kind, part.text, part.note] for part in parts]
                for name, parts in self.transcript.items()
            },
        }
        return {name: one for name, one in told.items() if one not in ("", {}, 0) or name in _ASKED}

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> EvaluatedRow:
        """Raises KeyError, TypeError or ValueError where it is none."""
        rest = dict(told)
        for name in ("work", "judging"):
            rest[name] = _work_of(rest.get(name, {}))
        rest["branches"] = {name: _work_of(one) for name, one in rest.get("branches", {}).items()}
        rest["transcript"] = {
            name: [ShownPart(*part) for part in parts]
            for name, parts in rest.get("transcript", {}).items()
        }
        return cls(**rest)


_ASKED = ("index", "row", "value", "scores", "seed")


def _work_as_json(work: RowWork) -> dict[str, Any]:
    names = wire.Usage.__struct_fields__
    found = {name: one for name in names if (one := getattr(work.usage, name))}
    return found if work.cost is None else {**found, "cost": work.cost}


def _work_of(told: Mapping[str, Any]) -> RowWork:
    counts = {name: one for name, one in told.items() if name != "cost"}
    return RowWork(wire.Usage(**counts), told.get("cost"))


def named_by(run: Run[Any]) -> dict[str, Any]:
    """The variables of a run that has ended well."""
    names = run.branch.cursor.names
    return {name: as_json(run[name]) for name in names} if names else {}


def work_of(
    run: Run[Any], prices: Mapping[str, Prices], *, shown: bool
) -> tuple[RowWork, dict[str, RowWork], Transcript]:
    """The work of a run that has ended, in all and by branch, and its branches' texts."""
    by_model = run.usage_by_model
    gens = [(gen, usage) for gen in run.scope.all_gens() if (usage := gen.usage) is not None]
    named: dict[str, dict[str, list[wire.Usage]]] = {}
    for gen, usage in gens:
        model = gen.run.client.welcome.model
        named.setdefault(branch_name(gen.origin.path), {}).setdefault(model, []).append(usage)
    whole = priced(by_model, prices)
    shown_branches = branches_of(run) if shown else {}
    if len(gens) == 1 and whole.usage == gens[0][1]:
        return whole, dict.fromkeys(named, whole), shown_branches
    branches = {
        name: priced({model: total(parts) for model, parts in models.items()}, prices)
        for name, models in named.items()
    }
    inside = _less(whole.usage, [one.usage for one in branches.values()])
    if inside.prompt or inside.generated:
        branches[ELSEWHERE] = RowWork(inside)
    return whole, branches, shown_branches


def _less(whole: wire.Usage, parts: Iterable[wire.Usage]) -> wire.Usage:
    known = total(parts)
    names = wire.Usage.__struct_fields__
    return wire.Usage(**{name: getattr(whole, name) - getattr(known, name) for name in names})


def priced(by_model: Mapping[str, wire.Usage], prices: Mapping[str, Prices]) -> RowWork:
    whole = total(by_model.values())
    if not prices or any(model not in prices for model in by_model):
        return RowWork(whole)
    return RowWork(whole, sum(prices[model].of(usage) for model, usage in by_model.items()))


def summed(works: Iterable[RowWork]) -> RowWork:
    given = list(works)
    costs = [one.cost for one in given]
    cost = None if None in costs or not costs else sum(one for one in costs if one is not None)
    return RowWork(total(one.usage for one in given), cost)


def said_of(work: RowWork) -> str:
    """In words."""
    usage = work.usage
    said = (
        f"{usage.prompt:,} prompt tokens, {usage.cached:,} of them cached; "
        f"{usage.computed:,} computed, {usage.generated:,} generated"
    )
    return said if work.cost is None else f"{said}; cost {work.cost:.4g}"
