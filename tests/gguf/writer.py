"""Writes small GGUF files, good ones and (by hand) bad ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from lmprog.runtime.documents.gguf_file import BLOCKS

TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8} | {
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "IQ4_NL": 20,
    "IQ4_XS": 23,
    "BF16": 30,
    "MXFP4": 39,
}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True)
class Tensor:
    """Rows first, as elsewhere; `content` is in the file's form."""

    kind: str
    shape: tuple[int, ...]
    content: bytes


@dataclass(frozen=True)
class U32:
    value: int


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def field(value: Any) -> bytes:
    """A value with its type before it."""
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, U32):
        return struct.pack("<II", 4, value.value)
    if isinstance(value, int):
        return struct.pack("<Iq", 11, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if all(isinstance(one, str) for one in value):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    kind, letter = (5, "i") if all(isinstance(one, int) for one in value) else (6, "f")
    return struct.pack("<IIQ", 9, kind, len(value)) + struct.pack(f"<{len(value)}{letter}", *value)


@dataclass(frozen=True)
class Content:
    """What a file shall say."""

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]

    def write(self, path: Path) -> Path:
        path.write_bytes(gguf_bytes(self.metadata, self.tensors))
        return path


def gguf_bytes(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for name, value in metadata.items():
        head += text(name) + field(value)
    data = b""
    for name, tensor in tensors.items():
        sizes = tuple(reversed(tensor.shape))
        head += text(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        head += struct.pack("<IQ", TYPES[tensor.kind], len(data))
        data += tensor.content
        data += bytes(-len(data) % 32)
    return head + bytes(-len(head) % 32) + data


def random_blocks(kind: str, count: int, seed: int) -> NDArray[np.uint8]:
    """Blocks with scales of a usual size. # [count, bytes of a block]"""
    draw = np.random.default_rng((seed, TYPES[kind]))
    blocks = draw.integers(0, 256, (count, BLOCKS[kind][1]), np.uint8)
    if kind == "Q6_K":
        blocks[:, 192:208] = draw.integers(-8, 9, (count, 16), np.int8).view(np.uint8)
    if kind == "MXFP4":
        blocks[:, 0] = draw.integers(116, 120, count, np.uint8)
        return blocks
    one_scale = dict.fromkeys(("Q8_0", "Q4_0", "Q5_0", "IQ4_NL", "IQ4_XS"), (0,))
    halves = (one_scale | {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}).get(kind, (0, 2))
    for at in halves:
        drawn = draw.uniform(0.0005, 0.002, count).astype(np.float16)
        blocks[:, at : at + 2] = drawn.view(np.uint8).reshape(count, 2)
    return blocks


def interleaved(weight: NDArray[Any], head_dim: int) -> NDArray[Any]:
    """Llama's queries and keys as GGUF has them: pairs (i, i + half) of a head side by side."""
    parts = weight.reshape(-1, 2, head_dim // 2, *weight.shape[1:])
    return np.ascontiguousarray(parts.swapaxes(1, 2)).reshape(weight.shape)


def model_metadata(config: Mapping[str, Any], name: str = "llama") -> dict[str, Any]:
    """The metadata that a checkpoint's config would have."""
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    optional: dict[str, Any] = {
        "attention.sliding_window": config.get("sliding_window"),
        "expert_count": config.get("num_local_experts") or config.get("num_experts"),
        "expert_used_count": config.get("num_experts_per_tok"),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "attn_logit_softcapping": config.get("attn_logit_softcapping"),
        "final_logit_softcapping": config.get("final_logit_softcapping"),
    }
    if name == "qwen2moe":
        inner = config["shared_expert_intermediate_size"]
        optional["expert_shared_feed_forward_length"] = inner
    if name == "granite":
        optional |= {
            "embedding_scale": float(config["embedding_multiplier"]),
            "residual_scale": float(config["residual_multiplier"]),
            "attention.scale": float(config["attention_multiplier"]),
            "logit_scale": float(config["logits_scaling"]),
        }
    if name == "gpt-oss":
        optional["expert_feed_forward_length"] = config["intermediate_size"]
    if rope.get("rope_type") == "yarn":
        length = rope["original_max_position_embeddings"]
        optional |= {
            "rope.scaling.factor": float(rope["factor"]),
            "rope.scaling.original_context_length": length,
        }
    scaled = {f"{name}.rope.scaling.type": "yarn"} if rope.get("rope_type") == "yarn" else {}
    return (
        scaled
        | {
            "general.architecture": name,
            f"{name}.context_length": U32(config["max_position_embeddings"]),
            f"{name}.embedding_length": U32(config["hidden_size"]),
            f"{name}.block_count": U32(config["num_hidden_layers"]),
            f"{name}.feed_forward_length": U32(config["intermediate_size"]),
            f"{name}.attention.head_count": U32(config["num_attention_heads"]),
            f"{name}.attention.head_count_kv": U32(config["num_key_value_heads"]),
            f"{name}.attention.key_length": U32(config["head_dim"]),
            f"{name}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
            f"{name}.rope.freq_base": float(rope.get("rope_theta", 10_000.0)),
        }
        | {
            f"{name}.{field}": value if isinstance(value, float) else U32(value)
            for field, value in optional.items()
            if value is not None
        }
    )


FURTHER = {
    "gemma": {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
    "phi3": {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    "olmo2": {
        "post_attention_layernorm": "post_attention_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
    "llama": {"block_sparse_moe.gate": "ffn_gate_inp"},
    "qwen2moe": {
        "mlp.gate": "ffn_gate_inp",
        "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
        "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
        "mlp.shared_expert.up_proj": "ffn_up_shexp",
        "mlp.shared_expert.down_proj": "ffn_down_shexp",
    },
    "qwen3moe": {"mlp.gate": "ffn_gate_inp"},
    "olmoe": {"mlp.gate": "ffn_gate_inp"},
    "gpt-oss": {"mlp.router": "ffn_gate_inp", "post_attention_layernorm": "post_attention_norm"},
}
EXPERTS = {"w1": "gate", "gate_proj": "gate", "w3": "up", "up_proj": "up"} | {
    "w2": "down",
    "down_proj": "down",
}


def own_name(name: str, architecture: str = "llama") -> str:
    """A weight's name in GGUF; of an expert, the name of the stack that it is in."""
    stem, _, end = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, inner = stem.split(".", 3)
        if ".experts." in inner:
            return f"blk.{layer}.ffn_{EXPERTS[inner.rpartition('.')[2]]}_exps.{end}"
        family = "gemma" if architecture.startswith("gemma") else architecture
        return f"blk.{layer}.{(NAMES | FURTHER.get(family, {}))[inner]}.{end}"
    return f"{NAMES[stem]}.{end}"


def gpt_oss_experts(name: str, weight: NDArray[Any]) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """A stack of GPT-OSS, inputs first with gates and their partners in turn, as GGUF has it."""
    _, _, layer, *_, kind = name.split(".")
    end = "bias" if kind.endswith("_bias") else "weight"
    rows = weight if end == "bias" else weight.swapaxes(1, 2)
    if kind.startswith("down"):
        yield f"blk.{layer}.ffn_down_exps.{end}", np.ascontiguousarray(rows)
        return
    for offset, product in enumerate(("gate", "up")):
        yield f"blk.{layer}.ffn_{product}_exps.{end}", np.ascontiguousarray(rows[:, offset::2])


def content_of(folder: Path, name: str, half: bool = False) -> Content:
    """The checkpoint in `folder`, which is in float32, as a GGUF file of float32 or float16."""
    config = json.loads((folder / "config.json").read_text())
    heads = config["num_attention_heads"]
    config.setdefault("head_dim", None)
    config["head_dim"] = config["head_dim"] or config["hidden_size"] // heads
    tensors, stacks = {}, {}
    for weight_name, weight in sorted(load_file(folder / "model.safetensors").items()):
        if name == "gpt-oss" and ".mlp.experts." in weight_name:
            tensors |= {
                own: _tensor(one, half) for own, one in gpt_oss_experts(weight_name, weight)
            }
            continue
        if weight_name.endswith(".sinks"):
            tensors[f"blk.{weight_name.split('.')[2]}.attn_sinks.weight"] = _tensor(weight, half)
            continue
        if name == "qwen2moe" and ".shared_expert_gate." in weight_name:
            weight = weight[0]  # as converters write it
        is_turned = ".q_proj." in weight_name or ".k_proj." in weight_name
        if name in ("llama", "smollm3", "granite") and is_turned:
            weight = interleaved(weight, config["head_dim"])
        if name.startswith("gemma") and weight_name.endswith("norm.weight"):
            weight = weight + np.float32(1)
        own = own_name(weight_name, name)
        if own.endswith("_exps.weight"):
            stacks.setdefault(own, []).append(weight)
            continue
        tensors[own] = _tensor(weight, half)
    tensors |= {own: _tensor(np.stack(parts), half) for own, parts in stacks.items()}
    return Content(model_metadata(config, name), tensors)


def _tensor(weight: NDArray[Any], half: bool) -> Tensor:
    small = half and weight.ndim > 1
    content = weight.astype(np.float16 if small else np.float32).tobytes()
    return Tensor("F16" if small else "F32", weight.shape, content)


def write_parts(content: Content, folder: Path, count: int) -> Path:
    """The model as several files; gives the first."""
    names = list(content.tensors)
    for at in range(count):
        told = {"split.no": U32(at), "split.count": U32(count), "split.tensors.count": len(names)}
        metadata = content.metadata | told if at == 0 else told
        mine = {name: content.tensors[name] for name in names[at::count]}
        Content(metadata, mine).write(folder / f"model-{at + 1:05}-of-{count:05}.gguf")
    return folder / f"model-00001-of-{count:05}.gguf"


def byte_vocabulary(more: Sequence[str] = ()) -> dict[str, Any]:
    """A byte-level tokenizer whose tokens are single bytes, and then `more`."""
    from lmprog.runtime.text.tokenizer import _byte_letters

    letters = {byte: chr(code) for code, byte in _byte_letters().items() if byte < 256}
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters |= {byte: chr(byte) for byte in printable}
    tokens = [letters[byte] for byte in range(256)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*tokens, *more],
        "tokenizer.ggml.token_type": [1] * 256 + [3] * len(more),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": U32(256),
    }
