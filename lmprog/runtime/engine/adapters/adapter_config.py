"""What adapter_config.json of PEFT says of a LoRA adapter: ranks, scales, and what it changes.

What changes the mathematics and is not computed here is refused by name: an adapter that computes
something else is worse than none. Knows PEFT's fields; knows no weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmprog.errors import ModelError
from lmprog.runtime.documents.checkpoint_documents import json_document

CONFIG = "adapter_config.json"
MOST_RANK = 1024
"""Of one weight: more is no low rank, but a mistake."""
_REFUSED: Mapping[str, str] = {
    "use_dora": "DoRA",
    "modules_to_save": "modules_to_save (whole weights beside the low-rank parts)",
    "lora_bias": "lora_bias (biases in the low-rank parts)",
    "layer_replication": "layer_replication",
    "trainable_token_indices": "trainable_token_indices",
    "target_parameters": "target_parameters",
    "megatron_config": "megatron_config",
    "corda_config": "corda_config",
    "eva_config": "eva_config",
    "use_qalora": "QALoRA",
    "alora_invocation_tokens": "aLoRA",
    "arrow_config": "Arrow",
    "fan_in_fan_out": "fan_in_fan_out",
}
"""Fields that must be unset, and what they are called."""
_CHANGED_BASE = ("pissa", "olora", "corda", "loftq")
"""Ways to begin that change the base's own weights, too: such an adapter is of another base."""
_PATTERN = re.compile(r"(?:[\w^$|-]|\\\.|\\d\+?|\.[*+]?)*")
_MOST_REPEATS = 4
"""Patterns of a stranger's file: names, with so many stretches that may be anything."""


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """Ranks and scales by the names of weights."""

    rank: int
    alpha: float
    is_rank_stabilized: bool
    ranks: Mapping[str, int]
    """By a pattern of names, where they have their own."""
    alphas: Mapping[str, float]

    def rank_of(self, module: str) -> int:
        """What `module` ("model.layers.0.self_attn.q_proj") must have."""
        return int(_matching(self.ranks, module, self.rank))

    def scale_of(self, module: str) -> float:
        """What the low-rank part is multiplied by."""
        rank = self.rank_of(module)
        alpha = _matching(self.alphas, module, self.alpha)
        return float(alpha) / (math.sqrt(rank) if self.is_rank_stabilized else rank)


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Raises `ModelError`, which names the folder and what is not computed."""
    described = json_document(folder, CONFIG)
    if described is None:
        raise ModelError(f"{folder} is no LoRA adapter: it has no {CONFIG}")
    kind = described.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"{folder}: peft_type {kind!r} is not supported; only LORA is")
    refused = [what for name, what in _REFUSED.items() if described.get(name)]
    begun = described.get("init_lora_weights", True)
    if isinstance(begun, str) and begun.lower().startswith(_CHANGED_BASE):
        refused.append(f"init_lora_weights = {begun!r}, which changes the base's weights")
    if described.get("bias", "none") != "none":
        refused.append(f"bias = {described['bias']!r}")
    if refused:
        raise ModelError(f"{folder} is a LoRA adapter with {', '.join(refused)}: not supported")
    try:
        return AdapterConfig(
            _rank(described["r"]),
            _alpha(described.get("lora_alpha", 8)),
            bool(described.get("use_rslora", False)),
            _patterns(described.get("rank_pattern"), _rank),
            _patterns(described.get("alpha_pattern"), _alpha),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(
            f"{folder / CONFIG} is malformed: {type(error).__name__}: {error}"
        ) from None


def _rank(given: Any) -> int:
    if type(given) is not int or not 1 <= given <= MOST_RANK:
        raise ValueError(f"a rank must be a whole number from 1 to {MOST_RANK}, not {given!r}")
    return given


def _alpha(given: Any) -> float:
    if type(given) not in (int, float) or not math.isfinite(given):
        raise ValueError(f"lora_alpha must be a number, not {given!r}")
    return float(given)


def _patterns(given: Any, number: Any) -> dict[str, Any]:
    found = {str(pattern): number(value) for pattern, value in (given or {}).items()}
    for pattern in found:
        repeats = pattern.count("*") + pattern.count("+")
        if not _PATTERN.fullmatch(pattern) or repeats > _MOST_REPEATS:
            raise ValueError(
                f"{pattern[:80]!r} is no name of a module, nor a simple pattern of such"
            )
    return found


def _matching(numbers: Mapping[str, Any], module: str, otherwise: Any) -> Any:
    """As PEFT matches: the pattern is the name, or its end behind a dot; the first one counts."""
    for pattern, number in numbers.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return number
    return otherwise
