"""What chat templates need of a checkpoint's documents: the source, and the special tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmprog.runtime.documents.checkpoint_documents import checkpoint_documents, json_document


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
