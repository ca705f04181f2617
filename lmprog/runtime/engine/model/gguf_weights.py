"""The tensors of a GGUF file as the weights of a checkpoint: by the names and in the order of rows
that other checkpoints have.

Quantized ones are given as float32, a few rows at a time. A block holds 32 or 256 numbers of a row:
small whole numbers, and what they are multiplied with (and, in some types, what is taken off).
Llama's queries and keys lie in GGUF with the two halves of each head interleaved; they are given as
they were. Knows names and blocks; what the file says of the model is `documents`'s.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmprog import linux
from lmprog.errors import ModelError
from lmprog.runtime.documents.checkpoint_documents import config_of, usual_type
from lmprog.runtime.documents.gguf_file import BLOCKS, GgufFile, GgufTensor, gguf_file
from lmprog.runtime.engine.model.checkpoint import check_weights
from lmprog.runtime.engine.model.mixture import ExpertNames
from lmprog.runtime.engine.model.quantization import WeightType

_TYPES: Mapping[str, type[np.generic]] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INNER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS_BEHIND = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_FURTHER = {
    "gemma": _NORMS_BEHIND | {"ffn_norm": "pre_feedforward_layernorm"},
    "olmo2": _NORMS_BEHIND,
    "qwen2_moe": {
        "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
        "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
        "ffn_up_shexp": "mlp.shared_expert.up_proj",
        "ffn_down_shexp": "mlp.shared_expert.down_proj",
    },
    "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "gpt_oss": {"post_attention_norm": "post_attention_layernorm"},
}
"""What is called otherwise in an architecture, or is there only."""
_STACKS = {"ffn_gate_exps": "gate", "ffn_up_exps": "up", "ffn_down_exps": "down"}
_LAYER = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)")
_INTERLEAVED = frozenset({"llama", "mistral", "mixtral", "smollm3", "granite"})
_EXPERTS = {
    "mixtral": ExpertNames("block_sparse_moe", gate="w1", up="w3", down="w2"),
    "qwen2_moe": ExpertNames(),
    "qwen3_moe": ExpertNames(),
    "olmoe": ExpertNames(),
    "gpt_oss": ExpertNames(router="router"),
}
_SINKS = "attn_sinks"
"""Numbers of a layer that are called weights here only."""
_SHARE = "ffn_gate_inp_shexp"


class GgufCheckpoint:
    """The weights of one file. Arrays that it gave out stay valid."""

    def __init__(self, path: Path) -> None:
        self._file: GgufFile = gguf_file(path)
        config = config_of(self._file)
        kind = str(config["model_type"])
        self._head_dim = int(config["head_dim"])
        self._is_interleaved = kind in _INTERLEAVED
        self._norms_are_raised = kind.startswith("gemma")
        self._tensors: dict[str, GgufTensor] = {}
        for own, tensor in self._file.tensors.items():
            if own == "rope_freqs.weight":
                continue  # a part of the config
            for name, part in _usual_tensors(own, tensor, kind):
                if name in self._tensors:
                    raise ModelError(f"{path.name} has the weight {name} twice")
                self._tensors[name] = part

    @property
    def names(self) -> set[str]:
        return set(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    @property
    def folder(self) -> Path:
        """The file itself, which a folder is elsewhere."""
        return self._file.path

    def unread_types(self, names: Set[str]) -> list[str]:
        """None: a file with another type is not opened."""
        return []

    def check(self, wanted: Mapping[str, tuple[int, ...]], tied_head: bool) -> None:
        """Raises ModelError unless exactly `wanted` is there."""
        check_weights(self._file.path, {name: self.shape(name) for name in self.names}, wanted)

    def number_type(self, name: str) -> np.dtype[Any]:
        """Of `array` and `rows`; quantized weights are given as float32."""
        return np.dtype(_TYPES.get(self._tensors[name].kind, np.float32))

    def array(self, name: str) -> NDArray[Any]:
        """The whole weight."""
        shape = self.shape(name)
        if len(shape) == 1:
            numbers = self._stored(name, 0, 1)
            if self._norms_are_raised and name.endswith("norm.weight"):
                numbers = numbers - numbers.dtype.type(1)  # Gemma keeps distances from 1
            return self._usual_order(name, numbers.reshape(shape), 0, shape[0])
        return self.rows(name, 0, shape[0])

    def rows(self, name: str, first: int, end: int) -> NDArray[Any]:
        """Rows `first .. end` of a matrix."""
        if not self._is_out_of_order(name):
            return self._stored(name, first, end)
        # Whole heads, of which the rows that are wanted are taken.
        begin = first // self._head_dim * self._head_dim
        stop = min(-(-end // self._head_dim) * self._head_dim, self.shape(name)[0])
        numbers = self._stored(name, begin, stop)
        return self._usual_order(name, numbers, first - begin, end - begin)

    def release(self, name: str, first: int, end: int) -> None:
        """Lets the system take back the memory that holds these rows."""
        tensor = self._tensors[name]
        row, page = (tensor.end - tensor.start) // tensor.shape[0], mmap.PAGESIZE
        start, stop = (-(-(tensor.start + row * at) // page) * page for at in (first, end))
        stop = min(stop, len(tensor.memory) // page * page)
        if stop > start:
            linux.forget_pages(tensor.memory, start, stop - start)

    def _stored(self, name: str, first: int, end: int) -> NDArray[Any]:
        """Rows as the file has them; a vector is one row."""
        tensor = self._tensors[name]
        columns = tensor.shape[-1]
        numbers, size = BLOCKS[tensor.kind]
        row = columns // numbers * size
        start = tensor.start + first * row
        raw = np.frombuffer(tensor.memory, np.uint8, (end - first) * row, start)
        if tensor.kind in _TYPES:
            return raw.view(_TYPES[tensor.kind]).reshape(end - first, columns)
        return block_numbers(tensor.kind, raw.reshape(-1, size)).reshape(end - first, columns)

    def _is_out_of_order(self, name: str) -> bool:
        projects = ".self_attn.q_proj." in name or ".self_attn.k_proj." in name
        return self._is_interleaved and projects

    def _usual_order(self, name: str, stored: NDArray[Any], first: int, end: int) -> NDArray[Any]:
        """Rows first .. end of whole heads: first all even rows of a head, then all odd ones."""
        if not self._is_out_of_order(name):
            return stored
        row = np.arange(first, end)
        head, inner = row // self._head_dim, row % self._head_dim
        half = self._head_dim // 2
        return np.ascontiguousarray(
            stored[head * self._head_dim + inner % half * 2 + inner // half]
        )


def mostly_quantized(path: Path) -> WeightType | None:
    """The type of products for a file whose matrices are mostly quantized, None for others.

    Q4_0 is int4 as the engine has it; what is finer becomes int8.
    """
    kind = usual_type(gguf_file(path))
    return None if kind in _TYPES else "int4" if kind == "Q4_0" else "int8"


def _usual_tensors(
    own: str, tensor: GgufTensor, model_type: str
) -> Iterator[tuple[str, GgufTensor]]:
    """A tensor by its name in other checkpoints; unknown ones keep theirs, and are refused by name.
    All experts of a layer are one tensor here, and one each there.
    """
    found = _LAYER.fullmatch(own)
    if found is None:
        yield _OUTER.get(own, own), tensor
        return
    prefix, kind, end = f"model.layers.{int(found[1])}.", found[2], found[3]
    experts = _EXPERTS.get(model_type)
    stacked = {"weight": 3, "bias": 2}[end]
    if experts is not None and kind in _STACKS and len(tensor.shape) == stacked:
        for expert, part in enumerate(tensor.parts()):
            yield prefix + experts.of_expert(expert, _STACKS[kind], end), part
    elif kind == _SHARE and len(tensor.shape) == 1:  # a matrix of one row
        yield (
            f"{prefix}{_FURTHER['qwen2_moe'][kind]}.weight",
            replace(tensor, shape=(1, *tensor.shape)),
        )
    elif kind == _SINKS and end == "weight":
        yield f"{prefix}self_attn.sinks", tensor
    elif experts is not None and kind == "ffn_gate_inp":
        yield prefix + experts.of_router(end), tensor
    else:
        family = "gemma" if model_type.startswith("gemma") else model_type
        names = _INNER | _FURTHER.get(family, {})
        yield (f"{prefix}{names[kind]}.{end}" if kind in names else own), tensor


# --- blocks ---------------------------------------------------------------------------------------

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def _halves(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block. # [blocks, 1]"""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """The low halves of all bytes, then the high ones. # [.., n] -> [.., 2 n]"""
    return np.concatenate((packed & np.uint8(15), packed >> np.uint8(4)), -1)


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """Bit i of the four bytes at `at`, for each of 32 numbers, as 16. # [blocks, 32]"""
    bits = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    return bits << np.uint8(4)


def _q8_0(blocks: Bytes) -> Floats:
    return _halves(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _halves(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _halves(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _halves(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    whole = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return _halves(blocks, 0) * (whole.astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    whole = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _halves(blocks, 0) * whole.astype(np.float32) + _halves(blocks, 2)


def _scales_of_eight(packed: Bytes) -> tuple[Floats, Floats]:
    """Eight scales and eight minima of six bits each, out of twelve bytes. # [blocks, 8] each"""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate((low & 63, (high & 15) | (low >> 6 << 4)), 1)
    minima = np.concatenate((middle & 63, (high >> 4) | (middle >> 6 << 4)), 1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _scaled_eights(blocks: Bytes, whole: NDArray[np.uint8]) -> Floats:
    """`whole` has eight groups of 32 numbers a block; each has a scale and a minimum."""
    scales, minima = _scales_of_eight(blocks[:, 4:16])
    by = (_halves(blocks, 0) * scales)[..., None]
    less = (_halves(blocks, 2) * minima)[..., None]
    return (by * whole.astype(np.float32) - less).reshape(len(blocks), 256)


def _q4_k(blocks: Bytes) -> Floats:
    return _scaled_eights(blocks, _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32))


def _q5_k(blocks: Bytes) -> Floats:
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    fifth = (blocks[:, None, 16:48] >> shifts & np.uint8(1)) << np.uint8(
        4
    )  # bit g of each byte: group g
    return _scaled_eights(blocks, low | fifth)


_SHIFTS = (2 * np.arange(4, dtype=np.uint8))[:, None]


def _pairs(packed: Bytes) -> Bytes:
    """Numbers of two bits: of each 32 bytes the lowest pairs, then the next ones. # [blocks, 64] ->
    [blocks, 16, 16]
    """
    return (packed.reshape(-1, 2, 1, 32) >> _SHIFTS & np.uint8(3)).reshape(-1, 16, 16)


def _q2_k(blocks: Bytes) -> Floats:
    both = blocks[:, :16]  # of 16 groups of 16 numbers: scales in the low halves, minima above
    by = (_halves(blocks, 80) * (both & 15).astype(np.float32))[..., None]
    less = (_halves(blocks, 82) * (both >> 4).astype(np.float32))[..., None]
    whole = _pairs(blocks[:, 16:80]).astype(np.float32)
    return (by * whole - less).reshape(len(blocks), 256)


def _q3_k(blocks: Bytes) -> Floats:
    # A third bit for each number: bit g of 32 bytes for group g of 32 numbers; set: not less by 4.
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    third = (blocks[:, None, :32] >> shifts & 1).reshape(-1, 16, 16).astype(np.float32)
    whole = _pairs(blocks[:, 32:96]).astype(np.float32) + 4 * third - 4
    high = (blocks[:, None, 104:108] >> _SHIFTS & 3).reshape(-1, 16) << 4
    scales = (_nibbles(blocks[:, 96:104]) | high).astype(np.float32) - 32
    return ((_halves(blocks, 108) * scales)[..., None] * whole).reshape(len(blocks), 256)


def _q6_k(blocks: Bytes) -> Floats:
    # Two halves of 128: 64 bytes of low bits, 32 of high pairs, 8 scales of 16 numbers each.
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> _SHIFTS & 3) << 4
    whole = (low | high).reshape(-1, 16, 16).astype(np.float32) - 32
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return ((_halves(blocks, 208) * scales)[..., None] * whole).reshape(len(blocks), 256)


_QUARTERS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""Twice the numbers of four bits: a sign, two bits of exponent and one of fraction."""


_UNEVEN = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
"""What the four bits of the types "IQ4" mean."""


def _iq4_nl(blocks: Bytes) -> Floats:
    return _halves(blocks, 0) * _UNEVEN[_nibbles(blocks[:, 2:])]


def _iq4_xs(blocks: Bytes) -> Floats:
    # Eight groups of 32 numbers, whose scales have four low bits here and two high ones there.
    low = (blocks[:, 4:8, None] >> np.array([0, 4], np.uint8) & 15).reshape(-1, 8)
    high = (blocks[:, 2:4, None] >> _SHIFTS[:, 0] & 3).reshape(-1, 8) << 4
    scales = (low | high).astype(np.float32) - 32
    whole = _UNEVEN[_nibbles(blocks[:, 8:].reshape(-1, 8, 16))]
    return ((_halves(blocks, 0) * scales)[..., None] * whole).reshape(len(blocks), 256)


def _mxfp4(blocks: Bytes) -> Floats:
    powers = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return powers * _QUARTERS[_nibbles(blocks[:, 1:])]


_READERS: Mapping[str, Callable[[Bytes], Floats]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}


def block_numbers(kind: str, blocks: Bytes) -> Floats:
    """The numbers of whole blocks. # [blocks, bytes of one] -> [blocks, numbers of one]"""
    return _READERS[kind](np.ascontiguousarray(blocks))
