"""What cannot run on pages is refused when it is loaded, by name, never found out by wrong text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from lmprog.config import RuntimeConfig
from lmprog.errors import ModelError
from lmprog.runtime.engine.attention.backend import AttentionBackend, AttentionShape, LayerAttention
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.torch_engine.engine import TorchEngine
from lmprog.runtime.engine.torch_engine.fallback import check
from lmprog.runtime.scheduling.batch import Batch
from tests.model.checkpoints import FOREIGN, Recipe
from tests.model.conftest import Judge
from tests.model.driver import Driver

GPT_NEO = {"attention_types": [[["global"], 3]]}
GPT_J = {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 64}
LONG_ROPE = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0} | {
    "short_factor": [1.5] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 512,
}
MPT = {"d_model": 64, "n_layers": 2, "n_heads": 4}


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        (Recipe("Mamba"), "keeps a state"),
        (Recipe("Bloom"), "ALiBi"),
        (Recipe("Falcon", {"alibi": True}), "ALiBi"),
        (Recipe("Falcon"), "chooses among attentions of its own"),
        (Recipe("GPTNeo", GPT_NEO), "chooses among attentions of its own"),
        (Recipe("GPTJ", GPT_J), "chooses among attentions of its own"),
        (Recipe("Mpt", MPT), "ALiBi"),
        (Recipe("CodeGen", GPT_J), "attention of their own"),
    ],
)
def test_architectures_that_do_not_fit_pages_are_refused(
    tmp_path: Path, recipe: Recipe, reason: str
) -> None:
    recipe.make(tmp_path)
    with pytest.raises(ModelError, match=reason):
        load_engine(RuntimeConfig(model=str(tmp_path)))


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    transformers.T5Config().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="encoder-decoder"):
        load_engine(RuntimeConfig(model=str(tmp_path)))


def test_a_model_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "never-heard-of"}')
    with pytest.raises(ModelError, match="transformers does not know"):
        load_engine(RuntimeConfig(model=str(tmp_path), dtype="float32"))


def test_missing_weights_of_a_foreign_model_are_named(judged: Judge, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    whole = judged("olmo2", FOREIGN["olmo2"]).folder
    tensors = load_file(whole / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((whole / "config.json").read_text())
    with pytest.raises(ModelError, match=r"missing weights.*model.norm.weight"):
        load_engine(RuntimeConfig(model=str(tmp_path)))


class Counting:
    """A model with a state of its own: how many tokens it has computed, or `forgets` and starts
    again every step.
    """

    vocab_size = 10

    def __init__(self, forgets: bool) -> None:
        self._forgets = forgets
        self._count = 0

    def attention_shape(self, kv_dtype: torch.dtype) -> AttentionShape:
        return AttentionShape((LayerAttention(1.0),), 1, 1, 2, 2, kv_dtype)

    def forward(self, batch: Batch, attention: AttentionBackend) -> Tensor:
        start = 0 if self._forgets else self._count
        self._count += batch.num_tokens
        return self._logits(torch.arange(start, start + batch.num_tokens))

    def own_logits(self, tokens: Tensor) -> Tensor:
        return self._logits(torch.arange(len(tokens)))

    def _logits(self, count: Tensor) -> Tensor:
        return torch.sin(count[:, None] + torch.arange(10.0))


def test_a_state_beside_keys_and_values_is_found_when_it_is_lost_between_steps() -> None:
    check(Counting(forgets=False), Path("counting"), torch.float32)
    with pytest.raises(ModelError, match="computes something else"):
        check(Counting(forgets=True), Path("counting"), torch.float32)


def test_a_rope_that_changes_with_length_limits_the_context(tmp_path: Path) -> None:
    rope: dict[str, Any] = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "original_max_position_embeddings": 128,
    }
    rope |= {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    Recipe("Phi3", {"rope_parameters": rope, "original_max_position_embeddings": 128}).make(
        tmp_path
    )
    assert load_engine(RuntimeConfig(model=str(tmp_path))).context_len == 128


def test_a_family_of_ours_with_a_feature_that_we_lack_is_computed_by_transformers(
    tmp_path: Path,
) -> None:
    """Rotations that change with the length of a sequence have no decoder of ours."""
    recipe = Recipe("Llama", {"rope_parameters": LONG_ROPE})
    model = recipe.make(tmp_path)
    engine = load_engine(RuntimeConfig(model=str(tmp_path), kv_memory_mb=8))
    assert isinstance(engine, TorchEngine)
    prompt = [5, 20, 3, 77, 13]
    with torch.no_grad():
        wanted = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    assert (Driver(engine, 16).score(prompt) - wanted).abs().max() < 1e-4
