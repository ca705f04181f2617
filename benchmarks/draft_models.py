"""What a draft model saves: the same calls without and with one, in one run.

    python -m benchmarks.draft_models                 nano drafts for a model of eight times its layers
    python -m benchmarks.draft_models --times 16 --at-once 1 4

No pair of a small and a large trained model of one vocabulary is shipped. So the large one is made:
nano, and behind its layers others at random, whose part of the sum is scaled by `noise`. With 0 it
says what nano says, at the costs of its size; the more noise, the oftener it says something else,
and the less its text means. So costs are real, and acceptance is what the noise makes it: what a
pair of trained models reaches is theirs to show.

Processor time is the computing thread's, so what else the machine does changes little; the least of
all rounds counts. Texts with and without must be the same.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

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


@dataclass
class Figures:
    steps: int
    seconds: float
    drafted: int
    accepted: int
    texts: list[str]


def samplings(max_tokens: int) -> Iterator[tuple[str, wire.SamplingParams]]:
    for name, temperature in (("greedy", 0.0), ("drawn", 1.0)):
        yield (
            name,
            wire.SamplingParams(
                temperature=temperature, max_tokens=max_tokens, ignore_eos=True, seed=3
            ),
        )


def measured(
    own: OwnLoop, salt: str, sampling: wire.SamplingParams, calls: int, at_once: int
) -> Figures:
    stats = own.loop.scheduler.stats
    before = (stats.steps, stats.drafted_tokens, stats.accepted_tokens)
    began, texts = time.thread_time(), list[str]()
    for first in range(0, calls, at_once):
        texts += _asked(own, salt, sampling, range(first, min(first + at_once, calls)))
    seconds = time.thread_time() - began
    after = (stats.steps, stats.drafted_tokens, stats.accepted_tokens)
    steps, drafted, accepted = (b - a for a, b in zip(before, after, strict=True))
    return Figures(steps, seconds, drafted, accepted, texts)


def _asked(own: OwnLoop, salt: str, sampling: wire.SamplingParams, which: range) -> list[str]:
    for number in which:
        prompt = f"{number}. A short story about a baker who finds a key.\nOnce"
        own.say(
            salt.encode(),
            wire.Open(number, salt),
            wire.Append(number, (wire.TextPiece(prompt),)),
            wire.Generate(number, number, sampling),
        )
    found: dict[int, str] = {}
    while len(found) < len(which):
        for came in own.turn():
            if isinstance(came.reply, wire.Failed):
                raise RuntimeError(came.reply.message)
            if isinstance(came.reply, wire.CallDone):
                found[came.reply.call] = came.reply.outputs[0].text
    own.say(salt.encode(), *(wire.Close(number) for number in which))
    own.turn()
    return [found[number] for number in which]


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
    asked = parser.parse_args()
    head = "noise | text | at once | speculation | steps | fewer | processor ms | less | drafted"
    print(f"| {head} | right |")
    print("|---:|---|---:|---|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for noise in asked.noise:
            model = deepened(Path(folder) / str(noise), asked.times, noise)
            report(model, noise, asked)


def report(model: Path, noise: float, asked: argparse.Namespace) -> None:
    """A line for each way; each has one runtime, whose first round learns what drafts cost."""
    owns = {name: OwnLoop(str(model), kv_memory_mb=256, **way) for name, way in WAYS.items()}
    for text, sampling in samplings(asked.tokens):
        for at_once in asked.at_once:
            best: dict[str, Figures] = {}
            for number in range(asked.rounds + 1):
                for name, own in owns.items():
                    salt = f"{text} {at_once} {number}"
                    found = measured(own, salt, sampling, asked.calls, at_once)
                    if number and (name not in best or found.seconds < best[name].seconds):
                        best[name] = found
            without = best["off"]
            for name, one in best.items():
                if one.texts != without.texts:
                    raise RuntimeError(f"{text}, noise {noise}: {name} says something else")
                print(
                    f"| {noise} | {text} | {at_once} | {name} | {one.steps:,} "
                    f"| {without.steps / one.steps:.2f} | {1e3 * one.seconds:,.0f} "
                    f"| {without.seconds / one.seconds:.2f} | {one.drafted:,} "
                    f"| {one.accepted:,} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
