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

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from benchmarks import runner
from benchmarks.constraint_engines import ENGINES, Engine, Ours, Refused, takes
from lmprog.constraints.inspect import byte_vocabulary
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import RequestRejected
from lmprog.runtime.programs.compile_pool import never_pause

Group = tuple[str, Any, list[Any]]
"""Its name, the schema, the tests."""


@dataclass(slots=True)
class Verdicts:
    groups: int = 0
    compiled: int = 0
    right: int = 0
    valid: int = 0
    valid_taken: int = 0
    invalid: int = 0
    invalid_taken: int = 0
    never: int = 0
    """Instances of schemas that are refused as unsatisfiable; they are not among the invalid."""
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


def spelled(instance: Any) -> bytes:
    return json.dumps(instance, ensure_ascii=False).encode(errors="surrogatepass")


def judge(engine: Engine, group: Group, vocabulary: Vocabulary, out: Verdicts) -> None:
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
            out.never += len(tests)
            return
        out.refusals[re.sub(r" at #\S*", "", str(error))[:90]] += 1
        out.notes.append(f"refused: {name}: {str(error)[:160]}")
        return
    out.seconds.append(time.process_time() - begin)
    out.compiled += 1
    wrong = 0
    for test in tests:
        text, is_valid = spelled(test["data"]), test["valid"]
        try:
            taken = takes(walk, vocabulary.greedy(text))
        except RequestRejected:  # one instance asked for more than a generation may
            taken = False
        out.valid += is_valid
        out.invalid += not is_valid
        out.valid_taken += taken and is_valid
        out.invalid_taken += taken and not is_valid
        if taken != is_valid:
            wrong += 1
            said = "taken though invalid" if taken else "not taken"
            out.notes.append(f"{said}: {name}: {text.decode(errors='replace')[:160]}")
    out.right += not wrong


@runner.command
def main(
    *,
    suite: Path | None = None,
    folder: Path | None = None,
    engine: Annotated[str, {"choices": list(ENGINES)}] = "lmprog",
    every: int = 1,
    lenient: bool = False,
    list_: bool = False,
) -> None:
    if suite is not None and folder is None:
        groups = of_suite(suite)
    elif folder is not None and suite is None:
        groups = of_folder(folder)
    else:
        raise runner.WrongOptions("give one of --suite and --folder")
    plain, is_ours, out = byte_vocabulary(), engine == "lmprog", Verdicts()
    made = Ours(plain, never_pause, not lenient) if is_ours else ENGINES[engine](plain)
    for number, group in enumerate(groups):
        if number % every == 0:
            judge(made, group, plain, out)
    print(
        f"{engine}: {out.groups} schemas, compiled {out.compiled}, all right {out.right}; valid "
        f"taken {out.valid_taken} of {out.valid}, invalid taken {out.invalid_taken} of "
        f"{out.invalid}"
    )
    print(f"  processor time of compiling {sum(out.seconds):.1f} s, most {max(out.seconds):.2f} s")
    for why, count in out.refusals.most_common(12):
        print(f"  refused {count}: {why}")
    for note in out.notes if list_ else ():
        print(f"  - {note}")
    if lenient and is_ours:
        print(f"  something was left out of {made.num_lenient}")
