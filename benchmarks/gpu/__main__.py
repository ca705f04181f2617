"""What a GPU does with lmprog, in three parts.

    python -m benchmarks.gpu [--device cuda:0] [--parts kernels,engines,ablations] [--docs]
        [--cascade] [--fp8] [--rounds 3] [--minutes 9] [--json FILE]

`kernels`: copy bandwidth, attention beside FlashInfer's, the sampler. `engines`: lmprog beside
transformers' continuous batching and, where they are installed, vLLM, SGLang and mini-sglang.
`ablations`: the engine without one of its parts. A part that fails is named and the others go on.
`--docs` renews the tables of docs/gpu.md. Nothing of this has run on hardware yet: `--device
emulated` runs it with tiny shapes, to show that it works; its figures mean nothing.
"""

from __future__ import annotations

import datetime
import json
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch

from benchmarks import runner
from benchmarks.gpu import ablations, engines, kernel_times
from lmprog.errors import LmprogError
from lmprog.runtime.engine.device.choice import chosen_device

EMULATED = "emulated"


@dataclass(frozen=True, slots=True)
class Asked:
    """What parts are measured how."""

    device: str
    rounds: int = 3
    minutes: float = 9
    cascade: bool = False
    fp8: bool = False


def kernels(asked: Asked, _: float) -> tuple[str, Any]:
    kept = "e4m3" if asked.fp8 else ""
    rows = kernel_times.measure(asked.device, asked.cascade, kept)

    def cell(value: float) -> str:
        return "" if value != value else f"{value:.1f}"

    cells = [(row.name, cell(row.microseconds), cell(row.limit)) for row in rows]
    columns = ("", "microseconds", "limit by the model")
    return runner.table(columns, cells), [asdict(row) for row in rows]


def beside_others(asked: Asked, seconds: float) -> tuple[str, Any]:
    found = engines.measure_engines(asked.device, asked.rounds, seconds)
    about = f"{found.model}, medians of {found.rounds} rounds."
    return f"{about}\n\n{found.table()}", asdict(found)


def without_parts(asked: Asked, seconds: float) -> tuple[str, Any]:
    found = ablations.measure_ablations(asked.device, asked.rounds, seconds)
    return ablations.table(found), [asdict(one) for one in found]


MEASURES: dict[str, Callable[[Asked, float], tuple[str, Any]]] = {
    "kernels": kernels,
    "engines": beside_others,
    "ablations": without_parts,
}


def measured(asked: Asked, parts: list[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """The tables of the parts that did not fail, and what they are made of. What is left of the
    time is shared by the parts to come."""
    ends = time.monotonic() + 60 * asked.minutes
    texts: dict[str, str] = {}
    found: dict[str, Any] = {}
    for number, name in enumerate(parts):
        share = max(0.0, ends - time.monotonic()) / (len(parts) - number)
        try:
            text, found[name] = MEASURES[name](asked, share)
        except Exception as error:  # noqa: BLE001 - whatever a device or a peer does
            traceback.print_exc()
            print(f"{name}: failed: {error}", flush=True)
            continue
        is_emulated = asked.device == EMULATED
        device = EMULATED if is_emulated else torch.cuda.get_device_name(asked.device)
        texts[name] = section(name, device, text)
        print(texts[name], flush=True)
    return texts, found


# -- docs/gpu.md

PAGE = runner.ROOT / "docs" / "gpu.md"
MARKS = ("<!-- measured on a GPU -->\n", "<!-- end -->")


def section(part: str, device: str, text: str) -> str:
    """One part with its date and device."""
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return f"### Measured: {part}\n\n{device}, {today}.\n\n{text}\n"


def write(sections: dict[str, str], page: Path = PAGE) -> None:
    """Only what a GPU gave may come here; parts that are not measured now stay as they were."""
    text = page.read_text()
    parts: dict[str, str] = {}
    for one in text.partition(MARKS[0])[2].partition(MARKS[1])[0].split("### Measured: ")[1:]:
        parts[one.partition("\n")[0]] = "### Measured: " + one.rstrip() + "\n"
    parts |= sections
    body = "\n".join(parts[name] for name in MEASURES if name in parts)
    page.write_text(runner.between(text, MARKS, f"\n{body}\n"))


@runner.command
def main(
    *,
    device: str = "cuda",
    parts: runner.Names = tuple(MEASURES),
    rounds: int = 3,
    minutes: Annotated[float, "no further round after these"] = 9,
    cascade: bool = False,
    fp8: Annotated[bool, "kernels: keys and values of 8 bits"] = False,
    docs: Annotated[bool, "write into docs/gpu.md"] = False,
    json_: Path | None = None,
) -> int:
    """0: all parts were measured; 1: one of them failed; 2: wrong arguments."""
    for name in parts:
        if name not in MEASURES:
            raise runner.WrongOptions(f"unknown part {name!r}; valid: {', '.join(MEASURES)}")
    try:
        device = chosen_device(device)
    except LmprogError as error:
        print(error)
        return 1
    if docs and not device.startswith("cuda"):
        raise runner.WrongOptions(f"docs/gpu.md has figures of GPUs only, and {device!r} is none")
    texts, found = measured(Asked(device, rounds, minutes, cascade, fp8), list(parts))
    if json_:
        json_.write_text(json.dumps(found))
    if docs and texts:
        write(texts)
    return 0 if len(found) == len(parts) else 1
