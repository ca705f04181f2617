"""The adapters that a runtime has, by their names: what a branch that names one is computed with.

Knows names and digests; knows no weights.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from lmprog.errors import UnknownName


@dataclass(frozen=True, slots=True)
class NamedAdapter:
    """`number` counts the runtime's adapters from 1 on; 0 is the base alone. `digest` is that of
    its content, so that nothing computed with another of this name is taken for its own.
    """

    number: int = 0
    name: str = ""
    digest: str = ""


BASE_ALONE = NamedAdapter()


class AdapterNames:
    """`digests` by name, in the order of their numbers."""

    def __init__(self, digests: Mapping[str, str] | None = None) -> None:
        self._known = {
            name: NamedAdapter(number, name, digest)
            for number, (name, digest) in enumerate((digests or {}).items(), 1)
        }

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._known)

    def find(self, name: str) -> NamedAdapter:
        """Empty: the base alone. Raises `UnknownName`."""
        if not name:
            return BASE_ALONE
        found = self._known.get(name)
        if found is None:
            raise unknown_adapter(name, self.names)
        return found


def unknown_adapter(name: str, names: tuple[str, ...]) -> UnknownName:
    """With the nearest name and all others."""
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    valid = ", ".join(map(repr, names)) or "none, since the runtime was started without --lora"
    return UnknownName(f"unknown adapter {name!r}{hint} valid: {valid}", name=name)
