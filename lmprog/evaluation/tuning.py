"""`program.tune`: what fills the slots of a program best, found on rows, and whether that is more
than chance.

Rows are split in three: demonstrations come from the first part, candidates are compared on the
second, and the winner meets the program as it was on the third, which nobody has looked at. All
candidates of a round are run side by side on the same rows with the same seeds; after each round
those that are worse beyond noise are dropped, and of the others the lower half. What is decided
depends on scores alone, so that one seed gives one result at any concurrency.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from lmprog import wire
from lmprog.errors import ProgramError, UnknownName, hint, not_allowed
from lmprog.evaluation.comparing import Comparison
from lmprog.evaluation.evaluated import Evaluation
from lmprog.evaluation.evaluated_row import Prices, RowWork, priced, said_of, summed
from lmprog.evaluation.evaluating import EvaluationLoop, EvaluationPlan, seed_of_row
from lmprog.evaluation.rows import MeasuredProgram, Metric, Row, as_json, rows_of
from lmprog.evaluation.statistics import difference_interval, mean
from lmprog.lang.branches.branch import Branch
from lmprog.lang.branches.scope import RunSettings
from lmprog.lang.branches.slots import Filling, MetSlots, Slot, Tuned
from lmprog.lang.ops.sampling import Sampling
from lmprog.lang.runs.executor import Job, backend_of, blocking, open_run

if TYPE_CHECKING:
    from typing_extensions import Unpack

Unit: TypeAlias = Literal["calls", "tokens"]
Budget: TypeAlias = int | Mapping[Unit, int]
FIRST_ROWS = 8  # that every candidate is run on
HELD_OUT, SHOWN = 0.3, 0.3  # shares of the rows
FOR_THE_END = 0.5  # share of what is left of the budget, at most, for the rows held out


class TuneOptions(TypedDict, total=False):
    """What `program.tune` can be told."""

    budget: Budget
    shots: Sequence[int]
    candidates: int
    instructions: Mapping[str, Sequence[str]]
    propose: int
    seed: int
    concurrency: int
    checkpoint: str | Path | None
    prices: Mapping[str, tuple[float, float, float]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to fill the slots, and how it did on the rows that it was run on."""

    tuned: Tuned
    label: str
    scores: list[float] = field(default_factory=list)
    """By row of the second part, from the first one on."""

    @property
    def score(self) -> float:
        return mean(self.scores)


@dataclass(frozen=True, slots=True)
class Tuning:
    """What tuning found. `program` is the tuned one, or the program as it was, where the gain on
    rows that nobody had looked at is within noise.
    """

    original: MeasuredProgram
    winner: Tuned
    label: str
    """What the winner is made of."""
    comparison: Comparison
    """The winner against the program as it was, on the rows held out."""
    candidates: tuple[Candidate, ...]
    """All that the budget had runs for, the best first; those dropped early have fewer rows."""
    num_calls: int
    work: RowWork
    """Of all trials: tokens, and what they cost where `prices` were given."""

    @property
    def is_better(self) -> bool:
        """Whether the winner is better on the rows held out, beyond noise."""
        return self.comparison.difference > 0 and not self.comparison.is_noise

    @property
    def num_comparisons(self) -> int:
        return len(self.candidates) - 1

    @property
    def usage(self) -> wire.Usage:
        return self.work.usage

    @property
    def cost(self) -> float | None:
        """None where no prices were given."""
        return self.work.cost

    @property
    def score(self) -> float:
        """On the rows held out, of `program`."""
        return (self.comparison.a if self.is_better else self.comparison.b).score

    @property
    def tuned(self) -> Tuned:
        """What fills the slots of `program`; nothing, where the program stays as it was."""
        return self.winner if self.is_better else replace(self.winner, fillings={})

    @property
    def program(self) -> Any:
        return self.original.using(tuned=self.tuned)

    def save(self, path: str | Path) -> None:
        """Writes `tuned` to a file that `program.using(tuned=path)` loads."""
        self.tuned.save(path)

    def __str__(self) -> str:
        found = self.comparison
        verdict = (
            "the gain is beyond noise"
            if self.is_better
            else "the gain is within noise: the program stays as it was"
        )
        best = "\n".join(
            f"  {one.score:.3f} on {len(one.scores):>3} rows  {one.label}"
            for one in self.candidates[:5]
        )
        return (
            f"held out, {len(found.a):,} rows: {found.a.score:.3f} with {self.label}, "
            f"{found.b.score:.3f} as it was\n"
            f"difference {found.difference:+.3f} {found.interval}, p = {found.probability:.3g}: "
            f"{verdict}\n"
            f"{self.num_comparisons} candidates were compared with it in {self.num_calls:,} calls: "
            f"{said_of(self.work)}\n"
            f"{best}"
        )


def tune(
    program: MeasuredProgram, train: object, metric: Metric, **given: Unpack[TuneOptions]
) -> Tuning:
    """Looks for the best filling of the program's slots and blocks.

    `budget` (1,000): at most about so many model calls, or `{"tokens": n}` computed and generated.
    `shots` ((4, 8)): how many demonstrations. `candidates` (16): how many fillings are tried.
    `instructions`: for an instruction's slot, texts to try; `propose`: so many more are asked of
    the model. `seed` (0), `concurrency` (64). `checkpoint`: files of that name keep what is done,
    and the same call goes on. `prices`: as for `evaluate`.
    """
    unknown = sorted(set(given) - set(TuneOptions.__annotations__))
    if unknown:
        said = hint(unknown[0], TuneOptions.__annotations__)
        raise TypeError(f"tune() has no option {unknown[0]!r}{said}")
    rows = list(rows_of(train)[0])
    if len(rows) < 20:
        raise not_allowed("train", len(rows), "at least 20 rows", "they are split in three")
    trials = _Trials(
        given.get("budget", 1000),
        given.get("seed", 0),
        given.get("concurrency", 64),
        given.get("checkpoint"),
        dict(given.get("prices", {})),
    )
    options = _Fillings(
        tuple(given.get("shots", (4, 8))),
        given.get("candidates", 16),
        dict(given.get("instructions", {})),
        given.get("propose", 0),
    )
    return _Search(program, rows, metric, trials).run(options)


@dataclass(frozen=True, slots=True)
class _Fillings:
    """What candidates are made of."""

    shots: tuple[int, ...]
    candidates: int
    instructions: dict[str, Sequence[str]]
    propose: int


@dataclass(slots=True)
class _Trials:
    """The budget, and what is spent of it."""

    budget: Budget
    seed: int
    concurrency: int
    checkpoint: str | Path | None
    prices: dict[str, tuple[float, float, float]]
    num_calls: int = 0
    num_runs: int = 0
    works: list[RowWork] = field(default_factory=list)

    def __post_init__(self) -> None:
        limits = self.budget if isinstance(self.budget, Mapping) else {"calls": self.budget}
        if set(limits) - {"calls", "tokens"} or not limits or min(limits.values()) < 1:
            allowed = 'a number of calls, or {"tokens": n}, or both'
            raise not_allowed("budget", self.budget, allowed)

    def ran(self, num_runs: int, num_calls: int, work: RowWork) -> None:
        self.num_calls += num_calls
        self.num_runs += num_runs
        self.works.append(work)

    @property
    def work(self) -> RowWork:
        return summed(self.works)

    @property
    def runs_left(self) -> int:
        """As runs took so far."""
        limits = self.budget if isinstance(self.budget, Mapping) else {"calls": self.budget}
        usage, num = self.work.usage, max(self.num_runs, 1)
        spent = {"calls": self.num_calls, "tokens": usage.computed + usage.generated}
        each = {unit: max(one / num, 1e-9) for unit, one in spent.items()}
        return max(0, min(int((most - spent[unit]) / each[unit]) for unit, most in limits.items()))

    def file(self, name: str) -> Path | None:
        return None if self.checkpoint is None else Path(f"{self.checkpoint}.{name}")


class _Round(EvaluationLoop):
    """Several candidates on the same rows, side by side. Row by row, all of them: those that share
    a prefix share it while it is computed.
    """

    def __init__(
        self, plan: EvaluationPlan, candidates: Sequence[Tuned], places: Sequence[int], num: int
    ) -> None:
        super().__init__(plan, num, progress=False)
        self._candidates = candidates
        self._places = places
        """Of the rows, by which they have their seeds."""

    def settings_of(self, index: int) -> RunSettings:
        at, which = divmod(index, len(self._candidates))
        seed = Sampling(seed=seed_of_row(self._plan.seed, self._places[at]))
        settings = self._plan.settings
        sampling = seed.over(settings.sampling)
        return replace(settings, sampling=sampling, tuned=self._candidates[which])


class _Search:
    """One tuning, from the rows to the winner."""

    def __init__(
        self, program: MeasuredProgram, rows: list[Row], metric: Metric, trials: _Trials
    ) -> None:
        self._program = program
        self._metric = metric
        self._trials = trials
        self._met = MetSlots(self._known_slots())
        self._num_kept = 0
        self._draw = random.Random(trials.seed)
        self._rows = rows
        places = list(range(len(rows)))
        self._draw.shuffle(places)
        held, shown = round(HELD_OUT * len(rows)), round(SHOWN * len(rows))
        self._held_out, self._to_show = places[:held], places[held : held + shown]
        self._to_compare = places[held + shown :]

    def run(self, options: _Fillings) -> Tuning:
        plain = Tuned(self._program.function.__name__)
        answered = self._answered(plain)
        if not self._met.slots:
            raise ProgramError(
                f"{plain.program} has no slots; write s.examples(...) or s.instruction(...) where "
                "it may be tuned"
            )
        unknown = set(options.instructions) - set(self._met.slots)
        if unknown:
            name = sorted(unknown)[0]
            said = hint(name, self._met.slots)
            raise UnknownName(f"the program has no slot {name!r}{said}", name=name)
        plain = replace(plain, slots=dict(self._met.slots))
        tried = [Candidate(plain, "as it was"), *self._candidates(plain, answered, options)]
        ranked = self._halved(tried)
        best = ranked[0] if ranked[0].tuned is not plain else ranked[min(1, len(ranked) - 1)]
        return self._judged(plain, best, ranked)

    # --- candidates

    def _answered(self, plain: Tuned) -> list[Row]:
        """The rows to show that the program itself answers rightly, with what it said."""
        most = max(1, min(len(self._to_show), self._most_first_runs()))
        places = self._to_show[:most]
        found = self._evaluated([plain], places, "shown")[0]
        best = max(found.scores())
        return [
            {**row.row, **row.named, _ANSWER: as_json(row.value)}
            for row in found
            if row.score == best > 0 and not row.failure
        ]

    def _most_first_runs(self) -> int:
        """A quarter of a budget of calls, as if each run were one."""
        budget = self._trials.budget
        calls = budget.get("calls") if isinstance(budget, Mapping) else budget
        return len(self._to_show) if calls is None else calls // 4

    def _candidates(
        self, plain: Tuned, answered: Sequence[Row], options: _Fillings
    ) -> list[Candidate]:
        ways = {
            name: self._instructions(slot, options)
            if slot.kind == "instruction"
            else self._demonstrations(slot, answered, options)
            for name, slot in self._met.slots.items()
        }
        found: dict[str, Candidate] = {}
        for _ in range(options.candidates * 4):
            if len(found) == options.candidates:
                break
            tuned, labels = plain, []
            for name, choices in ways.items():
                label, filling = self._draw.choice(choices) if choices else ("", None)
                if filling is not None:
                    tuned = tuned.with_filling(name, filling)
                    labels.append(f"{name}: {label}")
            if tuned.fillings:
                found.setdefault(repr(tuned.fillings), Candidate(tuned, ", ".join(labels)))
        return list(found.values())

    def _instructions(self, slot: Slot, options: _Fillings) -> list[tuple[str, Filling | None]]:
        texts = list(options.instructions.get(slot.name, ()))
        if options.propose:
            texts += self._proposed(slot, options.propose)
        shown = [(repr(text if len(text) < 60 else f"{text[:57]}..."), text) for text in texts]
        return [("default", None), *((said, Filling(text=text)) for said, text in shown)]

    def _proposed(self, slot: Slot, num: int) -> list[str]:
        sampling = Sampling(temperature=0.9, seed=self._trials.seed)
        settings = RunSettings(self._program.settings.backend, sampling)
        asked = open_run(replace(settings, checkpoint=self._trials.file(f"proposed-{slot.name}")))
        rows = [self._rows[place] for place in self._to_show[:3]]
        blocking(Job(_proposal, (slot.default, rows, num), {}), asked)
        prices = {model: Prices(*one) for model, one in self._trials.prices.items()}
        self._trials.ran(1, 1, priced(asked.usage_by_model, prices))
        found = (text.strip() for text in asked.value)
        return [text for text in dict.fromkeys(found) if text and text != slot.default]

    def _demonstrations(
        self, slot: Slot, answered: Sequence[Row], options: _Fillings
    ) -> list[tuple[str, Filling | None]]:
        """Sets of rows, each in some order; and all of them, to be searched by question."""
        own = [self._with_answer(slot, row) for row in answered]
        labelled = [self._rows[place] for place in self._to_show]
        pools = {"answered rightly": own, "labelled": labelled}
        found: list[tuple[str, Filling | None]] = [("none", None)]
        for kind, pool in pools.items():
            rows = [as_json(row) for row in pool if set(slot.columns) <= set(row)]
            for num in sorted({min(num, len(rows)) for num in options.shots} - {0}):
                for _ in range(max(1, options.candidates // 2)):
                    drawn = tuple(self._draw.sample(rows, num))
                    found.append((f"{num} {kind}", Filling(rows=drawn)))
                if slot.is_searched and num < len(rows):
                    nearest = Filling(rows=tuple(rows), nearest=num)
                    found += [(f"the {num} nearest {kind}", nearest)] * 2
        return found

    @staticmethod
    def _with_answer(slot: Slot, row: Row) -> Row:
        shown = {name: one for name, one in row.items() if name != _ANSWER}
        return {**shown, slot.answer: row[_ANSWER]} if slot.answer else shown

    # --- trials

    def _noted(self) -> None:
        """A run has ended: the slots that are known now are kept before its row is, so that who
        goes on from that row knows them.
        """
        file = self._trials.file("slots")
        if file is None or len(self._met.slots) == self._num_kept:
            return
        self._num_kept = len(self._met.slots)
        told = {name: slot.as_json() for name, slot in self._met.slots.items()}
        file.write_text(json.dumps(told), encoding="utf-8")

    def _known_slots(self) -> dict[str, Slot]:
        file = self._trials.file("slots")
        if file is None or not file.exists():
            return {}
        told = json.loads(file.read_text(encoding="utf-8"))
        return {name: Slot.of_json(name, one) for name, one in told.items()}

    def _evaluated(
        self, tuned: Sequence[Tuned], places: Sequence[int], name: str
    ) -> list[Evaluation]:
        """Each on the rows of these places."""
        options = {
            "transcripts": False,
            "checkpoint": self._trials.file(name),
            "prices": self._trials.prices,
        }
        rows = [self._rows[place] for place in places for _ in tuned]
        plan = EvaluationPlan.of(self._program, rows, self._metric, options)
        settings = replace(plan.settings, met=self._met)
        plan = replace(plan, settings=settings, seed=self._trials.seed)
        loop = _Round(plan, tuned, places, self._trials.concurrency)
        loop.ran = self._noted
        found = loop.perform().rows
        work = summed(row.work for row in found)
        self._trials.ran(len(found), sum(row.num_calls for row in found), work)
        program, metric = self._program.function.__name__, loop.result().metric
        return [
            Evaluation(
                program,
                metric,
                self._trials.seed,
                [
                    replace(row, index=at, seed=seed_of_row(self._trials.seed, places[at]))
                    for at, row in enumerate(found[which :: len(tuned)])
                ],
            )
            for which in range(len(tuned))
        ]

    def _halved(self, candidates: list[Candidate]) -> list[Candidate]:
        """All of them, the best first. In each round those that are left are run on as many rows
        as before, together.
        """
        runs = self._trials.runs_left
        reserved = min(2 * len(self._held_out), math.ceil(FOR_THE_END * runs))
        left = candidates[: max(2, (runs - reserved) // FIRST_ROWS)]  # the first is the default
        done, nth = 0, 0
        dropped: list[Candidate] = []
        while len(left) > 1 and done < len(self._to_compare):
            size = min(max(done, FIRST_ROWS), len(self._to_compare) - done)
            size = min(size, max(self._trials.runs_left - reserved, 0) // len(left))
            if size < 1:
                break
            places = self._to_compare[done : done + size]
            found = self._evaluated([one.tuned for one in left], places, f"round{nth}")
            for one, evaluated in zip(left, found, strict=True):
                one.scores.extend(evaluated.scores())
            left.sort(key=lambda one: -one.score)
            kept = [one for one in left if not _is_worse(one, left[0])]
            kept = kept[: max(1, math.ceil(len(left) / 2))]
            dropped = [one for one in left if one not in kept] + dropped
            left, done, nth = kept, done + size, nth + 1
        return left + dropped

    def _judged(self, plain: Tuned, best: Candidate, ranked: Sequence[Candidate]) -> Tuning:
        """On the rows held out, as many as the budget has left."""
        num = min(len(self._held_out), max(self._trials.runs_left // 2, FIRST_ROWS))
        places = self._held_out[:num]
        a, b = self._evaluated([best.tuned, plain], places, "held-out")
        a.label, b.label = "tuned", "as it was"
        compared = Comparison(a, b)
        about = {
            "filled with": best.label,
            "score": a.score,
            "score as it was": b.score,
            "rows held out": num,
            "p": compared.probability,
            "candidates": len(ranked) - 1,
            "calls": self._trials.num_calls,
            "seed": self._trials.seed,
            "model": backend_of(self._program.settings).client.welcome.model,
        }
        return Tuning(
            self._program,
            replace(best.tuned, about=about),
            best.label,
            compared,
            tuple(ranked),
            self._trials.num_calls,
            self._trials.work,
        )


_ANSWER = "\0answer"


def _is_worse(one: Candidate, best: Candidate) -> bool:
    """Beyond noise."""
    behind = [more - less for more, less in zip(best.scores, one.scores, strict=True)]
    return one is not best and difference_interval(behind).low > 0


def _proposal(s: Branch, instruction: str, rows: list[Row], num: int) -> list[str]:
    """Other wordings of an instruction."""
    s.user(
        f"An assistant has this instruction:\n\n{instruction}\n\nIt is given inputs like these:\n"
        + "".join(f"- {as_json(row)}\n" for row in rows)
        + "\nWrite a better instruction for the same task, in a few sentences, and nothing else."
    )
    with s.assistant():
        return list(s.gen(max_tokens=160, n=num).values)
