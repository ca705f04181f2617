"""The program's own lines: where a call was asked for, and how an error found later still shows that line.

Knows Python's frames and tracebacks; knows nothing of calls.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import NoReturn

_LANG = os.path.dirname(os.path.abspath(__file__)) + os.sep


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
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LANG):
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def raise_at(site: Site, error: BaseException) -> NoReturn:
    """Raises `error` with `site` in its traceback, for errors that nobody has read where they belong.

    A traceback takes its lines from code objects, so one that stands on the wanted line of the wanted file is made.
    """
    code = compile("\n" * (site.line - 1) + "raise error", site.file, "exec").replace(co_name=site.function)
    exec(code, {"error": error})
    raise AssertionError("unreachable")
