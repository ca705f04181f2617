"""The checkpoints that the benchmarks run on: a folder, `nano`, lmprog's dummies, or
`random:<hidden>x<layers>`.

`random:` writes a Llama with seeded random weights and nano's tokenizer into a folder, so that
lmprog and a peer can load the same files. Needs transformers for that, and only for that.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from lmprog.runtime.engine.model.locate import NANO, locate

RANDOM = "random:"
_HEAD = 64
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def checkpoint(model: str, scratch: Path) -> tuple[str, Path | None]:
    """What to give lmprog as `model`, and its folder (None for a dummy); `random:` is made in
    `scratch`.
    """
    if not model.startswith(RANDOM):
        return model, locate(model)
    match = re.fullmatch(r"(\d+)x(\d+)", model.removeprefix(RANDOM))
    if match is None or int(match[1]) % _HEAD or not int(match[1]):
        raise ValueError(f"{model!r}: write random:<hidden>x<layers>, hidden a multiple of {_HEAD}")
    folder = scratch / model.replace(":", "-")
    if not folder.exists():
        _make(folder, int(match[1]), int(match[2]))
    return str(folder), folder


def _make(folder: Path, hidden: int, layers: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // _HEAD,
        num_key_value_heads=max(1, hidden // _HEAD // 2),
        max_position_embeddings=4096,
        initializer_range=0.1,  # wide enough that the likeliest tokens stand apart from rounding
        eos_token_id=0,
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in _TOKENIZER_FILES:
        shutil.copy(NANO / name, folder)
