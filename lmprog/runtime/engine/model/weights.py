"""Reads a checkpoint's safetensors files: which there are, what they must hold, and what is wrong
with them.

Files are memory-mapped and read one layer at a time, so that the peak is the model plus one layer.
Every name, size and type is checked before anything is read. Pickled checkpoints (`.bin`) are
refused: reading them runs their code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lmprog.errors import ModelError
from lmprog.runtime.engine.model.decoder import Weights
from lmprog.runtime.engine.model.fusing import fused
from lmprog.runtime.engine.model.shape import ModelShape

_TYPES = frozenset({"F32", "BF16", "F16"})
_SHOWN = 8
"""Names in an error message; more are counted."""


class Checkpoint:
    """The open safetensors files of one folder. A context manager; tensors that it gave out stay
    valid.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._file_of: dict[str, Any] = {}
        for path in checkpoint_files(folder):
            try:
                opened = self._stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                self._stack.close()
                raise ModelError(f"{path} is no readable safetensors file: {error}") from error
            for name in opened.keys():  # noqa: SIM118 (a safetensors file is no mapping)
                if name in self._file_of:
                    self._stack.close()
                    raise ModelError(f"the weight {name} is in two files of {folder}")
                self._file_of[name] = opened

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def names(self) -> set[str]:
        return set(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file_of[name].get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """As safetensors spells it: F32, BF16, F16, I8 ..."""
        kind: str = self._file_of[name].get_slice(name).get_dtype()
        return kind

    def read(self, name: str) -> Tensor:
        try:
            tensor: Tensor = self._file_of[name].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"the weight {name} of {self.folder} cannot be read: {error}"
            ) from error
        return tensor


def checkpoint_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint: those its index names, else the only ones there
    are.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelError(f"{index} is malformed: {type(error).__name__}: {error}") from error
        absent = [name for name in names if not (folder / name).is_file()]
        if absent:
            raise ModelError(f"{index} names files that are not there: {_listed(absent)}")
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if files:
        return files
    if list(folder.glob("*.bin")) or list(folder.glob("*.pt")) or list(folder.glob("*.pth")):
        raise ModelError(
            f"{folder} has its weights as pickled files (.bin, .pt), which lmprog does not read: unpickling runs code "
            "from the file. Save them as safetensors, with save_pretrained of transformers for example."
        )
    raise ModelError(f"{folder} has no weights: no model.safetensors and no index of one")


def load_weights(
    folder: Path, shape: ModelShape, dtype: torch.dtype, progress: bool | None = None
) -> Weights:
    """The weights of `folder` as `dtype`. `progress` shows a bar; None: on a terminal, if it takes
    long.
    """
    with Checkpoint(folder) as checkpoint:
        wanted = expected(shape)
        _check(checkpoint, wanted, shape)
        return fused(shape, dtype, checkpoint.read, progress)


def random_weights(shape: ModelShape, dtype: torch.dtype, seed: int) -> Weights:
    """Weights drawn from `seed`: a model that computes like any other and says nothing sensible."""
    generator = torch.Generator().manual_seed(seed)
    wanted = expected(shape)

    def read(name: str) -> Tensor:
        size = wanted[name]
        if name.endswith("norm.weight"):
            return torch.ones(size)
        return torch.randn(size, generator=generator) * (
            1.0 if len(size) == 1 else size[-1] ** -0.5
        )

    return fused(shape, dtype, read, progress=False)


def expected(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Every weight that a checkpoint of this shape has, with its size."""
    hidden, inner, dim = shape.hidden, shape.inner, shape.head_dim
    q, kv = shape.num_heads * dim, shape.num_kv_heads * dim
    products = {
        "self_attn.q_proj": (q, hidden, shape.qkv_bias),
        "self_attn.k_proj": (kv, hidden, shape.qkv_bias),
        "self_attn.v_proj": (kv, hidden, shape.qkv_bias),
        "self_attn.o_proj": (hidden, q, shape.out_bias),
        "mlp.gate_proj": (inner, hidden, shape.mlp_bias),
        "mlp.up_proj": (inner, hidden, shape.mlp_bias),
        "mlp.down_proj": (hidden, inner, shape.mlp_bias),
    }
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not shape.tied_head:
        found["lm_head.weight"] = (shape.vocab_size, hidden)
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}."
        for name, (rows, columns, bias) in products.items():
            found[f"{prefix}{name}.weight"] = (rows, columns)
            if bias:
                found[f"{prefix}{name}.bias"] = (rows,)
        found[f"{prefix}input_layernorm.weight"] = (hidden,)
        found[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
        if shape.qk_norm:
            found[f"{prefix}self_attn.q_norm.weight"] = (dim,)
            found[f"{prefix}self_attn.k_norm.weight"] = (dim,)
    return found


def _check(
    checkpoint: Checkpoint, wanted: Mapping[str, tuple[int, ...]], shape: ModelShape
) -> None:
    """All that is wrong, in one error."""
    there = checkpoint.names
    if shape.tied_head:
        there = there - {"lm_head.weight"}  # some tools save the tied head a second time
    there = {
        name for name in there if not name.endswith("rotary_emb.inv_freq")
    }  # derived, and saved by old tools
    wrong = []
    if missing := sorted(set(wanted) - there):
        wrong.append(f"missing weights: {_listed(missing)}")
    if surplus := sorted(there - set(wanted)):
        wrong.append(f"weights that the config does not explain: {_listed(surplus)}")
    both = sorted(there & set(wanted))
    sizes = [
        f"{name} is {list(checkpoint.shape(name))} instead of {list(wanted[name])}"
        for name in both
        if checkpoint.shape(name) != wanted[name]
    ]
    if sizes:
        wrong.append(f"wrong sizes: {_listed(sizes)}")
    types = [
        f"{name} is {checkpoint.dtype(name)}"
        for name in both
        if checkpoint.dtype(name) not in _TYPES
    ]
    if types:
        wrong.append(f"types other than F32, BF16 and F16: {_listed(types)}")
    if wrong:
        raise ModelError(
            f"the weights of {checkpoint.folder} do not fit its config.json; " + "; ".join(wrong)
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
