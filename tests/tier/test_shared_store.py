"""Runtimes that share their evicted pages: a new one finds what another has computed, and a store
that fails costs nobody a right answer.
"""

from __future__ import annotations

import random
import signal
import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lmprog
from lmprog.backends.client import RuntimeBackend, describe
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import InvalidParameter
from lmprog.launch.runtime_process import replica_options
from lmprog.native import compiler
from lmprog.radix import PageAllocator, RadixTree
from lmprog.runtime.assembly import assemble
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.tier import disk_store, second_tier, storing, tier_questions
from lmprog.runtime.tier.disk_store import DiskStore
from lmprog.runtime.tier.page_store import HELD_UP_SECONDS, PageKey
from lmprog.runtime.tier.shared_pages import SharedPageFile
from lmprog.runtime.tier.storing import PageWorth
from lmprog.runtime.tier.tier_questions import FIND_SECONDS, TierQuestions
from lmprog.transport import LocalRuntimeChannel
from tests.runtime.runtime_thread import serving
from tests.tier.shared_stores import SERVER, redis_server

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
needs_server = pytest.mark.skipif(SERVER is None, reason="neither valkey-server nor redis-server")

FAMILIES, PROMPTS = 5, 100
"""Prompts of a beginning each of which a fifth have, and of an end of their own."""
FEW = range(25)
"""Enough to evict all pages of a small memory several times."""


@lmprog.function
async def prompt(s: lmprog.Branch, number: int) -> str:
    family, own = random.Random(number % FAMILIES), random.Random(1000 + number)
    s += "".join(family.choices("abcdefgh ", k=200))
    s += "".join(own.choices("abcdefgh ", k=12))
    return str(await s.gen(max_tokens=3, ignore_eos=True, heal=False))


@contextmanager
def runtime(num_pages: int = 400, **fields: object) -> Iterator[RuntimeBackend]:
    channel = LocalRuntimeChannel()
    given = {"model": "dummy:tiny", "threads": 1, **fields}
    config = RuntimeConfig(scheduler=SchedulerConfig(num_pages=num_pages), **given)  # type: ignore[arg-type]
    loop, _ = assemble(config, channel)
    with serving(loop, channel) as backend:
        yield backend


def answers(backend: RuntimeBackend, numbers: Sequence[int] = range(PROMPTS)) -> list[str]:
    asked = prompt.using(backend=backend, temperature=0.0)
    return [asked.run(number=number).value for number in numbers]


@pytest.fixture(scope="module")
def expected() -> list[str]:
    with runtime() as backend:
        return answers(backend)


@pytest.fixture(autouse=True)
def _as_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a store and a processor cost while the suite runs is chance, and so is how long a thread
    waits for its turn.
    """
    monkeypatch.setattr(PageWorth, "_is_worth", lambda self, saved, cost: True)
    monkeypatch.setattr(tier_questions, "FIND_SECONDS", 30.0)
    monkeypatch.setattr(second_tier, "SHARED_LOAD_SECONDS", 30.0)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with redis_server() as (url, _):
        yield url


@pytest.fixture(params=["machine", "folder", pytest.param("redis", marks=needs_server)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, object]:
    """The options of runtimes that share a store."""
    if request.param == "redis":
        return {"kv_store": request.getfixturevalue("server")}
    return {"kv_store": request.param, "kv_disk_mb": 64, "kv_disk_folder": str(tmp_path)}


def test_a_cold_replica_finds_what_a_warm_one_has_computed(
    store: dict[str, object], expected: list[str]
) -> None:
    """Of 100 prompts at least 0.95 of the tokens, while the other one still runs."""
    with runtime(**store) as warm:
        assert answers(warm) == expected
        before = describe(warm)
        assert answers(warm) == expected
        after = describe(warm)
        at_best = after["cached_tokens"] - before["cached_tokens"]
        with runtime(**store) as cold:
            assert answers(cold) == expected
            told = describe(cold)
    assert told["tier_pages_of_others"] > 5 * FAMILIES
    assert told["cached_tokens"] >= 0.95 * at_best


def test_replicas_of_one_machine_share_a_file_unless_they_are_told_not_to() -> None:
    assert replica_options({"kv_disk_mb": 64})["kv_store"] == "machine"
    assert replica_options({"kv_disk_mb": 64, "kv_store": "own"})["kv_store"] == "own"
    assert replica_options({"threads": 1}) == {"threads": 1}


class Failing:
    """A store that does `kind` while it `fails`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        self.goes_on = threading.Event()
        self.fails = False
        for name in ("count", "read", "write"):
            original = getattr(SharedPageFile, name)

            def fail(file: SharedPageFile, *what: object, name: str = name, do=original) -> object:  # type: ignore[no-untyped-def]
                if self.fails and kind == "hung":
                    self.goes_on.wait()
                if self.fails and kind == "full" and name == "write":
                    raise OSError(28, "No space left on device")
                if self.fails and kind == "gone":
                    raise OSError(5, "Input/output error")
                if self.fails and kind == "torn" and name == "read":
                    return False
                return do(file, *what)

            monkeypatch.setattr(SharedPageFile, name, fail)


@pytest.mark.parametrize("kind", ["hung", "full", "gone", "torn"])
def test_a_store_that_fails_costs_nobody_a_right_answer(
    kind: str, tmp_path: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is used again once it has recovered."""
    store = {"kv_store": "machine", "kv_disk_mb": 64, "kv_disk_folder": str(tmp_path)}
    failing = Failing(monkeypatch, kind)
    with runtime(**store) as warm:
        assert answers(warm, FEW) == expected[: len(FEW)]
    monkeypatch.setattr(disk_store, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(tier_questions, "FIND_SECONDS", 0.02)
    monkeypatch.setattr(second_tier, "SHARED_LOAD_SECONDS", 0.02)
    with runtime(num_pages=40, **store) as backend:
        failing.fails = True
        assert answers(backend, FEW) == expected[: len(FEW)]
        told = describe(backend)
        if kind in ("hung", "gone"):
            assert told["tier_pages_loaded"] == 0
        failing.fails = False
        failing.goes_on.set()
        monkeypatch.setattr(tier_questions, "FIND_SECONDS", 30.0)
        monkeypatch.setattr(second_tier, "SHARED_LOAD_SECONDS", 30.0)
        answers(backend, range(5))  # questions of before are answered
        assert answers(backend, FEW) == expected[: len(FEW)]
        assert describe(backend)["tier_pages_loaded"] > told["tier_pages_loaded"], "it is back"


def test_a_store_that_hangs_is_asked_once_and_soon_waited_for_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = {"kv_store": "machine", "kv_disk_mb": 64, "kv_disk_folder": str(tmp_path)}
    failing, num_asked, num_waits = Failing(monkeypatch, "hung"), 0, 0
    original, store_plainly = DiskStore.find, DiskStore.store

    def find(
        self: DiskStore, keys: Sequence[PageKey], states: Sequence[PageKey] = ()
    ) -> int | None:
        nonlocal num_asked
        num_asked += 1
        return original(self, keys, states)

    def store_page(self: DiskStore, *what: Any) -> bool:
        nonlocal num_waits
        num_waits += what[3:] > (0.0,)
        return store_plainly(self, *what)

    monkeypatch.setattr(DiskStore, "find", find)
    monkeypatch.setattr(DiskStore, "store", store_page)
    monkeypatch.setattr(disk_store, "MOST_STAGED_BYTES", 1)  # room for one page
    monkeypatch.setattr(tier_questions, "FIND_SECONDS", 0.02)
    with runtime(num_pages=40, **store) as backend:
        failing.fails = True
        answers(backend, FEW)
        told = describe(backend)
        assert (num_asked, num_waits) == (1, storing.VAIN_WAITS)
        assert told["tier_pages_refused"] > 10 * num_waits, "evictions go on"
        failing.goes_on.set()


def test_a_store_whose_pages_are_all_torn_is_left_alone_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = {"kv_store": "machine", "kv_disk_mb": 64, "kv_disk_folder": str(tmp_path)}
    failing = Failing(monkeypatch, "torn")
    monkeypatch.setattr(disk_store, "RETRY_SECONDS", 1e6)
    with runtime(**store) as warm:
        answers(warm, FEW)
    num_read, read = 0, DiskStore._read_page

    def read_page(self: DiskStore, *what: Any) -> bytearray | None:
        nonlocal num_read
        num_read += 1
        return read(self, *what)

    monkeypatch.setattr(DiskStore, "_read_page", read_page)
    with runtime(num_pages=40, **store) as backend:
        failing.fails = True
        answers(backend, FEW)
        assert num_read == disk_store.MOST_LOST


@needs_server
def test_a_server_that_stops_and_dies_costs_nobody_a_right_answer(
    expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP, then SIGKILL, of a real one."""
    with redis_server() as (url, process), runtime(num_pages=40, kv_store=url) as backend:
        assert answers(backend, FEW) == expected[: len(FEW)]
        assert describe(backend)["tier_pages_stored"] > 40
        monkeypatch.setattr(tier_questions, "FIND_SECONDS", 0.02)
        monkeypatch.setattr(second_tier, "SHARED_LOAD_SECONDS", 0.02)
        process.send_signal(signal.SIGSTOP)
        assert answers(backend, FEW) == expected[: len(FEW)]
        process.kill()
        assert answers(backend, FEW) == expected[: len(FEW)]


def test_what_a_store_lacks_is_said_at_the_start(tmp_path: Path) -> None:
    def refused(match: str, **fields: object) -> None:
        with pytest.raises(InvalidParameter, match=match), runtime(**fields):
            pass

    refused("say with kv_disk_mb how many", kv_store="machine")
    refused("is no address like redis://.*there are own, machine, folder", kv_store="machin")
    refused("leave one of them out", kv_store="redis://localhost", kv_disk_mb=1)
    alone = {"kv_store": "folder", "kv_disk_folder": str(tmp_path), "kv_disk_mb": 0}
    refused("kv_disk_mb = 0 holds no page", **alone)


def test_a_large_tier_is_not_walked_over_after_each_stretch_of_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of all its places took longer than a request."""
    checks = 0
    original = Scheduler.check

    def check(self: Scheduler) -> None:
        nonlocal checks
        checks += 1
        original(self)

    monkeypatch.setattr(Scheduler, "check", check)
    for megabytes, is_checked in ((1, True), (64, False)):
        checks = 0
        with runtime(40, kv_disk_mb=megabytes, kv_disk_folder=str(tmp_path)) as backend:
            answers(backend, range(3))
        assert (checks > 1) is is_checked  # once at the end


@dataclass
class Late:
    """A store that does not answer."""

    is_held_up: bool

    def find(self, keys: Sequence[PageKey], states: Sequence[PageKey] = ()) -> int:
        return 7

    def abandon(self, ticket: int, *, is_patient: bool) -> bool:
        return not (is_patient and self.is_held_up)


def test_a_store_that_has_no_processor_is_waited_for_and_one_that_hangs_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine an answer is late, though the store is not slow."""
    monkeypatch.setattr(tier_questions, "FIND_SECONDS", FIND_SECONDS)
    for is_held_up in (False, True):
        clock, handles = [0.0], PageAllocator(4)
        asking = TierQuestions(
            Late(is_held_up),  # type: ignore[arg-type]
            RadixTree(16, handles),
            handles,
            lambda gain, pages: True,
            partial(clock.__getitem__, 0),
        )
        assert asking.ask(array("i", range(64)), "", 0, 64) == 7
        clock[0] = FIND_SECONDS + 0.001
        assert asking.overdue() == ([] if is_held_up else [7])
        assert asking.is_open(7) == is_held_up
        clock[0] += HELD_UP_SECONDS
        assert asking.overdue() == ([7] if is_held_up else []), "then it is waited for no more"
