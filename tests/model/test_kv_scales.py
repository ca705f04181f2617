"""Scales of keys and values as checkpoints of others name them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lmprog.errors import ModelError
from lmprog.runtime.engine.attention.backend import kept_scales


def checkpoint(folder: Path, **tensors: torch.Tensor) -> Path:
    """Names stand behind a layer's number: {"0_k_scale": ...}."""
    named = {}
    for name, tensor in tensors.items():
        layer, _, rest = name.removeprefix("of_").partition("_")
        named[f"model.layers.{layer}.self_attn.{rest.replace('__', '.')}"] = tensor
    save_file({"model.norm.weight": torch.ones(4), **named}, folder / "model.safetensors")
    return folder


def one(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor([value], dtype=dtype)


def test_each_layer_has_its_own(tmp_path: Path) -> None:
    """Keys as compressed-tensors names them, values as ModelOpt does."""
    scale = torch.tensor(0.25)
    folder = checkpoint(
        tmp_path,
        of_0_k_scale=one(0.5),
        of_1_k_scale=one(3.0, torch.bfloat16),
        of_0_v_proj__v_scale=scale,
        of_1_v_proj__v_scale=one(0.125, torch.float16),
    )
    found = kept_scales(folder, 2)
    assert (found.keys, found.values) == ((0.5, 3.0), (0.25, 0.125))


def test_one_of_both_serves_both(tmp_path: Path) -> None:
    found = kept_scales(checkpoint(tmp_path, of_0_kv_scale=one(0.5)), 1)
    assert (found.keys, found.values) == ((0.5,), (0.5,))


def test_without_any_they_are_one(tmp_path: Path) -> None:
    for location in (None, checkpoint(tmp_path)):
        found = kept_scales(location, 3)
        assert (found.keys, found.values) == ((1.0,) * 3, (1.0,) * 3)


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.ones(2), "has 2 scales; one for all heads of a layer is read"),
        (one(0.0), r"is 0\.0; a scale is positive"),
        (one(float("nan")), "is nan; a scale is positive"),
        (torch.tensor([3], dtype=torch.int32), "is of the type I32; a float is read"),
    ],
)
def test_what_is_no_scale_is_refused(tmp_path: Path, tensor: torch.Tensor, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        kept_scales(checkpoint(tmp_path, of_0_k_scale=tensor), 1)


def test_a_layer_without_one_is_named(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, of_0_v_scale=one(1.0), of_2_v_scale=one(1.0))
    with pytest.raises(ModelError, match="v_scale for 2 layers, not for layer 1"):
        kept_scales(folder, 3)
