"""Cache namespaces: sequences of different salts never share a page, except for public prefixes.

Each salt has a root of its own in the prefix tree. A sequence that begins with a whole *public*
prefix lives below the common root instead, and is separated where that prefix ends: there the tree
gets a key in place of the token, one that no model has and that is unique to this salt and token.
Paths of a prefix tree that part never join again, so everything behind that key is private to the
salt, and the public prefix is shared by all.

Whatever an adapter computes is in a namespace of its own, under each salt: keys and values of one
are wrong for any other. Public prefixes are then shared among the salts of one adapter. Adapters
are known here by their names and the digests of their contents.

Knows integers, salts and digests; knows no weights. The tree knows nothing of this, and such keys
never leave it.
"""

from __future__ import annotations

import difflib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmprog.errors import UnknownName
from lmprog.wire import SHARES_PUBLIC

_LEAST = -(2**31)  # the tree keeps 32-bit integers


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

    def of_digest(self, digest: str) -> NamedAdapter:
        """The first with this content."""
        return next(one for one in self._known.values() if one.digest == digest)

    def find(self, name: str) -> NamedAdapter:
        """Empty: the base alone. Raises `UnknownName`."""
        if not name:
            return BASE_ALONE
        found = self._known.get(name)
        if found is None:
            raise unknown_adapter(name, self.names)
        return found


def origin_of(root: str, adapters: AdapterNames) -> tuple[int, str, str]:
    """What a namespace's root was made of: the adapter's number and name, 0 and "" for the base
    alone, and the salt. Adapters of one content share a root: the first of them is named.
    """
    if not root.startswith(_ADAPTERS):
        return 0, "", root.removeprefix(_ESCAPED)
    digest, _, salt = root.removeprefix(_ADAPTERS).partition(":")
    made_by = adapters.of_digest(digest)
    return made_by.number, made_by.name, salt


def unknown_adapter(name: str, names: tuple[str, ...]) -> UnknownName:
    """With the nearest name and all others."""
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    valid = ", ".join(map(repr, names)) or "none, since the runtime was started without --lora"
    return UnknownName(f"unknown adapter {name!r}{hint} valid: {valid}", name=name)


_ADAPTERS, _ESCAPED = "\0a", "\0s"
"""How roots begin: those of adapters, and those of salts that begin with the same character."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """`root` is the salt for the tree. Where `shift` is not 0, tokens from `border` on are
    private.
    """

    root: str = ""
    border: int = 0
    shift: int = 0
    adapter: int = 0
    """What its keys and values are computed with: the number of a `NamedAdapter`."""

    def keys(self, tokens: array[int]) -> array[int]:
        """The keys under which the tree knows `tokens`."""
        if not self.shift or len(tokens) <= self.border:
            return tokens
        made = tokens[:]
        made[self.border] -= self.shift
        return made


SHARED_NAMESPACE = Namespace()


class Namespaces:
    """Finds a sequence's namespace. `prefixes` are the public ones, as tokens below
    `vocab_size`.
    """

    def __init__(self, vocab_size: int = 1, prefixes: Sequence[Sequence[int]] = ()) -> None:
        self._vocab_size = vocab_size
        self._prefixes = sorted((array("i", one) for one in prefixes if one), key=len, reverse=True)
        self._numbers: dict[str, int] = {}
        """By salt, for those that share public prefixes. There is one for each API key; they are
        kept.
        """

    def of(self, tokens: array[int], salt: str, adapter: NamedAdapter = BASE_ALONE) -> Namespace:
        """Call this with a sequence's first tokens: when it grows, it keeps the namespace it
        had.
        """
        alone = Namespace(_root(salt, adapter), adapter=adapter.number)
        if not salt.startswith(SHARES_PUBLIC):
            return alone
        border = next((len(one) for one in self._prefixes if tokens[: len(one)] == one), 0)
        shift = self._shift(salt) if border else 0
        if not shift:
            return alone
        return Namespace(_root("", adapter), border, shift, adapter.number)

    def token(self, key: int) -> int:
        """The token that the tree knows as `key`."""
        return key % self._vocab_size if key < 0 else key

    def _shift(self, salt: str) -> int:
        """Shifts of two salts differ by at least a whole vocabulary. 0 when there are too many
        salts.
        """
        number = self._numbers.get(salt, len(self._numbers) + 1)
        shift = number * self._vocab_size
        if -shift < _LEAST:
            return 0
        self._numbers[salt] = number
        return shift


def _root(salt: str, adapter: NamedAdapter) -> str:
    """A root of its own for each pair, whatever a salt spells: none begins like an adapter's."""
    if adapter.digest:
        return f"{_ADAPTERS}{adapter.digest}:{salt}"
    return _ESCAPED + salt if salt.startswith("\0") else salt
