"""The checkpoints that benchmarks run on: a folder, `nano`, lmprog's dummies, `random:S` (a size of
`SIZES`), or `random:<hidden>x<layers>`.

And batches of a step, made by hand: rows of the same length, on pages of their own behind a prefix
that they share.

Random ones are Llamas, or a hybrid (Q), in float32 from one seed, so that lmprog and a peer can load the same files.
Knows how they are made; runs the peers' Python for what peers read.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors.numpy import load_file, save_file

from lmprog.runtime.engine.model.families import read_native_shape
from lmprog.runtime.engine.model.locate import NANO, locate
from lmprog.runtime.engine.model.weight_table import expected
from lmprog.runtime.scheduling.batch import Batch, build_batch
from lmprog.runtime.scheduling.plan import Plan, Row
from lmprog.runtime.text.tokenizer import load_tokenizer

RANDOM = "random:"
HEAD = 64
SIZES = {
    "T": {"hidden": 256, "layers": 6, "heads": 4, "kv_heads": 2, "inner": 768, "vocab": 4096},
    "S": {"hidden": 768, "layers": 12, "heads": 12, "kv_heads": 4, "inner": 2048, "vocab": 32000},
    "M": {"hidden": 896, "layers": 24, "heads": 14, "kv_heads": 2, "inner": 4864, "vocab": 32000},
    "L": {"hidden": 2048, "layers": 16, "heads": 32, "kv_heads": 8, "inner": 8192, "vocab": 32000},
    "wide": {
        "hidden": 1024,
        "layers": 8,
        "heads": 16,
        "kv_heads": 8,
        "inner": 4096,
        "vocab": 32000,
    },
    # Qwen 3.5 of 0.8B but for its vocabulary: three of four layers are gated delta nets
    "Q": {"hidden": 1024, "layers": 24, "heads": 8, "kv_heads": 2, "inner": 3584, "vocab": 32000},
    "tiny": {"hidden": 64, "layers": 2, "heads": 2, "kv_heads": 1, "inner": 64, "vocab": 4096},
}


@contextmanager
def prepared(model: str) -> Iterator[tuple[str, Path | None]]:
    """What to give lmprog as `model`, and its folder (None for a dummy); made ones last as long."""
    with tempfile.TemporaryDirectory(prefix="lmprog-bench-") as scratch:
        yield checkpoint(model, Path(scratch))


def checkpoint(model: str, scratch: Path) -> tuple[str, Path | None]:
    """As `prepared`; random ones are made in `scratch`, once."""
    if not model.startswith(RANDOM):
        return model, locate(model)
    size, folder = model.removeprefix(RANDOM), scratch / model.replace(":", "-")
    if not folder.exists():
        if size in SIZES:
            make(folder, size)
        else:
            _make_by_width(folder, size)
    return str(folder), folder


def _make_by_width(folder: Path, size: str) -> None:
    """With nano's tokenizer."""
    match = re.fullmatch(r"(\d+)x(\d+)", size)
    if match is None or int(match[1]) % HEAD or not int(match[1]):
        raise ValueError(
            f"random:{size}: write random:<hidden>x<layers>, hidden a multiple of {HEAD}, or "
            f"random: and one of {', '.join(SIZES)}"
        )
    hidden, heads = int(match[1]), int(match[1]) // HEAD
    sizes = {"hidden": hidden, "layers": int(match[2]), "heads": heads, "inner": 3 * hidden}
    # the spread is wide enough that the likeliest tokens stand apart from rounding
    _write(folder, sizes | {"kv_heads": max(1, heads // 2), "vocab": 2048}, 0.1)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(NANO / name, folder)


def make(folder: Path, size: str) -> None:
    """A model of `SIZES`, without a tokenizer."""
    if size == "Q":
        _write_hybrid(folder, SIZES[size], 0.05)
    else:
        _write(folder, SIZES[size], 0.05)


def _write_hybrid(folder: Path, s: dict[str, int], spread: float) -> None:
    """A Qwen 3.5: its norms' weights are distances from 1."""
    config = _config(s) | {
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    draw, weights = np.random.default_rng(0), dict[str, Any]()
    for name, size in expected(read_native_shape(config)).items():
        if name.endswith("norm.weight"):
            weights[name] = np.full(size, "linear_attn" in name, np.float32)
        elif name.endswith("A_log"):
            weights[name] = np.log(draw.uniform(0.01, 16, size)).astype(np.float32)
        else:
            wide = 0.5 if "conv1d" in name else spread
            weights[name] = draw.standard_normal(size, np.float32) * np.float32(wide)
    save_file(weights, folder / "model.safetensors")


def _write(folder: Path, s: dict[str, int], spread: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_config(s)))
    draw, hidden = np.random.default_rng(0), s["hidden"]
    q, kv = s["heads"] * HEAD, s["kv_heads"] * HEAD
    sizes = {"self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden)}
    sizes |= {"self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, q)}
    sizes |= {f"mlp.{name}_proj": (s["inner"], hidden) for name in ("gate", "up")}
    sizes |= {"mlp.down_proj": (hidden, s["inner"])}
    sizes = {f"layers.{n}.{name}": size for n in range(s["layers"]) for name, size in sizes.items()}
    sizes = {f"model.{name}": size for name, size in sizes.items()}
    sizes |= {"model.embed_tokens": (s["vocab"], hidden), "lm_head": (s["vocab"], hidden)}
    weights = {
        f"{name}.weight": draw.standard_normal(size, np.float32) * np.float32(spread)
        for name, size in sizes.items()
    }
    norms = ["model.norm"]
    for layer in range(s["layers"]):
        norms += [f"model.layers.{layer}.{n}_layernorm" for n in ("input", "post_attention")]
    save_file(
        weights | {f"{name}.weight": np.ones(hidden, np.float32) for name in norms},
        folder / "model.safetensors",
    )


def _config(s: dict[str, int]) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": s["vocab"],
        "hidden_size": s["hidden"],
        "intermediate_size": s["inner"],
        "num_hidden_layers": s["layers"],
        "num_attention_heads": s["heads"],
        "num_key_value_heads": s["kv_heads"],
        "head_dim": HEAD,
        "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 0,
    }


def make_comparable(folder: Path, size: str) -> None:
    """A model of `SIZES` with nano's tokenizer, the same numbers for all peers.

    Tokens that the tokenizer does not have get logits of 0, so that none of them is ever likeliest
    and all outputs are texts that can be compared.
    """
    make(folder, size)
    path = folder / "model.safetensors"
    # numbers that float16 holds too, since OpenVINO reads no GGUF file in float32
    weights = {
        name: weight.astype(np.float16).astype(np.float32)
        for name, weight in load_file(path).items()
    }
    weights["lm_head.weight"][load_tokenizer(NANO).vocab_size :] = 0
    save_file(weights, path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(NANO / name, folder)


def make_gguf(folder: Path, python: str, types: dict[str, int]) -> None:
    """f32.gguf and the quantized `types` (by llama.cpp's numbers) beside the checkpoint."""
    whole = folder / "f32.gguf"
    script = Path(__file__).parent / "peers" / "gguf_model.py"
    subprocess.run([python, script, folder, whole], check=True)
    code = (
        "import ctypes, llama_cpp, sys\n"
        "given = llama_cpp.llama_model_quantize_default_params()\n"
        "given.ftype, given.nthread, given.pure = int(sys.argv[3]), 1, True\n"
        "sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), "
        "ctypes.byref(given)))\n"
    )
    for name, number in types.items():
        command = [python, "-c", code, str(whole), str(folder / f"{name}.gguf"), str(number)]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


# -- batches

PAGE = 16


def batch(rows: int, tokens: int, start: int, shared: int = 0, vocab: int = 2000) -> Batch:
    """`rows` sequences of `tokens` random tokens from position `start`, on the same first pages of
    `shared` positions; the last ones' logits are wanted."""
    same, rng = shared // PAGE, np.random.default_rng(rows)
    each = -(-(start + tokens) // PAGE) - same
    made = [
        Row(
            cast(Any, None),
            array("i", rng.integers(0, vocab, tokens).tolist()),
            start,
            start + tokens,
            array("i", [*range(same), *range(same + row * each, same + (row + 1) * each)]),
            start + tokens - 1,
        )
        for row in range(rows)
    ]
    return build_batch(Plan(tuple(made)), PAGE)


def num_pages(step: Batch) -> int:
    return int(step.pages.max()) + 1
