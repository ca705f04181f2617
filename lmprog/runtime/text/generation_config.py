"""Default sampling parameters of a checkpoint, from its `generation_config.json`.

Clients get them with the `Welcome`, and decide whether to use them. `do_sample` is ignored, as in
vLLM and SGLang. The end-of-sequence ids are read by the tokenizer.
"""

from __future__ import annotations

from pathlib import Path

from lmprog import wire
from lmprog.errors import ModelError
from lmprog.runtime.documents.checkpoint_documents import json_document


def suggested_sampling(folder: Path | None) -> wire.SuggestedSampling:
    """Empty for a model without that file. Raises ModelError where it cannot be read."""
    if folder is None:
        return wire.SuggestedSampling()
    found = json_document(folder, "generation_config.json")
    if found is None:
        return wire.SuggestedSampling()
    try:
        return wire.suggested(found)
    except ValueError as error:
        raise ModelError(
            f"{folder.name}/generation_config.json cannot be read: {error}. Correct the file."
        ) from error
