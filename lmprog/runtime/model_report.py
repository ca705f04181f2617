"""What `lmprog doctor MODEL` says: whether and how a model will run here, before it is loaded.

Reads configs and headers; no weight. Each look gives a state, what was found and what to do. A
model that loading would refuse by these is refused here, with the same words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmprog.config import RuntimeConfig
from lmprog.errors import LmprogError
from lmprog.radix.frames import WindowPages
from lmprog.runtime.documents.checkpoint_documents import json_document, template_source
from lmprog.runtime.engine.engine import NativePlan, native_plan, why_not_native
from lmprog.runtime.engine.machine.resources import TORCH_INSTALL, free_memory, has_torch
from lmprog.runtime.engine.model.checkpoint import checkpoint_files
from lmprog.runtime.engine.model.locate import locate
from lmprog.runtime.engine.model.shape import read_config
from lmprog.runtime.engine.model.weight_table import expected
from lmprog.runtime.engine.native.packing import packed_size
from lmprog.runtime.text.tokenizer import load_tokenizer


@dataclass(frozen=True, slots=True)
class ModelFinding:
    state: Literal["ok", "warn", "fail"]
    name: str
    what: str
    fix: str = ""


def model_report(config: RuntimeConfig) -> Iterator[ModelFinding]:
    """One finding after the other, as they come; the last one failed where the model is refused."""
    try:
        location = locate(config.model)
        if location is not None:
            yield _files(location)
        reason = why_not_native(config, location)
        if reason is None:
            plan = native_plan(config, location)
            yield _engine(plan)
            yield _memory(config, plan, location)
        else:
            yield _by_torch(config, location, reason)
        if location is not None:
            yield _tokenizer(location)
            yield _template(location)
    except LmprogError as error:
        yield ModelFinding("fail", "model", str(error))


def _files(location: Path) -> ModelFinding:
    size = sum(path.stat().st_size for path in checkpoint_files(location))
    kind = read_config(location)["model_type"]
    return ModelFinding("ok", "files", f"{kind}, {_gb(size)} in {location}")


def _engine(plan: NativePlan) -> ModelFinding:
    count = sum(math.prod(size) for size in expected(plan.shape).values())
    size = f"{count / 1e9:.2f} billion" if count >= 1e8 else f"{count / 1e6:.2f} million"
    what = f"native; {size} weights as {plan.weight_type}, keys and values as "
    what += f"{plan.kv_dtype}, a context of {plan.context_len:,} tokens"
    return ModelFinding("ok", "engine", what)


def _memory(config: RuntimeConfig, plan: NativePlan, location: Path | None) -> ModelFinding:
    if location is None:
        weights = 4 * sum(math.prod(size) for size in expected(plan.shape).values())
    else:
        weights = packed_size(location, plan.shape, plan.weight_type)
    pages = plan.num_pages * plan.page_bytes
    free, a_token = free_memory(), plan.page_bytes / plan.page_size
    tokens = plan.num_pages * plan.page_size
    what = f"{_gb(weights)} for weights, {_gb(pages)} for {tokens:,} tokens of keys and values "
    what += f"({a_token / 1e3:.1f} kB each)"
    if plan.states is not None:
        what += f", {_gb(plan.state_bytes)} for {plan.states.num_slots} recurrent states"
    if (windows := plan.windows) is not None:
        longer = WindowPages(windows, plan.page_size).longest * plan.page_size
        longer = min(longer, plan.context_len)
        what += f", of which layers with windows keep {windows.window:,} positions of each text: "
        what += f"up to {longer:,} tokens"
    what += f"; {_gb(free)} free"
    if weights + pages + plan.state_bytes <= free:
        return ModelFinding("ok", "memory", what)
    fix = "a smaller --kv-memory-mb" if weights < free else "--quantize int8 or int4"
    if weights >= free and plan.weight_type == "int4":
        fix = "a machine with more memory, or a smaller model"
    return ModelFinding("warn", "memory", what, fix)


def _by_torch(config: RuntimeConfig, location: Path | None, reason: str) -> ModelFinding:
    """Raises ModelError for what the torch engine refuses by its config."""
    if config.engine == "native" or config.quantize is not None:
        asked = config.quantize or "native"
        return ModelFinding("fail", "engine", f"{asked} was asked for: {reason}")
    if not has_torch():
        return ModelFinding("fail", "engine", f"torch is needed: {reason}", TORCH_INSTALL)
    from lmprog.runtime.engine.torch_engine.engine import computed_by

    who = computed_by(location)
    return ModelFinding("warn", "engine", f"torch, several times slower, by {who}: {reason}")


def _tokenizer(location: Path) -> ModelFinding:
    count = load_tokenizer(location).vocab_size
    return ModelFinding("ok", "tokenizer", f"{count:,} tokens")


def _template(location: Path) -> ModelFinding:
    described = json_document(location, "tokenizer_config.json") or {}
    if template_source(location, described) is None:
        what = "none, so there are no roles and no chats: only prompts"
        return ModelFinding("warn", "template", what, "the instruction-tuned checkpoint has one")
    return ModelFinding("ok", "template", "the checkpoint's own")


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 5_000_000 else f"{size / 1e6:.2f} MB"
