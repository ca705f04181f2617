"""API keys with what each of them may do: from `--api-key`, and from the file of `--api-key-file`.

The file is TOML, one table for each key, by the name that metrics and logs show:

    [alice]
    key = "..."                 # or: sha256 = "the key's digest in hex"
    weight = 2.0                # its share of a full server, against the 1.0 of others
    max_priority = 0            # the highest `priority` that its requests may claim
    tokens_per_minute = 60000   # of prompts and results; left out: no limit

Knows digests only, once a file is read; keys themselves are not kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import tomllib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lmprog.errors import InvalidParameter
from lmprog.server.options.server_settings import ServerSettings

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
LEAST_SECRET = 32
"""Characters of a secret in a file."""
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key. `name` is not secret."""

    name: str
    digest: bytes
    weight: float = 1.0
    max_priority: int = 0
    tokens_per_minute: float | None = None
    is_admin: bool = False


class KeyTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key in the file."""

    key: str | None = None
    sha256: str | None = None
    weight: float = 1.0
    max_priority: int | None = None
    tokens_per_minute: float | None = None


def key_of_caches(settings: ServerSettings) -> bytes:
    """32 bytes with which caches of keys are named, so that whoever sees a name can guess no key.

    Servers with the same secret give a key the same cache, whichever of them it asks, and after a
    restart: those before one fleet, whose keys they share, or that share a file. Else each start
    has its own. Raises InvalidParameter for a file that cannot be used.
    """
    if settings.cache_key_file is not None:
        text = _kept_secret(Path(settings.cache_key_file))
    elif settings.keys is not None:
        text = _secret_in(Path(settings.keys) / "gateway.secret", "keys")
    else:
        return secrets.token_bytes(32)
    return hashlib.blake2b(text, digest_size=32, person=b"lmprog-caches").digest()


def _kept_secret(path: Path) -> bytes:
    """What the file holds; where there is none it is made, by one of those that want it."""
    drawn = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        if not path.exists():
            descriptor = os.open(drawn, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))
            with contextlib.suppress(FileExistsError):
                os.link(drawn, path)  # whole, and only where nobody else has made it meanwhile
            drawn.unlink()
    except OSError as error:
        raise _unusable(path, "cache_key_file", error.strerror or str(error)) from None
    return _secret_in(path, "cache_key_file")


def _secret_in(path: Path, option: str) -> bytes:
    try:
        text = path.read_bytes().strip()
    except OSError as error:
        raise _unusable(path, option, error.strerror or str(error)) from None
    if len(text) < LEAST_SECRET:
        raise _unusable(path, option, f"it has less than {LEAST_SECRET} characters")
    return text


def _unusable(path: Path, option: str, why: str) -> InvalidParameter:
    return InvalidParameter(
        f"the secret of caches in {path} cannot be used: {why}", name=option, value=str(path)
    )


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def keys_of(settings: ServerSettings) -> tuple[ApiKey, ...]:
    """All keys, the admin's last. Reads the file. Raises InvalidParameter for what is wrong."""
    tables = {} if settings.api_key_file is None else _read(Path(settings.api_key_file))
    count = len(settings.api_keys) + len(tables)
    priority = settings.max_priority
    highest = priority if priority is not None else (0 if count > 1 else 100)
    found = [
        ApiKey(f"key-{number}", digest(key), max_priority=highest)
        for number, key in enumerate(settings.api_keys, 1)
    ]
    for name, table in tables.items():
        found.append(
            ApiKey(
                name,
                bytes.fromhex(table.sha256) if table.sha256 else digest(table.key or ""),
                table.weight,
                highest if table.max_priority is None else table.max_priority,
                table.tokens_per_minute,
            )
        )
    if settings.admin_key is not None:
        found.append(ApiKey("admin", digest(settings.admin_key), max_priority=100, is_admin=True))
    _check_unique(found)
    return tuple(found)


def _read(path: Path) -> dict[str, KeyTable]:
    try:
        tables = msgspec.convert(tomllib.loads(path.read_text("utf-8")), dict[str, KeyTable])
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror or error}") from None
    except tomllib.TOMLDecodeError as error:
        raise _wrong(path, f"is not valid TOML: {error}") from None
    except (UnicodeDecodeError, msgspec.ValidationError) as error:
        raise _wrong(path, f"is wrong: {error}") from None
    for name, table in tables.items():
        if not _NAME.fullmatch(name):
            raise _wrong(path, f"has the name {name!r}; use letters, digits, '.', '_', '-'")
        if bool(table.key) == bool(table.sha256):
            raise _wrong(path, f"must have either key or sha256 for {name!r}")
        if table.sha256 is not None and not _DIGEST.fullmatch(table.sha256):
            raise _wrong(path, f"has a sha256 for {name!r} that is not 64 hexadecimal digits")
        if not 0.001 <= table.weight <= 1000:
            raise _wrong(path, f"has the weight {table.weight} for {name!r}; 0.001 to 1000")
        if table.max_priority is not None and not -100 <= table.max_priority <= 100:
            raise _wrong(path, f"has a max_priority beyond -100 to 100 for {name!r}")
        if table.tokens_per_minute is not None and not table.tokens_per_minute > 0:
            raise _wrong(path, f"has tokens_per_minute for {name!r} that are not above 0")
    return tables


def _check_unique(keys: list[ApiKey]) -> None:
    for kind, values in (
        ("name", [key.name for key in keys]),
        ("key", [key.digest for key in keys]),
    ):
        if len(set(values)) < len(values):
            raise InvalidParameter(f"Two API keys have the same {kind}.", name="api_key_file")


def _wrong(path: Path, what: str) -> InvalidParameter:
    return InvalidParameter(f"The file of API keys {path} {what}.", name="api_key_file")
