"""The program's own lines: where a call was asked for, and how an error found later still shows
that line.

Knows Python's frames and tracebacks; knows nothing of calls.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import NoReturn

_PACKAGE = Path(__file__).parents[2]
_OWN = tuple(f"{_PACKAGE / room}{os.sep}" for room in ("lang", "backends"))


@dataclass(frozen=True, slots=True)
class Site:
    """A line of the user's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def here() -> Site:
    """The innermost line of the stack that is not lmprog's own frontend."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def raise_at(site: Site, error: BaseException) -> NoReturn:
    """Raises `error` with `site` in its traceback, for errors that nobody has read where they
    belong.

    A traceback takes its lines from code objects, so `_raise` runs under the wanted file, line and
    name.
    """
    first_line = site.line - 1  # `raise` stands one line below `def`
    code = _raise.__code__.replace(
        co_filename=site.file, co_firstlineno=first_line, co_name=site.function
    )
    FunctionType(code, {})(error)
    raise AssertionError("unreachable")


def _raise(error: BaseException) -> NoReturn:
    raise error
