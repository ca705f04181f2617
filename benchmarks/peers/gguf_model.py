"""Writes a benchmark's checkpoint as a GGUF file, in the peers' environment (`gguf` and numpy).

    python gguf_model.py FOLDER FILE

The tokenizer in the file is a placeholder: peers are given token ids. Knows Llamas in float32.
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


def own_name(name: str) -> str:
    stem, _, end = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, inner = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[inner]}.{end}"
    return f"{NAMES[stem]}.{end}"


def main() -> None:
    folder, path = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads((folder / "config.json").read_text())
    heads, dim = config["num_attention_heads"], config["head_dim"]
    out = gguf.GGUFWriter(str(path), "llama")
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(heads)
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_rope_freq_base(10_000.0)
    out.add_rope_dimension_count(dim)
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
        if ".q_proj." in name or ".k_proj." in name:  # GGUF's Llamas have halves interleaved
            parts = weight.reshape(-1, 2, dim // 2, weight.shape[1]).swapaxes(1, 2)
            weight = np.ascontiguousarray(parts).reshape(weight.shape)
        out.add_tensor(own_name(name), weight)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    main()
