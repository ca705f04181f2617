"""Opens a checkpoint's weights, whatever files hold them and in whatever form."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lmprog.errors import ModelError
from lmprog.runtime.engine.model import float_layouts, integer_layouts
from lmprog.runtime.engine.model.checkpoint import Checkpoint
from lmprog.runtime.engine.model.derived_weights import Derived, DerivedWeights
from lmprog.runtime.engine.model.gguf_weights import GgufCheckpoint
from lmprog.runtime.engine.model.quantization import Quantization, read_quantization
from lmprog.runtime.engine.model.shape import ModelShape, read_config
from lmprog.runtime.engine.model.shared_experts import shared_experts
from lmprog.runtime.engine.model.stacked_experts import single_experts

StoredWeights = Checkpoint | DerivedWeights | GgufCheckpoint

_ACTIVATION_SCALES = tuple(
    f"{name}_{kind}"
    for name in (".q", ".k", ".v", ".input", ".output")
    for kind in ("scale", "zero_point")
)
"""How others round activations, keys and values: here these are rounded as they come, if at all."""


def stored_weights(location: Path, shape: ModelShape) -> StoredWeights:
    """The weights of a folder or of a GGUF file, by the names that `shape` asks for. Raises
    ModelError.
    """
    if location.is_file():
        return GgufCheckpoint(location)
    checkpoint = Checkpoint(location)
    how = read_quantization(read_config(location))
    derived = {} if how is None else dict(_quantized(checkpoint, how, shape))
    if shape.mixture is not None:
        derived |= single_experts(checkpoint, shape.mixture)
    unused = {name for name in checkpoint.names if name.endswith(_ACTIVATION_SCALES)}
    if shape.mixture is not None and shape.mixture.shared is not None:
        as_stored = DerivedWeights(checkpoint, derived, frozenset(unused))
        parts = shared_experts(as_stored, as_stored.names, shape.mixture, derived)
        used = {source for part in parts.values() for source in part.sources}
        derived = {
            name: one for name, one in derived.items() if used.isdisjoint(one.sources)
        } | parts
    if how is None and not derived:
        return checkpoint
    return DerivedWeights(checkpoint, derived, frozenset(unused))


def _quantized(
    checkpoint: Checkpoint, how: Quantization, shape: ModelShape
) -> Iterator[tuple[str, Derived]]:
    if how.layout == "gptq":
        yield from integer_layouts.gptq_weights(checkpoint, how)
    elif how.layout == "awq":
        yield from integer_layouts.awq_weights(checkpoint, how)
    elif how.layout == "compressed":
        yield from integer_layouts.packed_weights(checkpoint)
        yield from integer_layouts.byte_weights(checkpoint)
        yield from float_layouts.fp8_weights(checkpoint, how.block)
    elif how.layout == "fp8":
        yield from float_layouts.fp8_weights(checkpoint, how.block)
    elif shape.mixture is not None and shape.mixture.layout == "gpt_oss":
        yield from float_layouts.mxfp4_experts(checkpoint, shape.mixture.names)
    else:
        raise ModelError("mxfp4 is read for GPT-OSS only")
