"""Stores that runtimes share: what one wrote another reads, and nobody reads anything else."""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from lmprog.redis_server import RedisRefused
from lmprog.runtime.engine import kept_pages
from lmprog.runtime.tier import shared_pages
from lmprog.runtime.tier.disk_store import FileInUse
from lmprog.runtime.tier.page_store import (
    FRAME,
    PageKey,
    PageRecords,
    RecordFormat,
    page_keys,
    root_of,
)
from lmprog.runtime.tier.shared_pages import (
    WAYS,
    RedisPages,
    SharedFolder,
    SharedPageFile,
)
from lmprog.wire import Fingerprint
from tests.tier.shared_stores import (
    IDENTITY,
    PAGE,
    PAGE_BYTES,
    SERVER,
    Opened,
    opener,
    redis_server,
)

KEYS = page_keys(root_of("salt"), bytes(range(160)), PAGE)
needs_server = pytest.mark.skipif(SERVER is None, reason="neither valkey-server nor redis-server")
KINDS = ["machine", "folder", pytest.param("redis", marks=needs_server)]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with redis_server() as (url, _):
        yield url


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    is_redis = request.param == "redis"
    url = request.getfixturevalue("server") if is_redis else ""
    return opener(request.param, tmp_path, url)


def contents(number: int) -> bytes:
    return bytes([number]) * PAGE_BYTES


def write(records: PageRecords, key: PageKey, number: int) -> None:
    records.write(0, key, 1, contents(number))


def read(records: PageRecords, key: PageKey) -> bytes | None:
    into = bytearray(PAGE_BYTES)
    return bytes(into) if records.read(0, key, into) else None


def test_what_one_has_written_another_finds(opened: Opened) -> None:
    one, other = opened(), opened()
    one.erase((), KEYS)
    assert other.count(KEYS) == 0
    for number, key in enumerate(KEYS[:7]):
        write(one, key, number)
    assert other.count(KEYS) == 7
    assert other.count(KEYS[3:]) == 4
    assert [read(other, key) for key in KEYS[:8]] == [*map(contents, range(7)), None]
    other.erase((), KEYS[2:4])
    assert one.count(KEYS) == 2
    one.close()
    other.close()


def another(dice: random.Random, salt: str, tokens: bytes, at: int, kind: int) -> list[PageKey]:
    """The pages of a path of which one thing is another one, from page `at` on: its salt or
    adapter, a bit of a token, the order of tokens or pages, a token more or less; or such a page
    itself, of another length, part or parent.
    """
    size, begin = 4 * PAGE, dice.randrange(PAGE * (at + 1))
    words = [tokens[4 * n : 4 * n + 4] for n in range(len(tokens) // 4)]
    pages = page_keys(root_of(salt), tokens, PAGE)
    match kind:
        case 0:
            cut = dice.randrange(len(salt))
            mutated = dice.choice(
                [salt[:cut] + salt[cut + 1 :], salt[:cut] + "~" + salt[cut:], salt.swapcase()]
            )
            return page_keys(root_of(mutated), tokens, PAGE)[at:]
        case 1:
            root = f"adapter:{dice.randbytes(8).hex()}:{salt}"
            return page_keys(root_of(root), tokens, PAGE)[at:]
        case 2:
            flipped = bytearray(tokens)
            flipped[dice.randrange(size * (at + 1))] ^= 1 << dice.randrange(8)
            return page_keys(root_of(salt), bytes(flipped), PAGE)[at:]
        case 3:
            other = dice.randrange(PAGE * (at + 1))
            words[begin], words[other] = words[other], words[begin]
        case 4:
            one = dice.randrange(at + 1)
            two = PAGE * ((one + 1) % (at + 2))
            one *= PAGE
            words[one : one + PAGE], words[two : two + PAGE] = (
                words[two : two + PAGE],
                words[one : one + PAGE],
            )
        case 5:
            del words[begin]
        case 6:
            words.insert(begin, dice.randbytes(4))
        case 7:
            length = 4 * dice.randrange(PAGE)
            return [replace(pages[at], tokens=pages[at].tokens[:length])]
        case 8:
            return [replace(pages[at], part=dice.choice([1, 2, FRAME]))]
        case _:
            parent = bytearray(pages[at].parent)
            parent[dice.randrange(16)] ^= 1 << dice.randrange(8)
            return [replace(pages[at], parent=bytes(parent))]
    return page_keys(root_of(salt), b"".join(words), PAGE)[at:]


def test_no_page_of_another_identity_is_ever_found(opened: Opened) -> None:
    """Of one thing changed, also by a bit alone: of what comes before a page, of what it is, and of
    the model. 10,000 of them in a file.
    """
    dice = random.Random(7)
    records = opened()
    salt, num_tried = "salt-7", 0
    tokens = dice.randbytes(4 * PAGE * 8)
    right = page_keys(root_of(salt), tokens, PAGE)
    for number, key in enumerate(right):
        write(records, key, number)
    assert [read(records, key) for key in right] == [contents(number) for number in range(8)]
    others = []
    for bit in range(8):
        identity = bytearray(IDENTITY)
        identity[dice.randrange(16)] ^= 1 << bit
        others.append(opened(identity=bytes(identity)))
    for number in range(11_000 if isinstance(records, SharedPageFile) else 2_200):
        at = dice.randrange(7)
        if number % 11 == 10:
            assert read(dice.choice(others), right[at]) is None
            num_tried += 1
            continue
        keys = another(dice, salt, tokens, at, number % 11)
        if keys[0] == right[at]:
            continue  # two equal tokens were exchanged
        num_tried += 1
        assert records.count(keys) == 0, (number, at)
        assert read(records, keys[0]) is None
    assert num_tried > 0.9 * (11_000 if isinstance(records, SharedPageFile) else 2_200)
    for one in (records, *others):
        one.close()


def test_whatever_decides_numbers_is_in_the_identity_of_pages() -> None:
    """One character of any part of a model's fingerprint makes another store; what only decides
    which tokens there are does not.
    """
    names = Fingerprint.__struct_fields__
    engine = SimpleNamespace(computed_by="native avx2", memory=SimpleNamespace(page_size=16))

    def identity(changed: str = "", page_bytes: int = 4096) -> bytes:
        made_by = Fingerprint(**{name: name + "x" * (name == changed) for name in names})
        return kept_pages._identity(engine, made_by, page_bytes)  # type: ignore[arg-type]

    right = identity()
    assert len(right) == 32
    assert {name for name in names if identity(name) == right} == {"template", "context"}
    assert identity(page_bytes=8192) != right
    engine.computed_by = "native avx512"
    assert identity() != right


def test_a_record_under_a_foreign_name_is_none(tmp_path: Path) -> None:
    """Somebody has renamed or copied a file; also to the folder of another model."""
    folder = SharedFolder(tmp_path, IDENTITY, RecordFormat(PAGE, PAGE_BYTES, IDENTITY), 1 << 20)
    theirs = b"o" * 32
    other = SharedFolder(tmp_path, theirs, RecordFormat(PAGE, PAGE_BYTES, theirs), 1 << 20)
    write(folder, KEYS[0], 1)
    whole = folder._place_of(KEYS[0].id).read_bytes()
    for records, key in ((folder, KEYS[1]), (other, KEYS[0])):
        records._place_of(key.id).parent.mkdir(exist_ok=True)
        records._place_of(key.id).write_bytes(whole)
        assert records.count([key]) == 1
        assert read(records, key) is None
        assert records.count([key]) == 0, "it is taken away, so that it can be written"


def test_no_damaged_page_is_believed(tmp_path: Path) -> None:
    """Any byte of the file changed, or the end cut off."""
    opened = opener("machine", tmp_path)
    records = opened(most_bytes=40_000)
    dice = random.Random(3)
    for number, key in enumerate(KEYS):
        write(records, key, number)
    (place,) = tmp_path.iterdir()
    whole = place.read_bytes()
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(20):
            damaged[dice.randrange(shared_pages.SHARED_HEADER_BYTES, len(whole))] ^= 0xFF
        with open(place, "r+b") as file:
            file.write(damaged)
            file.truncate(dice.choice([len(whole), dice.randrange(4096, len(whole))]))
        for number, key in enumerate(KEYS):
            assert read(records, key) in (None, contents(number))
    write(records, KEYS[0], 1)
    assert read(records, KEYS[0]) == contents(1), "a file that was cut short grows again"
    records.close()


def _scribble(place: Path, seed: int) -> None:
    records = opener("machine", place)(most_bytes=40_000)
    dice = random.Random(seed)
    while True:
        at = dice.randrange(200)
        key = page_keys(root_of(""), at.to_bytes(16, "little"), PAGE)[0]
        write(records, key, at)


def test_readers_beside_writers_that_are_killed_read_right_pages_or_none(tmp_path: Path) -> None:
    keys = [page_keys(root_of(""), at.to_bytes(16, "little"), PAGE)[0] for at in range(200)]
    records = opener("machine", tmp_path)(most_bytes=40_000)
    context = multiprocessing.get_context("fork")
    num_read = 0
    for seed in range(3):
        writers = [context.Process(target=_scribble, args=(tmp_path, 9 * seed + n)) for n in (1, 2)]
        for writer in writers:
            writer.start()
        for _ in range(10):
            for at, key in enumerate(keys):
                found = read(records, key)
                assert found in (None, contents(at))
                num_read += found is not None
        for writer in writers:
            writer.kill()
            writer.join()
    assert num_read > 100
    records.close()


def test_a_full_file_keeps_what_was_used_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(shared_pages.time, "time", lambda: now)
    records = opener("machine", tmp_path)(most_bytes=1)  # a single set
    for key in KEYS[: WAYS - 6]:
        now += 100
        write(records, key, 1)
    now += 100
    assert read(records, KEYS[0]) is not None
    for at in range(12):
        now += 100
        write(records, page_keys(root_of("x"), bytes([at] * 16), PAGE)[0], 1)
    there = [key for key in KEYS[:10] if records.count([key])]
    assert there == [KEYS[0], *KEYS[7:10]]
    assert sum(map(os.path.getsize, tmp_path.iterdir())) < 2 * WAYS * 600
    records.close()


def test_a_folder_stays_within_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_pages, "TRIMMED_EVERY", 1)
    opened = opener("folder", tmp_path)
    form = RecordFormat(PAGE, PAGE_BYTES)
    most = 256 * 2 * form.record_bytes
    records = opened(most_bytes=most)
    for at in range(1200):
        write(records, page_keys(root_of(""), at.to_bytes(16, "little"), PAGE)[0], 1)
    size = sum(one.stat().st_size for one in tmp_path.rglob("*") if one.is_file())
    assert most / 2 < size <= most


def test_a_file_is_kept_while_somebody_uses_it_and_begun_anew_for_another_size(
    tmp_path: Path,
) -> None:
    place, form = tmp_path / "a", RecordFormat(PAGE, PAGE_BYTES, IDENTITY)
    one = SharedPageFile(place, IDENTITY, form, 1 << 20)
    write(one, KEYS[0], 5)
    other = SharedPageFile(place, IDENTITY, form, 2 << 20)
    assert other.num_handles == one.num_handles, "the first of them says how large it is"
    assert read(other, KEYS[0]) == contents(5)
    with pytest.raises(FileInUse, match="another model"):
        SharedPageFile(place, b"o" * 32, RecordFormat(PAGE, PAGE_BYTES, b"o" * 32), 1 << 20)
    one.close()
    other.close()
    again = SharedPageFile(place, IDENTITY, form, 1 << 20)
    assert read(again, KEYS[0]) == contents(5), "it outlives them"
    again.close()
    larger = SharedPageFile(place, IDENTITY, form, 2 << 20)
    assert larger.num_handles > again.num_handles
    assert larger.count(KEYS) == 0
    larger.close()


@needs_server
def test_a_server_says_why_it_does_not_let_us_in() -> None:
    form = RecordFormat(PAGE, PAGE_BYTES, IDENTITY)
    with redis_server("--requirepass", "right") as (url, _):
        with pytest.raises(RedisRefused, match=r"NOAUTH|Authentication required"):
            RedisPages(url, IDENTITY, form).check()
        with pytest.raises(RedisRefused, match="WRONGPASS"):
            RedisPages(url.replace("unix://", "unix://:wrong@x"), IDENTITY, form).check()
        records = RedisPages(url.replace("unix://", "unix://:right@x"), IDENTITY, form)
        records.check()
        write(records, KEYS[0], 1)
        assert read(records, KEYS[0]) == contents(1)
        records.close()


@needs_server
def test_a_full_server_refuses_and_forgets_by_its_own_policy() -> None:
    form = RecordFormat(PAGE, PAGE_BYTES, IDENTITY)
    with redis_server("--maxmemory", "3mb", "--maxmemory-policy", "noeviction") as (url, _):
        records = RedisPages(url, IDENTITY, form)
        keys = [page_keys(root_of(""), at.to_bytes(16, "little"), PAGE)[0] for at in range(8000)]
        with pytest.raises(RedisRefused, match="OOM"):
            [write(records, key, 1) for key in keys]
        assert records.count(KEYS) == 0
        records.close()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400\r\n\r\n", b"$x\r\n", b"$5\r\nhello\r\n", b""])
def test_whoever_is_no_such_server_is_an_error_or_has_nothing(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with listening.accept()[0] as client:
                client.recv(1 << 16)
                client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"redis://127.0.0.1:{listening.getsockname()[1]}"
        records = RedisPages(url, IDENTITY, RecordFormat(PAGE, PAGE_BYTES, IDENTITY))
        if answer.startswith(b"$5"):
            assert read(records, KEYS[0]) is None
        else:
            with pytest.raises(OSError, match=r"answers GET|closed|reset"):
                read(records, KEYS[0])
        thread.join()
        records.close()
