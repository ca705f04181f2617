"""What every benchmark needs: options, tables, sides in turn, processor time and processes.

Every command takes `--json FILE`, for its options and tables, and `--profile`.

A command is a function, its parameters are its options (`run`), and the docstring of its module is
its help. Knows nothing of what is measured.
"""

from __future__ import annotations

import argparse
import cProfile
import inspect
import json
import os
import pstats
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., int | None])
ROOT = Path(__file__).parents[1]
PATIENCE = 300.0
"""Seconds until a process that is started or ended counts as hanging."""


# -- options


def _by_commas(kind: Callable[[str], Any]) -> dict[str, Any]:
    return {"type": lambda text: [kind(one) for one in text.split(",")], "nargs": None}


Names = Annotated[Sequence[str], _by_commas(str)]
Ints = Annotated[Sequence[int], _by_commas(int)]
Floats = Annotated[Sequence[float], _by_commas(float)]
"""Several in one argument, with commas between them."""


_JSON, _PROFILE = "_json", "_profile"
"""What every command has beside its own options."""


class WrongOptions(Exception):
    """What a command raises where its options do not go together."""


def command(main: Command) -> Command:
    """Runs `main`, the last function of its module, where that module is the program."""
    if main.__module__ == "__main__":
        sys.exit(run(main))
    return main


Commands = Mapping[str, Callable[..., int | None]]


def commands(*mains: Callable[..., int | None]) -> Commands:
    """The last line of a module with several commands, each of its function's name; the first one
    needs no name. Runs one where that module is the program."""
    named = {one.__name__.rstrip("_").replace("_", "-"): one for one in mains}
    if mains[0].__module__ == "__main__":
        main, arguments = chosen(named, sys.argv[1:])
        sys.exit(run(main, arguments))
    return named


def chosen(
    named: Commands, words: Sequence[str]
) -> tuple[Callable[..., int | None], Sequence[str]]:
    """The command that the first word names, and the words behind it."""
    if words and words[0] in named:
        return named[words[0]], words[1:]
    return next(iter(named.values())), words


def run(command: Callable[..., int | None], arguments: Sequence[str] | None = None) -> int:
    """Calls `command` with what the command line says; its exit status."""
    parser = parser_of(command)
    given = vars(parser.parse_args(arguments))
    target, is_profiled = given.pop(_JSON, None), given.pop(_PROFILE, False)
    _TABLES.clear()
    try:
        with profiled() if is_profiled else nullcontext():
            status = command(**given) or 0
    except WrongOptions as error:
        parser.error(str(error))
    if target is not None:
        about = {"arguments": given, "load": os.getloadavg()[0], "cpus": os.cpu_count()}
        target.write_text(json.dumps({**about, "tables": _TABLES}, indent=1, default=str) + "\n")
    return status


def parser_of(command: Callable[..., int | None]) -> argparse.ArgumentParser:
    module = inspect.getmodule(command)
    name = module.__spec__.name if module and module.__spec__ else command.__name__
    told = [command.__globals__["__doc__"], command.__doc__ and inspect.cleandoc(command.__doc__)]
    parser = argparse.ArgumentParser(
        prog=f"python -m {name.removesuffix('.__main__')}",
        description="\n\n".join(filter(None, told)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    hints = get_type_hints(command, include_extras=True)
    for one in inspect.signature(command).parameters.values():
        _add(parser, one, hints[one.name])
    if "json_" not in hints:
        told = "also write options and tables here"
        parser.add_argument("--json", dest=_JSON, type=Path, help=told)
    parser.add_argument("--profile", dest=_PROFILE, action="store_true", help="where time goes")
    return parser


def _add(parser: argparse.ArgumentParser, one: inspect.Parameter, hint: Any) -> None:
    """Parameters behind the `*` are options with a name; text beside a type is its help."""
    is_option, given = one.kind is one.KEYWORD_ONLY, dict[str, Any]()
    if get_origin(hint) is Annotated:
        hint, *more = get_args(hint)
        for extra in more:
            given |= {"help": extra} if isinstance(extra, str) else extra
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    if get_origin(hint) is Literal:
        given = {"choices": kinds} | given
    elif get_origin(hint) is Sequence:
        given = {"type": kinds[0], "nargs": "+" if is_option else "*"} | given
    elif hint is bool:
        given = {"action": "store_true"} | given
    else:
        given = {"type": kinds[0] if NoneType in get_args(hint) else hint} | given
    if one.default is not one.empty:
        given |= {"default": one.default} | (
            {} if is_option else {"nargs": given.get("nargs", "?")}
        )
    if given.get("action") == "append":
        given["default"] = list(one.default or ())  # what is given is added to a copy of it
    name = one.name.removesuffix("_")  # of a parameter that would hide a name of Python's
    flags = [f"--{name.replace('_', '-')}"] if is_option else []
    parser.add_argument(*flags, dest=one.name, **given)


# -- tables


_TABLES: list[list[Sequence[object]]] = []
"""What the command under way has printed: columns first."""


def head(*columns: object, texts: int = 1) -> None:
    """Begins a table; the first columns are texts, the others numbers."""
    _TABLES.append([columns])
    print(table(columns, (), texts), flush=True)


def table(columns: Sequence[object], rows: Iterable[Sequence[object]], texts: int = 1) -> str:
    """A whole one, as Markdown."""
    rule = "|" + "-|" * texts + "-:|" * (len(columns) - texts)
    return "\n".join([row(*columns), rule, *(row(*cells) for cells in rows)])


def between(page: str, marks: tuple[str, str], text: str) -> str:
    """The page with that text between its two marks. Raises ValueError where it has none."""
    before, begin, rest = page.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not end:
        raise ValueError(f"the page has no {marks[0].strip()} ... {marks[1]}")
    return before + begin + text + end + after


def row(*cells: object) -> str:
    return "|" + "".join(f" {cell} |" if cell != "" else " |" for cell in cells)


def say(*cells: object) -> None:
    """A row of a table."""
    if _TABLES:
        _TABLES[-1].append(cells)
    print(row(*cells), flush=True)


def verdict(is_met: bool) -> str:
    return "met" if is_met else "missed"


# -- times


def seconds(
    work: Callable[[], object], count: int = 1, clock: Callable[[], float] = time.process_time
) -> float:
    """Of one `work`: the mean of so many in a row."""
    began = clock()
    for _ in range(count):
        work()
    return (clock() - began) / count


def in_turn(sides: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """What each side gives in each round, in which all take turns: what else the machine does meets
    all of them."""
    found: dict[str, list[T]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            found[name].append(side())
    return found


def medians(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    return {name: median(each) for name, each in in_turn(sides, rounds).items()}


def percentile(values: Iterable[float], part: float) -> float:
    """Of the sorted values, the one that `part` of them do not exceed; nan of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def middle_and_p99(values: Iterable[float]) -> tuple[float, float]:
    each = list(values)
    return percentile(each, 0.5), percentile(each, 0.99)


def processor_time(*pids: int) -> float:
    """Seconds that all threads of these processes have computed, those that ended too."""
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


@contextmanager
def profiled() -> Iterator[None]:
    """Prints the costliest functions in the end."""
    with cProfile.Profile() as profile:
        yield
    pstats.Stats(profile).sort_stats("tottime").print_stats(35)


# -- processes


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process holds now."""

    kilobytes: int
    files: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Footprint:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        assert found is not None
        files, threads = (len(os.listdir(f"/proc/{pid}/{kind}")) for kind in ("fd", "task"))
        return cls(int(found[1]), files, threads)

    def __str__(self) -> str:
        return f"{self.kilobytes / 1024:.0f} MB, {self.files} files, {self.threads} threads"


def children_of(pid: int) -> list[int]:
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


@contextmanager
def started(arguments: Sequence[str], tree: Path = ROOT) -> Iterator[dict[str, Any]]:
    """A Python process of a checkout: what its first line said as JSON, and its id."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield {**json.loads(process.stdout.readline()), "pid": process.pid}
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


@contextmanager
def busy_neighbour() -> Iterator[int]:
    """The id of a process that computes for ever on one core."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()
