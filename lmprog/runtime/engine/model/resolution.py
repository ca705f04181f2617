"""What a configuration leaves open, decided from model and machine: types, context, pages; and
which model has a layer for drafts.

Knows numbers and names; knows no tensors.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter
from lmprog.runtime.engine.machine.resources import free_memory, pages_that_fit
from lmprog.runtime.engine.model.checkpoint import checkpoint_files
from lmprog.runtime.engine.model.decoders import text_part
from lmprog.runtime.engine.model.gguf_weights import mostly_quantized
from lmprog.runtime.engine.model.quantization import WeightType, read_quantization
from lmprog.runtime.engine.model.shape import ModelShape, read_config

log = logging.getLogger("lmprog")

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_USUAL_TOKENS = 65_536
"""Key/value memory is sized for so many tokens, or for eight whole contexts, where the
configuration is silent.
"""
STATES_OF_MEMORY = 0.15
"""Of what keys, values and recurrent states take together, the part of states."""
FEWEST_STATES = 32
"""One for each sequence that runs, and those that are kept."""
CLOSEST_STATES = 64
"""Tokens of a prompt between two kept states, at least: each cuts the computing of the prompt."""
OWN_LAYER = "mtp"
"""As a draft model: the model's own layer."""
_PREDICTING = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
_COUNTS = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
"""What config.json calls the number of such layers; where it says nothing, there is one."""


def data_type(
    config: RuntimeConfig, described: Mapping[str, Any], folder: Path, fast: frozenset[str]
) -> str:
    """As asked; else the checkpoint's own type where it is among those that are computed `fast`;
    else float32, which is exact, while the model stays below a quarter of the free memory in it;
    else the checkpoint's own.
    """
    if config.dtype is not None:
        return computable(config.dtype)
    own = described.get("dtype") or described.get("torch_dtype") or "float32"
    own = own if own in _BYTES else "float32"
    if own in fast:
        return own
    size = sum(path.stat().st_size for path in checkpoint_files(folder))
    return "float32" if size * 4 // _BYTES[own] <= free_memory() // 4 else computable(own)


def computable(dtype: str) -> str:
    """float16 becomes float32, which holds all of its numbers: torch multiplies float16 on
    processors a thousand times slower (0.2 s instead of 2 ms for a product of 256 x 256 x 1536
    numbers), and the native engine has no products of it."""
    if dtype != "float16":
        return dtype
    log.info("float16 is computed in float32 on this processor, with twice the memory")
    return "float32"


def context_length(config: RuntimeConfig, limit: int) -> int:
    wanted = limit if config.context_len is None else config.context_len
    if not 1 <= wanted <= limit:
        raise InvalidParameter(
            f"context_len = {wanted} is not possible: {config.model} was made for at most "
            f"{limit} tokens",
            name="context_len",
            value=wanted,
            allowed=f"1 .. {limit}",
        )
    return wanted


def num_pages(config: RuntimeConfig, context_len: int, bytes_per_page: int) -> int:
    page_size = config.scheduler.page_size
    if config.scheduler.num_pages:
        return config.scheduler.num_pages
    if config.kv_memory_mb is not None:
        return pages_that_fit(config.kv_memory_mb << 20, bytes_per_page)
    usual = -(-max(8 * context_len, _USUAL_TOKENS) // page_size)
    return min(usual, pages_that_fit(free_memory() // 4, bytes_per_page))


class StateSlots(NamedTuple):
    """Memory for the states of a model's recurrent layers."""

    num_slots: int
    every: int
    """Tokens of a prompt whose keys and values cost what states may, for one state."""


def state_slots(kv_bytes: int, num_tokens: int, state_bytes: int) -> StateSlots:
    """Beside memory of `kv_bytes` for so many tokens: states take a part `STATES_OF_MEMORY` of both
    together, but have room for `FEWEST_STATES`.
    """
    share = STATES_OF_MEMORY / (1.0 - STATES_OF_MEMORY)
    num_slots = min(num_tokens, int(kv_bytes * share / state_bytes))
    every = math.ceil(state_bytes * num_tokens / (kv_bytes * share))
    return StateSlots(max(FEWEST_STATES, num_slots), max(CLOSEST_STATES, every))


def quantized_type(config: RuntimeConfig, location: Path | None) -> WeightType | None:
    """What a quantized checkpoint's weights become where nothing was asked for; else None."""
    if config.dtype is not None or location is None:
        return None
    if location.is_file():
        return mostly_quantized(location)
    how = read_quantization(read_config(location))
    return None if how is None else how.weight_type


# --- the layer that predicts further tokens (multi-token prediction), for drafts


def with_predictor(shape: ModelShape, config: Mapping[str, Any]) -> ModelShape:
    """The shape with that layer. Raises InvalidParameter where none is computed here."""
    name, told = config["model_type"], text_part(config)
    if name not in _PREDICTING:
        raise cannot_predict(f"it is computed of {', '.join(_PREDICTING)}, not of {name}")
    count = next((told[one] for one in _COUNTS if told.get(one) is not None), 1)
    if count != 1:
        raise cannot_predict(f"the checkpoint has {count} such layers, and one is computed")
    mixture, last = shape.mixture, shape.num_layers
    if mixture is not None:
        mixture = replace(mixture, layers=mixture.layers | {last})
    return replace(shape, windows=(*shape.windows, None), mixture=mixture, predicts=True)


def cannot_predict(why: str) -> InvalidParameter:
    return InvalidParameter(
        f"draft_model = {OWN_LAYER!r}, a layer of the model itself, is not possible: {why}",
        name="draft_model",
        value=OWN_LAYER,
    )
