"""Checkpoints with a layer that predicts further tokens, and what that computes, in torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe
from transformers.models.qwen3_next import modeling_qwen3_next

from tests.model.checkpoints import RECURRENT, Recipe

MODULES: dict[str, Any] = {
    "qwen3_next": (modeling_qwen3_next, "Qwen3Next"),
    "qwen3_5_text": (modeling_qwen3_5, "Qwen3_5"),
    "qwen3_5_moe_text": (modeling_qwen3_5_moe, "Qwen3_5Moe"),
}


class Twin(torch.nn.Module):
    """As Qwen publishes it: embedding and what the model gave at the token before, each normalized,
    are joined; a layer of full attention; the norm and the head. Before the first token the model
    gave zeros.
    """

    def __init__(self, name: str, model: Any) -> None:
        super().__init__()
        module, family = MODULES[name]
        config = model.config
        size, norm = config.hidden_size, getattr(module, f"{family}RMSNorm")
        self.fc = torch.nn.Linear(2 * size, size, bias=False)
        self.pre_fc_norm_embedding = norm(size, config.rms_norm_eps)
        self.pre_fc_norm_hidden = norm(size, config.rms_norm_eps)
        self.norm = norm(size, config.rms_norm_eps)
        attending = config.layer_types.index("full_attention")
        self.layers = torch.nn.ModuleList(
            [getattr(module, f"{family}DecoderLayer")(config, attending)]
        )
        self._model = [model]

    def forward(self, tokens: list[int], given: torch.Tensor) -> torch.Tensor:
        """What the layer gives at each token, normalized; `given` [tokens, size] has what went in
        at the tokens before.
        """
        model = self._model[0]
        embedded = model.model.embed_tokens(torch.tensor([tokens]))
        joined = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(given[None])]
        x = self.fc(torch.cat(joined, -1))
        count = len(tokens)
        positions = torch.arange(count)[None]
        mask = torch.full((count, count), -torch.inf).triu(1)[None, None]
        turned = model.model.rotary_emb(x, positions)
        layer = self.layers[0]
        x = layer(x, position_embeddings=turned, attention_mask=mask, position_ids=positions)
        return self.norm(x[0] if isinstance(x, tuple) else x)[0]

    def drafted(self, tokens: list[int], count: int) -> list[int]:
        """The likeliest tokens after `tokens`, one after the other."""
        model = self._model[0]
        with torch.no_grad():
            whole = model.model(torch.tensor([tokens])).last_hidden_state[0]
            given = torch.cat([torch.zeros(1, whole.shape[1]), whole[:-1]])
            for _ in range(count):
                last = self(tokens, given)[-1:]
                tokens = [*tokens, int(model.lm_head(last)[0].argmax())]
                given = torch.cat([given, last])
        return tokens[-count:]

    def logits(self, tokens: list[int]) -> torch.Tensor:
        model = self._model[0]
        with torch.no_grad():
            whole = model.model(torch.tensor([tokens])).last_hidden_state[0]
            given = torch.cat([torch.zeros(1, whole.shape[1]), whole[:-1]])
            return model.lm_head(self(tokens, given))


def saved(folder: Path, name: str, **fields: Any) -> Twin:
    """A checkpoint with a layer that predicts, whose weights are random."""
    recipe = RECURRENT[name]
    model = Recipe(recipe.family, recipe.fields | fields).make(folder)
    torch.manual_seed(7)
    twin = Twin(name, model).eval()
    with torch.no_grad():
        for weight in twin.parameters():
            weight.normal_(0.0, 0.1 if weight.dim() == 1 else 0.2)
    add_to(folder, twin)
    return twin


def add_to(folder: Path, twin: Twin) -> None:
    weights = load_file(folder / "model.safetensors")
    weights |= {f"mtp.{name}": weight.contiguous() for name, weight in twin.state_dict().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
