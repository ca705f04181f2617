"""What decides the tokens of a loaded model, as `wire.Fingerprint`: fleets compare it, pages on
disk are kept under it, `/version` shows it.

Weights are known by their content, which is read once for each state of their files. Knows where a
checkpoint's documents are and what an engine says of itself; computes nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from lmprog import wire
from lmprog.errors import ModelError
from lmprog.runtime.documents.checkpoint_documents import (
    checkpoint_documents,
    json_document,
    special_tokens,
    template_source,
)
from lmprog.runtime.engine.model.checkpoint_digests import (
    checkpoint_digests,
    checkpoint_stamp,
    digest_of,
)
from lmprog.runtime.engine.model.locate import local_checkpoint


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
            engine=engine.name,
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
