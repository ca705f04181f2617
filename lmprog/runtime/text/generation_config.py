"""Default sampling parameters of a checkpoint, from its `generation_config.json`.

Clients get them with the `Welcome`, and decide whether to use them. `do_sample` is ignored, as in
vLLM and SGLang. The end-of-sequence ids are read by the tokenizer.
"""

from __future__ import annotations

import json
from pathlib import Path

from lmprog import wire
from lmprog.errors import ModelError


def suggested_sampling(folder: Path | None) -> wire.SuggestedSampling:
    """Empty for a model without that file. Raises ModelError where it cannot be read."""
    if folder is None:
        return wire.SuggestedSampling()
    try:
        found = json.loads((folder / "generation_config.json").read_text("utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")
        return wire.suggested(found)
    except FileNotFoundError:
        return wire.SuggestedSampling()
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{folder.name}/generation_config.json cannot be read: {error}. Correct the file."
        ) from error
