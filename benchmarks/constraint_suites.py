"""Right or wrong: schemas with instances that are known to be valid or not, as engines take them.

    python -m benchmarks.constraint_suites --suite FOLDER     files of the JSON-Schema-Test-Suite
    python -m benchmarks.constraint_suites --folder FOLDER    schemas with tests, in MaskBench's layout
    ... --every 7        every seventh schema only
    ... --lenient        with strict=False
    ... --list           what is refused, taken though invalid, and not taken though valid
    ... --engine llguidance

Over single bytes, as texts and not tokens matter here; ours with the time limit of the runtime's
worker. A group is right if all its valid instances are taken and none of the others; one that is
refused as unsatisfiable is right if it has no valid instance.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.constraint_engines import ENGINES, Engine, OurWalk, Refused, Walk
from benchmarks.constraint_walks import plain_walk
from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.inspect import byte_vocabulary
from lmprog.errors import RequestRejected
from lmprog.runtime.programs.call_constraints import MAX_COMPILE_SECONDS
from lmprog.runtime.programs.compile_pool import TimeLimit, never_pause

Group = tuple[str, Any, list[Any]]
"""Its name, the schema, the tests."""


class Compiled:
    """Our engine, with the limit that a request has."""

    name = "lmprog"

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self.num_lenient = 0

    def compile(self, kind: str, source: str) -> Walk:
        assert kind == "schema"
        spec = wire.JsonSchema(source, strict=self._strict)
        try:
            limit = TimeLimit(MAX_COMPILE_SECONDS, never_pause)
            made = compile_constraint(spec, byte_vocabulary(), check=limit)
        except RequestRejected as error:
            raise Refused(str(error)) from error
        self.num_lenient += bool(made.left_out)
        return OurWalk(made)


@dataclass(slots=True)
class Verdicts:
    groups: int = 0
    compiled: int = 0
    right: int = 0
    valid: int = 0
    valid_taken: int = 0
    invalid: int = 0
    invalid_taken: int = 0
    seconds: list[float] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def of_suite(folder: Path) -> Iterator[Group]:
    for path in sorted(folder.glob("*.json")):
        for group in json.loads(path.read_text("utf-8")):
            yield f"{path.stem}: {group['description']}", group["schema"], group["tests"]


def of_folder(folder: Path) -> Iterator[Group]:
    for path in sorted(folder.glob("*.json")):
        case = json.loads(path.read_text("utf-8"))
        yield path.stem, case["schema"], case.get("tests") or []


def judge(engine: Engine, group: Group, out: Verdicts) -> None:
    name, schema, tests = group
    out.groups += 1
    begin = time.process_time()
    try:
        walk = engine.compile("schema", json.dumps(schema))
    except Refused as error:
        out.seconds.append(time.process_time() - begin)
        if "nothing at all" in str(error) and not any(test["valid"] for test in tests):
            out.compiled += 1
            out.right += 1
            return
        out.refusals[re.sub(r" at #\S*", "", str(error))[:90]] += 1
        out.notes.append(f"refused: {name}: {str(error)[:160]}")
        return
    out.seconds.append(time.process_time() - begin)
    out.compiled += 1
    wrong = 0
    for test in tests:
        text = json.dumps(test["data"], ensure_ascii=False).encode(errors="surrogatepass")
        walk.restart()
        try:
            taken = plain_walk(walk, byte_vocabulary().greedy(text))
        except RequestRejected:  # one instance asked for more than a generation may
            taken = False
        out.valid += test["valid"]
        out.invalid += not test["valid"]
        out.valid_taken += taken and test["valid"]
        out.invalid_taken += taken and not test["valid"]
        if taken != test["valid"]:
            wrong += 1
            verdict = "taken though invalid" if taken else "not taken"
            out.notes.append(f"{verdict}: {name}: {text.decode(errors='replace')[:160]}")
    out.right += not wrong


def report(name: str, out: Verdicts, lists: bool) -> None:
    print(
        f"{name}: {out.groups} schemas, compiled {out.compiled}, all right {out.right}; valid "
        f"taken {out.valid_taken} of {out.valid}, invalid taken {out.invalid_taken} of "
        f"{out.invalid}"
    )
    print(f"  processor time of compiling {sum(out.seconds):.1f} s, most {max(out.seconds):.2f} s")
    for why, count in out.refusals.most_common(12):
        print(f"  refused {count}: {why}")
    for note in out.notes if lists else ():
        print(f"  - {note}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--suite", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--engine", choices=list(ENGINES), default="lmprog")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--lenient", action="store_true")
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    if (asked.suite is None) == (asked.folder is None):
        parser.error("give one of --suite and --folder")
    groups = of_suite(asked.suite) if asked.suite else of_folder(asked.folder)
    ours = Compiled(strict=not asked.lenient) if asked.engine == "lmprog" else None
    engine: Engine = ours or ENGINES[asked.engine](byte_vocabulary())
    out = Verdicts()
    for number, group in enumerate(groups):
        if number % asked.every == 0:
            judge(engine, group, out)
    report(asked.engine, out, asked.list)
    if ours is not None and asked.lenient:
        print(f"  something was left out of {ours.num_lenient}")


if __name__ == "__main__":
    main()
