"""Which replicas a fleet has: what a member is, and those that run elsewhere: at known addresses,
or at those that a name has by now.

Knows how a replica is reached; knows no programs.
"""

from __future__ import annotations

import functools
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lmprog.errors import InvalidParameter
from lmprog.launch import Connection, connect
from lmprog.transport import CurveClient
from lmprog.transport.address import check

log = logging.getLogger("lmprog")

NAME_PREFIX = "dns:"
RESOLVE_SECONDS = 2.0
"""Between two questions which addresses a name has."""
FORGET_SECONDS = 30.0
"""An address that the name has no more is kept so long: a connection that ends is noticed anyway,
and a name server may forget for a moment."""


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
    wake: Callable[[], None] | None = None
    """Not None: it sleeps, which is to say that it does not run while nobody needs it. This has it
    started, as another member; it does not wait, and may be called again."""


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


class NamedMembers:
    """Runtimes at all addresses of a name, each at the same port: those behind a headless service
    of Kubernetes, say. They come and go as the name's addresses do.
    """

    def __init__(
        self,
        host: str,
        port: int,
        keys: CurveClient | None = None,
        resolve: Callable[[str], Sequence[str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`resolve` gives the addresses of a name, or raises OSError."""
        self._host, self._port, self._keys = host, port, keys
        self._resolve = resolve or _addresses_of
        self._clock = clock
        self._seen: dict[str, tuple[Member, float]] = {}
        """By address, with when the name had it last."""
        self._num_named = 0
        self._trouble = ""
        self._closed = threading.Event()
        self._asker = threading.Thread(target=self._ask, name="lmprog-names", daemon=True)
        self._asker.start()

    @property
    def size(self) -> int:
        """How many addresses the name had last."""
        return self._num_named

    def current(self) -> Sequence[Member]:
        return [member for _, (member, _) in sorted(self._seen.items())]

    def end(self, name: str, why: str, grace: float) -> None:
        """It belongs to whoever started it."""

    def close(self, grace: float) -> bool:
        self._closed.set()
        self._asker.join()
        return True

    def _ask(self) -> None:
        while not self._closed.is_set():
            self.look()
            self._closed.wait(RESOLVE_SECONDS)

    def look(self) -> None:
        """Asks once; where nobody answers, all stay."""
        try:
            addresses = self._resolve(self._host)
        except OSError as error:
            if str(error) != self._trouble:
                log.warning("the name %s has no addresses: %s", self._host, error)
            self._trouble = str(error)
            return
        self._trouble, self._num_named, now = "", len(addresses), self._clock()
        seen = dict(self._seen)
        for one in addresses:
            address = f"tcp://[{one}]:{self._port}" if ":" in one else f"tcp://{one}:{self._port}"
            dial = functools.partial(connect, address, client="fleet", keys=self._keys)
            known = seen.get(address)
            seen[address] = (known[0] if known else Member(address, dial), now)
        self._seen = {at: one for at, one in seen.items() if now - one[1] < FORGET_SECONDS}


class JoinedMembers:
    """All of several."""

    def __init__(self, parts: Sequence[Members]) -> None:
        self._parts = parts

    @property
    def size(self) -> int:
        return sum(part.size for part in self._parts)

    def current(self) -> Sequence[Member]:
        return [member for part in self._parts for member in part.current()]

    def end(self, name: str, why: str, grace: float) -> None:
        for part in self._parts:
            part.end(name, why, grace)

    def close(self, grace: float) -> bool:
        """The first one last: it may have what the others need."""
        ended_well = [part.close(grace) for part in reversed(self._parts)]
        return all(ended_well)


def members_at(addresses: Sequence[str], keys: CurveClient | None = None) -> Members:
    """The runtimes at `addresses`, of which each `dns:HOST:PORT` stands for all those of a name.
    Raises InvalidParameter for what cannot be such.
    """
    if not any(one.startswith(NAME_PREFIX) for one in addresses):
        return FixedMembers(addresses, keys)
    places = [one.removeprefix(NAME_PREFIX) for one in addresses if one.startswith(NAME_PREFIX)]
    for place in places:
        check(f"tcp://{place}", keys is not None)
    fixed = [one for one in addresses if not one.startswith(NAME_PREFIX)]
    found: list[Members] = [FixedMembers(fixed, keys)] if fixed else []
    for place in dict.fromkeys(places):
        host, _, port = place.rpartition(":")
        found.append(NamedMembers(host, int(port), keys))
    return found[0] if len(found) == 1 else JoinedMembers(found)


def _addresses_of(host: str) -> Sequence[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return sorted({str(place[0]) for *_, place in found})
