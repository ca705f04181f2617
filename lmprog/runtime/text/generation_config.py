"""How a checkpoint's makers would sample: what its `generation_config.json` says of it.

Told to clients when they greet the runtime; whether they heed it is theirs to decide. `do_sample`
is not looked at, as vLLM and SGLang do not. The ids that end a text are the tokenizer's to read.
"""

from __future__ import annotations

import json
from pathlib import Path

from lmprog import wire
from lmprog.errors import ModelError


def suggested_sampling(folder: Path | None) -> wire.SuggestedSampling:
    """Nothing for a model without files, or without that one. Raises ModelError for one that cannot
    be understood.
    """
    if folder is None:
        return wire.SuggestedSampling()
    try:
        found = json.loads((folder / "generation_config.json").read_text("utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it is no JSON object")
        return wire.suggested(found)
    except FileNotFoundError:
        return wire.SuggestedSampling()
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{folder.name}/generation_config.json cannot be read: {error}. Mend the file."
        ) from error
