"""Any decoder of transformers on our pages: its own code computes everything but attention.

Transformers lets a model call an attention function by name. Ours hands queries, keys and values to
the backend, so that no mask and no cache of its own is made. What a backend must know beforehand
(heads, scale, window, bound of every layer) is learnt from a pass over one token. Architectures
that keep more than keys and values (state spaces, convolutions, sinks) are refused by name where
they show themselves, and otherwise by `selfcheck`, which compares what comes out of our pages with
the model's own attention. Code from a repository is never run.

The one module that imports transformers; the native decoder does without it.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from lmprog.errors import ModelError
from lmprog.runtime.engine.attention.backend import AttentionBackend, AttentionShape, LayerAttention
from lmprog.runtime.engine.torch_engine.probe import Probe, ProbedLayer
from lmprog.runtime.scheduling.batch import Batch

log = logging.getLogger("lmprog")

_STRETCHED = frozenset({"longrope"})
"""Rope types whose keys change once a sequence grows past the first context; up to there they are
the same for all.
"""


_BIASED = frozenset({"bloom", "mpt"})
"""Architectures whose scores have a bias by distance, always."""


class _Attend(Protocol):
    """What an attention layer of the model is given: one sequence that holds all tokens of the
    step.
    """

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]
    ) -> Tensor: ...


class Fallback:
    """A model of transformers. `forward` keeps nothing: all state is in the backend's pages."""

    def __init__(self, folder: Path, config: Any, dtype: torch.dtype) -> None:
        self.name = f"lmprog_{id(self)}"
        AttentionInterface.register(self.name, self._function)
        self._attend: _Attend | None = None
        self.model = _loaded(folder, config, dtype, self.name)
        text = config.get_text_config()
        self.vocab_size = int(text.vocab_size)
        self._picks_logits = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        self._layers = self._probed(folder, text)
        self.context_len = _context_len(folder, text)
        self.num_weights = sum(weight.numel() for weight in self.model.parameters())

    def _probed(self, folder: Path, text: Any) -> tuple[ProbedLayer, ...]:
        """The attention of every layer, learnt by computing one token."""
        probe, zero = Probe(), torch.zeros(1, dtype=torch.int64)
        try:
            with self._attending(probe):
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
        return probe.layers(folder, text)

    def attention_shape(self, kv_dtype: torch.dtype) -> AttentionShape:
        first = self._layers[0]
        return AttentionShape(
            layers=tuple(
                LayerAttention(layer.scale, layer.window, layer.softcap, layer.sinks)
                for layer in self._layers
            ),
            num_heads=first.num_heads,
            num_kv_heads=first.num_kv_heads,
            head_dim=first.head_dim,
            v_head_dim=first.v_head_dim,
            dtype=kv_dtype,
        )

    def forward(self, batch: Batch, attention: AttentionBackend) -> Tensor:
        """Logits of the tokens that `batch` wants. # [L, vocab] float32"""
        attention.plan(batch)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
            return attention.run(layer, q, k, v)

        with self._attending(attend):
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
    return config


def _loaded(folder: Path, config: Any, dtype: torch.dtype, attention: str) -> Any:
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise ModelError(
            f"{folder} is no language model that transformers can generate with "
            f"({config.model_type})"
        )
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
    if getattr(model, "_is_stateful", False):
        raise ModelError(
            f"{config.model_type} keeps a state that is not keys and values: it cannot share "
            "prefixes"
        )
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
