"""The shipped files: small, an ordinary Llama, and the same numbers as the network that was
trained.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from training.draw import Split
from training.export import export
from training.model import Nano, Shape
from training.tokenizer import encode
from training.world import document

NANO = Path(__file__).parents[2] / "lmprog" / "nano"


def test_the_folder_is_at_most_sixteen_megabytes() -> None:
    assert (
        sum(path.stat().st_size for path in NANO.rglob("*") if path.is_file()) <= 16 * 1024 * 1024
    )


def test_the_weights_are_bfloat16() -> None:
    tensors = load_file(NANO / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}


def _shape() -> Shape:
    config = json.loads((NANO / "config.json").read_text())
    return Shape(
        config["vocab_size"],
        config["hidden_size"],
        config["num_hidden_layers"],
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["head_dim"],
        config["intermediate_size"],
        config["rope_theta"],
        config["rms_norm_eps"],
    )


def test_transformers_loads_it_unchanged_and_gives_the_same_logits() -> None:
    theirs = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32)
    assert isinstance(theirs, LlamaForCausalLM)
    ours = Nano(_shape()).eval()
    tensors = load_file(NANO / "model.safetensors")
    ours.load_state_dict(
        {name.removeprefix("model."): tensor.float() for name, tensor in tensors.items()}
    )
    tokenizer = Tokenizer.from_file(str(NANO / "tokenizer.json"))
    for number in range(5):
        ids = torch.tensor([encode(tokenizer, document(Split.HELD, number)).ids])
        with torch.inference_mode():
            torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_an_exported_network_is_the_same_network(tmp_path: Path, kv_heads: int) -> None:
    torch.manual_seed(0)
    net = Nano(Shape(layers=2, hidden=64, heads=4, kv_heads=kv_heads, head_dim=16, inner=96)).eval()
    for parameter in net.parameters():
        parameter.data = (parameter.data + 0.05 * torch.randn_like(parameter)).bfloat16().float()
    export(net, Tokenizer.from_file(str(NANO / "tokenizer.json")), tmp_path)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.randint(5, 2048, (2, 33))
    with torch.inference_mode():
        torch.testing.assert_close(net(ids), theirs(ids).logits, atol=2e-4, rtol=1e-3)
