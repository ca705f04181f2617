"""Sets of code points as sorted, disjoint, inclusive ranges; `re`'s classes; UTF-8 encoding.

Knows Unicode code points and UTF-8. Does not know patterns, automata or JSON. Surrogates (U+D800 to
U+DFFF) are never members: no UTF-8 text contains them.

Tables of code points that are slow to make and depend only on this Python's Unicode version are
kept on disk.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
import tempfile
import unicodedata
import warnings
from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lmprog.native import cache_folder

log = logging.getLogger("lmprog")

Made = Callable[[], NDArray[np.int32]]


def kept_table(name: str, make: Made) -> NDArray[np.int32]:
    """The flat table called `name`, read from the cache folder or computed and stored there."""
    python = ".".join(map(str, sys.version_info[:3]))
    path = cache_folder() / "unicode" / f"{name}-{python}-{unicodedata.unidata_version}.npy"
    if path.exists():
        try:
            found = np.load(path)
            if found.dtype == np.int32 and found.ndim == 1:
                return np.ascontiguousarray(found)
            log.warning("the table %s is not one; it is made anew", path.name)
        except (OSError, ValueError, EOFError) as error:
            log.warning("the table %s cannot be read (%s); it is made anew", path.name, error)
    made = np.ascontiguousarray(make().ravel(), np.int32)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npy", delete=False) as out:
            np.save(out, made)
        os.replace(out.name, path)  # atomic: other processes see a complete file or none
    except OSError as error:
        log.warning("the table %s could not be written to %s: %s", name, path.parent, error)
    return made


CharSet: TypeAlias = tuple[tuple[int, int], ...]

MAX_CODE = 0x10FFFF
_LOW, _HIGH = 0xD800, 0xDFFF


def charset(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """Normal form: sorted, disjoint, not adjacent, without surrogates."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    out: list[tuple[int, int]] = []
    for low, high in merged:
        if high < _LOW or low > _HIGH:
            out.append((low, high))
            continue
        if low < _LOW:
            out.append((low, _LOW - 1))
        if high > _HIGH:
            out.append((_HIGH + 1, high))
    return tuple(out)


ALL: CharSet = charset([(0, MAX_CODE)])


def complement(chars: CharSet) -> CharSet:
    gaps, at = [], 0
    for low, high in chars:
        if low > at:
            gaps.append((at, low - 1))
        at = high + 1
    if at <= MAX_CODE:
        gaps.append((at, MAX_CODE))
    return charset(gaps)


def union(*sets: CharSet) -> CharSet:
    return charset(pair for one in sets for pair in one)


def intersect(left: CharSet, right: CharSet) -> CharSet:
    out, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        low, high = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if low <= high:
            out.append((low, high))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(out)


def subtract(left: CharSet, right: CharSet) -> CharSet:
    return intersect(left, complement(right))


def of_text(text: str) -> CharSet:
    return charset((ord(c), ord(c)) for c in text)


def contains(chars: CharSet, code: int) -> bool:
    return any(low <= code <= high for low, high in chars)


ASCII_DIGIT = charset([(48, 57)])
ASCII_WORD = charset([(48, 57), (65, 90), (95, 95), (97, 122)])
ASCII_SPACE = charset([(9, 13), (32, 32)])
# ECMA-262 white space and line terminators, for patterns of JSON schemas.
ECMA_SPACE = charset(
    [
        *((9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
        *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
    ]
)


@functools.cache
def python_class(letter: str) -> CharSet:
    r"""The members of `\d`, `\s` or `\w` according to this Python's `re`."""

    def make() -> NDArray[np.int32]:
        spans = (
            (found.start(), found.end() - 1)
            for found in re.finditer(rf"\{letter}+", _every_character())
        )
        return np.array(charset((_code(first), _code(last)) for first, last in spans), np.int32)

    pairs: list[list[int]] = kept_table(f"class-{letter}", make).reshape(-1, 2).tolist()
    return tuple((low, high) for low, high in pairs)


@functools.lru_cache(maxsize=64)
def general_category(prefix: str) -> CharSet:
    """The characters whose general category, two letters, starts with `prefix`."""
    every = _every_character()
    return of_text("".join(char for char in every if unicodedata.category(char).startswith(prefix)))


def folded(chars: CharSet, source: str, ascii_only: bool) -> CharSet:
    """`chars` under `(?i)`: what `re` matches for the one-character pattern `source`."""
    return union(chars, _folded_members(source, ascii_only))


@functools.lru_cache(maxsize=512)
def _folded_members(source: str, ascii_only: bool) -> CharSet:
    with warnings.catch_warnings():  # `re` warns about `[[` and `--`, whose meaning has not changed
        warnings.simplefilter("ignore", FutureWarning)
        one = re.compile(source, re.IGNORECASE | (re.ASCII if ascii_only else 0))
    return of_text("".join(one.findall(_cased_characters())))


@functools.cache
def _every_character() -> str:
    codes = np.concatenate([np.arange(_LOW), np.arange(_HIGH + 1, MAX_CODE + 1)]).astype("<u4")
    return str(codes.tobytes(), "utf-32-le")


def _code(index: int) -> int:
    """The code point at an index of `_every_character()`."""
    return index if index < _LOW else index + (_HIGH - _LOW + 1)


@functools.cache
def _cased_characters() -> str:
    """The only characters whose matches depend on case."""

    def make() -> NDArray[np.int32]:
        cased = {c for c in _every_character() if c.lower() != c or c.upper() != c}
        partners = {p for c in cased for p in (c.lower(), c.upper()) if len(p) == 1}
        return np.array(sorted(map(ord, cased | partners)), np.int32)

    return "".join(map(chr, kept_table("cased", make).tolist()))
