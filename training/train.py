"""The training loop: bfloat16 arithmetic, float32 weights, Muon and AdamW, resumable at any
checkpoint.

Knows time only to report it. The learning rate is flat and falls over the last part (`--cooldown`),
so that a run can be prolonged from a checkpoint of its flat part.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn import functional as F
from tqdm import tqdm

from training.batches import Batch, Batches
from training.model import Nano, Shape
from training.optimiser import Muon
from training.probes import Probes

# Longest documents by number of tokens seen: short ones first, since they teach copying sooner.
CURRICULUM = ((0.0, 128), (4e6, 256), (8e6, 384), (12e6, 2048))
YOUNG = 4e6  # tokens for which copying comes first
FRESH_POOL = 8_000_000  # where the batches of a run on exported weights begin


@dataclass(slots=True)
class Progress:
    """Where a run stands."""

    step: int = 0
    tokens: int = 0
    pool: int = 0
    seconds: float = 0.0


class Training:
    """One run: network, optimisers, batches, progress. `probing` is the weight of the probes' loss
    beside that of the answers.
    """

    def __init__(
        self, folder: Path, shape: Shape, lr: float, batch: int, probing: float = 0.0
    ) -> None:
        torch.manual_seed(1)
        self.folder = folder
        self.lr = lr
        self.probing = probing
        self.net = Nano(shape)
        self.probes = Probes(shape.hidden)
        matrices = [p for n, p in self.net.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in self.net.named_parameters() if p.ndim != 2 or "embed" in n]
        self.muon = Muon(matrices, lr=lr, decay=0.05)
        self.adam = torch.optim.AdamW(others, lr=lr * 0.3, betas=(0.9, 0.95), weight_decay=0.0)
        self.probes_adam = torch.optim.AdamW(self.probes.parameters(), lr=0.003, weight_decay=0.0)
        self.batches = Batches(Tokenizer.from_file(str(folder / "tokenizer.json")), batch)
        self.progress = Progress()

    def rate(self, factor: float) -> None:
        """Set the learning rates to a share of the full ones."""
        for optimiser, full in ((self.muon, self.lr), (self.adam, self.lr * 0.3)):
            for group in optimiser.param_groups:
                group["lr"] = full * factor

    def step(self, batch: Batch) -> float:
        """One update; the mean loss of the answer tokens."""
        with torch.autocast("cpu", torch.bfloat16):
            states = list(self.net.states(batch.ids))
            hidden = self.net.norm(states[-1]).flatten(0, 1)[batch.where]
            loss = F.cross_entropy(self.net.logits(hidden).float(), batch.target)
            total = loss
            if self.probing and len(batch.before):
                found = self.probes.loss(states, batch.before, batch.steps)
                # Batches differ in how much of them is probed: each place counts as an answer does.
                total = loss + self.probing * found * len(batch.before) / len(batch.target)
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.muon.step()
        self.adam.step()
        self.probes_adam.step()
        self.probes.zero_grad(set_to_none=True)
        self.net.zero_grad(set_to_none=True)
        return float(loss.detach())

    def save(self, name: str = "checkpoint.pt") -> None:
        """Write everything that is needed to go on."""
        state = {
            "shape": self.net.shape.as_dict(),
            "net": self.net.state_dict(),
            "muon": self.muon.state_dict(),
            "adam": self.adam.state_dict(),
            "probes": self.probes.state_dict(),
            "probes_adam": self.probes_adam.state_dict(),
            "progress": [
                self.progress.step,
                self.progress.tokens,
                self.batches.pool,
                self.progress.seconds,
            ],
        }
        torch.save(state, self.folder / "writing.pt")
        (self.folder / "writing.pt").replace(self.folder / name)

    def load(self, name: str = "checkpoint.pt") -> None:
        """Go on from a checkpoint."""
        state = torch.load(self.folder / name, weights_only=True)
        self.net.load_state_dict(state["net"])
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])
        self.probes.load_state_dict(state["probes"])
        self.probes_adam.load_state_dict(state["probes_adam"])
        self.progress = Progress(*state["progress"])
        self.batches.pool = self.progress.pool

    def begin_from(self, weights: Path) -> None:
        """Begin from exported weights, which have no state of the optimisers with them: the young
        part is over, and batches are drawn that no run before has drawn.

        Weights of fewer layers are taken too: what a further layer adds is nought at first.
        """
        tensors = load_file(weights / "model.safetensors")
        given = {name.removeprefix("model."): tensor.float() for name, tensor in tensors.items()}
        missing, unknown = self.net.load_state_dict(given, strict=False)
        begun = sum(name.endswith("q_proj.weight") for name in given)
        if unknown or any(int(name.split(".")[1]) < begun for name in missing):
            raise ValueError(f"{weights} has other layers: {[*unknown, *missing]}")
        self.progress = Progress(tokens=int(YOUNG * 4))
        self.batches.pool = FRESH_POOL


def factor(done: float, warm: int, step: int, cooldown: float) -> float:
    """The learning rate's share: warm-up by steps, then flat, then down to a fiftieth over the last
    part.
    """
    up = min(1.0, (step + 1) / warm)
    return up * min(1.0, max(0.02, (1 - done) / cooldown)) if cooldown else up


def _grow(training: Training) -> None:
    """Choose what comes next by the model's age."""
    tokens = training.progress.tokens
    training.batches.longest = max(length for start, length in CURRICULUM if tokens >= start)
    training.batches.young = tokens < YOUNG


def run(training: Training, budget: int, cooldown: float, minutes: float) -> None:
    """Train until `budget` tokens are seen (or the minutes are over), reporting and saving on the
    way, and also when it is terminated."""
    asked_to_stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_stop.append(number))
    begun, saved, shown = time.monotonic(), time.monotonic(), time.monotonic()
    progress, mean, spent = training.progress, 0.0, training.progress.seconds
    log = (training.folder / "log.jsonl").open("a")
    bar = tqdm(total=budget, initial=progress.tokens, unit="tok", unit_scale=True, mininterval=10)
    _grow(training)
    for batch in training.batches:
        done = max(progress.tokens / budget, (time.monotonic() - begun) / (minutes * 60))
        training.rate(factor(done, 100, progress.step, cooldown))
        loss = training.step(batch)
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at step {progress.step}")
        progress.step += 1
        progress.tokens += batch.num_tokens
        progress.seconds = spent + time.monotonic() - begun
        mean = loss if mean == 0.0 else 0.98 * mean + 0.02 * loss
        _grow(training)
        bar.update(batch.num_tokens)
        if time.monotonic() - shown > 15:
            shown = time.monotonic()
            log.write(
                json.dumps(
                    {
                        "step": progress.step,
                        "tokens": progress.tokens,
                        "loss": round(mean, 4),
                        "seconds": round(progress.seconds),
                    }
                )
                + "\n"
            )
            log.flush()
            bar.set_postfix(loss=f"{mean:.3f}")
        over = (
            bool(asked_to_stop)
            or progress.tokens >= budget
            or progress.seconds - spent > minutes * 60
        )
        if over or time.monotonic() - saved > 180:
            saved = time.monotonic()
            training.save()
        if over:
            break


def main(arguments: Sequence[str] | None = None) -> None:
    """Start a run, or go on with one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, required=True, help="holds tokenizer.json; receives checkpoints"
    )
    parser.add_argument("--tokens", type=float, default=50e6, help="tokens of the whole run")
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="end after so many minutes, cooldown included"
    )
    parser.add_argument(
        "--cooldown",
        type=float,
        default=0.0,
        help="last share of the run (or of the minutes): the rate falls",
    )
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--batch", type=int, default=8192, help="tokens of a step")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--inner", type=int, default=704)
    parser.add_argument(
        "--probing", type=float, default=0.0, help="weight of the probes' loss (see probes.py)"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--resume", default="", help="a checkpoint's name")
    parser.add_argument(
        "--weights",
        type=Path,
        help="a folder of exported weights to begin from, of as many layers or fewer",
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    shape = Shape(layers=options.layers, hidden=options.hidden, inner=options.inner)
    training = Training(options.folder, shape, options.lr, options.batch, options.probing)
    if options.resume:
        training.load(options.resume)
    elif options.weights:
        training.begin_from(options.weights)
    print(f"{sum(p.numel() for p in training.net.parameters()) / 1e6:.2f} M parameters")
    run(training, int(options.tokens), options.cooldown, options.minutes)


if __name__ == "__main__":
    main()
