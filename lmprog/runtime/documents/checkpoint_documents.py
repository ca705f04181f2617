"""The documents of a checkpoint by their usual names, wherever they come from.

A folder has them as files: `config.json`, `tokenizer.json`, `tokenizer_config.json`,
`generation_config.json`, `chat_template.jinja`. For a GGUF file the same are made of its metadata,
so that nobody else knows the difference. A chat template and the special tokens that it names stand
in one of several of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from lmprog.errors import ModelError
from lmprog.runtime.documents.gguf_documents import config_of, tokenizer_config_of, tokenizer_of
from lmprog.runtime.documents.gguf_file import GgufFile, gguf_file


class Documents(Protocol):
    """The documents of one checkpoint."""

    def text(self, name: str) -> str | None:
        """A document's text; None where there is no such document. Raises ModelError where it
        cannot be read.
        """
        ...


class FolderDocuments:
    """The files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def text(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{self._folder.name}/{name} cannot be read: {error}") from error


class GgufDocuments:
    """What a folder would say of the model in a GGUF file."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file

    def text(self, name: str) -> str | None:
        file = self._file
        if name == "chat_template.jinja":
            template = file.metadata.get("tokenizer.chat_template")
            return template if isinstance(template, str) and template else None
        if name == "config.json":
            return json.dumps(config_of(file))
        if name == "tokenizer.json":
            return json.dumps(tokenizer_of(file))
        if name == "tokenizer_config.json":
            return json.dumps(tokenizer_config_of(file))
        return None


def checkpoint_documents(location: Path) -> Documents:
    """The documents of a folder or of a GGUF file. Raises ModelError for a file that is none."""
    if location.is_file():
        return GgufDocuments(gguf_file(location))
    return FolderDocuments(location)


def json_document(location: Path, name: str) -> dict[str, Any] | None:
    """A document that is a JSON object; None where there is none. Raises ModelError."""
    text = checkpoint_documents(location).text(name)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{location.name}/{name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{location.name}/{name} is not a JSON object")
    return value


def template_source(location: Path, config: Mapping[str, Any]) -> str | None:
    source = checkpoint_documents(location).text("chat_template.jinja")
    if source is not None:
        return source
    other = json_document(location, "chat_template.json") or {}
    source = other.get("chat_template") or config.get("chat_template")
    if isinstance(source, list):  # several, by name
        named = {
            entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)
        }
        source = named.get("default")
    return source if isinstance(source, str) and source else None


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and others by name; "" for those that the checkpoint does not have, since
    templates use them.
    """
    found = {"bos_token": "", "eos_token": "", "unk_token": "", "pad_token": ""}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found
