"""Keys and values on disk under a real engine: never a wrong token, whatever the disk does."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import lmprog
from lmprog import wire
from lmprog.backends.client import RuntimeBackend, describe
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import InvalidParameter, LmprogError, NotSupported
from lmprog.native import compiler
from lmprog.runtime.assembly import assemble
from lmprog.runtime.engine import kept_pages
from lmprog.runtime.engine.kept_pages import open_disk_store
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.tier import disk_store, second_tier
from lmprog.runtime.tier.disk_store import HEADER_BYTES, Contents, PageFile
from lmprog.runtime.tier.page_store import PageKey
from lmprog.runtime.tier.storing import PageWorth
from lmprog.transport import LocalRuntimeChannel
from tests.gguf import writer
from tests.gguf.test_gguf_weights import quantized
from tests.model.small_checkpoint import write_checkpoint
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
    made: dict[str, object] = {}
    if folder is not None:
        made = {"kv_disk_mb": 16, "kv_disk_folder": str(folder)}
    scheduler = SchedulerConfig(num_pages=PAGES)
    given = {"model": "dummy:tiny", "threads": 1, "scheduler": scheduler, **made, **fields}
    return RuntimeConfig(**given)  # type: ignore[arg-type]


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


OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "weights": ({"seed": 1}, {}),
    "positions": ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, {}),
    "config": ({"rms_norm_eps": 1e-4}, {}),
    "tokens": ({"swapped": "ab"}, {}),
    "products": ({}, {"dtype": "bfloat16", "kv_dtype": "float32"}),
    "quantization": ({}, {"quantize": "int8"}),
    "another quantization": ({}, {"quantize": "int4"}),
    "keys and values": ({}, {"kv_dtype": "bfloat16"}),
    "keys and values in bytes": ({}, {"kv_dtype": "int8"}),
}


def found(model: Path, folder: Path, **fields: Any) -> int:
    """Pages of the file that a runtime begins with."""
    loop, _ = assemble(config(folder, model=str(model), **fields), LocalRuntimeChannel())
    assert loop.scheduler.tier is not None
    num_pages = loop.scheduler.tier.num_pages
    loop.stop()
    return num_pages


@pytest.mark.parametrize(("made", "fields"), OTHERS.values(), ids=list(OTHERS))
def test_pages_of_another_model_under_the_same_name_are_never_found(
    made: dict[str, Any], fields: dict[str, Any], tmp_path: Path
) -> None:
    model, folder = write_checkpoint(tmp_path / "model"), tmp_path / "kv"
    with runtime(folder, model=str(model)) as backend:
        answers(backend)
    assert found(model, folder) > PAGES
    shutil.rmtree(model)
    assert found(write_checkpoint(model, **made), folder, **fields) == 0


def test_pages_are_found_with_another_template_and_context(tmp_path: Path) -> None:
    model, folder = write_checkpoint(tmp_path / "model"), tmp_path / "kv"
    with runtime(folder, model=str(model)) as backend:
        answers(backend)
    num_pages = found(model, folder)
    (model / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert found(model, folder, context_len=512) == num_pages > PAGES


def test_pages_that_other_kernels_made_are_never_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with runtime(tmp_path) as backend:
        answers(backend)
    monkeypatch.setattr(NativeEngine, "computed_by", "others")
    assert found(Path("dummy:tiny"), tmp_path) == 0


def test_pages_of_a_gguf_model_are_found_again(tmp_path: Path) -> None:
    """A checkpoint that is a file, not a folder; and never those of another such file."""
    model, folder = gguf_model(tmp_path / "model.gguf", 1), tmp_path / "kv"
    with runtime(folder, model=str(model)) as backend:
        first = answers(backend)
        num_tokens = describe(backend)["computed_tokens"]
        assert figures(backend)["tier_pages_stored"] > PAGES
    with runtime(folder, model=str(model)) as backend:
        assert answers(backend) == first
        assert describe(backend)["computed_tokens"] < 0.2 * num_tokens
    assert found(gguf_model(model, 2), folder) == 0


def gguf_model(path: Path, seed: int) -> Path:
    content, _ = quantized("Q8_0", seed)
    fields = writer.byte_vocabulary()
    fields["tokenizer.ggml.tokens"] = fields["tokenizer.ggml.tokens"][:160]
    fields["tokenizer.ggml.token_type"] = [1] * 160
    content.metadata.update(fields)
    return content.write(path)


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


def test_a_tier_that_is_asked_for_and_cannot_be_had_is_an_error_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(match: str, folder: Path | None = None, **fields: object) -> None:
        with pytest.raises(InvalidParameter, match=match):
            assemble(config(folder, **fields), LocalRuntimeChannel())

    (tmp_path / "file").write_text("not a folder")
    refused(r"cannot be kept in .*file/kv: .*Give another kv_disk_folder", tmp_path / "file" / "kv")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "dummy-tiny-0.kv").symlink_to(tmp_path / "file")
    refused("Too many levels of symbolic links", tmp_path / "links")
    refused("kv_disk_mb = 0 holds no page: one takes", tmp_path, kv_disk_mb=0)
    refused("kv_disk_folder is where kv_disk_mb keeps pages", kv_disk_folder=str(tmp_path))
    alone = SchedulerConfig(num_pages=PAGES, share=False)
    refused("share = False switches that off", tmp_path, scheduler=alone)
    refused("share = False switches that off", kv_host_mb=16, scheduler=alone)
    monkeypatch.setattr(kept_pages, "MOST_FILES", 1)
    with runtime(tmp_path / "one"):
        refused("is in use by another process", tmp_path / "one")


def test_two_runtimes_of_one_model_have_a_file_each(tmp_path: Path) -> None:
    with runtime(tmp_path) as one, runtime(tmp_path) as two:
        answers(one)
        answers(two)
    assert len(list(tmp_path.iterdir())) == 2


def test_an_engine_that_cannot_keep_pages_says_so() -> None:
    with pytest.raises(InvalidParameter, match="needs the native engine"):
        open_disk_store(RuntimeConfig("dummy:tiny", kv_disk_mb=1), object(), wire.Fingerprint())
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
