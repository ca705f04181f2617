"""The command `lmprog`: parses the command line, runs one command, and prints errors as one
sentence.

Each command is the module of its name with `run(given) -> int`, imported only when it is called, so
that `lmprog --help` starts quickly. Exit codes: 0 success, 1 failure, 2 an invalid command line
(or something it names). Only this package prints and handles signals.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator, Sequence

from lmprog.cli.arguments import parser
from lmprog.errors import LmprogError, RequestRejected

WRONG_USE = 2
_EXTRAS = {"ray": "ray", "torch": "torch", "transformers": "hub"}
"""Which extra brings a package that a plain install leaves out."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    given = parser().parse_args(arguments)
    try:
        return _run(given)
    except LmprogError as error:
        if given.debug:
            raise
        print(f"lmprog: {error}", file=sys.stderr)
        return WRONG_USE if isinstance(error, RequestRejected) else 1
    except ExceptionGroup as errors:  # from several branches of a program
        ours, others = errors.split(LmprogError)
        if given.debug or others is not None or ours is None:
            raise
        print(
            *dict.fromkeys(f"lmprog: {error}" for error in _leaves(ours)), sep="\n", file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader has closed our output; nothing more can be printed
        return 1
    except (OSError, ModuleNotFoundError) as error:
        said = None if given.debug or given.command == "run" else _said(error)
        if said is None:  # ours, or of the user's own program
            raise
        print(f"lmprog: {said}", file=sys.stderr)
        return WRONG_USE


def _said(error: OSError | ModuleNotFoundError) -> str | None:
    """What a user can do about a file that cannot be used, or a package that is not there; None
    where nobody knows."""
    if isinstance(error, OSError):
        return None if error.filename is None else f"{error.filename}: {error.strerror}"
    package = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(package)
    if extra is None:
        return None
    return f"this needs {package}, which is not installed: pip install 'lmprog[{extra}]'"


def _leaves(errors: BaseExceptionGroup[LmprogError]) -> Iterator[BaseException]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _run(given: argparse.Namespace) -> int:
    return int(importlib.import_module(f"lmprog.cli.{given.command}").run(given))
