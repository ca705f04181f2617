"""The file of a second tier: what was written is read, and nothing that is torn is believed."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmprog.runtime.tier.disk_store import (
    FEW_MEASURED,
    HEADER_BYTES,
    DiskStore,
    FileInUse,
    PageFile,
)
from lmprog.runtime.tier.page_store import PageKey, page_keys

PAGE, PAGE_BYTES = 4, 300
ROOT = b"r" * 16
KEYS = page_keys(ROOT, bytes(range(48)), PAGE)


def opened(place: Path, identity: bytes = b"i" * 32) -> PageFile:
    return PageFile(place, identity, PAGE, PAGE_BYTES)


def read(file: PageFile, handle: int, key: PageKey) -> bytes | None:
    into = bytearray(PAGE_BYTES)
    return bytes(into) if file.read(handle, key, into) else None


def contents(number: int) -> bytes:
    return bytes([number]) * PAGE_BYTES


def written(place: Path) -> None:
    file = opened(place)
    for number, key in enumerate(KEYS):
        file.write(number, key, age=number + 1, contents=contents(number))
    file.close()


def test_what_was_written_is_known_and_read_after_opening_again(tmp_path: Path) -> None:
    written(tmp_path / "a.kv")
    file = opened(tmp_path / "a.kv")
    assert [(one.handle, one.key, one.age) for one in file.known()] == [
        (number, key, number + 1) for number, key in enumerate(KEYS)
    ]
    assert [read(file, number, key) for number, key in enumerate(KEYS)] == [
        contents(number) for number in range(3)
    ]


def test_a_record_is_read_as_what_it_is_or_as_its_beginning_and_as_nothing_else(
    tmp_path: Path,
) -> None:
    written(tmp_path / "a.kv")
    file = opened(tmp_path / "a.kv")
    key = KEYS[1]
    assert read(file, 1, PageKey(key.index, key.parent, key.tokens[:8])) == contents(1)
    assert read(file, 1, PageKey(key.index, key.parent, key.tokens[:8] + b"other...")) is None
    assert read(file, 1, PageKey(key.index, ROOT, key.tokens)) is None
    assert read(file, 0, key) is None
    assert read(file, 7, key) is None


@pytest.mark.parametrize("seed", range(4))
def test_no_damaged_byte_is_ever_believed(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    place = tmp_path / "a.kv"
    written(place)
    whole = place.read_bytes()
    for _ in range(150):
        damaged = bytearray(whole)
        at = rng.randrange(HEADER_BYTES, len(whole))
        damaged[at] ^= 1 << rng.randrange(8)
        place.write_bytes(damaged)
        file = opened(place)
        for number, key in enumerate(KEYS):
            assert read(file, number, key) in (None, contents(number))
        assert {one.key for one in file.known()} <= set(KEYS)
        file.close()


def test_a_file_cut_anywhere_gives_what_is_whole(tmp_path: Path) -> None:
    place = tmp_path / "a.kv"
    written(place)
    whole = place.read_bytes()
    for length in range(0, len(whole), 37):
        place.write_bytes(whole[:length])
        file = opened(place)
        found = [read(file, number, key) for number, key in enumerate(KEYS)]
        file.close()
        assert all(one in (None, contents(number)) for number, one in enumerate(found))
        if length >= HEADER_BYTES:
            num_whole = (length - HEADER_BYTES) // file.record_bytes
            assert [one is not None for one in found[:num_whole]] == [True] * num_whole


def test_a_write_that_stops_half_way_leaves_nothing_or_what_was_there(tmp_path: Path) -> None:
    """As kill -9 or a full disk leave it: the new record's first bytes over the old one."""
    place = tmp_path / "a.kv"
    written(place)
    before = place.read_bytes()
    other = PageKey(0, ROOT, b"different tokens")
    file = opened(place)
    file.write(0, other, age=9, contents=contents(9))
    file.close()
    after = place.read_bytes()
    for length in range(HEADER_BYTES, HEADER_BYTES + file.record_bytes, 11):
        place.write_bytes(after[:length] + before[length:])
        file = opened(place)
        assert read(file, 0, KEYS[0]) in (None, contents(0))
        assert read(file, 0, other) in (None, contents(9))
        assert read(file, 1, KEYS[1]) == contents(1)
        file.close()


def test_a_file_made_by_something_else_is_begun_anew(tmp_path: Path) -> None:
    written(tmp_path / "a.kv")
    file = opened(tmp_path / "a.kv", identity=b"j" * 32)
    assert file.is_new
    assert list(file.known()) == []
    assert read(file, 0, KEYS[0]) is None


def test_a_file_serves_one_process_at_a_time(tmp_path: Path) -> None:
    file = opened(tmp_path / "a.kv")
    with pytest.raises(FileInUse):
        opened(tmp_path / "a.kv")
    file.close()
    opened(tmp_path / "a.kv").close()


def test_a_link_is_not_followed_and_others_cannot_read_the_file(tmp_path: Path) -> None:
    written(tmp_path / "a.kv")
    (tmp_path / "b.kv").symlink_to(tmp_path / "a.kv")
    with pytest.raises(OSError, match="symbolic"):
        opened(tmp_path / "b.kv")
    assert (tmp_path / "a.kv").stat().st_mode & 0o077 == 0


def test_a_smaller_file_keeps_its_first_records(tmp_path: Path) -> None:
    written(tmp_path / "a.kv")
    file = opened(tmp_path / "a.kv")
    file.resize(2)
    assert [one.handle for one in file.known()] == [0, 1]
    assert os.stat(tmp_path / "a.kv").st_size == HEADER_BYTES + 2 * file.record_bytes


def test_an_erased_record_is_not_known(tmp_path: Path) -> None:
    written(tmp_path / "a.kv")
    file = opened(tmp_path / "a.kv")
    file.erase([1], ())
    assert [one.handle for one in file.known()] == [0, 2]


def test_the_first_page_of_all_does_not_say_what_a_store_costs(tmp_path: Path) -> None:
    """It takes longest, and a store that is thought to be slow is not used."""
    memory = SimpleNamespace(page_bytes=PAGE_BYTES, read=lambda *_: None, write=lambda *_: None)
    file = opened(tmp_path / "a")
    write, slow = file.write, iter([0.5])

    def write_slowly_at_first(*what: Any) -> None:
        time.sleep(next(slow, 0.0))
        write(*what)

    file.write = write_slowly_at_first  # type: ignore[method-assign]
    store = DiskStore(file, memory, 16)
    for number, key in enumerate(KEYS[:1] * FEW_MEASURED):
        assert store.costs.store == 0.0, "nothing is known"
        assert store.store(number, 0, key, wait=30.0)
        while len(store._measures["write"]) <= number:
            time.sleep(0.001)
    assert 0.0 < store.costs.store < 0.5
    store.close()
