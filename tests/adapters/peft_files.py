"""Random LoRA adapters in PEFT's layout, and checkpoints with the same merged into their weights.

Merging is W + scale * B @ A, which is what PEFT's `merge_and_unload` does.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PREFIX = "base_model.model."


@dataclass(frozen=True)
class Made:
    """What an adapter is made of. `rank_pattern` and `alpha_pattern` by names of modules."""

    rank: int = 4
    alpha: float = 8.0
    targets: tuple[str, ...] = ALL
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    use_rslora: bool = False
    dtype: torch.dtype = torch.float32
    strength: float = 0.3
    seed: int = 1

    def rank_of(self, module: str) -> int:
        return next((r for end, r in self.rank_pattern.items() if module.endswith(end)), self.rank)

    def scale_of(self, module: str) -> float:
        alphas = self.alpha_pattern.items()
        alpha = next((a for end, a in alphas if module.endswith(end)), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def weights_of(base: Path) -> dict[str, torch.Tensor]:
    return {
        name: one for path in base.glob("*.safetensors") for name, one in load_file(path).items()
    }


def modules_of(weights: Iterable[str], targets: tuple[str, ...]) -> list[str]:
    names = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
    return sorted(name for name in names if name.endswith(targets))


def low_rank(base: Path, made: Made) -> dict[str, torch.Tensor]:
    """The file's weights: for each target a random A and B."""
    weights, draw = weights_of(base), torch.Generator().manual_seed(made.seed)
    found = {}
    for module in modules_of(weights, made.targets):
        outputs, inputs = weights[f"{module}.weight"].shape
        rank = made.rank_of(module)
        down = torch.randn(rank, inputs, generator=draw) * inputs**-0.5
        up = torch.randn(outputs, rank, generator=draw) * made.strength / made.scale_of(module)
        found[f"{PREFIX}{module}.lora_A.weight"] = down.to(made.dtype)
        found[f"{PREFIX}{module}.lora_B.weight"] = (up * rank**-0.5).to(made.dtype)
    return found


def config_of(made: Made) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": made.rank,
        "lora_alpha": made.alpha,
        "target_modules": list(made.targets),
        "rank_pattern": dict(made.rank_pattern),
        "alpha_pattern": dict(made.alpha_pattern),
        "use_rslora": made.use_rslora,
        "bias": "none",
        "lora_dropout": 0.1,
        "use_dora": False,
        "modules_to_save": None,
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
    }


def write_adapter(
    base: Path,
    folder: Path,
    made: Made = Made(),
    **changed: Any,
) -> Path:
    """`changed` are fields of adapter_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(low_rank(base, made), folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config_of(made) | changed))
    return folder


def write_merged(base: Path, folder: Path, made: Made) -> Path:
    """The base with the adapter in its weights, as a checkpoint."""
    shutil.copytree(base, folder)
    weights, parts = weights_of(base), low_rank(base, made)
    for module in modules_of(weights, made.targets):
        down = parts[f"{PREFIX}{module}.lora_A.weight"].float()
        up = parts[f"{PREFIX}{module}.lora_B.weight"].float()
        name = f"{module}.weight"
        weights[name] = weights[name] + made.scale_of(module) * (up @ down)
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder
