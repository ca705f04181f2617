"""What config.json says of how a checkpoint's weights were quantized, and what they become here.

Knows the fields of `quantization_config`; the layouts of tensors are those of `stored_weights`.
What is not understood as a whole is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lmprog.errors import ModelError

WeightType = Literal["int8", "int4"]
Layout = Literal["gptq", "awq", "compressed", "fp8", "mxfp4"]


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the quantized weights of a checkpoint lie."""

    layout: Layout
    bits: int = 4
    """gptq, awq: of a weight."""
    zeros_plus_one: bool = False
    """gptq: zero points are stored less one."""
    block: tuple[int, int] | None = None
    """Of 8-bit floats: rows and columns that share a scale; None: one scale, or one a row."""
    weight_type: WeightType | None = None
    """What products are computed in where nothing else is asked for; None: as for a checkpoint that
    is not quantized. int4 only where our groups of 32 hold exactly the same numbers."""


def read_quantization(config: Mapping[str, Any]) -> Quantization | None:
    """None for a checkpoint that is not quantized. Raises ModelError for what is not read."""
    described = config.get("quantization_config") or config.get("compression_config")
    if not described:
        return None
    if not isinstance(described, Mapping):
        raise ModelError("config.json: quantization_config must be an object")
    method = str(described.get("quant_method"))
    if method not in _METHODS:
        raise ModelError(
            f"the checkpoint is quantized as {method!r} (quantization_config.quant_method); lmprog "
            f"reads {', '.join(_METHODS)}"
        )
    return _METHODS[method](described)


def _refused(what: str) -> ModelError:
    return ModelError(f"a quantized checkpoint with {what} is not supported")


def _bits(described: Mapping[str, Any], allowed: tuple[int, ...]) -> int:
    bits = described.get("bits")
    if bits not in allowed:
        raise _refused(f"bits = {bits!r} ({described['quant_method']})")
    return int(bits)


def _group(described: Mapping[str, Any]) -> int:
    group = described.get("group_size", 128)
    if isinstance(group, bool) or not isinstance(group, int) or (group < 1 and group != -1):
        raise _refused(f"group_size = {group!r}")
    return group


def _fits_ours(group: int) -> bool:
    return group == -1 or group % 32 == 0


def _gptq(described: Mapping[str, Any]) -> Quantization:
    bits, group = _bits(described, (4, 8)), _group(described)
    kind = described.get("checkpoint_format", "gptq")
    if kind not in ("gptq", "gptq_v2"):
        raise _refused(f"checkpoint_format = {kind!r} (gptq)")
    for field in ("dynamic", "lm_head"):
        if described.get(field):
            raise _refused(f"{field} = {described[field]!r} (gptq)")
    is_same = bits == 4 and _fits_ours(group) and bool(described.get("sym"))
    is_same = is_same and not described.get("desc_act")
    return Quantization("gptq", bits, kind == "gptq", weight_type="int4" if is_same else "int8")


def _awq(described: Mapping[str, Any]) -> Quantization:
    bits, group = _bits(described, (4,)), _group(described)
    version = str(described.get("version", "gemm")).lower()
    if version != "gemm":
        raise _refused(f"version = {described['version']!r} (awq)")
    is_same = _fits_ours(group) and not described.get("zero_point", True)
    return Quantization("awq", bits, weight_type="int4" if is_same else "int8")


_COMPRESSED = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense")


def _compressed(described: Mapping[str, Any]) -> Quantization:
    if (kind := described.get("format")) not in _COMPRESSED:
        raise _refused(f"format = {kind!r} (compressed-tensors)")
    if described.get("sparsity_config"):
        raise _refused("sparsity_config (compressed-tensors)")
    if described.get("transform_config"):
        raise _refused("transform_config (compressed-tensors)")
    groups = [
        group.get("weights") or {} for group in (described.get("config_groups") or {}).values()
    ]
    for weights in groups:
        if (weights.get("type"), weights.get("num_bits")) not in _COMPRESSED_TYPES:
            what = f"weights of {weights.get('num_bits')!r} bits of type {weights.get('type')!r}"
            raise _refused(f"{what} (compressed-tensors)")
    if any(weights["type"] == "float" for weights in groups) or not groups:
        blocks = {str(weights.get("block_structure")) for weights in groups}
        block = groups[0].get("block_structure") if groups else None
        if len(blocks) > 1:
            raise _refused(f"blocks of several sizes: {', '.join(sorted(blocks))}")
        return Quantization("compressed", block=_block(block, "block_structure"))
    is_same = all(_is_ours(weights) for weights in groups)
    return Quantization("compressed", weight_type="int4" if is_same else "int8")


_COMPRESSED_TYPES = (("int", 4), ("int", 8), ("float", 8))


def _is_ours(weights: Mapping[str, Any]) -> bool:
    group = weights.get("group_size") or -1
    is_ordered = weights.get("actorder") in (None, False, "weight", "static")
    symmetric = weights.get("symmetric", True)
    return weights["num_bits"] == 4 and symmetric and _fits_ours(group) and is_ordered


def _fp8(described: Mapping[str, Any]) -> Quantization:
    if (kind := described.get("fmt", "e4m3")) not in ("e4m3", "float8_e4m3fn", "float8"):
        raise _refused(f"fmt = {kind!r} (fp8)")
    block = described.get("weight_block_size")
    return Quantization("fp8", block=_block(block, "weight_block_size"))


def _block(block: Any, field: str) -> tuple[int, int] | None:
    if block is None:
        return None
    is_pair = isinstance(block, list) and len(block) == 2
    if not is_pair or not all(type(size) is int and size > 0 for size in block):
        raise _refused(f"{field} = {block!r}")
    return block[0], block[1]


def _mxfp4(described: Mapping[str, Any]) -> Quantization:
    return Quantization("mxfp4", weight_type="int8")


_METHODS: Mapping[str, Callable[[Mapping[str, Any]], Quantization]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed,
    "fp8": _fp8,
    "mxfp4": _mxfp4,
}
