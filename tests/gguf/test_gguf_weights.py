"""A model from a GGUF file computes what the same weights from safetensors compute."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from lmprog.config import RuntimeConfig
from lmprog.errors import ModelError
from lmprog.native import compiler
from lmprog.runtime.documents.gguf_file import BLOCKS
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.model.checkpoint import checkpoint_files
from lmprog.runtime.engine.model.gguf_weights import GgufCheckpoint, block_numbers
from lmprog.runtime.engine.model.rope import Rope, frequencies
from lmprog.runtime.engine.model.shape import read_config, read_shape
from lmprog.runtime.engine.model.weight_table import expected
from tests.gguf import plain_blocks, writer
from tests.model.checkpoints import FURTHER as FURTHER_MODELS
from tests.model.checkpoints import NATIVE, VARIANTS, Recipe
from tests.model.conftest import Judge
from tests.model.driver import Driver

QUANTIZED = [kind for kind in BLOCKS if kind not in ("F32", "F16", "BF16")]
ENGINES = ["torch", *(["native"] if compiler() else [])]
PROMPT = [5, 20, 3, 77, 13, 13, 8, 150, 0, 99]
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 160,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}


def scored(model: Path, **config: Any) -> torch.Tensor:
    engine = load_engine(RuntimeConfig(model=str(model), kv_memory_mb=8, **config))
    return Driver(engine, 16).score(PROMPT)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_blocks_are_read_as_their_format_says(kind: str, seed: int) -> None:
    blocks = writer.random_blocks(kind, 9, seed)
    ours = block_numbers(kind, blocks)
    plain = [
        [plain_blocks.number(kind, block.tobytes(), i) for i in range(BLOCKS[kind][0])]
        for block in blocks
    ]
    np.testing.assert_allclose(ours, plain, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_blocks_are_read_as_the_gguf_package_reads_them(kind: str, seed: int) -> None:
    gguf = pytest.importorskip("gguf")
    blocks = writer.random_blocks(kind, 50, seed)
    theirs = gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(block_numbers(kind, blocks), theirs)


def quantized(kind: str, seed: int) -> tuple[writer.Content, dict[str, Any]]:
    """A GGUF file of random blocks, and the weights of a checkpoint with the same numbers."""
    tensors, plain = {}, {}
    for at, (name, shape) in enumerate(expected(read_shape(CONFIG)).items()):
        if len(shape) == 1:
            plain[name] = np.linspace(0.5, 1.5, shape[0], dtype=np.float32)
            tensors[writer.own_name(name)] = writer.Tensor("F32", shape, plain[name].tobytes())
            continue
        numbers, _ = BLOCKS[kind]
        blocks = writer.random_blocks(kind, shape[0] * shape[1] // numbers, seed + at)
        stored = block_numbers(kind, blocks).reshape(shape)
        tensors[writer.own_name(name)] = writer.Tensor(kind, shape, blocks.tobytes())
        if ".q_proj." in name or ".k_proj." in name:  # what GGUF has interleaved, put back
            parts = stored.reshape(-1, 32, 2, shape[1]).swapaxes(1, 2)
            stored = np.ascontiguousarray(parts).reshape(shape)
        plain[name] = stored
    return writer.Content(writer.model_metadata(CONFIG), tensors), plain


def twins(kind: str, folder: Path, seed: int) -> tuple[Path, Path]:
    """The file and the folder of `quantized`."""
    content, weights = quantized(kind, seed)
    plain = folder / "plain"
    plain.mkdir()
    (plain / "config.json").write_text(json.dumps(CONFIG))
    save_file(weights, plain / "model.safetensors")
    return content.write(folder / "model.gguf"), plain


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_files_compute_what_their_numbers_in_float32_compute(
    kind: str, tmp_path: Path, seed: int
) -> None:
    path, plain = twins(kind, tmp_path, seed)
    for engine in ENGINES:
        ours = scored(path, engine=engine, dtype="float32")
        assert torch.equal(ours, scored(plain, engine=engine, dtype="float32")), engine


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(("kind", "chosen"), [("Q4_0", "int4"), ("Q8_0", "int8"), ("Q6_K", "int8")])
def test_quantized_files_stay_small_where_nothing_is_asked_for(
    kind: str, chosen: str, tmp_path: Path, seed: int
) -> None:
    path, plain = twins(kind, tmp_path, seed)
    assert load_engine(RuntimeConfig(model=str(path), kv_memory_mb=8)).dtype == chosen
    as_asked = load_engine(RuntimeConfig(model=str(path), kv_memory_mb=8, dtype="bfloat16"))
    assert as_asked.dtype == "bfloat16"
    exact = scored(plain, dtype="float32")
    assert 0 < (scored(path) - exact).abs().mean() < 0.05 * exact.std()


MODELS: dict[str, tuple[str, Recipe]] = {
    "llama": ("llama", NATIVE["llama"]),
    "llama-biases": ("llama", VARIANTS["llama-biases"]),
    "qwen2": ("qwen2", NATIVE["qwen2"]),
    "qwen3": ("qwen3", NATIVE["qwen3"]),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_the_folder(
    judged: Judge,
    name: str,
    engine: str,
    tmp_path: Path,
) -> None:
    architecture, recipe = MODELS[name]
    made = judged(name, recipe)
    path = writer.content_of(made.folder, architecture).write(tmp_path / "model.gguf")
    config = {"engine": engine, "dtype": "float32"}
    assert torch.equal(scored(path, **config), scored(made.folder, **config))
    loaded = load_engine(RuntimeConfig(model=str(path), kv_memory_mb=32, **config))
    for ours, theirs in zip(
        Driver(loaded, 16).greedy(made.prompts[:5], 10), made.wanted, strict=False
    ):
        assert ours.new == theirs.new


_QWEN3_MOE = Recipe(
    "Qwen3Moe",
    {"num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": True, "head_dim": 16}
    | {"moe_intermediate_size": 40},
)
_GEMMA2 = Recipe("Gemma2", {"head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 16})
_GEMMA3 = Recipe(
    "Gemma3",
    {"head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 16, "num_hidden_layers": 7},
)
FURTHER: dict[str, tuple[str, Recipe]] = {
    "mixtral": (
        "llama",
        Recipe("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 16}),
    ),
    "qwen3moe": ("qwen3moe", _QWEN3_MOE),
    "qwen2moe": (
        "qwen2moe",
        Recipe(
            "Qwen2Moe",
            {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
            | {"shared_expert_intermediate_size": 88},
        ),
    ),
    "olmo2": ("olmo2", FURTHER_MODELS["olmo2"]),
    "smollm3": (
        "smollm3",
        Recipe("SmolLM3", {"num_hidden_layers": 5, "tie_word_embeddings": True}),
    ),
    "granite": ("granite", FURTHER_MODELS["granite"]),
    "olmoe": ("olmoe", Recipe("Olmoe", {"num_experts": 6, "num_experts_per_tok": 3})),
    "gpt-oss": (
        "gpt-oss",
        Recipe(
            "GptOss",
            {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}
            | {"sliding_window": 7, "hidden_size": 64, "intermediate_size": 64},
        ),
    ),
    "gemma2": ("gemma2", _GEMMA2),
    "gemma3": ("gemma3", _GEMMA3),
    "phi3": ("phi3", FURTHER_MODELS["phi3"]),
    "phi3-partial": ("phi3", FURTHER_MODELS["phi3-partial"]),
}


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", FURTHER)
def test_further_architectures_compute_what_their_folder_computes(
    judged: Judge, name: str, tmp_path: Path
) -> None:
    architecture, recipe = FURTHER[name]
    made = judged(f"gguf-{name}", recipe)
    content = writer.content_of(made.folder, architecture)
    if name == "phi3-partial":
        content.metadata["phi3.rope.dimension_count"] = writer.U32(8)
    path = content.write(tmp_path / "model.gguf")
    ours, wanted = scored(path, dtype="float32"), scored(made.folder, dtype="float32")
    # Gemma's norms are kept plus 1, which costs their last bits.
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-4 if "gemma" in name else 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_several_files_are_one_model(judged: Judge, engine: str, tmp_path: Path) -> None:
    made = judged("llama", NATIVE["llama"])
    first = writer.write_parts(writer.content_of(made.folder, "llama"), tmp_path, 3)
    config = {"engine": engine, "dtype": "float32"}
    assert torch.equal(scored(first, **config), scored(made.folder, **config))
    assert checkpoint_files(first) == sorted(tmp_path.glob("*.gguf"))


def test_several_files_that_do_not_fit_are_refused(judged: Judge, tmp_path: Path) -> None:
    made = judged("llama", NATIVE["llama"])
    content = writer.content_of(made.folder, "llama")
    first = writer.write_parts(content, tmp_path, 3)
    second, third = sorted(tmp_path.glob("*.gguf"))[1:]

    def refused(path: Path, reason: str) -> None:
        with pytest.raises(ModelError, match=reason):
            load_engine(RuntimeConfig(model=str(path), kv_memory_mb=8))

    refused(second, "is not the first of its files")
    kept = third.read_bytes()
    third.write_bytes(second.read_bytes())
    refused(first, "does not say that it is number 2")
    name = next(iter(content.tensors))
    told = {"split.no": writer.U32(2), "split.count": writer.U32(3)}
    writer.Content(told, {name: content.tensors[name]}).write(third)
    refused(first, "once more")
    writer.Content(told, {}).write(third)
    refused(first, "tensors of")
    third.unlink()
    refused(first, "cannot be read")
    third.write_bytes(kept)
    first.rename(tmp_path / "alone.gguf")
    refused(tmp_path / "alone.gguf", "one of 3 files")


def test_rows_are_the_same_however_they_are_cut(judged: Judge, tmp_path: Path) -> None:
    made = judged("llama", NATIVE["llama"])
    path = writer.content_of(made.folder, "llama", half=True).write(tmp_path / "model.gguf")
    opened = GgufCheckpoint(path)
    for name in sorted(opened.names):
        whole = opened.array(name)
        if whole.ndim == 2:
            cuts = [0, 1, 7, 19, len(whole)]
            parts = [opened.rows(name, a, b) for a, b in pairwise(cuts)]
            opened.release(name, 0, len(whole))
            np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_llama3_rotations_are_read_from_their_divisors(
    judged: Judge,
    tmp_path: Path,
) -> None:
    made = judged("llama-llama3", VARIANTS["llama-llama3"])
    rope = read_shape(read_config(made.folder)).rope
    divisors = frequencies(Rope(rope.theta), 16) / frequencies(rope, 16)
    content = writer.content_of(made.folder, "llama")
    path = content.write(tmp_path / "model.gguf")
    different = scored(path, dtype="float32")
    numbers = divisors.astype(np.float32).tobytes()
    content.tensors["rope_freqs.weight"] = writer.Tensor("F32", (8,), numbers)
    content.write(path)
    wanted = scored(made.folder, dtype="float32")
    assert (scored(path, dtype="float32") - wanted).abs().max() < 1e-3
    assert (different - wanted).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba'"),
        ({"llama.block_count": writer.U32(2)}, "missing weights"),
        ({"llama.block_count": writer.U32(1 << 30)}, "fewer tensors than layers"),
        ({"llama.expert_count": writer.U32(8)}, "expert_used_count"),
        ({"llama.attention.head_count": writer.U32(0)}, "positive whole number"),
        ({"llama.attention.head_count": "four"}, "positive whole number"),
        ({"llama.rope.dimension_count": writer.U32(32)}, "a part of each head"),
        ({"llama.context_length": writer.U32(1 << 30)}, "a context of more than"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "must be a number"),
        ({"llama.rope.scaling.type": "longrope"}, "rotation 'longrope'"),
        ({"split.count": writer.U32(3)}, "one of 3 files"),
    ],
)
def test_a_model_that_is_not_understood_is_refused_with_the_reason(
    change: dict[str, Any], reason: str, tmp_path: Path, seed: int
) -> None:
    content, _ = quantized("Q8_0", seed)
    content.metadata.update(change)
    path = content.write(tmp_path / "model.gguf")
    with pytest.raises(ModelError, match=reason):
        load_engine(RuntimeConfig(model=str(path), kv_memory_mb=8))
