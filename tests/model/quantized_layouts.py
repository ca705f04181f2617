"""Checkpoints in the layouts of others, written by hand as the formats' own documents describe them.

Each writer rounds one weight, gives the tensors that the layout has for it, and what they mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

Array = NDArray[Any]
Written = tuple[dict[str, Any], Array]
"""Tensors by what follows the module's name, and the weight that they mean."""


@dataclass(frozen=True)
class Written4Bits:
    """Rounded weights [outputs, inputs] with zeros and scales [outputs, groups]."""

    integers: Array
    zeros: Array
    scales: Array
    groups: Array  # [inputs]

    @property
    def weight(self) -> Array:
        zeros, scales = self.zeros[:, self.groups], self.scales[:, self.groups]
        made: Array = (self.integers - zeros).astype(np.float32) * scales.astype(np.float32)
        return made


def rounded(
    weight: Array, group: int, symmetric: bool, bits: int = 4, order: Array | None = None
) -> Written4Bits:
    """`order` says which inputs follow one another in groups."""
    outputs, inputs = weight.shape
    count = inputs // group
    of = np.arange(inputs) // group
    if order is not None:
        of = np.argsort(order) // group
    top = (1 << bits) - 1
    zeros, scales = np.zeros((outputs, count), int), np.zeros((outputs, count), np.float16)
    for at in range(count):
        part = weight[:, of == at]
        if symmetric:
            zeros[:, at] = (top + 1) // 2
            scales[:, at] = np.abs(part).max(1) / (top // 2)
        else:
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scales[:, at] = (high - low) / top
            zeros[:, at] = np.clip(np.rint(-low / scales[:, at].astype(float)), 1, top)
    spread = scales[:, of].astype(float)
    integers = np.clip(np.rint(weight / spread) + zeros[:, of], 0, top).astype(int)
    return Written4Bits(integers, zeros, scales, of)


def packed(numbers: Array, bits: int, axis: int) -> torch.Tensor:
    """Unsigned numbers in words of 32 bits along `axis`, the first in the lowest bits."""
    moved = np.moveaxis(numbers, axis, -1).astype(np.uint64)
    per = 32 // bits
    parts = moved.reshape(*moved.shape[:-1], -1, per)
    words = (parts << (np.arange(per, dtype=np.uint64) * np.uint64(bits))).sum(-1)
    made = np.moveaxis(words.astype(np.uint32).view(np.int32), -1, axis)
    return torch.from_numpy(np.ascontiguousarray(made))


def tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def gptq(
    weight: Array, *, sym: bool = True, desc_act: bool = False, bits: int = 4, plus_one: bool = True
) -> Written:
    inputs = weight.shape[1]
    order = np.random.default_rng(0).permutation(inputs) if desc_act else None
    given = rounded(weight, 32, sym, bits, order)
    return {
        "qweight": packed(given.integers.T, bits, 0),
        "qzeros": packed(given.zeros.T - plus_one, bits, 1),
        "scales": tensor(given.scales.T),
        "g_idx": tensor(given.groups.astype(np.int32)),
    }, given.weight


def awq(weight: Array, *, zero_point: bool = True) -> Written:
    given = rounded(weight, 32, not zero_point)

    def words(numbers: Array) -> torch.Tensor:
        eights = numbers.reshape(len(numbers), -1, 8)
        return packed(eights[..., [0, 2, 4, 6, 1, 3, 5, 7]].reshape(len(numbers), -1), 4, 1)

    return {
        "qweight": words(given.integers.T),
        "qzeros": words(given.zeros.T),
        "scales": tensor(given.scales.T),
    }, given.weight


def pack_quantized(weight: Array, *, symmetric: bool = True, bits: int = 4) -> Written:
    given = rounded(weight, 32, symmetric, bits)
    tensors = {
        "weight_packed": packed(given.integers, bits, 1),
        "weight_scale": tensor(given.scales).bfloat16(),
        "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        tensors["weight_zero_point"] = packed(given.zeros, bits, 0)
    kept = tensors["weight_scale"].float().numpy()
    return tensors, Written4Bits(given.integers, given.zeros, kept, given.groups).weight


def int_quantized(weight: Array) -> Written:
    """Rows with a scale each: the same as our int8."""
    scale = (np.abs(weight).max(1, keepdims=True) / 90).astype(np.float32)
    integers = np.rint(weight / scale).astype(np.int8)
    return {"weight": tensor(integers), "weight_scale": tensor(scale)}, integers * scale


def float8(weight: Array, *, block: int | None = None, per_row: bool = False) -> Written:
    exact = torch.from_numpy(weight)
    outputs, inputs = weight.shape
    if block is not None:
        down, across = -(-outputs // block), -(-inputs // block)
        scale = torch.rand(down, across) + 0.5
        spread = scale.repeat_interleave(block, 0)[:outputs].repeat_interleave(block, 1)
        spread, name = spread[:, :inputs], "weight_scale_inv"
    else:
        scale = torch.rand(outputs, 1) + 0.5 if per_row else torch.tensor(0.37)
        spread, name = scale, "weight_scale"
    stored = (exact / spread).to(torch.float8_e4m3fn)
    further = {} if block else {"input_scale": torch.tensor(1.0)}
    return {"weight": stored, name: scale} | further, (stored.float() * spread).numpy()


@dataclass(frozen=True)
class Format:
    """A layout: its `quantization_config`, and how a weight is written."""

    config: dict[str, Any]
    write: Callable[..., Written]
    options: dict[str, Any] = field(default_factory=dict)


def _compressed(kind: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"symmetric": True, **weights}}
    described = {"quant_method": "compressed-tensors", "format": kind, "ignore": ["lm_head"]}
    return described | {"config_groups": {"group_0": group}}


_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
_INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
_FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
FORMATS = {
    "gptq": Format(_GPTQ, gptq),
    "gptq-asymmetric-ordered": Format(
        _GPTQ | {"sym": False, "desc_act": True}, gptq, {"sym": False, "desc_act": True}
    ),
    "gptq-8-bits": Format(_GPTQ | {"bits": 8}, gptq, {"bits": 8}),
    "gptq-v2": Format(_GPTQ | {"checkpoint_format": "gptq_v2"}, gptq, {"plus_one": False}),
    "awq": Format(_AWQ, awq),
    "awq-symmetric": Format(_AWQ | {"zero_point": False}, awq, {"zero_point": False}),
    "compressed-int4": Format(_compressed("pack-quantized", **_INT4), pack_quantized),
    "compressed-int4-asymmetric": Format(
        _compressed("pack-quantized", **_INT4 | {"symmetric": False}),
        pack_quantized,
        {"symmetric": False},
    ),
    "compressed-int8-packed": Format(
        _compressed("pack-quantized", **_INT4 | {"num_bits": 8}), pack_quantized, {"bits": 8}
    ),
    "compressed-int8": Format(_compressed("int-quantized", **_INT8), int_quantized),
    "compressed-float8": Format(
        _compressed("float-quantized", **_FLOAT8), float8, {"per_row": True}
    ),
    "fp8-blocks": Format(
        {"quant_method": "fp8", "weight_block_size": [48, 48]}, float8, {"block": 48}
    ),
    "fp8": Format({"quant_method": "fp8", "activation_scheme": "static"}, float8),
}


def rewrite(plain: Path, to: Path, meant: Path, how: Format) -> None:
    """Writes the checkpoint `plain` in the layout to `to`, and what that means to `meant`."""
    config = json.loads((plain / "config.json").read_text())
    given, tensors, weights = load_file(plain / "model.safetensors"), {}, {}
    torch.manual_seed(1)
    for name, weight in given.items():
        module = name.removesuffix(".weight")
        if not module.endswith("_proj") or name == module:
            tensors[name] = weights[name] = weight
            continue
        written, means = how.write(weight.numpy(), **how.options)
        tensors |= {f"{module}.{kind}": part for kind, part in written.items()}
        weights[name] = tensor(means.astype(np.float32))
    for folder, contents, further in (
        (to, tensors, {"quantization_config": how.config}),
        (meant, weights, {}),
    ):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config | further))
        save_file(contents, folder / "model.safetensors")


def rewrite_in_mxfp4(source: Path, quantized: Path, meant: Path) -> None:
    """A GPT-OSS with random experts of 4 bits, and the same in float32."""
    halves = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    draw = np.random.default_rng(4)
    stored, plain = load_file(source / "model.safetensors"), {}
    for name in [name for name in stored if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = stored.pop(name).shape
        blocks = draw.integers(0, 256, (experts, outputs, inputs // 32, 16), dtype=np.uint8)
        powers = draw.integers(121, 125, (experts, outputs, inputs // 32), dtype=np.uint8)
        stored[f"{name}_blocks"] = torch.from_numpy(blocks)
        stored[f"{name}_scales"] = torch.from_numpy(powers)
        pairs = np.stack((halves[blocks & 15], halves[blocks >> 4]), -1)
        numbers = pairs.reshape(experts, outputs, -1, 32) * 2.0 ** (powers[..., None] - 127.0)
        whole = numbers.reshape(experts, outputs, inputs).transpose(0, 2, 1)
        plain[name] = torch.from_numpy(np.ascontiguousarray(whole, np.float32))
    config = json.loads((source / "config.json").read_text())
    plain |= {name: part for name, part in stored.items() if part.dtype == torch.float32}
    for folder, contents, further in (
        (quantized, stored, {"quantization_config": {"quant_method": "mxfp4"}}),
        (meant, plain, {}),
    ):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config | further))
        save_file(contents, folder / "model.safetensors")
