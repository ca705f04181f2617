"""Structural tags as an option of `gen` and of `lmprog.constraint`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmprog import wire
from lmprog.errors import InvalidParameter


def tags_constraint(given: Mapping[str, Any] | str) -> wire.Constraint:
    """Free text with confined regions, as SGLang and vLLM write it: `{"structures": [...],
    "triggers": [...]}` or `{"format": {...}}`. Raises InvalidParameter.
    """
    try:
        return wire.structural_tag(given)
    except wire.TagError as error:
        raise InvalidParameter(
            f"structural_tag: {error}", name="structural_tag", allowed="a structural tag"
        ) from error
