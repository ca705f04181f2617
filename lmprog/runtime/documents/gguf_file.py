"""A GGUF file: its metadata, and where its tensors lie.

The whole header is read and checked before anything is believed: every length against the file's
size, every count against a bound, every tensor's place against the end. A damaged or hostile file
is a ModelError, never a read beyond its end nor memory without end. Texts of long lists stay in the
file until they are asked for. Knows the container; knows no meaning of any name in it.
"""

from __future__ import annotations

import functools
import math
import mmap
import re
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmprog.errors import ModelError

BLOCKS: Mapping[str, tuple[int, int]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
    "MXFP4": (32, 17),
}
"""Types that are read: how many numbers a block has, and how many bytes."""
_TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0"} | {
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    20: "IQ4_NL",
    23: "IQ4_XS",
    30: "BF16",
    39: "MXFP4",
}
_OTHER_TYPES = {9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS"} | {
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
}
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_VERSIONS = (2, 3)
_MOST_FIELDS = 1 << 16
_MOST_TENSORS = 1 << 17
_MOST_ITEMS = 1 << 22
"""Of a list in the metadata: four million, several times the largest vocabulary."""
_LONGEST_NAME = 1 << 10
_LONGEST_TEXT = 1 << 24
_LONGEST_METADATA = 1 << 29
_MOST_DIMENSIONS = 4
_MOST_PARTS = 1 << 10
_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class TextList:
    """A list of texts, still in the file; their places have been checked."""

    def __init__(self, memory: mmap.mmap, start: int, count: int) -> None:
        self._memory = memory
        self._start = start
        self._count = count

    def __len__(self) -> int:
        return self._count

    def texts(self) -> list[str]:
        """Raises ModelError where one is not UTF-8."""
        found, at, memory = [], self._start, self._memory
        try:
            for _ in range(self._count):
                (size,) = _U64.unpack_from(memory, at)
                found.append(memory[at + 8 : at + 8 + size].decode())
                at += 8 + size
        except UnicodeDecodeError as error:
            raise ModelError(f"a text of the GGUF file's metadata is not UTF-8: {error}") from None
        return found


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Bytes `start .. end` of a file. `shape` is as in other checkpoints: rows first."""

    kind: str
    shape: tuple[int, ...]
    start: int
    end: int
    memory: mmap.mmap

    def parts(self) -> list[GgufTensor]:
        """Each of the matrices that it is a stack of."""
        count = self.shape[0]
        size = (self.end - self.start) // count
        starts = range(self.start, self.start + count * size, size)
        return [
            GgufTensor(self.kind, self.shape[1:], start, start + size, self.memory)
            for start in starts
        ]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a file has, or several that are one. Metadata values are numbers, texts, arrays of
    numbers, or `TextList`s."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def gguf_parts(path: Path) -> list[Path]:
    """The files that a model lies in, of which `path` is the first: those with numbers in their
    names, `-00001-of-00003.gguf`.
    """
    found = _NUMBERED.fullmatch(path.name)
    if found is None or int(found["count"]) < 2:
        return [path]
    stem, count = found["stem"], found["count"]
    if int(found["number"]) != 1:
        raise ModelError(
            f"{path.name} is not the first of its files; give {stem}-00001-of-{count}.gguf"
        )
    if int(count) > _MOST_PARTS:
        raise ModelError(f"{path.name} is one of more than {_MOST_PARTS} files")
    return [path.with_name(f"{stem}-{at:05}-of-{count}.gguf") for at in range(1, int(count) + 1)]


def gguf_file(path: Path) -> GgufFile:
    """The file's contents, with those of the files that go on with it; read once while they do not
    change. Raises ModelError.
    """
    try:
        stats = [(part, part.stat()) for part in gguf_parts(path)]
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    return _read_files(
        tuple((part, stat.st_ino, stat.st_size, stat.st_mtime_ns) for part, stat in stats)
    )


@functools.lru_cache(maxsize=1)
def _read_files(parts: tuple[tuple[Path, int, int, int], ...]) -> GgufFile:
    files = [_read_file(path, size) for path, _, size, _ in parts]
    whole = files[0]
    count = whole.metadata.get("split.count", 1) or 1
    if count != len(files):
        raise ModelError(
            f"{whole.path.name} is one of {str(count)[:20]} files, and its name says {len(files)}"
        )
    tensors: dict[str, GgufTensor] = {}
    for at, file in enumerate(files):
        if len(files) > 1 and file.metadata.get("split.no") != at:
            raise ModelError(f"{file.path.name} does not say that it is number {at}")
        if twice := sorted(tensors.keys() & file.tensors.keys()):
            raise ModelError(f"{file.path.name} has {twice[0][:80]} once more")
        tensors |= file.tensors
    wanted = whole.metadata.get("split.tensors.count", len(tensors))
    if len(files) > 1 and wanted != len(tensors):
        raise ModelError(
            f"{whole.path.name} and its further files have {len(tensors)} tensors of {wanted}"
        )
    return GgufFile(whole.path, whole.metadata, tensors)


def _read_file(path: Path, size: int) -> GgufFile:
    try:
        with path.open("rb") as opened:
            if opened.read(4) != b"GGUF":
                raise ModelError(
                    f"{path} is no GGUF file; a model is such a file, or a folder with config.json"
                )
            memory = mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    try:
        return _Header(path, memory).read()
    except (ValueError, struct.error, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is no readable GGUF file: {error}") from error


_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class _Header:
    """The reading of one header. `_at` never passes `_end` unnoticed: every read is checked."""

    def __init__(self, path: Path, memory: mmap.mmap) -> None:
        self._path = path
        self._memory = memory
        self._at = 4
        self._end = len(memory)

    def read(self) -> GgufFile:
        version = self._u32()
        if version not in _VERSIONS:
            raise ValueError(f"version {version} is not known, only 2 and 3 of little-endian files")
        num_tensors = self._count("tensors", _MOST_TENSORS)
        num_fields = self._count("fields", _MOST_FIELDS)
        metadata: dict[str, Any] = {}
        for _ in range(num_fields):
            name = self._text(_LONGEST_NAME)
            if name in metadata:
                raise ValueError(f"the field {name[:80]!r} is there twice")
            metadata[name] = self._value(name)
            if self._at > _LONGEST_METADATA:
                raise ValueError(f"its metadata is longer than {_LONGEST_METADATA} bytes")
        tensors = self._tensors(num_tensors, _alignment(metadata))
        return GgufFile(self._path, metadata, tensors)

    def _take(self, size: int) -> int:
        """The place of the next `size` bytes."""
        at = self._at
        if size > self._end - at:
            raise ValueError(f"it is cut off: {size} bytes at {at} of {self._end}")
        self._at = at + size
        return at

    def _u32(self) -> int:
        return int(_U32.unpack_from(self._memory, self._take(4))[0])

    def _u64(self) -> int:
        return int(_U64.unpack_from(self._memory, self._take(8))[0])

    def _count(self, what: str, most: int) -> int:
        count = self._u64()
        if count > most:
            raise ValueError(f"{count} {what} are more than {most}")
        return count

    def _text(self, longest: int = _LONGEST_TEXT) -> str:
        size = self._u64()
        if size > longest:
            raise ValueError(f"a text of {size} bytes is longer than {longest}")
        at = self._take(size)
        return self._memory[at : at + size].decode()

    def _value(self, name: str) -> Any:
        kind = self._u32()
        if kind == _STRING:
            return self._text()
        if kind == _BOOL:
            return self._memory[self._take(1)] != 0
        if kind in _SCALARS:
            (value,) = struct.unpack_from(f"<{_SCALARS[kind]}", self._memory, self._numbers(kind))
            return value
        if kind != _ARRAY:
            raise ValueError(f"the field {name[:80]!r} has an unknown type, {kind}")
        inner, count = self._u32(), self._count(f"items of {name[:80]!r}", _MOST_ITEMS)
        if inner == _STRING:
            return self._text_list(count)
        if inner != _BOOL and inner not in _SCALARS:
            raise ValueError(f"the field {name[:80]!r} is a list of an unknown type, {inner}")
        at = self._numbers(inner, count)
        numbers = array("B" if inner == _BOOL else _SCALARS[inner])
        numbers.frombytes(self._memory[at : self._at])
        return numbers

    def _numbers(self, kind: int, count: int = 1) -> int:
        size = 1 if kind == _BOOL else struct.calcsize(f"<{_SCALARS[kind]}")
        return self._take(size * count)

    def _text_list(self, count: int) -> TextList:
        start = at = self._at
        unpack, memory, last = _U64.unpack_from, self._memory, self._end - 8
        for _ in range(count):
            if at > last:
                raise ValueError(f"it is cut off: a text at {at} of {self._end}")
            at += 8 + unpack(memory, at)[0]
        if at > self._end:
            raise ValueError(f"it is cut off: a text ends at {at} of {self._end}")
        self._at = at
        return TextList(memory, start, count)

    def _tensors(self, count: int, alignment: int) -> dict[str, GgufTensor]:
        described = []
        names: set[str] = set()
        for _ in range(count):
            name = self._text(_LONGEST_NAME)
            if name in names:
                raise ValueError(f"the tensor {name[:80]!r} is there twice")
            names.add(name)
            num_dimensions = self._u32()
            if not 1 <= num_dimensions <= _MOST_DIMENSIONS:
                raise ValueError(f"the tensor {name[:80]!r} has {num_dimensions} dimensions")
            sizes = [self._u64() for _ in range(num_dimensions)]
            described.append((name, sizes, self._u32(), self._u64()))
        first = -(-self._at // alignment) * alignment
        found = {}
        for name, sizes, kind, offset in described:
            if offset % alignment:
                raise ValueError(f"the tensor {name[:80]!r} is not on a multiple of {alignment}")
            found[name] = self._tensor(name, sizes, kind, first + offset)
        return found

    def _tensor(self, name: str, sizes: list[int], kind: int, start: int) -> GgufTensor:
        label = _TYPES.get(kind)
        if label is None:
            other = _OTHER_TYPES.get(kind, f"of number {kind}")
            raise ValueError(
                f"the tensor {name[:80]!r} is of the type {other}, which lmprog does not read; it "
                f"reads {', '.join(BLOCKS)}"
            )
        numbers, size = BLOCKS[label]
        total = math.prod(sizes)
        if not total or sizes[0] % numbers:
            raise ValueError(f"the tensor {name[:80]!r} of {sizes} has no whole blocks of {label}")
        end = start + total // numbers * size
        if end > self._end:
            raise ValueError(f"it is cut off: the tensor {name[:80]!r} ends at {end}")
        return GgufTensor(label, tuple(reversed(sizes)), start, end, self._memory)


def _alignment(metadata: Mapping[str, Any]) -> int:
    found = metadata.get("general.alignment", 32)
    if not isinstance(found, int) or not 8 <= found <= 1 << 20 or found & (found - 1):
        raise ValueError(f"an alignment of {str(found)[:40]} bytes is not possible")
    return found
