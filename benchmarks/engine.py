"""One step of the engine, on every engine and type: a prefill of 512 tokens, decode steps of 1, 16
and 64 rows.

    python -m benchmarks.engine --model random:S --threads 1

Each side computes the same batches, all in turn within a round; what is printed is the median of
the rounds in processor milliseconds. Decode rows stand on 256 tokens of their own. A step comes
after those of other sides, which have filled the caches; "B=1 in a row" is the mean of 16 steps
without others between, as a model that decodes computes them. `random:S`, `T` and `M` are Llamas
with random weights, whose sizes are below.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from lmprog.config import RuntimeConfig
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.scheduling.batch import Batch, build_batch
from lmprog.runtime.scheduling.plan import Plan, Row

PAGE = 16
IN_A_ROW = "B=1 in a row"
CONTEXT = 256
SIZES = {
    "T": {"hidden": 256, "layers": 6, "heads": 4, "kv_heads": 2, "inner": 768, "vocab": 4096},
    "S": {"hidden": 768, "layers": 12, "heads": 12, "kv_heads": 4, "inner": 2048, "vocab": 32000},
    "M": {"hidden": 896, "layers": 24, "heads": 14, "kv_heads": 2, "inner": 4864, "vocab": 32000},
    "L": {"hidden": 2048, "layers": 16, "heads": 32, "kv_heads": 8, "inner": 8192, "vocab": 32000},
    "tiny": {"hidden": 64, "layers": 2, "heads": 2, "kv_heads": 1, "inner": 64, "vocab": 4096},
}
SIDES: dict[str, dict[str, Any]] = {
    "torch f32": {"engine": "torch", "dtype": "float32"},
    "native f32": {"engine": "native", "dtype": "float32"},
    "torch bf16": {"engine": "torch", "dtype": "bfloat16"},
    "native bf16": {"engine": "native", "dtype": "bfloat16"},
    "native int8": {"engine": "native", "dtype": "bfloat16", "quantize": "int8"},
    "native int4": {"engine": "native", "dtype": "bfloat16", "quantize": "int4"},
}


def make(folder: Path, size: str) -> None:
    """Writes a Llama of random weights, in float32."""
    import torch
    from safetensors.torch import save_file

    s, generator = SIZES[size], torch.Generator().manual_seed(0)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": s["vocab"],
        "hidden_size": s["hidden"],
        "intermediate_size": s["inner"],
        "num_hidden_layers": s["layers"],
        "num_attention_heads": s["heads"],
        "num_key_value_heads": s["kv_heads"],
        "head_dim": 64,
        "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    q, kv = s["heads"] * 64, s["kv_heads"] * 64
    sizes = {"self_attn.q_proj": (q, s["hidden"]), "self_attn.k_proj": (kv, s["hidden"])}
    sizes |= {"self_attn.v_proj": (kv, s["hidden"]), "self_attn.o_proj": (s["hidden"], q)}
    sizes |= {f"mlp.{name}_proj": (s["inner"], s["hidden"]) for name in ("gate", "up")}
    sizes |= {"mlp.down_proj": (s["hidden"], s["inner"])}
    weights = {
        f"model.layers.{layer}.{name}.weight": torch.randn(size, generator=generator) * 0.05
        for layer in range(s["layers"])
        for name, size in sizes.items()
    }
    for layer in range(s["layers"]):
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{name}.weight"] = torch.ones(s["hidden"])
    weights["model.norm.weight"] = torch.ones(s["hidden"])
    for name in ("model.embed_tokens", "lm_head"):
        weights[f"{name}.weight"] = torch.randn(s["vocab"], s["hidden"], generator=generator) * 0.05
    save_file(weights, folder / "model.safetensors")


def batch(rows: int, tokens: int, start: int) -> Batch:
    """`rows` sequences of `tokens` tokens from position `start`; the last ones' logits are
    wanted.
    """
    each = -(-(start + tokens) // PAGE)
    rng = np.random.default_rng(rows)
    made = [
        Row(
            cast(Any, None),
            array("i", rng.integers(0, 2000, tokens).tolist()),
            start,
            start + tokens,
            array("i", range(row * each, (row + 1) * each)),
            start + tokens - 1,
        )
        for row in range(rows)
    ]
    return build_batch(Plan(tuple(made)), PAGE)


STEPS = {
    "prefill 512": batch(1, 512, 0),
    "B=1": batch(1, 1, CONTEXT),
    "B=16": batch(16, 1, CONTEXT),
    "B=64": batch(64, 1, CONTEXT),
}


def load(side: str, model: str, threads: int) -> Any:
    """The side's engine, with keys and values in all places that the steps read: one context is
    computed and copied to the other rows."""
    config = RuntimeConfig(model=model, threads=threads, kv_memory_mb=1200, **SIDES[side])
    engine = load_engine(config)
    first, stride = batch(1, CONTEXT, 0), -(-(CONTEXT + 1) // PAGE) * PAGE
    engine.forward(first)
    slots = np.arange(CONTEXT, dtype=np.int32)
    pairs = [np.stack([slots, slots + row * stride], 1) for row in range(1, 64)]
    engine.forward(replace(first, copies=np.ascontiguousarray(np.concatenate(pairs))))
    return engine


def milliseconds(engine: Any, step: Batch, count: int) -> float:
    """The mean of so many steps."""
    began = time.process_time()
    for _ in range(count):
        engine.forward(step)
    return (time.process_time() - began) * 1e3 / count


def measure(engines: dict[str, Any], rounds: int) -> dict[str, dict[str, float]]:
    """Medians in processor milliseconds, by side and step."""
    taken: dict[str, dict[str, list[float]]] = {
        side: {name: [] for name in (*STEPS, IN_A_ROW)} for side in engines
    }
    for _ in range(rounds):
        for name, step in STEPS.items():
            for side, engine in engines.items():
                taken[side][name].append(milliseconds(engine, step, 1))
                if name == "B=1":
                    taken[side][IN_A_ROW].append(milliseconds(engine, step, 16))
    return {s: {n: statistics.median(t) for n, t in each.items()} for s, each in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="random:S")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = asked.model
        if model.startswith("random:"):
            make(Path(scratch), model.removeprefix("random:"))
            model = scratch
        engines = {side: load(side, model, asked.threads) for side in asked.sides.split(",")}
        found = measure(engines, asked.rounds)
    print(f"| {asked.model} | " + " | ".join((*STEPS, IN_A_ROW)) + " |")
    print("|-|" + "-:|" * (len(STEPS) + 1))
    for side, each in found.items():
        print(f"| {side} | " + " | ".join(f"{ms:.2f}" for ms in each.values()) + " |")


if __name__ == "__main__":
    main()
