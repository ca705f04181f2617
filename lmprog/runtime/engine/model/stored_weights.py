"""Opens a checkpoint's weights, whatever files hold them and in whatever form."""

from __future__ import annotations

from pathlib import Path

from lmprog.runtime.engine.model.checkpoint import Checkpoint
from lmprog.runtime.engine.model.derived_weights import DerivedWeights
from lmprog.runtime.engine.model.gguf_weights import GgufCheckpoint
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.model.stacked_experts import single_experts

StoredWeights = Checkpoint | DerivedWeights | GgufCheckpoint


def stored_weights(location: Path, shape: ModelShape) -> StoredWeights:
    """The weights of a folder or of a GGUF file, by the names that `shape` asks for. Raises
    ModelError.
    """
    if location.is_file():
        return GgufCheckpoint(location)
    checkpoint = Checkpoint(location)
    if shape.mixture is not None and shape.mixture.is_stacked:
        return DerivedWeights(checkpoint, single_experts(checkpoint, shape.mixture.names))
    return checkpoint
