"""Rotary positions: what a checkpoint's config says about them, and the rotation of every position.

Both spellings are read: `rope_theta` with `rope_scaling`, and the `rope_parameters` of transformers
5. Knows neither layers nor weights. Rotations that depend on the length of the sequence
(`longrope`) are refused: keys are kept rotated and shared between sequences of different lengths.
`dynamic` changes them only past the context that the checkpoint states, where lmprog never goes,
and is plain up to there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lmprog.errors import ModelError

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float32]

_FIELDS = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "divided": frozenset({"divisors"}),
    "proportional": frozenset({"partial_rotary_factor", "factor"}),
    "dynamic": frozenset({"factor", "original_max_position_embeddings"}),
    "llama3": frozenset(
        {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    ),
    "yarn": frozenset(
        {
            *(
                "factor",
                "original_max_position_embeddings",
                "attention_factor",
                "beta_fast",
                "beta_slow",
            ),
            *("mscale", "mscale_all_dim", "truncate"),
        }
    ),
}


class FeatureNotComputed(ModelError):
    """The decoders of ours lack something that the model has; another may have it."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Frequencies of the rotation. Fields past `theta` matter only to the kinds that name them."""

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    original_len: int = 0
    """llama3, yarn: the context the model was first trained with."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    amplitude: float = 1.0
    """yarn: cosine and sine are multiplied by this."""
    divisors: tuple[float, ...] = ()
    """divided: what the frequency of each pair is divided by (GGUF files say so of llama3)."""
    part: float = 1.0
    """proportional: of the pairs, those that are rotated; the frequencies are those of a whole."""


def read_rope(config: Mapping[str, Any], context_len: int) -> Rope:
    """The rotation that config.json describes. Raises ModelError for kinds and fields that are not
    known.
    """
    new = config.get("rope_parameters")
    scaling = dict(new if new is not None else config.get("rope_scaling") or {})
    kind = scaling.pop("rope_type", None) or scaling.pop("type", None) or "default"
    scaling.pop("type", None)
    theta = scaling.pop("rope_theta", None) or config.get("rope_theta") or 10_000.0
    partial = scaling.pop("partial_rotary_factor", None)
    partial = config.get("partial_rotary_factor") if partial is None else partial
    if kind == "proportional":
        scaling["partial_rotary_factor"] = partial
    elif partial not in (None, 1.0):
        raise FeatureNotComputed(
            f"partial_rotary_factor = {partial} is not supported: the native decoder rotates "
            "whole heads"
        )
    if kind not in _FIELDS:
        raise FeatureNotComputed(
            f"rope type {kind!r} is not supported by the native decoder; it knows "
            f"{', '.join(sorted(_FIELDS))}. "
            "Rotations that change with the length of the sequence would make kept keys wrong."
        )
    unknown = sorted(name for name in set(scaling) - _FIELDS[kind] if scaling[name] is not None)
    if unknown and kind != "default":
        raise ModelError(f"unknown fields of the rope type {kind!r}: {', '.join(unknown)}")
    if unknown:
        raise ModelError(
            f"the rope parameters have {', '.join(unknown)} but no type that would use them"
        )
    return _read_kind(
        kind,
        float(theta),
        scaling,
        int(config.get("original_max_position_embeddings") or context_len),
    )


def _read_kind(kind: str, theta: float, scaling: dict[str, Any], original_len: int) -> Rope:
    if kind in ("default", "dynamic"):
        return Rope(theta)
    if kind == "divided":
        divisors = tuple(float(number) for number in scaling.get("divisors") or ())
        if not divisors or not all(0 < number < math.inf for number in divisors):
            raise ModelError("the rope type 'divided' needs divisors that are positive numbers")
        return Rope(theta, kind, divisors=divisors)
    factor = scaling.get("factor")
    if kind == "proportional":
        part = scaling.get("partial_rotary_factor")
        part = 1.0 if part is None else float(part)
        return Rope(theta, kind, float(factor or 1.0), part=part)
    if factor is None:
        raise ModelError(f"the rope type {kind!r} needs a factor")
    factor = float(factor)
    original_len = int(scaling.get("original_max_position_embeddings") or original_len)
    if kind == "linear":
        return Rope(theta, kind, factor)
    if kind == "llama3":
        low, high = scaling.get("low_freq_factor"), scaling.get("high_freq_factor")
        if low is None or high is None or not low < high:
            raise ModelError(
                f"llama3 rope needs low_freq_factor < high_freq_factor, got {low} and {high}"
            )
        return Rope(
            theta,
            kind,
            factor,
            original_len,
            low_freq_factor=float(low),
            high_freq_factor=float(high),
        )
    return Rope(
        theta,
        kind,
        factor,
        original_len,
        beta_fast=float(scaling.get("beta_fast") or 32),
        beta_slow=float(scaling.get("beta_slow") or 1),
        truncate=bool(scaling.get("truncate", True)),
        amplitude=_yarn_amplitude(factor, scaling),
    )


def _yarn_amplitude(factor: float, scaling: Mapping[str, Any]) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])

    def growth(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    above, below = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return growth(above) / growth(below) if above and below else growth(1.0)


def frequencies(rope: Rope, head_dim: int) -> Floats:
    """Radians per position of each of the head's pairs. # [head_dim / 2]"""
    pairs = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    plain = (1.0 / np.float64(rope.theta) ** pairs.astype(np.float64)).astype(np.float32)
    if rope.kind == "linear":
        return plain / np.float32(rope.factor)
    if rope.kind == "proportional":
        still = np.arange(head_dim // 2) >= int(rope.part * head_dim // 2)
        return np.where(still, np.float32(0), plain / np.float32(rope.factor)).astype(np.float32)
    if rope.kind == "divided":
        return plain * (1.0 / np.asarray(rope.divisors)).astype(np.float32)
    if rope.kind == "llama3":
        # At most `low_freq_factor` turns within the first context: stretched; at least
        # `high_freq_factor`: kept.
        turns = rope.original_len * plain / (2 * math.pi)
        kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        kept = np.clip(kept, 0, 1)
        return ((1 - kept) * plain / rope.factor + kept * plain).astype(np.float32)
    if rope.kind == "yarn":
        stretched = _yarn_ramp(rope, head_dim)
        return ((plain / rope.factor) * stretched + plain * (1 - stretched)).astype(np.float32)
    return plain


def _yarn_ramp(rope: Rope, head_dim: int) -> Floats:
    """How far each pair's frequency is stretched, 0 to 1. # [head_dim / 2]"""

    def pair_that_turns(times: float) -> float:
        return (
            head_dim
            * math.log(rope.original_len / (times * 2 * math.pi))
            / (2 * math.log(rope.theta))
        )

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = (np.arange(head_dim // 2, dtype=np.float32) - low) / (high - low)
    return np.clip(ramp, 0, 1).astype(np.float32)


def rotations(rope: Rope, head_dim: int, context_len: int) -> torch.Tensor:
    """`amplitude * exp(i * angle)` of every position and pair. # [context_len, head_dim / 2]
    complex64
    """
    import torch

    angles = torch.outer(
        torch.arange(context_len, dtype=torch.float32),
        torch.from_numpy(frequencies(rope, head_dim)),
    )
    return torch.polar(torch.full_like(angles, rope.amplitude), angles)
