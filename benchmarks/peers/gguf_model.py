"""Writes a benchmark's checkpoint as a GGUF file, in the peers' environment (`gguf` and numpy).

    python gguf_model.py FOLDER FILE

The tokenizer in the file is a placeholder: peers are given token ids. Knows Llamas and Qwen 3.5 in
float32.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
HYBRID_NAMES = NAMES | {
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}


def weights(path: Path) -> dict[str, np.ndarray]:
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        start, end = (8 + size + at for at in entry["data_offsets"])
        found[name] = np.frombuffer(content[start:end], np.float32).reshape(entry["shape"])
    return found


def own_name(name: str, names: dict[str, str] = NAMES) -> str:
    stem, _, end = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, inner = stem.split(".", 3)
        return f"blk.{layer}.{names[inner]}.{end}"
    return f"{names[stem]}.{end}"


def llama_tensor(name: str, weight: np.ndarray, dim: int) -> tuple[str, np.ndarray]:
    if ".q_proj." in name or ".k_proj." in name:  # GGUF's Llamas have halves interleaved
        parts = weight.reshape(-1, 2, dim // 2, weight.shape[1]).swapaxes(1, 2)
        weight = np.ascontiguousarray(parts).reshape(weight.shape)
    return own_name(name), weight


def hybrid_tensor(name: str, weight: np.ndarray) -> tuple[str, np.ndarray]:
    layer = name.removeprefix("model.layers.").partition(".")[0]
    if name.endswith("A_log"):
        return f"blk.{layer}.ssm_a", -np.exp(weight)
    if name.endswith("dt_bias"):
        return f"blk.{layer}.ssm_dt.bias", weight
    if name.endswith("norm.weight") and "linear_attn" not in name:
        weight = weight + np.float32(1)
    weight = weight[:, 0] if "conv1d" in name else weight
    return own_name(name, HYBRID_NAMES), np.ascontiguousarray(weight)


def add_hybrid_sizes(out: gguf.GGUFWriter, config: dict[str, int]) -> None:
    heads, dim = config["linear_num_value_heads"], 128
    out.add_key_length(config["head_dim"])
    out.add_value_length(config["head_dim"])
    out.add_rope_dimension_sections([11, 11, 10, 0])
    out.add_ssm_conv_kernel(4)
    out.add_ssm_state_size(dim)
    out.add_ssm_group_count(config["linear_num_key_heads"])
    out.add_ssm_time_step_rank(heads)
    out.add_ssm_inner_size(heads * dim)
    out.add_full_attention_interval(4)


def main() -> None:
    folder, path = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads((folder / "config.json").read_text())
    heads, dim = config["num_attention_heads"], config["head_dim"]
    is_hybrid = config["model_type"] == "qwen3_5_text"
    out = gguf.GGUFWriter(str(path), "qwen35" if is_hybrid else "llama")
    if is_hybrid:
        add_hybrid_sizes(out, config)
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(heads)
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_rope_freq_base(10_000.0)
    out.add_rope_dimension_count(dim // 4 if is_hybrid else dim)
    out.add_vocab_size(config["vocab_size"])
    out.add_file_type(0)
    tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += [f"\u2581token{number}" for number in range(256, config["vocab_size"])]
    out.add_tokenizer_model("llama")
    out.add_tokenizer_pre("default")
    out.add_token_list(tokens)
    out.add_token_scores([-float(number) for number in range(len(tokens))])
    out.add_token_types([6] * 256 + [1] * (len(tokens) - 256))
    out.add_bos_token_id(0)
    out.add_eos_token_id(0)
    out.add_unk_token_id(0)
    for name, weight in weights(folder / "model.safetensors").items():
        made = hybrid_tensor(name, weight) if is_hybrid else llama_tensor(name, weight, dim)
        out.add_tensor(*made)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    main()
