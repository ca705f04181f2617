"""From a checkpoint to the folder that is shipped: an ordinary Llama in Hugging Face layout,
bfloat16.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from training.model import Nano
from training.monitor import load
from training.tokenizer import save

_GENERATION = {
    "_from_model_config": False,
    "eos_token_id": 0,
    "pad_token_id": 4,
    "do_sample": False,
}


def export(net: Nano, tokenizer: Tokenizer, out: Path) -> None:
    """Write config, weights, tokenizer and generation settings."""
    save(tokenizer, out)
    tensors = {
        f"model.{name}": tensor.to(torch.bfloat16).contiguous()
        for name, tensor in net.state_dict().items()
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(net.shape.huggingface(), indent=2) + "\n")
    (out / "generation_config.json").write_text(json.dumps(_GENERATION, indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Export a checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    export(
        load(options.folder / options.checkpoint),
        Tokenizer.from_file(str(options.folder / "tokenizer.json")),
        options.out,
    )
    card = options.folder / "README.md"
    if card.exists():
        shutil.copy(card, options.out / "README.md")


if __name__ == "__main__":
    main()
