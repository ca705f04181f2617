"""What a checkpoint is by its content: digests of its weights and of its config, whether its files
are still those that they were, and what decides the tokens of a loaded model, as
`wire.Fingerprint`: fleets compare it, pages on disk are kept under it, `/version` shows it.

Weights are read only where nobody has summed them before (`weight_cache`). Knows files, where a
checkpoint's documents are, and what an engine says of itself; what is computed with them,
engines know.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lmprog import wire
from lmprog.errors import ModelError
from lmprog.runtime.documents.checkpoint_documents import (
    checkpoint_documents,
    json_document,
    special_tokens,
    template_source,
)
from lmprog.runtime.engine.model.checkpoint import checkpoint_files
from lmprog.runtime.engine.model.locate import DUMMY_SEED, local_checkpoint
from lmprog.runtime.engine.model.shape import read_config
from lmprog.weight_cache import content_digests, file_identity

_READ = (".safetensors", ".json", ".jinja", ".model")
"""Ends of the names of files in a folder that anything is read from."""
_SAYS_NOTHING = {"transformers_version"}
"""In a config.json: who wrote it. So do fields that begin with an underscore."""

Stamp = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class CheckpointDigests:
    """Each is a digest in hex."""

    weights: str
    config: str
    """Without what is in `rope`."""
    rope: str


def checkpoint_digests(model: str, location: Path | None) -> CheckpointDigests:
    """Of the checkpoint at `location`; None: of the dummy that `model` names. Raises ModelError."""
    if location is None:
        return CheckpointDigests(digest_of([model, DUMMY_SEED]), digest_of(model), digest_of({}))
    config = read_config(location)
    rope = _about_rope(config)
    rest = _without(config, rope)
    return CheckpointDigests(digest_of(weight_digests(location)), digest_of(rest), digest_of(rope))


def weight_digests(location: Path) -> list[str]:
    """Of each file with weights, in their order. Raises ModelError."""
    try:
        return content_digests(checkpoint_files(location))
    except OSError as error:
        raise ModelError(f"the weights cannot be read: {error}") from error


def checkpoint_stamp(location: Path | None) -> Stamp:
    """Another one as soon as a file of the checkpoint is replaced or changed."""
    if location is None:
        return ()
    try:
        files = (
            checkpoint_files(location)
            if location.is_file()
            else [path for path in sorted(location.iterdir()) if path.suffix in _READ]
        )
        return tuple((path.name, tuple(file_identity(os.stat(path)))) for path in files)
    except OSError as error:
        raise ModelError(f"{location} cannot be read: {error}") from error


def digest_of(value: Any) -> str:
    """Of anything that JSON can say."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _about_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """By the names of fields; those of an inner config under its own name."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if "rope" in name or "rotary" in name:
            found[name] = value
        elif isinstance(value, dict) and (inner := _about_rope(value)):
            found[name] = inner
    return found


def _without(config: Mapping[str, Any], rope: Mapping[str, Any]) -> dict[str, Any]:
    """What else there is, that a computation may depend on."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if name.startswith("_") or name in _SAYS_NOTHING:
            continue
        if name not in rope:
            found[name] = value
        elif "rope" not in name and "rotary" not in name:
            found[name] = _without(value, rope[name])
    return found


SAMPLER = 1
"""Raised with each change by which other tokens come of the same numbers, options and seeds."""


class LoadedEngine(Protocol):
    """What a fingerprint needs of an engine."""

    @property
    def name(self) -> str: ...
    @property
    def location(self) -> Path | None: ...
    @property
    def context_len(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def kv_dtype(self) -> str: ...


class ModelIdentity:
    """Made before `model` is loaded, asked afterwards: so nothing is named that was not loaded."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._here = local_checkpoint(model)
        self._stamp = checkpoint_stamp(self._here)

    def fingerprint(self, engine: LoadedEngine, eos_ids: tuple[int, ...]) -> wire.Fingerprint:
        """Of the engine that has loaded it, whose texts end with `eos_ids`. Raises ModelError where
        a file was replaced meanwhile.
        """
        location = engine.location
        digests = checkpoint_digests(self._model, location)
        found = wire.Fingerprint(
            weights=digests.weights,
            config=digests.config,
            rope=digests.rope,
            tokenizer=_tokenizer_digest(location, eos_ids),
            template=_template_digest(location),
            context=engine.context_len,
            engine=f"{engine.name}/{SAMPLER}",
            weight_type=engine.dtype,
            kv_type=engine.kv_dtype,
        )
        if self._here is not None and checkpoint_stamp(location) != self._stamp:
            raise ModelError(
                f"files of {self._model} were replaced while it was loaded; start again, and put "
                "a new model beside the old one"
            )
        return found


def _tokenizer_digest(location: Path | None, eos_ids: tuple[int, ...]) -> str:
    if location is None:
        return digest_of(["bytes", eos_ids])
    config = dict(json_document(location, "tokenizer_config.json") or {})
    config.pop("chat_template", None)
    text = checkpoint_documents(location).text("tokenizer.json")
    return digest_of([text, config, eos_ids])


def _template_digest(location: Path | None) -> str:
    if location is None:
        return digest_of("bytes")
    config = json_document(location, "tokenizer_config.json") or {}
    source = template_source(location, config)
    return "" if source is None else digest_of([source, special_tokens(config)])
