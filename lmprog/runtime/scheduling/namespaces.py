"""Where in the prefix tree a sequence stands: below which root, and from which token on it is apart
from all others.

Sequences of different salts never meet: each salt has a root of its own. But a sequence that begins
with all of a *public* prefix stands below the common root, and is apart from that prefix's end on:
there the tree is told of another token, one that no model has and that belongs to this salt and
this token alone. A prefix tree that parts once never joins again, so everything behind it is the
salt's own, and the public prefix is everybody's.

Knows integers and salts. The tree knows nothing of it, and nobody but the tree is told such a
token.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from lmprog.wire import SHARES_PUBLIC

_LEAST = -(2**31)  # the tree keeps 32-bit integers


@dataclass(frozen=True, slots=True)
class Namespace:
    """`root` is the salt to give to the tree. Tokens from `border` on are apart, where `shift` is
    not 0.
    """

    root: str = ""
    border: int = 0
    shift: int = 0

    def keys(self, tokens: array[int]) -> array[int]:
        """What the tree is told for `tokens`."""
        if not self.shift or len(tokens) <= self.border:
            return tokens
        made = tokens[:]
        made[self.border] -= self.shift
        return made


SHARED_NAMESPACE = Namespace()


class Namespaces:
    """Finds a sequence's namespace. `prefixes` are the public ones, as tokens below `vocab_size`."""

    def __init__(self, vocab_size: int = 1, prefixes: Sequence[Sequence[int]] = ()) -> None:
        self._vocab_size = vocab_size
        self._prefixes = sorted((array("i", one) for one in prefixes if one), key=len, reverse=True)
        self._numbers: dict[str, int] = {}
        """Of the salts that share public prefixes. One for each key: they are never forgotten."""

    def of(self, tokens: array[int], salt: str) -> Namespace:
        """Whoever asks again must ask with the same tokens: a sequence that grows keeps the namespace
        that it had.
        """
        if not salt.startswith(SHARES_PUBLIC):
            return Namespace(salt)
        border = next((len(one) for one in self._prefixes if tokens[: len(one)] == one), 0)
        shift = self._shift(salt) if border else 0
        return Namespace("", border, shift) if shift else Namespace(salt)

    def token(self, key: int) -> int:
        """The token that the tree was told of as `key`."""
        return key % self._vocab_size if key < 0 else key

    def _shift(self, salt: str) -> int:
        """Differs between salts by a whole vocabulary at least; 0 where there are too many of
        them.
        """
        number = self._numbers.get(salt, len(self._numbers) + 1)
        shift = number * self._vocab_size
        if -shift < _LEAST:
            return 0
        self._numbers[salt] = number
        return shift
