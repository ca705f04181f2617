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

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import ablations, engines, gpu_tables, kernel_times
from lmprog.errors import LmprogError
from lmprog.runtime.engine.device.choice import chosen_device

EMULATED = "emulated"


def kernels(device: str, asked: argparse.Namespace, _: float) -> tuple[str, Any]:
    kept = "e4m3" if asked.fp8 else ""
    rows = kernel_times.measure(device, asked.cascade and not kept, kept)
    lines = ["| | microseconds | limit by the model |", "|---|---:|---:|"]
    for row in rows:
        limit = "" if row.limit != row.limit else f"{row.limit:.1f}"
        time_taken = "" if row.microseconds != row.microseconds else f"{row.microseconds:.1f}"
        lines.append(f"| {row.name} | {time_taken} | {limit} |")
    return "\n".join(lines), [asdict(row) for row in rows]


def beside_others(device: str, asked: argparse.Namespace, seconds: float) -> tuple[str, Any]:
    found = engines.measure_engines(device, asked.rounds, seconds)
    about = f"{found.model}, medians of {found.rounds} rounds."
    return f"{about}\n\n{found.table()}", asdict(found)


def without_parts(device: str, asked: argparse.Namespace, seconds: float) -> tuple[str, Any]:
    found = ablations.measure_ablations(device, asked.rounds, seconds)
    return ablations.table(found), [asdict(one) for one in found]


Measure = Callable[[str, argparse.Namespace, float], tuple[str, Any]]
MEASURES: dict[str, Measure] = {
    "kernels": kernels,
    "engines": beside_others,
    "ablations": without_parts,
}


def device_name(device: str) -> str:
    return EMULATED if device == EMULATED else torch.cuda.get_device_name(device)


def measured(
    device: str, asked: argparse.Namespace, parts: list[str]
) -> tuple[dict[str, str], dict[str, Any]]:
    """The tables of the parts that did not fail, and what they are made of. What is left of the
    time is shared by the parts to come."""
    ends = time.monotonic() + 60 * asked.minutes
    texts: dict[str, str] = {}
    found: dict[str, Any] = {}
    for number, name in enumerate(parts):
        share = max(0.0, ends - time.monotonic()) / (len(parts) - number)
        try:
            text, found[name] = MEASURES[name](device, asked, share)
        except Exception as error:  # noqa: BLE001 - whatever a device or a peer does
            traceback.print_exc()
            print(f"{name}: failed: {error}", flush=True)
            continue
        texts[name] = gpu_tables.section(name, device_name(device), text)
        print(texts[name], flush=True)
    return texts, found


def main(arguments: list[str] | None = None) -> int:
    """0: all parts were measured; 1: one of them failed; 2: wrong arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parts", default=",".join(MEASURES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=9, help="no further round after these")
    parser.add_argument("--cascade", action="store_true")
    parser.add_argument("--fp8", action="store_true", help="kernels: keys and values of 8 bits")
    parser.add_argument("--docs", action="store_true", help="write into docs/gpu.md")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    parts = asked.parts.split(",")
    for name in parts:
        if name not in MEASURES:
            parser.error(f"unknown part {name!r}; valid: {', '.join(MEASURES)}")
    try:
        device = chosen_device(asked.device)
    except LmprogError as error:
        print(error)
        return 1
    if asked.docs and not device.startswith("cuda"):
        parser.error(f"docs/gpu.md has figures of GPUs only, and {device!r} is none")
    texts, found = measured(device, asked, parts)
    if asked.json:
        asked.json.write_text(json.dumps(found))
    if asked.docs and texts:
        gpu_tables.write(texts)
    return 0 if len(found) == len(parts) else 1


if __name__ == "__main__":
    sys.exit(main())
