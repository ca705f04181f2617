"""Tries a grammar for llguidance in a process of its own first, with limits that the system holds.

llguidance's compiler recurses as deep as a grammar's rules lead to each other, and its time grows
faster than the grammar: a stranger's grammar could end the runtime or keep it busy for minutes.
Here such a grammar ends a process that has nothing else to do. What was compiled there within the
limits is then compiled in this process, on a stack that is larger than the trial's. Knows processes
and limits; does not know what a grammar means.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TypeVar

from lmprog.constraints.constraint import Check
from lmprog.errors import GrammarError, NotSupported

MAX_UNTRIED = 2000
"""Characters of a grammar that is compiled without a trial. Of 49 shapes of so many characters
(chains, nesting, alternatives, recursion, empty rules, long literals, counts, doubling rules and
terminals) each took less than 1 MB of stack and less than a second."""
_SECONDS = 2
"""Of processor time; the start of the process, a tenth of a second, is a part of it."""
_MEMORY = 1 << 30
"""Of address space, stacks and libraries included."""
_STACK, _STEP_STACK = 64 << 20, 2 << 20
"""For compiling, and for steps: the loop's thread has 8 MB."""
_OWN_STACK = 96 << 20
"""In this process."""
_WATCHDOG_SECONDS = 60.0
"""Of the clock: a machine may be busy with other things."""
_POLL_SECONDS = 0.005

LEXER_FUEL = 200_000
"""A step beyond it is an error of its own generation, after a tenth of a second at most."""

_Result = TypeVar("_Result")


def tried(text: str, kind: str, check: Check) -> str:
    """llguidance's form of a grammar, which it could compile within the limits. Raises GrammarError
    where it could not, or where the system has no process for that, and what `check` raises, which
    ends the trial.
    """
    if not sys.executable:
        raise NotSupported("a grammar is tried in a Python of its own, which is not to be found.")
    job = {
        "text": text,
        "format": kind,
        "seconds": _SECONDS,
        "memory": _MEMORY,
        "stack": _STACK,
        "step_stack": _STEP_STACK,
        "lexer_fuel": LEXER_FUEL,
    }
    try:
        with tempfile.TemporaryFile("w+") as asked, tempfile.TemporaryFile("w+") as answer:
            json.dump(job, asked)
            asked.seek(0)
            code, said = _ended(asked, answer, check)
            answer.seek(0)
            written = answer.read()
    except OSError as error:  # no memory, processes, files or room on the disk are left
        raise GrammarError(
            f"it has more than {MAX_UNTRIED:,} characters, so that it is tried in a process of its "
            f"own first, which the system did not give: {error}",
            position=None,
        ) from error
    if code != 0 or not written:
        raise GrammarError(_why(code, said), position=None)
    found: dict[str, str] = json.loads(written)
    if found["error"]:
        raise GrammarError(found["error"].partition("\n")[0], position=None)
    return found["grammar"]


def _ended(asked: IO[str], answer: IO[str], check: Check) -> tuple[int, str]:
    """Runs the process to its end: its exit code, and the last line that it said of an error."""
    script = Path(__file__).with_name("trial_process.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    deadline = time.monotonic() + _WATCHDOG_SECONDS
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", str(script)],
            stdin=asked,
            stdout=answer,
            stderr=errors,
            env=environment,
        )
        try:
            while True:
                try:
                    code = process.wait(_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    check()
                    if time.monotonic() > deadline:
                        process.kill()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        errors.seek(0)
        lines = errors.read().strip().splitlines()
    return code, lines[-1] if lines else ""


def _why(code: int, said: str) -> str:
    if code > 0:
        return f"llguidance could not read it: {said[:300]}"
    return (
        f"llguidance needed more than {_SECONDS} s of processor time, {_MEMORY >> 20} MB of memory "
        f"or {_STACK >> 20} MB of stack to compile it; use fewer rules, or rules that lead less far"
    )


def on_large_stack(work: Callable[[], _Result]) -> _Result:
    """The result of `work`, in a thread with the stack that a tried grammar may need. Raises
    GrammarError where the system has none."""
    with ThreadPoolExecutor(1, "grammar") as executor:
        with _STACK_SIZE:  # it is that of all threads that begin meanwhile
            before = threading.stack_size(_OWN_STACK)
            try:
                running = executor.submit(work)  # which begins the thread
            except RuntimeError as error:
                raise GrammarError(
                    f"it is compiled in a thread with a stack of {_OWN_STACK >> 20} MB, which the "
                    f"system did not give: {error}",
                    position=None,
                ) from error
            finally:
                threading.stack_size(before)
        return running.result()


_STACK_SIZE = threading.Lock()
