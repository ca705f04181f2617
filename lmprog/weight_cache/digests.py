"""What a file's content is, without reading all of it each time.

A file's SHA-256 is kept together with its inode, size and times of change, which the system sets
and which no writer can avoid; where they differ the file is read again. Knows files only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lmprog.native import cache_folder

_MOST_KEPT = 4096
"""Digests; the oldest go first."""
_MOST_AT_ONCE = 4
"""Files that are read side by side: one thread sums 1.5 to 2 GB a second."""
_SETTLED = 3.0
"""Seconds since the last change. A younger file could change again within one tick of the system's
clock, so its digest is not kept."""


def content_digests(paths: Sequence[Path]) -> list[str]:
    """Of each file, several of them at a time. Raises OSError where one cannot be read."""
    if len(paths) < 2:
        return [content_digest(path) for path in paths]
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, os.cpu_count() or 1)) as pool:
        return list(pool.map(content_digest, paths))


def content_digest(path: Path) -> str:
    """The file's SHA-256, in hex. Raises OSError where it cannot be read."""
    real = path.resolve()
    name = hashlib.sha256(os.fsencode(real)).hexdigest()[:40]
    note = cache_folder() / "digests" / f"{name}.json"
    with real.open("rb") as opened:
        before = file_identity(os.fstat(opened.fileno()))
        known = read_note(note)
        if known.get("identity") == before and isinstance(known.get("digest"), str):
            return str(known["digest"])
        found = hashlib.file_digest(opened, "sha256").hexdigest()
        if file_identity(os.fstat(opened.fileno())) != before:
            raise OSError(f"{path} changed while it was read")
    if time.time() - max(before[3], before[4]) / 1e9 > _SETTLED:
        with contextlib.suppress(OSError):  # a cache that cannot be written costs time only
            write_note(note, {"identity": before, "digest": found})
            _forget_oldest(note.parent)
    return found


def file_identity(stat: os.stat_result) -> list[int]:
    """What changes with every change of a file."""
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def read_note(path: Path) -> dict[str, Any]:
    """A small JSON object of ours; empty where there is none, or none that can be believed."""
    try:
        with path.open("rb") as opened:
            if not is_ours(os.fstat(opened.fileno())):
                return {}
            value = json.loads(opened.read(1 << 16))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def write_note(path: Path, value: dict[str, Any]) -> None:
    """Replaces the note as a whole. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".note")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            json.dump(value, opened)
        os.replace(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise


def is_ours(stat: os.stat_result) -> bool:
    """Whether nobody else can have written it."""
    return stat.st_uid == os.geteuid() and not stat.st_mode & 0o022


def _forget_oldest(folder: Path) -> None:
    notes = list(folder.glob("*.json"))
    if len(notes) <= _MOST_KEPT:
        return
    notes.sort(key=lambda note: note.stat().st_mtime)
    for note in notes[: len(notes) - _MOST_KEPT // 2]:
        note.unlink(missing_ok=True)
