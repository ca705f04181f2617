"""What an evaluation found: all its rows, the score, what failed, what it took.

Counts and averages, and is kept as JSON. Runs nothing.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lmprog import wire
from lmprog.errors import ProgramError, UnknownName, hint
from lmprog.evaluation import report
from lmprog.evaluation.evaluated_row import EvaluatedRow, RowWork, said_of, summed
from lmprog.evaluation.statistics import Interval, mean, mean_interval

FORMAT = "lmprog evaluation 1"


class Evaluation(Sequence[EvaluatedRow]):
    """A program's rows in their order, with its score. `print` it, or look at it in a notebook."""

    def __init__(
        self, program: str, metric: str, seed: int, rows: Iterable[EvaluatedRow], label: str = ""
    ) -> None:
        self.program = program
        self.metric = metric
        self.seed = seed
        self.rows = sorted(rows, key=lambda one: one.index)
        self.label = label
        """What tells it from others of the program, in tables."""

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[EvaluatedRow]:
        return iter(self.rows)

    # --- how good it is

    @property
    def names(self) -> list[str]:
        """Of the scores; the first is the one that counts."""
        return list(dict.fromkeys(name for row in self.rows for name in row.scores)) or ["score"]

    def scores(self, name: str | None = None) -> list[float]:
        """Of all rows, in their order; 0 for those that failed."""
        wanted = self.names[0] if name is None else name
        if wanted not in self.names:
            raise UnknownName(
                f"there is no score {wanted!r}{hint(wanted, self.names)}", name=wanted
            )
        return [row.scores.get(wanted, 0.0) for row in self.rows]

    @property
    def score(self) -> float:
        """The mean; rows that failed count as 0."""
        return mean(self.scores())

    @property
    def interval(self) -> Interval:
        """Where the true mean is, with 95 %."""
        return self.interval_of()

    def interval_of(self, name: str | None = None) -> Interval:
        return mean_interval(self.scores(name))

    @property
    def failures(self) -> dict[str, list[EvaluatedRow]]:
        """The rows that failed, by kind, the most frequent first."""
        failed = [row for row in self.rows if row.failure]
        kinds = Counter(row.failure for row in failed)
        return {
            kind: [row for row in failed if row.failure == kind] for kind, _ in kinds.most_common()
        }

    # --- what it took

    @property
    def work(self) -> RowWork:
        return summed(row.work for row in self.rows)

    @property
    def usage(self) -> wire.Usage:
        return self.work.usage

    @property
    def cost(self) -> float | None:
        """None where no prices were given."""
        return self.work.cost

    @property
    def judging(self) -> RowWork:
        """What the judge took, which is not in the above."""
        return summed(row.judging for row in self.rows)

    @property
    def by_branch(self) -> dict[str, RowWork]:
        """The work of all rows, by the branch on which it was done."""
        names = dict.fromkeys(name for row in self.rows for name in row.branches)
        return {
            name: summed(row.branches[name] for row in self.rows if name in row.branches)
            for name in names
        }

    # --- how it is looked at

    def __str__(self) -> str:
        lines = [f"{self.program}: {self._headline()}"]
        lines += [
            f"  {name} {mean(self.scores(name)):.3f} {self.interval_of(name)}"
            for name in self.names[1:]
        ]
        for kind, rows in self.failures.items():
            lines.append(
                f"  {len(rows)} failed by {kind}, first row {rows[0].index}: {rows[0].message}"
            )
        lines.append(f"  {said_of(self.work)}")
        branches = self.by_branch
        if len(branches) > 1:
            lines += [f"    {name}: {said_of(one)}" for name, one in branches.items()]
        if self.judging.usage.prompt:
            lines.append(f"  the judge: {said_of(self.judging)}")
        return "\n".join(lines)

    def _headline(self) -> str:
        interval = self.interval
        sure = f" {interval}" if math.isfinite(interval.low) else ""
        return f"{self.names[0]} {self.score:.3f}{sure} of {len(self.rows):,} rows"

    def __repr__(self) -> str:
        return f"<evaluation of {self.program}: {self._headline()}>"

    def to_frame(self) -> Any:
        """A row for each row: its columns, the value, the scores, what it took. Needs pandas."""
        import pandas  # type: ignore[import-untyped]

        return pandas.DataFrame([_flat(row) for row in self.rows])

    def to_html(self, path: str | Path | None = None) -> str:
        """A page by itself: rows that can be sorted, the transcript behind each; also written to
        `path`.
        """
        return report.page_of([self.shown()], path=path)

    def _repr_html_(self) -> str:
        return report.summary_of(self.shown())

    def shown(self) -> report.ShownEvaluation:
        """What a page has of it."""
        branches = self.by_branch
        return report.ShownEvaluation(
            title=f"{self.program} {self.label}".strip(),
            about=f"metric {self.metric}, seed {self.seed}",
            scores=[
                report.ShownScore(name, mean(self.scores(name)), self.interval_of(name))
                for name in self.names
            ],
            failures=self.failures,
            works={"all": self.work, **(branches if len(branches) > 1 else {})},
            judging=self.judging,
            rows=self.rows,
        )

    # --- how it is kept

    def save(self, path: str | Path) -> None:
        """As JSON; `Evaluation.load` reads it. Values are as JSON has them."""
        told = {
            "format": FORMAT,
            "program": self.program,
            "metric": self.metric,
            "seed": self.seed,
            "label": self.label,
            "score": self.score,
            "rows": [row.as_json() for row in self.rows],
        }
        text = json.dumps(told, ensure_ascii=False, indent=1)
        Path(path).expanduser().write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Evaluation:
        """Raises `ProgramError` where the file is none."""
        try:
            told = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
            if told["format"] != FORMAT:
                raise ValueError(f"its format is {told['format']!r}")
            rows = [EvaluatedRow.of_json(one) for one in told["rows"]]
            return cls(told["program"], told["metric"], told["seed"], rows, told["label"])
        except (KeyError, TypeError, ValueError) as error:
            raise ProgramError(f"{path} is no evaluation ({FORMAT}): {error}") from None


def _flat(row: EvaluatedRow) -> dict[str, Any]:
    usage = row.usage
    return {
        **row.row,
        "value": row.value,
        **(row.scores or {"score": row.score}),
        "failure": row.failure,
        "prompt_tokens": usage.prompt,
        "cached_tokens": usage.cached,
        "computed_tokens": usage.computed,
        "generated_tokens": usage.generated,
        "cost": row.cost,
        "seconds": row.seconds,
    }
