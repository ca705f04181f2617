"""What `model=` names: a folder, a GGUF file, `nano` (shipped), `dummy:...` (no files at all), or a
repository of the hub.

Knows names and folders; opens no weights. `huggingface_hub` is imported only for a name that needs
it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from lmprog.errors import ModelError
from lmprog.runtime.engine.model.rope import Rope
from lmprog.runtime.engine.model.shape import ModelShape

NANO = Path(__file__).parents[3] / "nano"
"""The folder of the model that is shipped with lmprog."""

DUMMY = "dummy:"
DUMMY_SEED = 0
DUMMY_VOCABULARY = 263
"""The byte tokenizer's: 256 bytes and seven special tokens."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_WANTED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model")
"""Files of a repository that lmprog reads."""


def locate(model: str) -> Path | None:
    """A checkpoint's folder or GGUF file; None for a dummy, which has no files. Raises ModelError
    where there is none.
    """
    if model.startswith(DUMMY):
        return None
    found = local_checkpoint(model)
    if found is not None:
        return found
    if Path(model).expanduser().exists():
        raise ModelError(
            f"{model} is a file; a model is the folder that has config.json, or a .gguf file"
        )
    if _HUB_ID.fullmatch(model) and not model.startswith("."):
        return _from_hub(model)
    raise ModelError(
        f"there is no model {model!r}: give a folder, a .gguf file, 'nano', 'dummy:tiny' or a hub "
        "id like 'owner/name'"
    )


def local_checkpoint(model: str) -> Path | None:
    """The same where the model is on this machine under its own name; None for a dummy, a name of
    the hub, and what is no model.
    """
    if model == "nano":
        return NANO
    found = Path(model).expanduser()
    return found if found.is_dir() or (found.suffix == ".gguf" and found.is_file()) else None


def dummy_shape(model: str) -> ModelShape:
    """The shape that `dummy:tiny` or `dummy:<hidden>x<layers>` asks for: a Llama over bytes with
    heads of 32.
    """
    size = "64x2" if model == f"{DUMMY}tiny" else model.removeprefix(DUMMY)
    match = re.fullmatch(r"(\d+)x(\d+)", size)
    hidden, layers = (int(match[1]), int(match[2])) if match else (0, 0)
    if hidden < 64 or hidden % 64 or not 1 <= layers <= 256:
        raise ModelError(
            f"there is no model {model!r}: dummies are 'dummy:tiny' and 'dummy:<hidden>x<layers>', "
            "hidden a multiple of 64, at most 256 layers"
        )
    return ModelShape(
        vocab_size=DUMMY_VOCABULARY,
        hidden=hidden,
        inner=hidden * 3,
        num_heads=hidden // 32,
        num_kv_heads=hidden // 64,
        head_dim=32,
        context_len=4096,
        rope=Rope(),
        windows=(None,) * layers,
    )


def _from_hub(model: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
        )
    except ImportError:
        raise ModelError(
            f"there is no folder {model!r}, and without huggingface_hub it cannot be fetched "
            "as a hub id: "
            "pip install 'lmprog[hub]'"
        ) from None
    try:
        return Path(snapshot_download(model, allow_patterns=list(_WANTED)))
    except LocalEntryNotFoundError as error:
        offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
        reason = "HF_HUB_OFFLINE is set" if offline else "the hub cannot be reached"
        raise ModelError(
            f"{model} is no folder and not in the local hub cache, and {reason}"
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelError(f"{model} cannot be fetched from the hub: {error}") from error
