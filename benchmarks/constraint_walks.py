"""One case of the constraint benchmark: compiled, walked and timed, here or in a process that may
be killed.

Times are of processor time, except warm masks: those are shorter than the processor clock can tell.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from benchmarks import runner
from benchmarks.constraint_corpus import Case
from benchmarks.constraint_engines import Engine, Refused, Walk, takes
from lmprog.constraints.vocabulary import Vocabulary

Encode = Callable[[str], Sequence[int]]
_MAX_BYTES = 12 << 30
"""Address space of a process that may be killed."""


@dataclass(slots=True)
class Figures:
    """Microseconds unless said otherwise."""

    compiled: int = 0
    right: int = 0
    valid_taken: int = 0
    num_valid: int = 0
    invalid_taken: int = 0
    num_invalid: int = 0
    first_mask: list[float] = field(default_factory=list)
    uncached: list[float] = field(default_factory=list)
    in_strings: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    stopped: int = 0
    """Cases that were killed at their time limit, or died."""
    notes: list[str] = field(default_factory=list)


def in_string(text: str) -> bool:
    """Whether a JSON text stops inside a string, past its first character."""
    inside = escaped = False
    for char in text:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == '"':
            inside = not inside
    return inside and not text.endswith('"')


def run_case(
    engine: Engine, case: Case, encode: Encode, vocabulary: Vocabulary, out: Figures
) -> None:
    out.num_valid += len(case.valid)
    out.num_invalid += len(case.invalid)
    begin = time.process_time()
    try:
        walk = engine.compile(case.kind, case.source)
    except Refused as error:
        out.notes.append(f"{case.name}: refused, {str(error)[:90]}")
        return
    walk.mask()
    out.first_mask.append((time.process_time() - begin) * 1e6)
    out.compiled += 1
    taken = sum(timed_walk(walk, encode(text), vocabulary, case.kind, out) for text in case.valid)
    wrong = sum(takes(walk, encode(text)) for text in case.invalid)
    out.valid_taken += taken
    out.invalid_taken += wrong
    is_right = taken == len(case.valid) and not wrong
    out.right += is_right
    if not is_right:
        counts = f"{taken} of {len(case.valid)} valid taken, {wrong} invalid taken"
        out.notes.append(f"{case.name}: {counts}")


def timed_walk(
    walk: Walk, tokens: Sequence[int], vocabulary: Vocabulary, kind: str, out: Figures
) -> bool:
    walk.restart()
    text = b""
    for token in tokens:
        spent = 1e6 * runner.seconds(walk.mask)
        out.uncached.append(spent)
        if kind == "schema" and in_string(text.decode(errors="ignore")):
            out.in_strings.append(spent)
        if not walk.advance(token):
            return False
        text += vocabulary.bytes_of(token) or b""
    walk.mask()
    accepted = walk.accepts()
    walk.restart()
    for token in tokens:
        begin = time.perf_counter()
        walk.mask()
        walk.advance(token)
        out.warm.append((time.perf_counter() - begin) * 1e6)
    return accepted


def run_case_in_child(
    engine: Engine, case: Case, encode: Encode, vocabulary: Vocabulary, out: Figures, limit: float
) -> None:
    """The same in a forked process, killed after `limit` seconds: some engines hang, or take all
    memory.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))
        found = Figures()
        run_case(engine, case, encode, vocabulary, found)
        with os.fdopen(writing, "w") as pipe:
            json.dump(asdict(found), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        in_time = bool(select.select([pipe], [], [], limit)[0])
        if not in_time:
            os.kill(child, signal.SIGKILL)
        text = pipe.read()
    os.waitpid(child, 0)
    if not text:
        out.stopped += 1
        out.num_valid += len(case.valid)
        out.num_invalid += len(case.invalid)
        out.notes.append(f"{case.name}: {'died' if in_time else f'killed after {limit:g} s'}")
        return
    for name, value in json.loads(text).items():
        setattr(out, name, getattr(out, name) + value)
