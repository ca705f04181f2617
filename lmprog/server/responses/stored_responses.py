"""Responses that may be asked for again, kept by whom they belong to: in memory, or in a file that
gateways share.

One is kept as bytes once it is written, its JSON and the conversation that it ends: parsed values
would take many times that, and nobody could say how much. Both places are bounded by bytes, and
forget first what was not used for longest. In a file (`--responses-file`) written responses survive
the gateway, and others that have the same file continue them; one that is still being written is
known to its own gateway only. Knows shapes of messages; knows no routes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import sqlite3
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from lmprog.errors import InvalidParameter
from lmprog.redis_server import SCHEMES, RedisRefused, RedisServer
from lmprog.server.fairness.accounts import MemoryPool
from lmprog.server.http.http_errors import HttpError, Problem
from lmprog.server.openai.messages import ChatMessage
from lmprog.server.responses.responses_body import items_of

log = logging.getLogger("lmprog.server")
T = TypeVar("T")

MOST_KEPT = 4096
"""Responses."""
ENTRY_BYTES = 1024
"""What one takes beside its bytes, at most: the objects that hold them, and their places."""
EVENT_BYTES = 64
"""What an event takes beside its own."""
FORMAT = 1
"""Of the file; another one is refused."""
_conversation = msgspec.msgpack.Decoder(list[ChatMessage])
_events = msgspec.msgpack.Decoder(list[bytes])


@dataclass(frozen=True, slots=True)
class SavedResponse:
    """A written response as a file keeps it."""

    name: str
    caller: str
    account: str
    json: bytes
    messages: bytes
    events: bytes | None
    size: int


class Kept:
    """A response and the conversation that it ends, without instructions."""

    def __init__(
        self,
        caller: str,
        account: str,
        state: dict[str, Any],
        messages: list[ChatMessage],
        told: list[bytes] | None = None,
    ) -> None:
        """Of one that is being written: what is asked of it is seen in `state` until `seal`. The
        `account` is charged for its bytes.
        """
        self.caller = caller
        self.account = account
        self.name: str = state["id"]
        self.is_background: bool = state["background"]
        self.told = told
        """Its events, by their numbers, also those to come; None where they are not kept."""
        self._grown = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        """What still writes it in the background."""
        self.size = ENTRY_BYTES
        """Bytes, as of when it was last written down."""
        self._live: tuple[dict[str, Any], list[ChatMessage]] | None = (state, messages)
        self._status = ""
        self._json = b""
        self._messages = b""
        self.saving: asyncio.Future[None] | None = None
        """Its way into the file, where there is one."""

    @classmethod
    def of(cls, row: SavedResponse) -> Kept:
        """One that was read from a file."""
        state: dict[str, Any] = msgspec.json.decode(row.json)
        told = None if row.events is None else _events.decode(row.events)
        made = cls(row.caller, row.account, state, [], told)
        made._status, made._json, made._messages = state["status"], row.json, row.messages
        made._live = None
        return made

    @property
    def row(self) -> SavedResponse | None:
        """What a file keeps of it; None of one that is still being written."""
        if self._live is not None:
            return None
        events = None if self.told is None else msgspec.msgpack.encode(self.told)
        return SavedResponse(
            self.name, self.caller, self.account, self._json, self._messages, events, self.size
        )

    @property
    def status(self) -> str:
        return self._status if self._live is None else str(self._live[0]["status"])

    @property
    def json(self) -> bytes:
        """What is known of it now."""
        return self._json if self._live is None else msgspec.json.encode(self._live[0])

    @property
    def messages(self) -> list[ChatMessage]:
        """The conversation so far; of one that is written its answer is the last message."""
        return _conversation.decode(self._messages) if self._live is None else self._live[1]

    def input_items(self) -> list[dict[str, Any]]:
        """What it answers, with the conversation before."""
        asked = self.messages[:-1] if self.status in ("completed", "incomplete") else self.messages
        found = [item for message in asked for item in items_of(message)]
        return [{"id": f"item_{self.name}_{at}", **item} for at, item in enumerate(found)]

    def seal(self, state: dict[str, Any], messages: list[ChatMessage]) -> None:
        """It is written, and changes no more; the values that made it are held no longer."""
        if self._live is not None:
            self._write(state, messages)
            self._live = None
            self.grow()

    def grow(self) -> None:
        """There is more to tell, or nothing will come any more."""
        self._grown.set()
        self._grown = asyncio.Event()

    async def events(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """Those after number `after`, and all that will come. Only where they are kept."""
        assert self.told is not None
        at = after + 1
        while True:
            more = self.told[at:]
            if more:
                at += len(more)
                yield b"".join(more)
            elif self._live is None:
                return
            else:
                await self._grown.wait()

    def begin(self) -> None:
        """It is kept from now on: of one that is being written, its size is what it is now."""
        if self._live is not None:
            self._write(*self._live)
            self._json = self._messages = b""

    def _write(self, state: dict[str, Any], messages: list[ChatMessage]) -> None:
        self._status = state["status"]
        self._json = _exact(msgspec.json.encode(state))
        self._messages = _exact(msgspec.msgpack.encode(messages))
        events = sum(len(one) + EVENT_BYTES for one in self.told or ())
        self.size = ENTRY_BYTES + len(self._json) + len(self._messages) + events


_row = msgspec.msgpack.Decoder(SavedResponse)


def _exact(encoded: bytes) -> bytes:
    """The same without the room that its encoder left behind it, which may be as much again."""
    return bytes(memoryview(encoded))


class ResponseFile:
    """Written responses in a file of SQLite that several processes may have open. For one thread at
    a time.
    """

    def __init__(self, path: str, most_bytes: int) -> None:
        """Makes it where it is missing. Raises `InvalidParameter` where that is impossible, or it
        is another file.
        """
        self._most_bytes = most_bytes
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # what it has is private
            self._file = sqlite3.connect(
                path, timeout=10.0, isolation_level=None, check_same_thread=False
            )
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=NORMAL")
            found = self._file.execute("PRAGMA user_version").fetchone()[0]
            is_new = not self._file.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
            if not is_new and found != FORMAT:
                raise ValueError("it is another file, or of another version of lmprog")
            for command in _TABLES:
                self._file.execute(command)
        except (OSError, sqlite3.Error, ValueError) as error:
            raise InvalidParameter(
                f"Responses cannot be kept in {path}: {error}. Name a file in a folder that this "
                "user may write to, which is made if it is missing.",
                name="responses_file",
                value=path,
            ) from None

    def write(self, row: SavedResponse) -> None:
        """Keeps it, and forgets what was not used for longest beyond the bound."""
        if row.size > self._most_bytes:
            return
        given = (row.name, row.caller, row.account, row.json, row.messages, row.events, row.size)
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.execute(
                "INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*given, time.time()),
            )
            while self.num_bytes > self._most_bytes:
                self._file.execute(
                    "DELETE FROM responses WHERE name IN "
                    "(SELECT name FROM responses WHERE name != ? ORDER BY used LIMIT 8)",
                    (row.name,),
                )

    def read(self, caller: str, name: str) -> SavedResponse | None:
        found = self._file.execute(
            "SELECT name, caller, account, json, messages, events, size FROM responses "
            "WHERE name = ? AND caller = ?",
            (name, caller),
        ).fetchone()
        if found is None:
            return None
        self._file.execute("UPDATE responses SET used = ? WHERE name = ?", (time.time(), name))
        return SavedResponse(*found)

    def drop(self, caller: str, name: str) -> bool:
        """Whether it was there."""
        gone = self._file.execute(
            "DELETE FROM responses WHERE name = ? AND caller = ?", (name, caller)
        )
        return gone.rowcount > 0

    @property
    def num_bytes(self) -> int:
        """Of all that are kept."""
        return int(self._file.execute("SELECT num_bytes FROM total").fetchone()[0])


class ResponseServer:
    """The same in a Redis or Valkey server, which gateways of several machines share. It forgets by
    its own policy; a response larger than `most_bytes` is not kept.
    """

    def __init__(self, url: str, most_bytes: int) -> None:
        """Raises InvalidParameter for what is no address, or a server that does not let us in; one
        that does not answer yet is asked again.
        """
        self._most_bytes = most_bytes
        try:
            self._server = RedisServer(url)
            self._ask(b"PING")
        except (RedisRefused, ValueError) as error:
            raise InvalidParameter(
                f"Responses cannot be kept there: responses_file {error}.", name="responses_file"
            ) from None
        except OSError as error:
            log.warning("the server of stored responses does not answer yet: %s", error)

    def write(self, row: SavedResponse) -> None:
        if row.size <= self._most_bytes:
            packed = msgspec.msgpack.encode(row)
            self._ask(b"SET", self._name(row.caller, row.name), packed)

    def read(self, caller: str, name: str) -> SavedResponse | None:
        with closing(self._server):
            found = self._server.value(self._name(caller, name))
        try:
            row = None if found is None else _row.decode(found)
        except msgspec.DecodeError as error:
            raise OSError(f"what is kept of {name} is no response: {error}") from None
        return row if row is not None and (row.caller, row.name) == (caller, name) else None

    def drop(self, caller: str, name: str) -> bool:
        return self._ask(b"DEL", self._name(caller, name)) == b":1"

    def _ask(self, *command: bytes) -> bytes:
        """On a connection of its own: what lies between closes one that is seldom used."""
        with closing(self._server):
            return self._server.ask([command])[0]

    def _name(self, caller: str, name: str) -> bytes:
        """Of a caller, too: nobody finds another one's by guessing."""
        whose = hashlib.blake2b(caller.encode(), digest_size=16).hexdigest()
        return f"lmprog-response:{FORMAT}:{whose}:{name}".encode()


def kept_at(place: str, most_bytes: int) -> ResponseFile | ResponseServer:
    """A server where `place` is an address, else a file. Raises InvalidParameter."""
    is_address = place.partition("://")[0] in SCHEMES and "://" in place
    return (ResponseServer if is_address else ResponseFile)(place, most_bytes)


_TABLES = (
    "BEGIN IMMEDIATE",
    "CREATE TABLE IF NOT EXISTS responses (name TEXT PRIMARY KEY, caller TEXT NOT NULL, account "
    "TEXT NOT NULL, json BLOB NOT NULL, messages BLOB NOT NULL, events BLOB, size INTEGER NOT "
    "NULL, used REAL NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS by_use ON responses (used)",
    "CREATE TABLE IF NOT EXISTS total (num_bytes INTEGER NOT NULL)",
    "INSERT INTO total SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM total)",
    "CREATE TRIGGER IF NOT EXISTS more AFTER INSERT ON responses BEGIN "
    "UPDATE total SET num_bytes = num_bytes + NEW.size; END",
    "CREATE TRIGGER IF NOT EXISTS less AFTER DELETE ON responses BEGIN "
    "UPDATE total SET num_bytes = num_bytes - OLD.size; END",
    f"PRAGMA user_version = {FORMAT}",
    "COMMIT",
)


class Store:
    """Forgets what was not used for longest when there is too much, of all, or in the memory that
    one client may have. With a file, memory has those that are being written, and the file has the
    others.
    """

    def __init__(
        self,
        most_bytes: int,
        memory: MemoryPool,
        most: int = MOST_KEPT,
        file: ResponseFile | ResponseServer | None = None,
    ) -> None:
        self._most = most
        self._memory = memory
        memory.reclaims.append(self._reclaim)
        memory.parts.append(self._held)
        self._most_bytes = most_bytes
        self._file = file
        self._thread = ThreadPoolExecutor(1, "lmprog-responses")
        """Uses the file: the event loop waits for no disk."""
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._counted: dict[str, int] = {}
        self.num_bytes = 0
        """Of all that are kept in memory."""

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, kept: Kept) -> None:
        """Keeps one more, if it is not larger than all may be. One that still runs is forgotten
        like any other; it runs on.
        """
        kept.begin()
        self._kept[kept.name] = kept
        self.recount(kept)

    def recount(self, kept: Kept) -> None:
        """Its size has changed, or it is written. Nothing happens where it is not kept."""
        if self._kept.get(kept.name) is not kept:
            return
        more = kept.size - self._counted.get(kept.name, 0)
        self.num_bytes += more
        self._counted[kept.name] = kept.size
        self._memory.add(kept.account, more)
        row = kept.row
        if self._file is not None and row is not None and kept.saving is None:
            kept.saving = self._in_thread(partial(self._file.write, row))
            kept.saving.add_done_callback(partial(self._saved, kept))
        self._memory.makes_room(kept.account, 0)
        while len(self._kept) > self._most or self.num_bytes > self._most_bytes:
            self._forget(next(iter(self._kept)))

    async def written(self, kept: Kept) -> None:
        """Waits until others find it, where it is kept in a file."""
        if kept.saving is not None:
            await asyncio.wait({kept.saving})

    async def get(self, caller: str, name: str) -> Kept | None:
        """None where there is none of that caller's. Raises HttpError where the file fails."""
        kept = self._kept.get(name)
        if kept is not None and kept.caller == caller:
            self._kept.move_to_end(name)
            return kept
        if self._file is None:
            return None
        row = await self._asked(partial(self._file.read, caller, name))
        return None if row is None else Kept.of(row)

    async def drop(self, caller: str, name: str) -> bool:
        """Whether it was there. Raises HttpError where the file fails."""
        kept = self._kept.get(name)
        was_here = kept is not None and kept.caller == caller
        if was_here:
            self._forget(name)
        if self._file is None:
            return was_here
        return await self._asked(partial(self._file.drop, caller, name)) or was_here

    def _in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _asked(self, work: Callable[[], T]) -> T:
        try:
            return await self._in_thread(work)
        except (sqlite3.Error, OSError) as error:
            log.warning("stored responses cannot be read: %s", error)
            message = "Stored responses cannot be read now; try again in a moment."
            raise HttpError(Problem(503, message, code="overloaded", retry_after=1.0)) from None

    def _saved(self, kept: Kept, done: asyncio.Future[None]) -> None:
        """What could not be written stays in memory."""
        if done.cancelled() or (error := done.exception()) is not None:
            log.warning("a response is kept in memory only: %s", "" if done.cancelled() else error)
        elif self._kept.get(kept.name) is kept:
            self._forget(kept.name)

    def _held(self) -> Iterator[tuple[str, str, int]]:
        for name, kept in self._kept.items():
            yield kept.account, "stored", self._counted.get(name, 0)

    def _reclaim(self, account: str, count: int) -> None:
        """See `MemoryPool.reclaims`."""
        for name in [one.name for one in self._kept.values() if one.account == account]:
            if self._memory.has_room(account, count):
                return
            self._forget(name)

    def _forget(self, name: str) -> None:
        size = self._counted.pop(name)
        self.num_bytes -= size
        self._memory.add(self._kept.pop(name).account, -size)
