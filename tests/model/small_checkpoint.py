"""A checkpoint of a few kilobytes with all its documents: random weights, a tokenizer of bytes, a
chat template. What it is made of can be changed one by one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from lmprog.runtime.engine.model.families import read_native_shape
from lmprog.runtime.engine.model.weight_table import expected

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>{% endfor %}"
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
}


def write_checkpoint(
    folder: Path, seed: int = 0, template: str = TEMPLATE, swapped: str = "", **config: Any
) -> Path:
    """`seed` is of the weights; the two characters of `swapped` change their places in the
    vocabulary; `config` are fields of config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    told = _CONFIG | config
    (folder / "config.json").write_text(json.dumps(told))
    dice = np.random.default_rng(seed)
    weights = {
        name: (dice.standard_normal(size) * 0.3 + (len(size) == 1)).astype(np.float32)
        for name, size in sorted(expected(read_native_shape(told)).items())
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    if swapped:
        one, other = swapped
        vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": None}))
    (folder / "chat_template.jinja").write_text(template)
    return folder
