"""What a draft model saves: the same calls without and with one, in one run.

    python -m benchmarks.draft_models                 nano drafts for a model of eight times its layers
    python -m benchmarks.draft_models --times 16 --at-once 1 4

No pair of a small and a large trained model of one vocabulary is shipped. So the large one is made:
nano, and behind its layers others at random, whose part of the sum is scaled by `noise`. With 0 it
says what nano says, at the costs of its size; the more noise, the oftener it says something else,
and the less its text means. So costs are real, and acceptance is what the noise makes it: what a
pair of trained models reaches is theirs to show.

Each way has one runtime; its first round, which learns what drafts are worth, is not counted. How
times are compared is told in `draft_rounds`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.draft_rounds import OpsOf, Round, compared, head, in_turn, measured
from benchmarks.own_loop import OwnLoop
from lmprog import wire
from lmprog.runtime.engine.model.locate import NANO

WAYS: dict[str, dict[str, Any]] = {
    "off": {"speculation": "off"},
    "prompt lookup": {},
    "draft model": {"draft_model": "nano"},
}


def deepened(folder: Path, times: int, noise: float) -> Path:
    """A checkpoint of `times` as many layers as nano."""
    described = json.loads((NANO / "config.json").read_text())
    weights, dice = load_file(NANO / "model.safetensors"), torch.Generator().manual_seed(1)
    first = described["num_hidden_layers"]
    for layer in range(first, first * times):
        for name in [name for name in weights if name.startswith("model.layers.0.")]:
            shape, kind = weights[name].shape, weights[name].dtype
            is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
            drawn = torch.randn(shape, generator=dice) * 0.05 * (noise if is_output else 1.0)
            made = torch.ones(shape) if "layernorm" in name else drawn
            weights[name.replace(".0.", f".{layer}.", 1)] = made.to(kind)
    folder.mkdir()
    for path in NANO.glob("*.json"):
        shutil.copy(path, folder)
    save_file(weights, folder / "model.safetensors")
    described["num_hidden_layers"] = first * times
    (folder / "config.json").write_text(json.dumps(described))
    return folder


def samplings(max_tokens: int) -> Iterator[tuple[str, wire.SamplingParams]]:
    for name, temperature in (("greedy", 0.0), ("drawn", 1.0)):
        yield (
            name,
            wire.SamplingParams(
                temperature=temperature, max_tokens=max_tokens, ignore_eos=True, seed=3
            ),
        )


def stories(salt: str, sampling: wire.SamplingParams) -> OpsOf:
    """Calls that share nothing but their salt."""

    def ops(number: int) -> tuple[wire.Op, ...]:
        prompt = f"{number}. A short story about a baker who finds a key.\nOnce"
        return (
            wire.Open(number, salt),
            wire.Append(number, (wire.TextPiece(prompt),)),
            wire.Generate(number, number, sampling),
        )

    return ops


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.draft_models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--times", type=int, default=8)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.1, 0.3, 1.0])
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    chosen = parser.parse_args()
    print(head("noise", "text", "at once"))
    with tempfile.TemporaryDirectory() as folder:
        for noise in chosen.noise:
            model = deepened(Path(folder) / str(noise), chosen.times, noise)
            report(model, noise, chosen)


def report(model: Path, noise: float, chosen: argparse.Namespace) -> None:
    """A line for each way."""
    owns = {name: OwnLoop(str(model), kv_memory_mb=256, **way) for name, way in WAYS.items()}
    for text, sampling in samplings(chosen.tokens):
        for at_once in chosen.at_once:
            found: dict[str, list[Round]] = {name: [] for name in WAYS}
            for number in range(chosen.rounds + 1):
                salt = f"{text} {at_once} {number}"
                for name in in_turn(found, number):
                    own = owns[name]
                    one = measured(own, salt, stories(salt, sampling), chosen.calls, at_once)
                    if number:
                        found[name].append(one)
            for line in compared(found):
                print(f"| {noise} | {text} | {at_once} | {line.cells()}", flush=True)


if __name__ == "__main__":
    main()
