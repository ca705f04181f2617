"""What each part of the engine for devices is worth: the same work with one of them left out.

The whole engine runs in this process, its loop stepped by hand: branches of one program decode
behind a prefix. One variant at a time is loaded beside the default, and the two take turns, so each
ratio is of one run. Programs of a round have texts of their own. A variant that cannot run is named.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import runner
from benchmarks.models import make_comparable
from benchmarks.workloads.text import Pieces, Writer
from lmprog import wire
from lmprog.config import RuntimeConfig
from lmprog.errors import LmprogError
from lmprog.launch.runtime_process import configured
from lmprog.runtime.assembly import assemble
from lmprog.runtime.engine.device.flashinfer_reader import is_installed
from lmprog.runtime.loop import Loop
from lmprog.runtime.steps import PlainSteps
from lmprog.runtime.text.tokenizer import HfTokenizer
from lmprog.transport import LocalClientChannel, LocalRuntimeChannel

DEFAULT = "default"
_MOST_SECONDS = 60.0
"""Of one run of one variant."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Branches that decode behind a prefix."""

    prefix: int
    branches: int
    out: int


USUAL = Fork(4096, 32, 128)
TINY = Fork(18, 2, 3)


def without_graphs(loop: Loop) -> None:
    steps: Any = loop._steps
    steps._engine._can_capture = False


def without_ahead(loop: Loop) -> None:
    steps: Any = loop._steps
    loop._steps = PlainSteps(loop.scheduler, steps._engine, steps._sampler, steps.batches)


def unchanged(_: Loop) -> None: ...


@dataclass(frozen=True, slots=True)
class Variant:
    """Fields of the configuration, and what is done to the loop that it gives."""

    options: dict[str, Any]
    change: Callable[[Loop], None] = unchanged


VARIANTS = {
    "sharing off": Variant({"share": False}),
    "graphs off": Variant({}, without_graphs),
    "one step ahead off": Variant({}, without_ahead),
    "attention flashinfer": Variant({"attention": "flashinfer"}),
    "attention reference": Variant({"attention": "reference"}),
    "fp8 keys and values": Variant({"kv_dtype": "fp8"}),
    "virtual pool": Variant({"kv_pool": "virtual"}),
    "pages of 64 tokens": Variant({"page_size": 64}),
}


class Stepped:
    """A runtime in this process, with one client."""

    def __init__(self, model: Path, base: dict[str, Any], variant: Variant) -> None:
        config: RuntimeConfig = configured(str(model), {**base, **variant.options})
        channel = LocalRuntimeChannel()
        self.loop, _ = assemble(config, channel)
        variant.change(self.loop)
        self._client: LocalClientChannel = channel.connect()
        self._client.send([wire.Hello(wire.PROTOCOL_VERSION)])
        self._number = 0

    @property
    def engine(self) -> Any:
        steps: Any = self.loop._steps
        return steps._engine

    def run(self, text: str, own: list[str], out: int) -> tuple[float, list[tuple[int, ...]]]:
        """Seconds until all branches have ended, each with a text of its own, and their tokens."""
        sampling = wire.SamplingParams(temperature=0.0, max_tokens=out, ignore_eos=True)
        root, ids = self._number, range(self._number + 1, self._number + 1 + len(own))
        self._number = ids.stop
        ops: list[wire.Op] = [wire.Open(root), wire.Append(root, (wire.TextPiece(text),))]
        ops.append(wire.Fork(root, tuple(ids)))
        for branch, more in zip(ids, own, strict=True):
            ops.append(wire.Append(branch, (wire.TextPiece(more),)))
            ops.append(wire.Generate(branch, branch, sampling))
        done: dict[int, tuple[int, ...]] = {}
        began = time.perf_counter()
        self._client.send(ops)
        while len(done) < len(own):
            self.loop.step()
            if time.perf_counter() - began > _MOST_SECONDS:
                raise LmprogError(f"a run took more than {_MOST_SECONDS:.0f} s")
            for reply in self._client.receive(0.0):
                if isinstance(reply, wire.CallDone):
                    done[reply.call] = reply.outputs[0].tokens
                elif isinstance(reply, wire.Failed):
                    raise LmprogError(f"a call failed: {reply.message}")
        seconds = time.perf_counter() - began
        self._client.send([wire.Close(branch) for branch in (root, *ids)])
        return seconds, [done[one] for one in ids]


@dataclass(frozen=True, slots=True)
class Ablation:
    """Tokens a second of a variant and of the default beside it; or why there is none."""

    name: str
    rate: float = 0.0
    default_rate: float = 0.0
    same: float = 0.0
    """Share of branches with the default's tokens."""
    missing: str = ""


def compared(
    name: str, default: Stepped, other: Stepped, writer: Writer, fork: Fork, rounds: int
) -> Ablation:
    """The two take turns, and whoever was first is second in the next round."""
    times: dict[str, list[float]] = {DEFAULT: [], name: []}
    same: list[bool] = []
    pair = [(DEFAULT, default), (name, other)]
    for number in range(rounds + 1):
        text, own = writer.text(fork.prefix), [writer.text(2) for _ in range(fork.branches)]
        tokens: dict[str, list[tuple[int, ...]]] = {}
        for side, one in pair[::-1] if number % 2 else pair:
            seconds, tokens[side] = one.run(text, own, fork.out)
            if number or not rounds:  # the first one warms up
                times[side].append(seconds)
        same += [a == b for a, b in zip(tokens[DEFAULT], tokens[name], strict=True)]
    many = fork.branches * fork.out
    rates = {side: many / statistics.median(taken) for side, taken in times.items()}
    return Ablation(name, rates[name], rates[DEFAULT], sum(same) / len(same))


def measure_ablations(
    device: str, rounds: int, seconds: float, names: tuple[str, ...] = tuple(VARIANTS)
) -> list[Ablation]:
    """`rounds` 0: one round, without any to warm up. Variants that `seconds` leave no time for are
    named too."""
    is_tiny, ends = device == "emulated", time.monotonic() + seconds
    fork = TINY if is_tiny else USUAL
    base: dict[str, Any] = {
        "device": device,
        "dtype": "float32" if is_tiny else "bfloat16",
        "kv_memory_mb": 2 if is_tiny else 8000,
        "context_len": 64 if is_tiny else 8192,
        "speculation": "off",
    }
    found: list[Ablation] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_comparable(folder, "tiny" if is_tiny else "L")
        writer = Writer(Pieces(HfTokenizer(folder)), "ablations", 1.0, 1.0)
        default = Stepped(folder, base, Variant({}))
        for name in names:
            if time.monotonic() > ends:
                found.append(Ablation(name, missing="no time was left"))
                continue
            if name == "attention flashinfer" and (is_tiny or not is_installed()):
                found.append(Ablation(name, missing="FlashInfer, or a GPU for it, is not there"))
                continue
            load = partial(Stepped, folder, base, VARIANTS[name])
            found.append(_tried(name, default, load, writer, (fork, rounds)))
            gc.collect()
            default.engine.driver.trim()
    return found


def _tried(
    name: str,
    default: Stepped,
    load: Callable[[], Stepped],
    writer: Writer,
    how: tuple[Fork, int],
) -> Ablation:
    """What goes wrong with one variant is said, and the others go on."""
    try:
        return compared(name, default, load(), writer, *how)
    except (LmprogError, RuntimeError) as error:
        return Ablation(name, missing=str(error).splitlines()[0])


def table(found: list[Ablation]) -> str:
    rows: list[tuple[str, ...]] = []
    for one in found:
        if one.missing:
            rows.append((one.name, one.missing, "", "", ""))
            continue
        rates = (f"{one.rate:.1f}", f"{one.default_rate:.1f}", f"{one.rate / one.default_rate:.2f}")
        rows.append((one.name, *rates, f"{one.same:.0%}"))
    columns = ("left out or changed", "tokens a second", "default", "ratio", "same tokens")
    return runner.table(columns, rows)
