"""Learns from one token's pass what each attention layer of a foreign model is, and refuses what
pages cannot give.

Knows the options that models of transformers hand to an attention function; imports no
transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from lmprog.errors import ModelError

_UNDERSTOOD = frozenset({"scaling", "sliding_window", "softcap", "s_aux", "dropout", "is_causal"})
_IRRELEVANT = frozenset(
    {
        *(
            "position_ids",
            "position_embeddings",
            "output_attentions",
            "output_hidden_states",
            "use_cache",
        ),
        *("logits_to_keep", "return_dict", "output_router_logits", "layer_idx"),
    }
)
"""Options that say nothing about this layer's attention: positions are already in queries and
keys.
"""
_KINDS = frozenset({"full_attention", "sliding_attention"})


@dataclass(frozen=True, slots=True)
class ProbedLayer:
    scale: float
    window: int | None
    softcap: float | None
    sinks: tuple[float, ...] | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.num_heads, self.num_kv_heads, self.head_dim, self.v_head_dim


class Probe:
    """An attention function for a pass over exactly one token, which attends to itself alone: its
    value comes out.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[int, ProbedLayer]] = []

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]
    ) -> Tensor:
        """Notes the layer and gives its value. # [1, heads, v_dim]"""
        _refuse_options(layer, options)
        scale, window, softcap = (
            options.get(name) for name in ("scaling", "sliding_window", "softcap")
        )
        probed = ProbedLayer(
            scale=float(q.shape[2] ** -0.5 if scale is None else scale),
            window=None if window is None else int(window),
            softcap=None if softcap is None else float(softcap),
            sinks=None if options.get("s_aux") is None else tuple(options["s_aux"].tolist()),
            num_heads=q.shape[1],
            num_kv_heads=k.shape[1],
            head_dim=q.shape[2],
            v_head_dim=v.shape[2],
        )
        self._seen.append((layer, probed))
        return v.repeat_interleave(q.shape[1] // k.shape[1], dim=1)

    def layers(self, folder: Path, config: Any) -> tuple[ProbedLayer, ...]:
        """All layers in order. Raises ModelError where the pass was not one attention in each
        layer.
        """
        numbers = [number for number, _ in self._seen]
        wanted = int(config.num_hidden_layers)
        if numbers != list(range(wanted)):
            raise ModelError(
                f"{folder} ({config.model_type}) has {wanted} layers, of which "
                f"{len(numbers)} attend through the "
                "attention interface of transformers: models with other layers, or with "
                "attention of their own, cannot "
                "run on pages"
            )
        layers = tuple(layer for _, layer in self._seen)
        if len({layer.sizes for layer in layers}) != 1:
            raise ModelError(
                f"{folder} ({config.model_type}) has layers with different heads, which is "
                "not supported"
            )
        _refuse_hidden_windows(folder, config, layers)
        return layers


def _refuse_options(layer: int, options: dict[str, Any]) -> None:
    given = {name for name, value in options.items() if value is not None} - _IRRELEVANT
    if unknown := sorted(given - _UNDERSTOOD):
        raise ModelError(
            f"attention of layer {layer} wants {', '.join(unknown)}, which paged attention "
            "does not have"
        )
    if options.get("is_causal") is False:
        raise ModelError(f"attention of layer {layer} is not causal: it looks ahead")
    if options.get("dropout"):
        raise ModelError(f"attention of layer {layer} drops keys at random")


def _refuse_hidden_windows(folder: Path, config: Any, layers: tuple[ProbedLayer, ...]) -> None:
    """Windows that a model would have drawn only into its masks, which are never made here."""
    kinds = list(getattr(config, "layer_types", None) or [])
    if strange := sorted(set(kinds) - _KINDS):
        raise ModelError(
            f"{folder} ({config.model_type}) has layers of the types {strange}, which are "
            "not supported"
        )
    if getattr(config, "attention_chunk_size", None) is not None:
        raise ModelError(
            f"{folder} ({config.model_type}) attends in chunks, which is not supported"
        )
    windowed = [layer.window is not None for layer in layers]
    declared = [kind == "sliding_attention" for kind in kinds]
    unsaid = (
        declared != windowed
        if kinds
        else getattr(config, "sliding_window", None) and not any(windowed)
    )
    if unsaid:
        raise ModelError(
            f"{folder} ({config.model_type}) has a sliding window that its attention layers "
            "do not state: "
            f"layers with one by the config: {declared}, by the layers: {windowed}"
        )
