"""Keys and values on disk under a real engine: never a wrong token, whatever the disk does."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import lmprog
from lmprog.backends.runtime_backend import RuntimeBackend, describe
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import InvalidParameter, LmprogError, NotSupported
from lmprog.native import compiler
from lmprog.runtime.assembly import assemble
from lmprog.runtime.engine.kept_pages import open_disk_store
from lmprog.runtime.tier import disk_store, second_tier
from lmprog.runtime.tier.page_file import HEADER_BYTES, Contents, PageFile
from lmprog.runtime.tier.page_store import PageKey
from lmprog.runtime.tier.page_worth import PageWorth
from lmprog.transport import LocalRuntimeChannel
from tests.runtime.runtime_thread import serving

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

SEEDS = range(6)
PAGES = 16  # of 16 tokens; a chat has some 200


@lmprog.function
async def chat(s: lmprog.Branch, seed: int) -> list[str]:
    dice, answers = random.Random(seed), []
    for _ in range(3):
        s += "".join(dice.choices("abcdefgh ", k=50))
        answers.append(str(await s.gen(max_tokens=8, ignore_eos=True, heal=False)))
    return answers


def config(folder: Path | None, **fields: object) -> RuntimeConfig:
    made = {"kv_disk_mb": None if folder is None else 16, "kv_disk_folder": str(folder), **fields}
    scheduler = SchedulerConfig(num_pages=PAGES)
    return RuntimeConfig("dummy:tiny", threads=1, scheduler=scheduler, **made)  # type: ignore[arg-type]


@contextmanager
def runtime(folder: Path | None, **fields: object) -> Iterator[RuntimeBackend]:
    """A runtime in a thread of this process; it stops in order."""
    channel = LocalRuntimeChannel()
    loop, _ = assemble(config(folder, **fields), channel)
    with serving(loop, channel) as backend:
        yield backend


def answers(backend: RuntimeBackend) -> list[list[str]]:
    asked = chat.using(backend=backend, temperature=0.0)
    return [asked.run(seed=seed).value for seed in SEEDS]


@pytest.fixture(autouse=True)
def _as_everywhere(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What a disk and a processor cost while the suite runs is chance; so is what other tests have
    left of the log.
    """
    caplog.set_level(logging.WARNING, logger="lmprog")
    monkeypatch.setattr(PageWorth, "_is_worth", lambda self, saved, cost: True)


@pytest.fixture(scope="module")
def expected() -> list[list[str]]:
    with runtime(None) as backend:
        return answers(backend)


def figures(backend: RuntimeBackend) -> dict[str, float]:
    return {name: value for name, value in describe(backend).items() if name.startswith("tier_")}


def test_what_memory_has_no_place_for_comes_back(tmp_path: Path, expected: list[list[str]]) -> None:
    with runtime(tmp_path) as backend:
        assert answers(backend) == expected
        assert figures(backend)["tier_pages_stored"] > 2 * PAGES
        assert answers(backend) == expected
        assert figures(backend)["tier_pages_loaded"] > 2 * PAGES


def test_a_restart_finds_everything(tmp_path: Path, expected: list[list[str]]) -> None:
    with runtime(tmp_path) as backend:
        assert answers(backend) == expected
        num_tokens = describe(backend)["computed_tokens"]
    with runtime(tmp_path) as backend:
        assert answers(backend) == expected
        assert figures(backend)["tier_pages_lost"] == 0
        assert describe(backend)["computed_tokens"] < 0.2 * num_tokens  # what was generated


def test_keys_and_values_in_bytes_come_back_with_their_scales(tmp_path: Path) -> None:
    """While the runtime goes on, and in the next one."""
    with runtime(None, kv_dtype="int8") as backend:
        alone = answers(backend)
    with runtime(tmp_path, kv_dtype="int8") as backend:
        assert answers(backend) == alone
        num_tokens = describe(backend)["computed_tokens"]
        assert answers(backend) == alone
        assert figures(backend)["tier_pages_loaded"] > 2 * PAGES
    with runtime(tmp_path, kv_dtype="int8") as backend:
        assert answers(backend) == alone
        assert figures(backend)["tier_pages_lost"] == 0
        assert describe(backend)["computed_tokens"] < 0.2 * num_tokens


def test_another_type_of_keys_and_values_begins_anew(tmp_path: Path) -> None:
    with runtime(tmp_path) as backend:
        answers(backend)
    loop, _ = assemble(config(tmp_path, kv_dtype="bfloat16"), LocalRuntimeChannel())
    assert loop.scheduler.tier is not None
    assert loop.scheduler.tier.num_pages == 0
    loop.stop()


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_every_so_many_writes_fail(
    every: int,
    tmp_path: Path,
    expected: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    count = 0
    original = PageFile._write

    def write(self: PageFile, parts: Sequence[Contents], place: int) -> None:
        nonlocal count
        count += place > 0
        if place and count % every == 0:
            whole = b"".join(parts)
            original(self, [whole[: len(whole) // 2]], place)  # the disk is full
            raise OSError(28, "No space left on device")
        original(self, parts, place)

    monkeypatch.setattr(PageFile, "_write", write)
    monkeypatch.setattr(disk_store, "RETRY_SECONDS", 0.0)
    with runtime(tmp_path) as backend:
        assert answers(backend) == expected
        assert answers(backend) == expected
    assert "No space left on device" in caplog.text
    with runtime(tmp_path) as backend:
        assert answers(backend) == expected


def test_after_a_failed_write_nothing_is_written_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write(self: PageFile, parts: Sequence[Contents], place: int) -> None:
        if place:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(PageFile, "_write", write)
    with runtime(tmp_path) as backend:
        answers(backend)
    assert caplog.text.count("No space left on device") == 1


def test_a_disk_that_hangs_holds_nobody_up(
    tmp_path: Path, expected: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, original = threading.Event(), PageFile.read

    def read(self: PageFile, handle: int, key: PageKey, into: bytearray) -> bool:
        goes_on.wait()
        return original(self, handle, key, into)

    monkeypatch.setattr(PageFile, "read", read)
    monkeypatch.setattr(second_tier, "MOST_LOAD_SECONDS", 0.05)
    with runtime(tmp_path) as backend:
        assert answers(backend) == expected
        assert answers(backend) == expected
        assert figures(backend)["tier_pages_loaded"] == 0
        assert figures(backend)["tier_pages_abandoned"] > 0
        goes_on.set()
        assert answers(backend) == expected


def test_a_damaged_file_costs_time_only(tmp_path: Path, expected: list[list[str]]) -> None:
    with runtime(tmp_path) as backend:
        answers(backend)
    (place,) = tmp_path.iterdir()
    damaged = bytearray(place.read_bytes())
    dice = random.Random(1)
    for _ in range(60):
        damaged[dice.randrange(HEADER_BYTES, len(damaged))] ^= 0xFF
    place.write_bytes(damaged)
    with runtime(tmp_path) as backend:
        assert answers(backend) == expected
        lost = figures(backend)["tier_pages_lost"]
        assert answers(backend) == expected
    assert lost > 0


def test_a_folder_that_cannot_be_written_is_a_line_in_the_log(
    tmp_path: Path, expected: list[list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with runtime(tmp_path / "file" / "kv") as backend:
        assert answers(backend) == expected
        assert figures(backend) == {}
    assert "keys and values are not kept on disk" in caplog.text


def test_two_runtimes_of_one_model_have_a_file_each(tmp_path: Path) -> None:
    with runtime(tmp_path) as one, runtime(tmp_path) as two:
        answers(one)
        answers(two)
    assert len(list(tmp_path.iterdir())) == 2


def test_an_engine_that_cannot_keep_pages_says_so() -> None:
    with pytest.raises(InvalidParameter, match="needs the native engine"):
        open_disk_store(RuntimeConfig("dummy:tiny", kv_disk_mb=1), object())
    scheduler = SchedulerConfig(num_pages=64, page_size=8)
    with pytest.raises(NotSupported, match="multiple of 16"):
        assemble(
            RuntimeConfig("dummy:tiny", kv_disk_mb=1, scheduler=scheduler), LocalRuntimeChannel()
        )


def test_a_killed_runtime_leaves_a_file_that_is_never_wrong(
    tmp_path: Path, expected: list[list[str]]
) -> None:
    """kill -9 while pages are being written; the next one begins with what is whole."""
    options = {"num_pages": PAGES, "kv_disk_mb": 16, "kv_disk_folder": str(tmp_path), "threads": 1}
    for number in range(2):
        with lmprog.Runtime("dummy:tiny", **options) as killed:
            thread = threading.Thread(target=_until_it_dies, args=(killed,))
            thread.start()
            time.sleep(0.15 + 0.2 * number)
            os.kill(killed.process.pid, signal.SIGKILL)
            thread.join()
    with runtime(tmp_path) as backend:
        assert figures(backend)["tier_pages_found"] > 0
        assert answers(backend) == expected
        assert figures(backend)["tier_pages_loaded"] > 0


def _until_it_dies(backend: lmprog.Runtime) -> None:
    with contextlib.suppress(LmprogError, ExceptionGroup):
        while True:
            answers(backend)
