"""The checkpoint of an evaluation: a file of the rows that are done, and beside it one for each run
that is not. Asks nobody.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from lmprog.errors import CheckpointMismatch, ProgramError
from lmprog.evaluation.evaluated_row import EvaluatedRow
from lmprog.evaluation.rows import Row, as_json

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
        return EvaluatedRow.of_json(found)

    def run_file(self, index: int) -> Path:
        """Of a row that is under way."""
        return run_file(self._path, index, "run")

    def add(self, row: EvaluatedRow) -> None:
        """A row is done; its run needs no file any more."""
        self._write(row.as_json())
        for what in ("run", "judge"):
            run_file(self._path, row.index, what).unlink(missing_ok=True)

    def _write(self, told: Mapping[str, Any]) -> None:
        line = json.dumps(told, ensure_ascii=False)
        with self._lock:
            self._file.write(f"{line}\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()
