"""Packed weights kept on disk, by their content: mapped by every process that needs them.

A file's digest is known without reading all of it each time: it is kept together with the file's
inode, size and times of change, which the system sets and which no writer can avoid; where they
differ the file is read again.

A file of the folder holds one model's packed weights and nothing else. Beside it lies its seal: the
content's digest, and the file's inode, size and times of change when the digest was last seen to be
true. A file that is not as its seal says is read and compared once more, also after each start of
the machine, since what was not yet on the disk is lost when power fails; where it differs it is
deleted. So nothing that is torn, cut or changed is ever computed with. The caller knows how many
bytes there must be and where each weight lies: no size and no place is read from a file.

Knows files and bytes; knows no model and no numbers. Deleting a file takes nothing from processes
that have it mapped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmprog import linux
from lmprog.native import cache_folder, usual_cache

log = logging.getLogger("lmprog")

_MOST_KEPT = 4096
"""Digests; the oldest go first."""
_MOST_AT_ONCE = 4
"""Files that are read side by side: one thread sums 1.5 to 2 GB a second."""
_SETTLED = 3.0
"""Seconds since the last change. A younger file could change again within one tick of the system's
clock, so its digest is not kept."""

LIMIT_VARIABLE = "LMPROG_WEIGHT_CACHE_GB"
_USUAL_LIMIT_GB = 20.0
_SPARE = 2 << 30
"""Bytes of the disk that are left to others."""
_ABANDONED = 3600.0
"""Seconds after which a draft that nobody finished is deleted."""
_DATA, _SEAL, _DRAFT = ".weights", ".json", ".draft"


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


@dataclass(frozen=True, slots=True)
class PackedFile:
    """One file of the folder, for people."""

    name: str
    label: str
    num_bytes: int
    last_used: float
    """Seconds since 1970."""


class PackedFiles:
    """The folder. `limit` is in bytes, over all files; with 0 nothing is kept."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit

    def mapped(self, name: str, num_bytes: int) -> mmap.mmap | None:
        """The file's bytes, read-only and verified; None where there is no such file, or (after one
        log line and its deletion) none that can be believed.
        """
        path, seal = self._data(name), self._seal(name)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return None
        with open(handle, "rb") as opened:
            stat = os.fstat(handle)
            known = read_note(seal)
            wrong = _refusal(known, stat, num_bytes)
            if wrong is None:
                memory = _whole(handle, num_bytes)
                if _seen(known, stat):
                    _touch(seal)
                    return memory
                opened.seek(0)
                if hashlib.file_digest(opened, "sha256").hexdigest() == known["digest"]:
                    with contextlib.suppress(OSError):
                        now = {"identity": file_identity(stat), "boot": linux.boot_name()}
                        write_note(seal, known | now)
                    return memory
                wrong = "its content is not what was written"
        log.warning("%s is dropped: %s", path, wrong)
        self._delete(name)
        return None

    def draft(self, name: str, num_bytes: int, label: str) -> Draft | None:
        """Memory of a new file; None (said in the log) where it must not or cannot be kept."""
        if num_bytes > self.limit:
            if self.limit:
                log.info("%s is not kept on disk: it is larger than %s", label, LIMIT_VARIABLE)
            return None
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._sweep()
            self._make_room(num_bytes)
            if shutil.disk_usage(self.folder).free < num_bytes + _SPARE:
                raise OSError(f"the disk has less than {num_bytes + _SPARE >> 20} MB left")
            path = self.folder / f"{name}.{os.getpid()}{_DRAFT}"
            path.unlink(missing_ok=True)
            return Draft(self, name, path, num_bytes, label)
        except OSError as error:
            log.info("%s is not kept on disk: %s", label, error)
            return None

    def files(self) -> list[PackedFile]:
        """Last used first."""
        found = []
        for name, num_bytes in self._sizes():
            seal = read_note(self._seal(name))
            with contextlib.suppress(OSError):
                used = self._seal(name).stat().st_mtime
                found.append(PackedFile(name, str(seal.get("label", "")), num_bytes, used))
        return sorted(found, key=lambda one: -one.last_used)

    def clear(self) -> int:
        """Deletes everything; how many bytes that were."""
        freed = 0
        for name, num_bytes in list(self._sizes()):
            self._delete(name)
            freed += num_bytes
        self._sweep(everything=True)
        return freed

    def take(self, name: str, draft: Path, digest: str, label: str) -> None:
        """Puts a finished file in its place. Raises OSError.

        The seal comes first, so that who meets the file before the last line compares its content.
        """
        note: dict[str, Any] = {"digest": digest, "label": label}
        write_note(self._seal(name), note)
        os.replace(draft, self._data(name))
        seen = {"identity": file_identity(self._data(name).stat()), "boot": linux.boot_name()}
        write_note(self._seal(name), note | seen)

    def _data(self, name: str) -> Path:
        return self.folder / f"{name}{_DATA}"

    def _seal(self, name: str) -> Path:
        return self.folder / f"{name}{_SEAL}"

    def _sizes(self) -> Iterator[tuple[str, int]]:
        for path in self.folder.glob(f"*{_DATA}"):
            with contextlib.suppress(OSError):
                yield path.name.removesuffix(_DATA), path.stat().st_size

    def _delete(self, name: str) -> None:
        for path in (self._data(name), self._seal(name)):
            with contextlib.suppress(OSError):
                path.unlink()

    def _make_room(self, num_bytes: int) -> None:
        """Deletes those that were not used for the longest time, until so much more fits."""
        kept = self.files()
        total = sum(one.num_bytes for one in kept)
        while kept and total + num_bytes > self.limit:
            oldest = kept.pop()
            self._delete(oldest.name)
            total -= oldest.num_bytes

    def _sweep(self, everything: bool = False) -> None:
        """Deletes what processes left behind that died: drafts, and halves of pairs."""
        now = time.time()
        for path in self.folder.glob("*"):
            alone = path.suffix == _SEAL and not path.with_suffix(_DATA).exists()
            alone |= path.suffix == _DATA and not path.with_suffix(_SEAL).exists()
            if path.suffix == _DRAFT or alone:
                with contextlib.suppress(OSError):
                    if everything or now - path.stat().st_mtime > _ABANDONED:
                        path.unlink()


class Draft:
    """A file that is being written: through `memory`, which `keep` or `discard` ends."""

    def __init__(
        self, files: PackedFiles, name: str, path: Path, num_bytes: int, label: str
    ) -> None:
        """Raises OSError where the disk lacks room."""
        self._files = files
        self._name = name
        self._path = path
        self._label = label
        self.num_bytes = num_bytes
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            # Room is taken now: a disk that fills up later would kill whoever writes to memory.
            linux.take_room(self._handle, num_bytes)
            self.memory = mmap.mmap(self._handle, num_bytes)
            linux.use_huge_pages(self.memory)
        except BaseException:
            self.discard()
            raise

    def keep(self) -> mmap.mmap:
        """The same bytes, read-only, under their name from now on; `memory` must not be written to
        any more. Nothing is lost where the folder cannot be written: the memory is as good.
        """
        digest = hashlib.sha256(self.memory).hexdigest()
        memory = _whole(self._handle, self.num_bytes)
        try:
            if not linux.boot_name():
                os.fsync(self._handle)  # this system does not tell whether it was started again
            self._files.take(self._name, self._path, digest, self._label)
        except OSError as error:
            log.info("%s is not kept on disk: %s", self._label, error)
        self.discard()
        return memory

    def discard(self) -> None:
        """Nothing of the draft stays. May be called twice."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        self._path.unlink(missing_ok=True)


def user_cache() -> PackedFiles:
    """The user's folder. `LMPROG_WEIGHT_CACHE_GB` bounds it (0: nothing is kept)."""
    asked = os.environ.get(LIMIT_VARIABLE, "")
    try:
        gigabytes = float(asked) if asked else _USUAL_LIMIT_GB
    except ValueError:
        log.warning("%s must be a number of gigabytes, not %r", LIMIT_VARIABLE, asked)
        gigabytes = _USUAL_LIMIT_GB
    return PackedFiles(usual_cache() / "weights", max(0, int(gigabytes * (1 << 30))))


def _refusal(known: dict[str, Any], stat: os.stat_result, num_bytes: int) -> str | None:
    """Why a file cannot be what was written; None: it may be."""
    if not isinstance(known.get("digest"), str):
        return "its seal is missing or damaged"
    if not is_ours(stat):
        return "others may have written it"
    if stat.st_size != num_bytes:
        return f"it has {stat.st_size} bytes instead of {num_bytes}"
    return None


def _seen(known: dict[str, Any], stat: os.stat_result) -> bool:
    """Whether the digest was seen to be true of this very state of the file."""
    return known.get("identity") == file_identity(stat) and known.get("boot") == linux.boot_name()


def _whole(handle: int, num_bytes: int) -> mmap.mmap:
    """A read-only mapping, shared with all processes that have it; the system begins to read."""
    memory = mmap.mmap(handle, num_bytes, access=mmap.ACCESS_READ)
    linux.use_huge_pages(memory)
    linux.begin_to_read(memory)
    return memory


def _touch(seal: Path) -> None:
    with contextlib.suppress(OSError):
        os.utime(seal)
