"""`lmprog.compare`: is one program better than another, on the same rows with the same seeds; and
`lmprog.grid`: one program with several settings, in one table.

Knows evaluations; what a row is run by, `evaluating` knows.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmprog.errors import ProgramError, not_allowed
from lmprog.evaluation import report
from lmprog.evaluation.evaluated import Evaluation
from lmprog.evaluation.evaluated_row import EvaluatedRow
from lmprog.evaluation.evaluating import evaluate
from lmprog.evaluation.rows import MeasuredProgram, Metric, as_json, rows_of
from lmprog.evaluation.statistics import Interval, difference_interval, mean, paired_probability

NOISE = 0.05
"""A difference that chance gives at least as often is within noise."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two evaluations of the same rows; `difference` is `a`'s score minus `b`'s."""

    a: Evaluation
    b: Evaluation

    @property
    def differences(self) -> list[float]:
        """By row."""
        return [one - other for one, other in zip(self.a.scores(), self.b.scores(), strict=True)]

    @property
    def difference(self) -> float:
        return mean(self.differences)

    @property
    def interval(self) -> Interval:
        """Where the true difference is, with 95 %."""
        return difference_interval(self.differences)

    @property
    def probability(self) -> float:
        """How likely such a difference is where neither is better: of the exact sign test, or of a
        permutation test where rows differ by more than right and wrong.
        """
        return paired_probability(self.differences)

    @property
    def is_noise(self) -> bool:
        """Whether chance gives such a difference in one of twenty trials or more."""
        return self.probability >= NOISE

    @property
    def better(self) -> list[tuple[EvaluatedRow, EvaluatedRow]]:
        """The rows on which `a` is better, with both results; the largest difference first."""
        return self._pairs(1)

    @property
    def worse(self) -> list[tuple[EvaluatedRow, EvaluatedRow]]:
        """Those on which `a` is worse."""
        return self._pairs(-1)

    def _pairs(self, sign: int) -> list[tuple[EvaluatedRow, EvaluatedRow]]:
        pairs = zip(self.a, self.b, self.differences, strict=True)
        found = [(one, other, gain * sign) for one, other, gain in pairs if gain * sign > 0]
        found.sort(key=lambda each: -each[2])
        return [(one, other) for one, other, _ in found]

    def __str__(self) -> str:
        names = _names(self.a, self.b)
        verdict = "within noise" if self.is_noise else "beyond noise"
        sure = f" {self.interval}" if math.isfinite(self.interval.low) else ""
        return (
            f"{names[0]}: {self.a.score:.3f}   {names[1]}: {self.b.score:.3f}\n"
            f"difference {self.difference:+.3f}{sure}, p = {self.probability:.3g}: {verdict}\n"
            f"of {len(self.a):,} rows {len(self.better)} got better, {len(self.worse)} worse"
        )

    def __repr__(self) -> str:
        return f"<comparison: {self.difference:+.3f}, p = {self.probability:.3g}>"

    def to_html(self, path: str | Path | None = None) -> str:
        """A page: the rows that differ side by side, then both evaluations."""
        return report.page_of([self.a.shown(), self.b.shown()], self._repr_html_(), path)

    def _repr_html_(self) -> str:
        names = [html.escape(name) for name in _names(self.a, self.b)]
        rows = "".join(
            f"<tr><td>{one.index}</td><td>{html.escape(report.text_of(one.row)[:300])}</td>"
            f"<td>{_result(one)}</td><td>{_result(other)}</td></tr>"
            for one, other in [*self.better, *self.worse]
        )
        said = html.escape(str(self)).replace("\n", "<br>")
        return (
            f"<p>{said}</p><table><tr><th>row</th><th></th><th>{names[0]}</th>"
            f"<th>{names[1]}</th></tr>{rows}</table>"
        )


def _result(row: EvaluatedRow) -> str:
    return html.escape(f"{row.score:.3g}: {report.text_of(row.failure or row.value)}")


def _names(a: Evaluation, b: Evaluation) -> tuple[str, str]:
    found = [f"{one.program} {one.label}".strip() for one in (a, b)]
    return (found[0], found[1]) if found[0] != found[1] else (f"{found[0]} (a)", f"{found[1]} (b)")


def compare(
    a: MeasuredProgram | Evaluation,
    b: MeasuredProgram | Evaluation,
    rows: object = None,
    metric: Metric | None = None,
    *,
    checkpoint: str | Path | None = None,
    **options: Any,
) -> Comparison:
    """Whether `a` is better than `b` on the same rows, each with the same seed for both; blocks.

    Either may be an evaluation that is there already. `options` are those of `lmprog.evaluate`.
    """
    if not (isinstance(a, Evaluation) and isinstance(b, Evaluation)):
        if rows is None or metric is None:
            raise ProgramError("programs are compared on rows, with a metric; give both")
        found, _ = rows_of(rows)
        rows = list(found)
    made = []
    for name, one in (("a", a), ("b", b)):
        if not isinstance(one, Evaluation):
            assert metric is not None
            own = None if checkpoint is None else f"{checkpoint}.{name}"
            one = evaluate(one, rows, metric, checkpoint=own, **options)
        made.append(one)
    _check_pairs(*made)
    return Comparison(*made)


def _check_pairs(a: Evaluation, b: Evaluation) -> None:
    if len(a) != len(b):
        raise ProgramError(f"{len(a):,} rows cannot be compared with {len(b):,}")
    for one, other in zip(a, b, strict=True):
        if one.index != other.index or as_json(one.row) != as_json(other.row):
            raise ProgramError(f"row {one.index} is another one in the second evaluation")
        if one.seed != other.seed:
            raise ProgramError(
                f"the two were evaluated with seeds {a.seed} and {b.seed}; what differs then is "
                "not the program alone"
            )


class Grid(Sequence[Evaluation]):
    """The evaluations of all combinations, the best first."""

    def __init__(self, evaluations: Sequence[Evaluation]) -> None:
        self.evaluations = sorted(evaluations, key=lambda one: -one.score)

    def __getitem__(self, index: Any) -> Any:
        return self.evaluations[index]

    def __len__(self) -> int:
        return len(self.evaluations)

    @property
    def best(self) -> Evaluation:
        """The one with the highest score; what `compare` with the second says, tells how sure."""
        return self.evaluations[0]

    def __str__(self) -> str:
        width = max(len(one.label) for one in self.evaluations)
        return "\n".join(
            f"{one.label:{width}}  {one.score:.3f} {one.interval}  "
            f"{one.usage.computed:>9,} computed {one.usage.generated:>8,} generated"
            + ("" if one.cost is None else f"  cost {one.cost:.4g}")
            for one in self.evaluations
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_html(self, path: str | Path | None = None) -> str:
        """A page: the table, then every evaluation with its rows."""
        return report.page_of([one.shown() for one in self], self._repr_html_(), path)

    def to_frame(self) -> Any:
        """A row for each combination. Needs pandas."""
        import pandas  # type: ignore[import-untyped]

        return pandas.DataFrame(
            {
                "settings": one.label,
                "score": one.score,
                "low": one.interval.low,
                "high": one.interval.high,
                "failed": sum(map(len, one.failures.values())),
                "computed_tokens": one.usage.computed,
                "generated_tokens": one.usage.generated,
                "cost": one.cost,
            }
            for one in self.evaluations
        )


def grid(
    program: MeasuredProgram,
    rows: object,
    metric: Metric,
    *,
    checkpoint: str | Path | None = None,
    evaluation: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Grid:
    """Evaluates every combination of `settings`: each a list of values of a setting of runs
    (`temperature=[0, 0.7]`), or a dict of them by name (`backend={"small": one, "large": other}`);
    `model=[...]` opens a runtime of its own for each; blocks.

    `evaluation` has options of `lmprog.evaluate` for all of them.
    """
    found, _ = rows_of(rows)
    drawn = list(found)
    axes = [
        [(name, *choice) for choice in _choices(name, given)] for name, given in settings.items()
    ]
    made = []
    for nth, chosen in enumerate(itertools.product(*axes)):
        own = None if checkpoint is None else f"{checkpoint}.{nth}"
        with ExitStack() as opened:
            using = {name: value for name, _, value in chosen}
            if "model" in using:
                from lmprog.backends.connecting.embedded import Runtime

                using["backend"] = opened.enter_context(Runtime(using.pop("model")))
            one = evaluate(
                program.using(**using), drawn, metric, checkpoint=own, **dict(evaluation or {})
            )
        one.label = ", ".join(f"{name}={shown}" for name, shown, _ in chosen)
        made.append(one)
    return Grid(made)


def _choices(name: str, given: object) -> list[tuple[str, Any]]:
    """Each value with how a table writes it."""
    if isinstance(given, Mapping):
        return [(str(key), value) for key, value in given.items()]
    if isinstance(given, list | tuple) and given:
        return [(str(value), value) for value in given]
    raise not_allowed(name, given, "a list of values, or a dict of them by name")
