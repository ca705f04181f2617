"""What `lmprog doctor --quality` says: what rounding a model's weights costs on a user's text.

The text is cut into windows that are computed by themselves, once for each type. Of every token but
a window's first quarter, which has little to go by, the log-probability counts (perplexity), and
whether the likeliest token is the one that the most exact type finds likeliest (top-1 agreement).
Knows engines and numbers; no request and no page but its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import InvalidParameter
from lmprog.runtime.engine.engine import InferenceEngine, load_engine
from lmprog.runtime.engine.model.locate import locate
from lmprog.runtime.scheduling.batch import Batch, RowStates
from lmprog.runtime.scheduling.sequence import NOTHING
from lmprog.runtime.text.tokenizer import load_tokenizer

TYPES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantize": "int8"},
    "int4": {"quantize": "int4"},
}
"""Most exact first: what the others are compared with."""
_WINDOW = 512
_AT_ONCE = 64
"""Tokens of a step: bounds the memory of logits."""
_LEAST = 64
"""Tokens of a text that says anything."""


@dataclass(frozen=True, slots=True)
class TypeQuality:
    """One type's figures. `agreement` is a share; 1 for the type that others are compared with."""

    weight_type: str
    perplexity: float
    agreement: float
    num_tokens: int


def quality_report(model: str, text: str, most: int) -> Iterator[TypeQuality]:
    """One type after the other, on at most `most` tokens of `text`. Raises ModelError and its like;
    InvalidParameter for a text that is too short.
    """
    tokenizer = load_tokenizer(locate(model))
    tokens = tokenizer.encode(text)[:most]
    if len(tokens) < _LEAST:
        raise InvalidParameter(
            f"the text has {len(tokens)} tokens; at least {_LEAST} are needed to say anything",
            name="text",
            value=len(tokens),
            allowed=f">= {_LEAST}",
        )
    exact: NDArray[np.int64] | None = None
    for name, fields in TYPES.items():
        scheduler = SchedulerConfig(page_size=16, num_pages=_WINDOW // 16 + 1)
        engine = load_engine(RuntimeConfig(model=model, scheduler=scheduler, **fields), keep=False)
        scores, best = _read(engine, tokens, tokenizer.prefix)
        exact = best if exact is None else exact
        yield TypeQuality(
            weight_type=name,
            perplexity=float(np.exp(-scores.mean())),
            agreement=float((best == exact).mean()),
            num_tokens=len(scores),
        )
        del engine


def _read(
    engine: InferenceEngine, tokens: list[int], prefix: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Of every token that counts: its log-probability, and the likeliest token in its place."""
    size = min(_WINDOW, engine.context_len) - len(prefix)
    scores, best = [], []
    for begin in range(0, len(tokens), size):
        window = np.array([*prefix, *tokens[begin : begin + size]], np.int32)
        first = max(1, len(window) // 4)  # whose place is judged first
        for start in range(0, len(window) - 1, _AT_ONCE):
            end = min(start + _AT_ONCE, len(window) - 1)
            logits = np.asarray(engine.forward(_stretch(window, start, end)), np.float64)
            logits = logits[max(0, first - 1 - start) :]
            if not len(logits):
                continue
            targets = window[end + 1 - len(logits) : end + 1]
            top = logits.max(1, keepdims=True)
            norm = np.log(np.exp(logits - top).sum(1)) + top[:, 0]
            scores.append(logits[np.arange(len(targets)), targets] - norm)
            best.append(logits.argmax(1))
    return np.concatenate(scores), np.concatenate(best)


def _stretch(window: NDArray[np.int32], start: int, end: int) -> Batch:
    """Positions `start .. end` of the only sequence, which has the first pages; all logits."""
    positions = np.arange(start, end, dtype=np.int32)
    each = np.arange(end - start, dtype=np.int32)
    num_pages = -(-end // 16)
    return Batch(
        tokens=window[start:end].copy(),
        positions=positions,
        row_starts=np.array([0, end - start], np.int32),
        kv_lens=np.array([end], np.int32),
        page_starts=np.array([0, num_pages], np.int32),
        pages=np.arange(num_pages, dtype=np.int32),
        write_tokens=each,
        write_slots=positions.copy(),
        copies=np.zeros((0, 2), np.int32),
        logit_tokens=each.copy(),
        page_size=16,
        states=RowStates(
            np.array([0 if start else NOTHING], np.int32),
            np.zeros(1, np.int32),
            np.zeros((0, 3), np.int32),
        ),
    )


def text_of(path: Path) -> str:
    """Raises InvalidParameter where it cannot be read."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(
            f"{path} cannot be read: {error}", name="text", value=str(path), allowed="a text file"
        ) from error
