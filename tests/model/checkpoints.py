"""Small random checkpoints of every architecture, made and judged by transformers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

VOCABULARY = 160
CONTEXT = 1024
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


@dataclass(frozen=True)
class Recipe:
    """What makes a checkpoint: the name of its classes in transformers, and fields of its
    config.
    """

    family: str
    fields: dict[str, Any] = field(default_factory=dict)

    def config(self) -> Any:
        kind = getattr(transformers, f"{self.family}Config", None) or getattr(
            transformers, f"{self.family}TextConfig"
        )
        if self.family == "Gemma3":
            kind = transformers.Gemma3TextConfig
        return kind(**(_SIZES | self.fields))

    def make(self, folder: Path, **saving: Any) -> Any:
        """Saves a checkpoint in `folder` and gives the model."""
        torch.manual_seed(len(self.family))
        kind = getattr(transformers, f"{self.family.removesuffix('Text')}ForCausalLM")
        model = kind(self.config()).eval()
        with torch.no_grad():
            for weight in (
                model.parameters()
            ):  # norms and biases are all ones and zeros otherwise, and hide mistakes
                weight.add_(torch.randn_like(weight) * (0.1 if weight.dim() == 1 else 0.05))
            for name, number in model.named_buffers():
                if name.endswith("layer_scalar"):  # all ones otherwise
                    number.mul_(torch.empty_like(number).uniform_(0.5, 1.5))
                if name.endswith(("expert_bias", "correction_bias")):  # all zeros otherwise
                    number.add_(torch.randn_like(number) * 0.2)
        model.save_pretrained(folder, **saving)
        return model


def _rope(**fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10_000.0, **fields}}


NATIVE = {
    "llama": Recipe("Llama"),
    "mistral": Recipe("Mistral", {"sliding_window": 37}),
    "qwen2": Recipe("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": Recipe("Qwen3", {"head_dim": 24}),
}
FOREIGN = {
    "gemma2": Recipe(
        "Gemma2",
        {
            "head_dim": 16,
            "sliding_window": 37,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 0.2,
        },
    ),
    "gemma3": Recipe(
        "Gemma3",
        {
            "head_dim": 16,
            "sliding_window": 37,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        }
        | {"num_hidden_layers": 4},
    ),
    "phi3": Recipe("Phi3", {"sliding_window": 50}),
    "olmo2": Recipe("Olmo2"),
}
FURTHER = FOREIGN | {
    "gemma2-softcaps": Recipe(
        "Gemma2",
        {"head_dim": 24, "sliding_window": 20, "query_pre_attn_scalar": 20}
        | {"attn_logit_softcapping": 0.3, "final_logit_softcapping": 2.0},
    ),
    "phi3-partial": Recipe(
        "Phi3", {"rope_parameters": {"rope_theta": 10_000.0, "partial_rotary_factor": 0.5}}
    ),
    "smollm3": Recipe("SmolLM3", {"no_rope_layers": [1, 0, 1]}),
    "granite": Recipe(
        "Granite",
        {"embedding_multiplier": 3.0, "logits_scaling": 2.0}
        | {"residual_multiplier": 0.4, "attention_multiplier": 0.2},
    ),
}
"""What the native engine decodes and the torch decoder leaves to transformers."""
LATER = {
    "olmo3": Recipe(
        "Olmo3",
        {"sliding_window": 37, "num_hidden_layers": 4}
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0}
                | {"original_max_position_embeddings": 64},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        },
    ),
    "exaone4": Recipe("Exaone4", {"sliding_window": 37, "num_hidden_layers": 4}),
    "exaone-moe": Recipe(
        "ExaoneMoe",
        {"sliding_window": 37, "num_hidden_layers": 4, "head_dim": 24, "num_experts": 6}
        | {"num_experts_per_tok": 3, "moe_intermediate_size": 40, "routed_scaling_factor": 1.5}
        | {"num_shared_experts": 2},
    ),
    "hunyuan-moe": Recipe(
        "HunYuanMoEV1",
        {"head_dim": 24, "num_experts": 5, "moe_topk": [2, 2, 2], "intermediate_size": 40},
    ),
    "exaone4-whole": Recipe(
        "Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}
    ),
    "seed-oss": Recipe("SeedOss", {"head_dim": 24}),
    "hunyuan": Recipe(
        "HunYuanDenseV1",
        {"head_dim": 24}
        | {
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 1e4,
                "alpha": 1000.0,
                "factor": 1.0,
            }
        },
    ),
    "glm": Recipe("Glm", {"head_dim": 24}),
    "glm4": Recipe("Glm4", {"head_dim": 24}),
    "ministral3": Recipe(
        "Ministral3",
        {"head_dim": 16}
        | {
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0}
            | {"original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.5}
            | {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}
        },
    ),
    "glm4-moe": Recipe(
        "Glm4Moe",
        {"head_dim": 24, "n_routed_experts": 6, "num_experts_per_tok": 3, "use_qk_norm": True}
        | {"moe_intermediate_size": 40, "n_shared_experts": 2, "routed_scaling_factor": 1.5}
        | {"attention_bias": True},
    ),
    "minimax-m2": Recipe(
        "MiniMaxM2",
        {"head_dim": 24, "num_local_experts": 6, "num_experts_per_tok": 3}
        | {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
}
"""Decoders and mixtures that only the native engine computes."""
_LAYERED = {
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 37,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 0,
}
LAYERED = {
    "gemma4": Recipe(
        "Gemma4Text",
        _LAYERED
        | {"num_global_key_value_heads": 1, "attention_k_eq_v": True}
        | {"final_logit_softcapping": 5.0},
    ),
    "gemma4-shared": Recipe(
        "Gemma4Text",
        _LAYERED
        | {"num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3}
        | {"num_kv_shared_layers": 2, "use_double_wide_mlp": True}
        | {"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": VOCABULARY},
    ),
    "gemma4-unified": Recipe(
        "Gemma4UnifiedText",
        {name: value for name, value in _LAYERED.items() if "per_layer" not in name}
        | {"num_global_key_value_heads": 1, "attention_k_eq_v": True},
    ),
    "gemma4-mixture": Recipe(
        "Gemma4Text",
        _LAYERED
        | {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2}
        | {"moe_intermediate_size": 40},
    ),
}
"""Models whose layers have heads of several sizes; some read the keys and values of others."""
MIXTURES = {
    "mixtral": Recipe(
        "Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 50}
    ),
    "qwen3-moe": Recipe(
        "Qwen3Moe",
        {"head_dim": 24, "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": True}
        | {"moe_intermediate_size": 40, "mlp_only_layers": [1]},
    ),
    "qwen3-moe-whole": Recipe(
        "Qwen3Moe",
        {"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 72},
    ),
    "olmoe": Recipe("Olmoe", {"num_experts": 40, "num_experts_per_tok": 3}),
    "gpt-oss": Recipe(
        "GptOss",
        {"head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 37}
        | {"swiglu_limit": 0.4},
    ),
    "qwen2-moe": Recipe(
        "Qwen2Moe",
        {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
        | {"shared_expert_intermediate_size": 88, "mlp_only_layers": [1]}
        | {"use_sliding_window": True, "sliding_window": 50, "max_window_layers": 2},
    ),
    "granite-moe": Recipe(
        "GraniteMoe",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "embedding_multiplier": 3.0}
        | {"logits_scaling": 2.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2},
    ),
    "granite-moe-shared": Recipe(
        "GraniteMoeShared",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "shared_intermediate_size": 64}
        | {"tie_word_embeddings": True, "residual_multiplier": 0.4},
    ),
}
"""Mixtures of experts, which the native engine decodes."""
_DELTA_NET = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
}
_MAMBA_2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 2}
_MAMBA_2 |= {"mamba_chunk_size": 32}
_FEW_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
RECURRENT = {
    "lfm2": Recipe(
        "Lfm2",
        {"layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
    ),
    "lfm2_moe": Recipe(
        "Lfm2Moe",
        {"layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1} | _FEW_EXPERTS,
    ),
    "qwen3_next": Recipe(
        "Qwen3Next", _DELTA_NET | _FEW_EXPERTS | {"shared_expert_intermediate_size": 32}
    ),
    "qwen3_5_text": Recipe("Qwen3_5Text", _DELTA_NET),
    "qwen3_5_moe_text": Recipe(
        "Qwen3_5MoeText", _DELTA_NET | _FEW_EXPERTS | {"shared_expert_intermediate_size": 32}
    ),
    "olmo_hybrid": Recipe("OlmoHybrid", _DELTA_NET | {"linear_num_key_heads": 4}),
    "granitemoehybrid": Recipe(
        "GraniteMoeHybrid",
        {"layer_types": ["mamba", "attention", "mamba"], "shared_intermediate_size": 64}
        | {"num_local_experts": 4, "num_experts_per_tok": 2, "residual_multiplier": 0.4}
        | _MAMBA_2,
    ),
    "bamba": Recipe("Bamba", {"attn_layer_indices": [1]} | _MAMBA_2),
    "nemotron_h": Recipe(
        "NemotronH",
        {"layers_block_type": ["mamba", "moe", "attention", "mamba", "moe"], "mamba_num_heads": 8}
        | {"n_routed_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
        | {"moe_shared_expert_intermediate_size": 72, "routed_scaling_factor": 1.5}
        | {"mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 32}
        | {"head_dim": 16},
    ),
    "minimax": Recipe(
        "MiniMax",
        {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
        | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "block_size": 32}
        | {"full_attn_alpha_factor": 1.5, "linear_attn_alpha_factor": 2.5, "mlp_alpha_factor": 3.5}
        | dict.fromkeys(("full_attn_beta_factor", "linear_attn_beta_factor"), 0.5)
        | {"mlp_beta_factor": 0.5},
    ),
    "kimi_linear": Recipe(
        "KimiLinear",
        {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
        | {"mlp_layer_types": ["dense", "sparse", "sparse"], "moe_intermediate_size": 32}
        | {"linear_head_dim": 16, "linear_num_heads": 4, "num_key_value_heads": 4}
        | {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
        | {"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "falcon_h1": Recipe("FalconH1", {"mamba_d_ssm": 128} | _MAMBA_2),
    "jamba": Recipe(
        "Jamba",
        {"attn_layer_offset": 1, "attn_layer_period": 3, "num_experts": 4, "mamba_dt_rank": 8},
    ),
}
"""Architectures with recurrent layers, by their model type."""
VARIANTS = {
    "llama-biases": Recipe(
        "Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    ),
    "llama-mha": Recipe("Llama", {"num_key_value_heads": 4, "head_dim": 32}),
    "llama-linear": Recipe("Llama", _rope(rope_type="linear", factor=4.0)),
    "llama-dynamic": Recipe("Llama", _rope(rope_type="dynamic", factor=4.0)),
    "llama-llama3": Recipe(
        "Llama",
        _rope(
            rope_type="llama3",
            factor=4.0,
            original_max_position_embeddings=64,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
        ),
    ),
    "llama-yarn": Recipe(
        "Llama", _rope(rope_type="yarn", factor=16.0, original_max_position_embeddings=64)
    ),
    "qwen2-some-windows": Recipe(
        "Qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
    ),
    "qwen3-biases": Recipe("Qwen3", {"attention_bias": True} | _rope(rope_type="default")),
}
