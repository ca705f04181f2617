"""CURVE keys as a folder of four files, the same on every machine or a part of it.

`runtime.secret` and `gateway.public` are what a runtime needs, `gateway.secret` and
`runtime.public` what its clients need; all runtimes of a fleet share a pair, and so do all clients.
"""

from __future__ import annotations

import os
from pathlib import Path

import zmq
from zmq.utils import z85

from lmprog.errors import InvalidParameter
from lmprog.transport.address import CurveClient, CurveServer

_Z85_LEN = 40  # characters of a key


def write_keys(folder: Path) -> list[Path]:
    """Makes new keys; the files, which only this user can read. Raises InvalidParameter where there
    are keys already.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = []
        for owner in ("runtime", "gateway"):
            public, secret = zmq.curve_keypair()
            for kind, key in (("public", public), ("secret", secret)):
                path = folder / f"{owner}.{kind}"
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(key)
                written.append(path)
    except FileExistsError as error:
        raise _wrong(folder, f"already has {error.filename}") from None
    except OSError as error:
        raise _wrong(folder, f"cannot be written: {error.strerror or error}") from None
    return written


def keys_of_runtime(folder: Path) -> CurveServer:
    """What a runtime needs. Raises InvalidParameter for a file that is missing or no key."""
    secret = _key(folder / "runtime.secret")
    clients = frozenset({_key(folder / "gateway.public")})
    return CurveServer(zmq.curve_public(secret), secret, clients)


def keys_of_client(folder: Path) -> CurveClient:
    """What a gateway, or any other client, needs. Raises like `keys_of_runtime`."""
    secret = _key(folder / "gateway.secret")
    return CurveClient(zmq.curve_public(secret), secret, _key(folder / "runtime.public"))


def client_keys(keys: CurveClient | str | os.PathLike[str] | None) -> CurveClient | None:
    """Keys as they are, or those of a folder."""
    if keys is None or isinstance(keys, CurveClient):
        return keys
    return keys_of_client(Path(keys))


def _key(path: Path) -> bytes:
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror or error}") from None
    try:
        is_key = len(key) == _Z85_LEN and len(z85.decode(key)) == 32
    except (ValueError, KeyError):
        is_key = False
    if not is_key:
        raise _wrong(path, "is no CURVE key: 40 characters of Z85")
    return key


def _wrong(path: Path, what: str) -> InvalidParameter:
    return InvalidParameter(
        f"{path} {what}; lmprog fleet keys DIR makes a folder of keys.", name="keys"
    )
