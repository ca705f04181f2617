"""Plants each bug in a copy of the package and asks the tests: `python -m tests.mutation`.

    python -m tests.mutation [--only WORDS] [--part I/N] [--seconds S]

A bug counts as found where the tests of its room fail, or, if they pass, where the simulation does,
within so many seconds of processor time together. First the tests of each room are run without a
bug, since tests that fail anyway would find every one. Exit code 1 where one survives. Some ten
minutes of one processor: for the night, not for `make test`.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutation.call_mutants import CALL_MUTANTS
from tests.mutation.draft_mutants import DRAFT_MUTANTS
from tests.mutation.identity_mutants import IDENTITY_MUTANTS
from tests.mutation.ledger_mutants import LEDGER_MUTANTS
from tests.mutation.memory_mutants import MEMORY_MUTANTS
from tests.mutation.mutant import ROOMS, Mutant
from tests.mutation.outer_mutants import OUTER_MUTANTS
from tests.mutation.state_mutants import STATE_MUTANTS
from tests.mutation.tier_mutants import TIER_MUTANTS

ROOT = Path(__file__).parents[2]
COPIED = ("lmprog", "kernels", "tests", "benchmarks", "pyproject.toml", "docs", "README.md")
SECONDS = 60
WAIT = 900
"""Seconds by the wall clock after which a run counts as hanging; the machine may be busy."""
SIMULATION = (
    "import logging; logging.getLogger('lmprog').setLevel(60)\n"
    "from itertools import count\n"
    "from lmprog.simulation.world_runs import run_world\n"
    "for seed in count(): run_world(seed, 200)\n"
)
MUTANTS = [
    *(*MEMORY_MUTANTS, *TIER_MUTANTS, *DRAFT_MUTANTS),
    *(*CALL_MUTANTS, *OUTER_MUTANTS, *IDENTITY_MUTANTS),
    *(*LEDGER_MUTANTS, *STATE_MUTANTS),
]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", help="mutants whose name or room contains this")
    parser.add_argument("--after", type=int, default=0, help="leave out so many of the first")
    parser.add_argument("--part", default="1/1", help="every N-th mutant, from the I-th on")
    parser.add_argument("--seconds", type=int, default=SECONDS)
    asked = parser.parse_args()
    first, _, parts = asked.part.partition("/")
    chosen = [one for one in MUTANTS if asked.only in one.name or asked.only == one.room]
    chosen = chosen[asked.after :][int(first) - 1 :: int(parts)]
    survivors = []
    with tempfile.TemporaryDirectory(prefix="lmprog-mutants-") as folder:
        house = copied(Path(folder))
        for room in sorted({one.room for one in chosen}):
            if _fails(_tests_of(room), house, 10 * SECONDS):
                print(f"the tests of {room} fail without a bug")
                return 1
        for one in chosen:
            found, seconds = trial(one, house, asked.seconds)
            print(
                f"{found or 'SURVIVED':>10}  {seconds:5.1f} s  {one.room}: {one.name}", flush=True
            )
            if found is None:
                survivors.append(one)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} found")
    return 1 if survivors else 0


def copied(folder: Path) -> Path:
    """A copy of the checkout, as far as tests of the runtime need it."""
    for name in COPIED:
        place = ROOT / name
        if place.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(place, folder / name, ignore=ignored)
        else:
            shutil.copy(place, folder / name)
    return folder


def trial(one: Mutant, house: Path, seconds: float) -> tuple[str | None, float]:
    """What found the bug, None for nothing, and how many seconds of processor time that took."""
    place = house / "lmprog" / one.path
    source = place.read_text()
    before = _spent()
    place.write_text(one.planted_in(source))
    try:
        if _fails(_tests_of(one.room), house, seconds):
            return "tests", _spent() - before
        left = seconds - (_spent() - before)
        if left > 1 and _fails([sys.executable, "-c", SIMULATION], house, left):
            return "simulation", _spent() - before
        return None, _spent() - before
    finally:
        place.write_text(source)


def _tests_of(room: str) -> list[str]:
    options = ["-x", "-q", "-p", "pytest_timeout", "-p", "no:cacheprovider"]
    return [sys.executable, "-m", "pytest", *options, *ROOMS[room].split()]


def _fails(command: list[str], house: Path, seconds: float) -> bool:
    """Whether the command ends by itself, and not well, before its processor time is up."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 1))

    try:
        done = subprocess.run(
            command,
            cwd=house,
            env={**_environment(), "PYTHONPATH": str(house)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=limit,
            timeout=WAIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 1


def _environment() -> dict[str, str]:
    """Without plugins that these tests do not use: they take longer to load than most tests. No
    bytecode is kept, which could be that of the last bug in a file.
    """
    fresh = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": os.devnull}
    return {**os.environ, **fresh, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def _spent() -> float:
    """Processor time of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
