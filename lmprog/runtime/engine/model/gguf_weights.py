"""The tensors of a GGUF file as the weights of a checkpoint: by the names and in the order of rows
that other checkpoints have.

Quantized ones are given as float32, a few rows at a time. Llama's queries and keys lie in GGUF with
the two halves of each head interleaved; they are given as they were. Knows names and blocks; what
the file says of the model is `documents.gguf_config`'s.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmprog.errors import ModelError
from lmprog.runtime.documents.gguf_config import config_of, usual_type
from lmprog.runtime.documents.gguf_file import BLOCKS, GgufFile, GgufTensor, gguf_file
from lmprog.runtime.engine.model.gguf_blocks import block_numbers
from lmprog.runtime.engine.model.mixture import ExpertNames
from lmprog.runtime.engine.model.quantization import WeightType
from lmprog.runtime.engine.model.weight_names import check_weights

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
_FURTHER = {
    "gemma": {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "gpt_oss": {"post_attention_norm": "post_attention_layernorm"},
}
"""What is called otherwise in an architecture, or is there only."""
_STACKS = {"ffn_gate_exps": "gate", "ffn_up_exps": "up", "ffn_down_exps": "down"}
_LAYER = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)")
_INTERLEAVED = frozenset({"llama", "mistral", "mixtral"})
_EXPERTS = {
    "mixtral": ExpertNames("block_sparse_moe", gate="w1", up="w3", down="w2"),
    "qwen3_moe": ExpertNames(),
    "olmoe": ExpertNames(),
    "gpt_oss": ExpertNames(router="router"),
}
_SINKS = "attn_sinks"
"""Numbers of a layer that are called weights here only."""


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
        if stop > start and hasattr(mmap, "MADV_DONTNEED"):
            tensor.memory.madvise(mmap.MADV_DONTNEED, start, stop - start)

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
    elif kind == _SINKS and end == "weight":
        yield f"{prefix}self_attn.sinks", tensor
    elif experts is not None and kind == "ffn_gate_inp":
        yield prefix + experts.of_router(end), tensor
    else:
        family = "gemma" if model_type.startswith("gemma") else model_type
        names = _INNER | _FURTHER.get(family, {})
        yield (f"{prefix}{names[kind]}.{end}" if kind in names else own), tensor
