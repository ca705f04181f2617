"""A Redis or Valkey server, by the few commands that this needs (RESP, since Redis 2.0): what is
large is read straight into buffers, an answer is waited for a bounded time, and no library is
needed for it. Knows no pages and no responses.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

ANSWER_SECONDS = 1.0
"""An answer that takes longer is an error, and the connection is closed."""
SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix")
MOST_BYTES = 1 << 29
"""Of a value: no server has larger ones."""
_PORT = 6379
_LINE_BYTES = 1 << 16

Argument: TypeAlias = "bytes | bytearray"
"""Of a command."""


class RedisRefused(OSError):
    """The server answered with an error."""


class RedisServer:
    """Connects when it is first asked, and again after an error. For one thread at a time."""

    def __init__(self, url: str) -> None:
        """Raises ValueError for what is no such address."""
        self._url = urlsplit(url)
        if self._url.scheme not in SCHEMES or not (self._url.hostname or self._url.path):
            raise ValueError("is no address like redis://:PASSWORD@HOST:6379/0 or unix:///PATH")
        self._port = self._url.port or _PORT
        self._socket: socket.socket | None = None
        self._pending = bytearray()
        """Read from the socket, and not yet looked at."""

    def ask(self, commands: Sequence[tuple[Argument, ...]]) -> list[bytes]:
        """The answers to commands that are answered by a line each."""
        try:
            self._send(commands)
            return [self._line() for _ in commands]
        except OSError:
            self.close()
            raise

    def read(self, name: bytes, into: Sequence[bytearray]) -> bool:
        """Reads the value of that name into these buffers; False where there is none, or one of
        another length.
        """
        try:
            length = self._length_of(name)
            if length is None:
                return False
            if length != sum(map(len, into)):
                self.close()  # instead of reading what is not wanted
                return False
            for part in (*into, bytearray(2)):
                self._fill(part)
        except OSError:
            self.close()
            raise
        return True

    def value(self, name: bytes) -> bytes | None:
        """The whole value of that name; None where there is none."""
        try:
            length = self._length_of(name)
            if length is None:
                return None
            found = bytearray(length + 2)
            self._fill(found)
        except OSError:
            self.close()
            raise
        return bytes(found[:-2])

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _length_of(self, name: bytes) -> int | None:
        """Asks for a value; its bytes come next."""
        self._send([(b"GET", name)])
        line = self._line()
        if line == b"$-1":
            return None
        if not line.startswith(b"$") or not line[1:].isdigit() or int(line[1:]) > MOST_BYTES:
            raise OSError(f"the server answers GET with {line[:40]!r}")
        return int(line[1:])

    def _send(self, commands: Sequence[tuple[Argument, ...]]) -> None:
        """The value of SET is two parts."""
        out = self._socket or self._connected()
        parts: list[Argument] = []
        for name, *arguments in commands:
            values = [name, *arguments[:1]]
            parts.append(b"*%d\r\n" % (len(values) + (len(arguments) > 1)))
            for value in values:
                parts += [b"$%d\r\n" % len(value), value, b"\r\n"]
            if rest := arguments[1:]:
                parts += [b"$%d\r\n" % sum(map(len, rest)), *rest, b"\r\n"]
        out.sendall(b"".join(parts))

    def _connected(self) -> socket.socket:
        url, self._pending = self._url, bytearray()
        if url.scheme == "unix":
            made = self._socket = socket.socket(socket.AF_UNIX)
            made.settimeout(ANSWER_SECONDS)
            made.connect(url.path)
        else:
            assert url.hostname is not None, "it was looked at"
            made = self._socket = socket.create_connection(
                (url.hostname, self._port), ANSWER_SECONDS
            )
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if url.scheme in ("rediss", "valkeys"):
                import ssl  # who does not use it does not load it

                context = ssl.create_default_context()
                made = self._socket = context.wrap_socket(made, server_hostname=url.hostname)
        if url.password is not None:
            user, password = unquote(url.username or "default"), unquote(url.password)
            self._said(made, b"AUTH", user.encode(), password.encode())
        if url.scheme != "unix" and (number := url.path.strip("/")):
            self._said(made, b"SELECT", number.encode())
        return made

    def _said(self, to: socket.socket, *words: bytes) -> None:
        """Sends one command whose arguments are all apart."""
        to.sendall(
            b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)
        )
        self._line()

    def _line(self) -> bytes:
        """The next line, without its end. Raises RedisRefused where it is an error."""
        while (end := self._pending.find(b"\r\n")) < 0:
            if len(self._pending) > _LINE_BYTES:
                raise OSError("the server answers with no line")
            self._take(bytearray(4096))
        line = bytes(self._pending[:end])
        del self._pending[: end + 2]
        if line.startswith(b"-"):
            raise RedisRefused(line[1:].decode(errors="replace"))
        return line

    def _fill(self, into: bytearray) -> None:
        """As many bytes as `into` has."""
        have = min(len(into), len(self._pending))
        into[:have] = self._pending[:have]
        del self._pending[:have]
        view = memoryview(into)
        assert self._socket is not None, "something was sent"
        while have < len(into):
            count = self._socket.recv_into(view[have:])
            if not count:
                raise ConnectionResetError("the server closed the connection")
            have += count

    def _take(self, into: bytearray) -> None:
        """Whatever has come, to what was not yet looked at."""
        assert self._socket is not None, "something was sent"
        count = self._socket.recv_into(into)
        if not count:
            raise ConnectionResetError("the server closed the connection")
        self._pending += into[:count]
