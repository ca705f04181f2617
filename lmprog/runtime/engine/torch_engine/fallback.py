"""Any decoder of transformers on our pages: its own code computes everything but attention.

Transformers lets a model call an attention function by name. Ours hands queries, keys and values to
the backend, so that no mask and no cache of its own is made. What a backend must know beforehand
(heads, scale, window, bound of every layer) is learnt from a pass over one token (`Probe`).
Recurrent layers of the families in `RECURRENT` compute on slots (`recurrent_layers`); others that
keep more than keys and values are refused by name where they show themselves, and otherwise by
`check`, which compares once what comes out of our pages with the model's own attention: that finds
states beside keys and values, biases of scores, positions that are counted instead of given. Code
from a repository is never run.

The one module that imports transformers; our own decoders do without it.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from lmprog.errors import ModelError
from lmprog.runtime.engine.attention.backend import (
    AttentionBackend,
    AttentionShape,
    HeadSizes,
    LayerAttention,
)
from lmprog.runtime.engine.attention.reference import ReferenceAttention
from lmprog.runtime.engine.torch_engine.recurrent_layers import NOTHING, RecurrentLayers
from lmprog.runtime.scheduling.batch import Batch, RowStates

log = logging.getLogger("lmprog")

_STRETCHED = frozenset({"longrope"})
"""Rope types whose keys change once a sequence grows past the first context; up to there they are
the same for all.
"""


_BIASED = frozenset({"bloom", "mpt"})
"""Architectures whose scores have a bias by distance, always."""


RECURRENT = frozenset(
    {
        *("lfm2", "lfm2_moe"),  # short convolutions
        *("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid"),  # gated delta nets
        "kimi_linear",  # a delta net with gates by channel, and latent attention
        *("qwen3_5", "qwen3_5_moe"),  # the same, beside a part for pictures, which is not loaded
        *("granitemoehybrid", "bamba", "nemotron_h", "falcon_h1"),  # Mamba 2
        "jamba",  # Mamba 1
    }
)
"""Architectures whose recurrent layers are computed, each compared with transformers by tests."""


_STATES = frozenset({"conv", "hybrid", "linear_attention", "mamba"})
"""Types of layers that keep a state."""


class _Attend(Protocol):
    """What an attention layer of the model is given: one sequence that holds all tokens of the
    step.
    """

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]
    ) -> Tensor: ...


class Fallback:
    """A model of transformers. `forward` keeps nothing: all state is in the backend's pages, and in
    slots where it has recurrent layers.
    """

    def __init__(self, folder: Path, config: Any, dtype: torch.dtype) -> None:
        self.name = f"lmprog_{id(self)}"
        AttentionInterface.register(self.name, self._function)
        self._attend: _Attend | None = None
        self.model = _loaded(folder, config, dtype, self.name)
        text = config.get_text_config()
        self.vocab_size = int(text.vocab_size)
        self.recurrent = RecurrentLayers(
            self.model if config.model_type in RECURRENT else torch.nn.Module()
        )
        self._picks_logits = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        self._layers, self._places = self._probed(folder, text)
        self.context_len = _context_len(folder, text)
        self.num_weights = sum(weight.numel() for weight in self.model.parameters())

    def _probed(self, folder: Path, text: Any) -> tuple[tuple[ProbedLayer, ...], Mapping[int, int]]:
        """The attention of every layer that has one, learnt by computing one token, and each one's
        place among them by its number in the model.
        """
        probe, zero = Probe(), torch.zeros(1, dtype=torch.int64)
        try:
            with self._attending(probe), self.recurrent.computing(None):
                self._logits(zero, zero, zero)
        except (
            RuntimeError,
            TypeError,
            ValueError,
            AttributeError,
            LookupError,
        ) as error:  # not our code
            raise ModelError(
                f"{folder} ({text.model_type}) fails on its first token: {error}"
            ) from error
        layers = probe.layers(folder, text, others=bool(self.recurrent))
        return layers, {number: place for place, number in enumerate(probe.numbers)}

    def attention_shape(self, kv_dtype: torch.dtype) -> AttentionShape:
        first = self._layers[0].heads
        layers = tuple(
            layer.attention if layer.heads != first else replace(layer.attention, heads=None)
            for layer in self._layers
        )
        return AttentionShape(layers, *first, dtype=kv_dtype)

    def forward(self, batch: Batch, attention: AttentionBackend) -> Tensor:
        """Logits of the tokens that `batch` wants. # [L, vocab] float32"""
        attention.plan(batch)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
            return attention.run(self._places[layer], q, k, v)

        with self._attending(attend), self.recurrent.computing(batch):
            return self._logits(
                torch.from_numpy(batch.tokens).long(),
                torch.from_numpy(batch.positions).long(),
                torch.from_numpy(batch.logit_tokens).long(),
            )

    def own_logits(self, tokens: Tensor) -> Tensor:
        """What the model computes for one sequence with its own attention. # [T, vocab] float32"""
        self.model.set_attn_implementation("eager")
        try:
            own: Tensor = self.model(input_ids=tokens[None], use_cache=False).logits[0].float()
            return own
        finally:
            self.model.set_attn_implementation(self.name)

    def _logits(self, tokens: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
        """All tokens as one sequence; only attention knows which belong together."""
        picked = {"logits_to_keep": wanted} if self._picks_logits else {}
        out = self.model(
            input_ids=tokens[None], position_ids=positions[None], use_cache=False, **picked
        )
        logits: Tensor = out.logits[0]
        return (logits if self._picks_logits else logits[wanted]).float()

    @contextmanager
    def _attending(self, attend: _Attend) -> Iterator[None]:
        self._attend = attend
        try:
            yield
        finally:
            self._attend = None

    def _function(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: object,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """As transformers calls it: [1, heads, tokens, dim] each -> [1, tokens, heads, dim]."""
        assert self._attend is not None, "the model runs only inside forward"
        layer = getattr(module, "layer_idx", None)
        if layer is None or attention_mask is not None:
            what = "a layer without a number" if layer is None else "a mask of its own"
            raise ModelError(
                f"{type(module).__name__} has {what}: it cannot run on paged keys and values"
            )
        options["is_causal"] = (
            getattr(module, "is_causal", True) if options.get("is_causal") is None else False
        )
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        return self._attend(int(layer), q, k, v, options)[None], None


def foreign_config(folder: Path) -> Any:
    """The config as transformers reads it. Raises ModelError for what is no decoder that lmprog
    could run.
    """
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # whatever its code raises, this config is not read
        raise ModelError(f"transformers does not know the model in {folder}: {error}") from error
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{folder} is an encoder-decoder ({config.model_type}); lmprog runs decoders only"
        )
    if getattr(config.get_text_config(), "quantization_config", None) or getattr(
        config, "quantization_config", None
    ):
        raise ModelError(
            f"{folder} ({config.model_type}) is quantized, which is read for the architectures of "
            "lmprog's own decoders only"
        )
    if config.model_type in _BIASED or getattr(config, "alibi", False):
        raise ModelError(
            f"{folder} ({config.model_type}) adds a bias to its scores that grows with the "
            "distance (ALiBi), which attention over pages does not have"
        )
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise ModelError(
            f"{folder} is no language model that transformers can generate with "
            f"({config.model_type})"
        )
    is_stateful = getattr(AutoModelForCausalLM._model_mapping[type(config)], "_is_stateful", False)
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ())
    if (is_stateful or kinds & _STATES) and config.model_type not in RECURRENT:
        known = ", ".join(sorted(RECURRENT))
        raise ModelError(
            f"{config.model_type} keeps a state that is not keys and values, of a kind that is not "
            f"computed yet; recurrent layers are computed of {known}"
        )
    return config


def _loaded(folder: Path, config: Any, dtype: torch.dtype, attention: str) -> Any:
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=attention,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except KeyError as error:
        if error.args != (attention,):
            raise ModelError(f"transformers cannot load {folder}: no {error}") from error
        raise ModelError(
            f"{folder} ({config.model_type}) chooses among attentions of its own, not through the "
            "attention interface of transformers: it cannot run on pages"
        ) from error
    except Exception as error:  # whatever its code raises, this model is not loaded
        raise ModelError(
            f"transformers cannot load {folder}: {type(error).__name__}: {error}"
        ) from error
    model, report = loaded
    wrong = [
        f"{kind.replace('_keys', '')} weights: {sorted(map(str, report[kind]))[:8]}"
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
        if report.get(kind)
    ]
    if wrong:
        raise ModelError(f"the weights of {folder} do not fit its config.json; " + "; ".join(wrong))
    return model.eval()


def _context_len(folder: Path, text: Any) -> int:
    """What the model was made for; shorter where keys of longer sequences would differ from those
    of shorter ones.
    """
    limit = getattr(text, "max_position_embeddings", None)
    if not isinstance(limit, int):
        raise ModelError(
            f"the config of {folder} does not say how long a context may be "
            "(max_position_embeddings)"
        )
    rope: dict[str, Any] = getattr(text, "rope_parameters", None) or {}
    nested = bool(rope) and all(
        isinstance(kind, dict) for kind in rope.values()
    )  # one set for each type of layer
    kinds: list[dict[str, Any]] = list(rope.values()) if nested else [rope]
    stated = getattr(text, "original_max_position_embeddings", None) or limit
    first = [
        int(kind.get("original_max_position_embeddings") or stated)
        for kind in kinds
        if kind.get("rope_type") in _STRETCHED
    ]
    safe = min(first, default=limit)
    if safe < limit:
        log.warning(
            "%s: %d of %d tokens of context are used; beyond, kept keys would change",
            folder,
            safe,
            limit,
        )
        return safe
    return limit


# --- what each attention layer is -----------------------------------------------------------------

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
_KINDS = frozenset({"full_attention", "sliding_attention", "attention", "hybrid"})


@dataclass(frozen=True, slots=True)
class ProbedLayer:
    attention: LayerAttention
    heads: HeadSizes
    keys: Tensor
    """The same memory where layers share keys and values."""


class Probe:
    """An attention function for a pass over exactly one token, which attends to itself alone: its
    value comes out.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[int, ProbedLayer]] = []

    @property
    def numbers(self) -> list[int]:
        """Of the layers that attend, in order."""
        return [number for number, _ in self._seen]

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]
    ) -> Tensor:
        """Notes the layer and gives its value. # [1, heads, v_dim]"""
        _refuse_options(layer, options)
        scale, window, softcap = (
            options.get(name) for name in ("scaling", "sliding_window", "softcap")
        )
        heads = HeadSizes(q.shape[1], k.shape[1], q.shape[2], v.shape[2])
        attention = LayerAttention(
            scale=float(q.shape[2] ** -0.5 if scale is None else scale),
            window=None if window is None else int(window),
            softcap=None if softcap is None else float(softcap),
            sinks=None if options.get("s_aux") is None else tuple(options["s_aux"].tolist()),
            heads=heads,
            source=self._source_of(k),
        )
        self._seen.append((layer, ProbedLayer(attention, heads, k)))
        return v.repeat_interleave(q.shape[1] // k.shape[1], dim=1)

    def _source_of(self, keys: Tensor) -> int | None:
        """The first of the layers so far that has the same keys, by its place among them."""
        for place, (_, layer) in enumerate(self._seen):
            if layer.keys.data_ptr() == keys.data_ptr():
                return place
        return None

    def layers(self, folder: Path, config: Any, others: bool = False) -> tuple[ProbedLayer, ...]:
        """All layers that attend, in order. Raises ModelError where the pass was not one attention
        in each layer, or with `others`, which are computed too, not one in some.
        """
        numbers = self.numbers
        wanted = int(config.num_hidden_layers)
        known = [number for number in range(wanted) if number in numbers or not others]
        if numbers != known or not numbers:
            raise ModelError(
                f"{folder} ({config.model_type}) has {wanted} layers, of which "
                f"{len(numbers)} attend through the "
                "attention interface of transformers: models with other layers, or with "
                "attention of their own, cannot "
                "run on pages"
            )
        layers = tuple(layer for _, layer in self._seen)
        _refuse_hidden_windows(folder, config, layers, numbers)
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


def _refuse_hidden_windows(
    folder: Path, config: Any, layers: tuple[ProbedLayer, ...], numbers: list[int]
) -> None:
    """Windows that a model would have drawn only into its masks, which are never made here."""
    kinds = list(getattr(config, "layer_types", None) or [])
    kinds = [kinds[number] for number in numbers] if kinds else []
    if strange := sorted(set(kinds) - _KINDS):
        raise ModelError(
            f"{folder} ({config.model_type}) has layers of the types {strange}, which are "
            "not supported"
        )
    if getattr(config, "attention_chunk_size", None) is not None:
        raise ModelError(
            f"{folder} ({config.model_type}) attends in chunks, which is not supported"
        )
    windowed = [layer.attention.window is not None for layer in layers]
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


# --- the comparison with its own attention --------------------------------------------------------

_COUNT = 24
_CUTS = (0, 7, 8, 9, 10, 11, 24)
"""Computed in a chunk, single tokens, another chunk: whatever is kept outside of the pages is lost
between them.
"""
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
"""Mean difference of logits, in standard deviations of the logits."""


class Checked(Protocol):
    vocab_size: int

    def attention_shape(self, kv_dtype: torch.dtype) -> AttentionShape: ...

    def forward(self, batch: Batch, attention: AttentionBackend) -> Tensor: ...

    def own_logits(self, tokens: Tensor) -> Tensor: ...


def check(model: Checked, folder: Path, dtype: torch.dtype) -> None:
    """Raises ModelError where the model on pages does not give what it gives by itself."""
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, _COUNT).astype(np.int32)
    attention = ReferenceAttention(model.attention_shape(dtype), 1, _COUNT)
    steps = [model.forward(_stretch(tokens, *cut), attention) for cut in pairwise(_CUTS)]
    own = model.own_logits(torch.from_numpy(tokens).long())
    difference = float((torch.cat(steps) - own).abs().mean() / own.std().clamp_min(1e-12))
    if not difference <= _TOLERANCE[dtype]:
        raise ModelError(
            f"{folder} computes something else on paged keys and values than by itself: its "
            "logits differ by "
            f"{difference:.2g} standard deviations. It probably keeps a state that is not "
            "keys and values"
        )


def _stretch(tokens: np.ndarray[tuple[int], np.dtype[np.int32]], start: int, end: int) -> Batch:
    """Positions `start .. end` of the only sequence, which lives in page 0; all logits are
    wanted.
    """
    positions = np.arange(start, end, dtype=np.int32)
    each = np.arange(end - start, dtype=np.int32)
    return Batch(
        tokens=tokens[start:end].copy(),
        positions=positions,
        row_starts=np.array([0, end - start], np.int32),
        kv_lens=np.array([end], np.int32),
        page_starts=np.array([0, 1], np.int32),
        pages=np.zeros(1, np.int32),
        write_tokens=each,
        write_slots=positions.copy(),
        copies=np.zeros((0, 2), np.int32),
        logit_tokens=each.copy(),
        page_size=_COUNT,
        states=RowStates(
            np.array([0 if start else NOTHING], np.int32),
            np.zeros(1, np.int32),
            np.zeros((0, 3), np.int32),
        ),
    )
