"""Which replicas a fleet has: what a member is, and those that run elsewhere at known addresses.

Knows how a replica is reached; knows no programs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lmprog.errors import InvalidParameter
from lmprog.launch import Connection, connect
from lmprog.transport import CurveClient
from lmprog.transport.address import check


@dataclass(frozen=True, slots=True)
class Member:
    """A replica that can be reached by `dial`, which raises RuntimeGone where it does not answer.

    A replica that was started again has the same name and another `life`: its memory is empty.
    """

    name: str
    dial: Callable[[], Connection]
    life: int = 0
    pulse: Callable[[], float | None] | None = None
    """Processor seconds of its process (None: it has ended), where this machine can tell."""


class Members(Protocol):
    """Says which replicas there are now."""

    @property
    def size(self) -> int:
        """How many there should be."""
        ...

    def current(self) -> Sequence[Member]:
        """Never blocks for long; asked a few times a second, by one thread."""
        ...

    def end(self, name: str, why: str, grace: float) -> None:
        """Ends a replica that was started here, by force after `grace` seconds; another life of it
        begins. Does not wait. One that runs elsewhere is left alone.
        """
        ...

    def close(self, grace: float) -> bool:
        """Ends what it started, by force after `grace` seconds. True where all of it ended well.
        Safe to repeat.
        """
        ...


class FixedMembers:
    """Runtimes that run elsewhere, at known addresses."""

    def __init__(self, addresses: Sequence[str], keys: CurveClient | None = None) -> None:
        """Raises InvalidParameter for what cannot be the address of a runtime, or is there
        twice.
        """
        if isinstance(addresses, str):
            raise InvalidParameter(
                f"addresses is a list; write [{addresses!r}]", name="addresses", value=addresses
            )
        for at, address in enumerate(addresses):
            check(address, keys is not None)
            if address in addresses[:at]:
                raise InvalidParameter(
                    f"the address {address!r} is there twice; each replica is one runtime",
                    name="addresses",
                    value=address,
                )
        self._members = [
            Member(address, functools.partial(connect, address, client="fleet", keys=keys))
            for address in addresses
        ]

    @property
    def size(self) -> int:
        return len(self._members)

    def current(self) -> Sequence[Member]:
        """All of them: whoever does not answer is tried again."""
        return self._members

    def end(self, name: str, why: str, grace: float) -> None:
        """It belongs to whoever started it."""

    def close(self, grace: float) -> bool:
        """Nothing was started."""
        return True
