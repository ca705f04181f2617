"""The rows that a program is measured on, whatever they are kept in, and the metric that scores
what the program made of them.

Knows files and tables, and which columns a program takes; runs nothing.
"""

from __future__ import annotations

import csv
import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from lmprog.errors import InvalidParameter, ProgramError, UnknownName, hint, not_allowed
from lmprog.lang.branches.scope import RunSettings
from lmprog.lang.ops.type_values import as_json_data

Row: TypeAlias = dict[str, Any]


@runtime_checkable
class MeasuredProgram(Protocol):
    """A program, as `@lmprog.function` makes it: this room is below it."""

    @property
    def function(self) -> Callable[..., Any]: ...

    @property
    def settings(self) -> RunSettings: ...

    @property
    def bound(self) -> Mapping[str, Any]: ...

    @property
    def using(self) -> Callable[..., Any]:
        """The same program with settings for its runs."""
        ...


Metric: TypeAlias = "str | Callable[..., Any] | MeasuredProgram"
KINDS = "dicts, dataclasses, a pandas or polars DataFrame, or the path of a .jsonl or .csv file"


def rows_of(given: object) -> tuple[Iterable[Row], int | None]:
    """The rows, and how many they are where that is known without reading them all."""
    if isinstance(given, str | Path):
        return _of_file(Path(given).expanduser()), None
    if hasattr(given, "iter_rows") and hasattr(given, "columns"):  # polars
        return given.iter_rows(named=True), len(given)  # type: ignore[arg-type]
    if hasattr(given, "to_dict") and hasattr(given, "columns"):  # pandas
        return given.to_dict("records"), len(given)  # type: ignore[arg-type]
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise not_allowed("rows", type(given).__name__, KINDS)
    size = len(given) if isinstance(given, Sequence) else None
    return (_as_row(one, at) for at, one in enumerate(given)), size


def _as_row(given: object, at: int) -> Row:
    if isinstance(given, Mapping):
        return dict(given)
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        return {each.name: getattr(given, each.name) for each in dataclasses.fields(given)}
    kind = type(given).__name__
    raise not_allowed("rows", kind, KINDS, f"row {at} is a {kind}, and has no columns")


def _of_file(path: Path) -> Iterable[Row]:
    if not path.is_file():
        raise UnknownName(f"there is no file {str(path)!r} of rows", name=str(path))
    if path.suffix == ".csv":
        return _of_csv(path)
    if path.suffix in (".jsonl", ".ndjson"):
        return _of_jsonl(path)
    raise not_allowed("rows", str(path), "a file whose name ends in .jsonl or .csv")


def _of_jsonl(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ProgramError(f"{path}, line {number} is no JSON: {error}") from None
            if not isinstance(row, dict):
                raise ProgramError(f"{path}, line {number} is no JSON object")
            yield row


def _of_csv(path: Path) -> Iterator[Row]:
    """A column whose every cell is a number, or true or false, has such values."""
    readers: dict[str, Callable[[str], Any]] = {}
    for row in _cells(path):
        for name, cell in row.items():
            found = next(read for pattern, read in _CELLS if pattern.fullmatch(cell))
            before = readers.setdefault(name, found)
            if before is not found:
                readers[name] = float if {before, found} == {int, float} else str
    for row in _cells(path):
        yield {name: readers[name](cell) for name, cell in row.items()}


def _cells(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        table = csv.DictReader(file, restkey="")
        for row in table:
            if "" in row or None in row.values():
                raise ProgramError(
                    f"{path}, line {table.line_num} has another number of cells than the first one"
                )
            yield row


def _is_true(cell: str) -> bool:
    return cell == "true"


_CELLS: tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...] = (
    (re.compile("true|false"), _is_true),
    (re.compile("-?(0|[1-9][0-9]*)"), int),  # "007" is a text
    (re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+"), float),
    (re.compile(".*", re.DOTALL), str),
)


def as_json(value: Any) -> Any:
    """A value for a file; what JSON does not have, as Python shows it."""
    try:
        return json.loads(json.dumps(as_json_data(value)))
    except (TypeError, ValueError):
        return repr(value)


# --- what a program takes of a row


def arguments_of(
    program: MeasuredProgram,
    parameters: Iterable[inspect.Parameter],
    row: Mapping[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """The columns that the program has parameters for. Raises `InvalidParameter` where one that it
    needs is missing. `more`, one thing by name, is for the first parameter that no column has.
    """
    found: dict[str, Any] = dict(program.bound)
    left = dict(more)
    for parameter in parameters:
        name = parameter.name
        if name in left:
            found[name] = left.pop(name)
        elif name in row:
            found[name] = row[name]
        elif parameter.default is parameter.empty and name not in found:
            if not left:
                raise InvalidParameter(
                    f"{program.function.__name__} needs {name!r}, and the rows have no such column"
                    f"{hint(name, row)}; rename one, or give it to all: "
                    f"{program.function.__name__}.bind({name}=...)",
                    name=name,
                    allowed="a column for each parameter of the program",
                )
            found[name] = left.pop(next(iter(left)))
    return found


def parameters_of(program: MeasuredProgram) -> list[inspect.Parameter]:
    """Those of the program's own, after its branch."""
    after = list(inspect.signature(program.function).parameters.values())[1:]
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [parameter for parameter in after if parameter.kind not in variadic]


# --- metrics


def metric_name(metric: Metric) -> str:
    if isinstance(metric, str):
        return metric
    function = metric.function if isinstance(metric, MeasuredProgram) else metric
    return str(getattr(function, "__name__", function))


def plain_metric(metric: Metric) -> Callable[..., Any]:
    """A function of the value, the row and the run, whichever of them `metric` takes. A text names
    the column that the value must equal.
    """
    if isinstance(metric, str):
        return lambda value, row, _run: _equal(value, row, metric)
    if not callable(metric):
        allowed = "a function of (value, row), a program that judges, or a column's name"
        raise not_allowed("metric", metric, allowed)
    try:
        parameters = inspect.signature(metric).parameters.values()
    except ValueError:  # of C
        return lambda value, row, _run: metric(value, row)
    takes_any = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    num = 3 if takes_any else sum(each.kind in positional for each in parameters)
    if not 1 <= num <= 3:
        raise ProgramError(
            f"{metric_name(metric)} is no metric: it takes {num} arguments; write "
            "def metric(value, row), or (value, row, run)"
        )
    return lambda *known: metric(*known[:num])


def _equal(value: Any, row: Mapping[str, Any], column: str) -> bool:
    if column not in row:
        raise UnknownName(f"the rows have no column {column!r}{hint(column, row)}", name=column)
    return bool(_plain(value) == _plain(row[column]))


def _plain(value: Any) -> Any:
    """As a file has it: spaces around a text do not count."""
    found = as_json(value)
    return found.strip() if isinstance(found, str) else found


def scores_of(given: Any, name: str) -> dict[str, float]:
    """What a metric gave, as numbers by name; the first is the one that counts."""
    if isinstance(given, Mapping) and given:
        return {str(key): _number(one, f"{name}[{key!r}]") for key, one in given.items()}
    return {"score": _number(given, name)}


def _number(given: Any, name: str) -> float:
    if isinstance(given, str) and given.strip().lower() in ("yes", "no"):
        return float(given.strip().lower() == "yes")  # a judge's verdict
    if isinstance(given, bool | int | float) or hasattr(given, "__float__"):
        number = float(given)
        if number == number and abs(number) != float("inf"):
            return number
    raise ProgramError(
        f"the metric {name} gave {given!r}; give a bool, a number, or a dict of them "
        '(a judge may also say "yes" or "no")'
    )
