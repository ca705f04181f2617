"""Opens a checkpoint's weights, whatever files hold them."""

from __future__ import annotations

from pathlib import Path

from lmprog.runtime.engine.model.checkpoint import Checkpoint
from lmprog.runtime.engine.model.gguf_weights import GgufCheckpoint

StoredWeights = Checkpoint | GgufCheckpoint


def stored_weights(location: Path) -> StoredWeights:
    """The weights of a folder or of a GGUF file. Raises ModelError."""
    return GgufCheckpoint(location) if location.is_file() else Checkpoint(location)
