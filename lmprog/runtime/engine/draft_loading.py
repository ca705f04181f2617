"""Loads the draft model that a configuration asks for, and shares memory between both models.

Knows configurations and engines; whether the vocabularies are the same, tokenizers tell.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter
from lmprog.runtime.engine.selection import SelectedEngine, select_engine

SHARE = 8
"""Of `kv_memory_mb`, a draft model has the part of one in so many."""


def without_draft_memory(config: RuntimeConfig) -> RuntimeConfig:
    """What is left for the model itself. Raises InvalidParameter where a draft model is asked for
    that cannot be.
    """
    if config.draft_model is None:
        return config
    why = None
    if config.tp != 1:
        why = f"with tp = {config.tp}: a model on several processes has none"
    elif config.scheduler.speculation == "off":
        why = 'with speculation = "off": it would never be asked'
    if why is not None:
        raise _refused(config, why)
    if config.kv_memory_mb is None:
        return config
    return replace(config, kv_memory_mb=config.kv_memory_mb - _megabytes(config.kv_memory_mb))


def load_draft_engine(config: RuntimeConfig, target: SelectedEngine) -> SelectedEngine | None:
    """The engine of the draft model of `config`, which drafts for `target`; None where it asks for
    none.
    """
    if config.draft_model is None:
        return None
    if target.device != "cpu":
        raise _refused(config, f"beside {target.device}: it is computed on the processor only")
    memory = config.kv_memory_mb
    own: dict[str, Any] = {
        "model": config.draft_model,
        "draft_model": None,
        "device": "cpu",
        "context_len": None,
        "lora": (),
        "kv_memory_mb": None if memory is None else _megabytes(memory),
    }
    return select_engine(replace(config, **own))


def _megabytes(kv_memory_mb: int) -> int:
    return max(1, kv_memory_mb // SHARE)


def _refused(config: RuntimeConfig, why: str) -> InvalidParameter:
    return InvalidParameter(
        f"draft_model = {config.draft_model!r} is not possible {why}",
        name="draft_model",
        value=config.draft_model,
    )
