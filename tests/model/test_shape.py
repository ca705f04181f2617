"""config.json: what is read from it, in both spellings, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lmprog.errors import ModelError
from lmprog.runtime.engine.model.families import read_native_shape
from lmprog.runtime.engine.model.locate import NANO
from lmprog.runtime.engine.model.rope import Rope
from lmprog.runtime.engine.model.shape import read_config, read_shape

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def test_what_config_json_leaves_out_is_what_the_family_takes_for_granted() -> None:
    shape = read_shape(LLAMA)
    assert (shape.num_kv_heads, shape.head_dim, shape.windows) == (4, 16, (None, None, None))
    assert (shape.qkv_bias, shape.qk_norm, shape.tied_head, shape.norm_eps) == (
        False,
        False,
        False,
        1e-6,
    )
    assert shape.rope == Rope(10_000.0)


def test_qwen2_has_biases_on_queries_keys_and_values_only() -> None:
    shape = read_shape(LLAMA | {"model_type": "qwen2", "num_key_value_heads": 2})
    assert (shape.qkv_bias, shape.out_bias, shape.mlp_bias) == (True, False, False)


def test_qwen3_normalizes_heads_of_128_where_nothing_else_is_said() -> None:
    shape = read_shape(LLAMA | {"model_type": "qwen3", "num_key_value_heads": 2})
    assert (shape.qk_norm, shape.head_dim) == (True, 128)


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": 9}, (9, 9, 9)),
        ({"model_type": "mistral", "sliding_window": None}, (None, None, None)),
        ({"model_type": "qwen2", "sliding_window": 9}, (None, None, None)),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 9,
                "use_sliding_window": True,
                "max_window_layers": 1,
            },
            (None, 9, 9),
        ),
        (
            {"model_type": "qwen3", "sliding_window": 9, "use_sliding_window": True}
            | {"layer_types": ["sliding_attention", "full_attention", "full_attention"]},
            (9, None, None),
        ),
    ],
)
def test_a_window_is_read_for_each_layer(
    fields: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    assert read_shape(LLAMA | {"num_key_value_heads": 2} | fields).windows == windows


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 4.0}},
    ],
)
def test_both_spellings_of_rope_mean_the_same(fields: dict[str, Any]) -> None:
    assert read_shape(LLAMA | fields).rope == Rope(5e5, "linear", 4.0)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"embedding_multiplier": 12.0}, "embedding_multiplier = 12.0"),
        ({"qk_layernorm": True}, "qk_layernorm"),
        ({"sliding_window": 9}, "sliding_window"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3"),
        ({"head_dim": 15}, "15 dimensions"),
        ({"vocab_size": None}, "vocab_size"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "mrope_section": [1]}},
            "mrope_section",
        ),
        ({"rope_scaling": {"factor": 2.0}}, "factor"),
        ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "low_freq_factor"),
    ],
)
def test_what_the_decoder_cannot_compute_is_refused_by_name(
    fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError, match=named):
        read_shape(LLAMA | fields)


MIXTRAL = LLAMA | {"model_type": "mixtral", "num_key_value_heads": 2}
QWEN3_MOE = (
    LLAMA
    | {"model_type": "qwen3_moe", "num_key_value_heads": 2}
    | {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
    }
)


def test_mixtral_has_eight_experts_where_nothing_else_is_said() -> None:
    mixture = read_native_shape(MIXTRAL).mixture
    assert mixture is not None
    assert (mixture.experts, mixture.used, mixture.inner) == (8, 2, 96)
    assert mixture.normalized


def test_qwen3_says_which_layers_are_mixtures() -> None:
    fields = {"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    shape = read_native_shape(QWEN3_MOE | fields)
    assert shape.mixture is not None
    assert shape.mixture.layers == {1, 5}
    assert [shape.mixture_of(layer) is None for layer in (0, 1, 3)] == [True, False, True]
    assert not shape.mixture.normalized


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_experts_per_tok": 9}, "9 of 8 experts"),
        ({"num_experts": 0}, "num_experts"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size"),
        ({"n_routed_experts": 4}, "n_routed_experts"),
    ],
)
def test_a_mixture_that_is_none_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        read_native_shape(QWEN3_MOE | fields)


@pytest.mark.parametrize(
    "name",
    [
        *("_name_or_path", "bos_token_id", "transformers_version", "torch_dtype"),
        *("transformers.js_config", "is_llama_config", "a_field_of_tomorrow"),
    ],
)
def test_fields_that_change_no_mathematics_are_passed_over(name: str) -> None:
    assert read_shape(LLAMA | {name: "anything"}) == read_shape(LLAMA)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, "has no config.json"),
        ("{", "cannot be read"),
        ("[1]", "not a JSON object"),
        ("{}", "no model_type"),
        (json.dumps(LLAMA | {"auto_map": {"AutoModel": "modeling_x.X"}}), "auto_map"),
    ],
)
def test_a_folder_without_a_usable_config_is_refused(
    tmp_path: Path, text: str | None, named: str
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=named):
        read_config(tmp_path)


def test_the_shipped_model_is_native() -> None:
    shape = read_shape(read_config(NANO))
    assert shape.tied_head
    assert shape.num_layers > 0
