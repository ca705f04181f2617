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

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks import runner
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


def stories(salt: str, sampling: wire.SamplingParams) -> OpsOf:
    """Calls that share nothing but their salt."""

    def ops(number: int) -> tuple[wire.Op, ...]:
        prompt = wire.TextPiece(f"{number}. A short story about a baker who finds a key.\nOnce")
        gen = wire.Generate(number, number, sampling)
        return wire.Open(number, salt), wire.Append(number, (prompt,)), gen

    return ops


@runner.command
def main(
    *,
    times: int = 8,
    noise: Sequence[float] = (0.0, 0.1, 0.3, 1.0),
    at_once: Sequence[int] = (1, 8),
    calls: int = 8,
    tokens: int = 64,
    rounds: int = 2,
) -> None:
    print(head("noise", "text", "at once"))
    for one in noise:
        with tempfile.TemporaryDirectory() as folder:
            model = str(deepened(Path(folder) / "deep", times, one))
            owns = {name: OwnLoop(model, kv_memory_mb=256, **way) for name, way in WAYS.items()}
        for text, temperature in (("greedy", 0.0), ("drawn", 1.0)):
            sampling = wire.SamplingParams(
                temperature=temperature, max_tokens=tokens, ignore_eos=True, seed=3
            )
            for together in at_once:
                found: dict[str, list[Round]] = {name: [] for name in WAYS}
                for number in range(rounds + 1):
                    salt = f"{text} {together} {number}"
                    for name in in_turn(found, number):
                        ops = stories(salt, sampling)
                        taken = measured(owns[name], salt, ops, calls, together)
                        found[name] += [taken] if number else []
                for line in compared(found):
                    print(f"| {one} | {text} | {together} | {line.cells()}", flush=True)
