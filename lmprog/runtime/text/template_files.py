"""Reads what chat templates need from a checkpoint's folder: the source, and the special tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmprog.errors import ModelError


def template_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    try:
        return (folder / "chat_template.jinja").read_text("utf-8")
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{folder.name}/chat_template.jinja cannot be read: {error}") from error
    source = read_json(folder / "chat_template.json").get("chat_template") or config.get(
        "chat_template"
    )
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


def read_json(path: Path) -> dict[str, Any]:
    """Empty where there is no such file."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path.parent.name}/{path.name} cannot be read: {error}") from error
    return value if isinstance(value, dict) else {}
