"""Packed weights on disk: the same bits as packed anew, shared, bounded, and never believed where
they are not what was written.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import engine, models
from lmprog import linux, native, weight_cache
from lmprog.cli import main
from lmprog.config import RuntimeConfig
from lmprog.native import compiler
from lmprog.runtime.assembly import assemble
from lmprog.runtime.engine import engine as engine_module
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.model.families import read_native_shape
from lmprog.runtime.engine.native import packing
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.transport import LocalRuntimeChannel
from lmprog.weight_cache import PackedFiles, content_digest, user_cache
from tests.model.checkpoints import NATIVE
from tests.model.conftest import Judge
from tests.model.driver import Driver
from tests.model.quantized_layouts import FORMATS, rewrite
from tests.model.small_checkpoint import write_checkpoint

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")

TICK = 0.05
"""Seconds in which the clock of a file system moves on."""
PROMPT = [5, 20, 3, 77, 13, 13, 8]


@pytest.fixture
def packings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An empty cache that keeps models of every size; the weight types of models that were
    packed."""
    shared = native.cache_folder() / "native"  # compiled once for all tests
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    shared.mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache" / "native").symlink_to(shared)
    monkeypatch.setattr(packing, "_SMALLEST_KEPT", 0)
    monkeypatch.setattr(weight_cache, "_SETTLED", -1.0)
    done: list[str] = []
    fill = packing.PackedLayout.fill

    def counted(layout: packing.PackedLayout, *rest: Any) -> None:
        done.append(layout.weight_type)
        fill(layout, *rest)

    monkeypatch.setattr(packing.PackedLayout, "fill", counted)
    return done


@pytest.fixture
def folder(judged: Judge, tmp_path: Path) -> Path:
    """A copy of a checkpoint, which the test may change."""
    made = tmp_path / "model"
    shutil.copytree(judged("qwen3", NATIVE["qwen3"]).folder, made)
    return made


def scored(folder: Path, **config: Any) -> torch.Tensor:
    engine = load_engine(RuntimeConfig(model=str(folder), kv_memory_mb=8, **config))
    assert isinstance(engine, NativeEngine)
    return Driver(engine, 16).score(PROMPT)


def kept() -> list[Path]:
    return sorted(user_cache().folder.glob("*.weights"))


@pytest.mark.parametrize("weight_type", ["float32", "bfloat16", "int8", "int4"])
def test_a_second_start_packs_nothing_and_computes_the_same_bits(
    folder: Path, packings: list[str], weight_type: str
) -> None:
    small = weight_type in ("int8", "int4")
    config = {"quantize": weight_type} if small else {"dtype": weight_type}
    first = scored(folder, **config)
    assert packings == [weight_type]
    assert torch.equal(scored(folder, **config), first)
    assert torch.equal(scored(folder, threads=3, **config), first)
    assert packings == [weight_type]
    os.environ["LMPROG_WEIGHT_CACHE_GB"] = "0"
    try:
        assert torch.equal(scored(folder, **config), first)
    finally:
        del os.environ["LMPROG_WEIGHT_CACHE_GB"]
    assert len(packings) == 2


def test_the_name_is_the_content_wherever_the_checkpoint_lies(
    folder: Path, packings: list[str], tmp_path: Path
) -> None:
    scored(folder)
    shutil.copytree(folder, tmp_path / "elsewhere")
    scored(tmp_path / "elsewhere")
    assert len(packings) == 1
    scored(folder, quantize="int8")
    assert packings == ["float32", "int8"]
    assert len(kept()) == 2


def test_changed_weights_are_packed_again_though_size_and_time_are_the_same(
    folder: Path, packings: list[str]
) -> None:
    path = folder / "model.safetensors"
    stat = path.stat()
    before = scored(folder)
    time.sleep(TICK)
    content = bytearray(path.read_bytes())
    content[-1] ^= 0x80  # the sign of a weight
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size
    assert not torch.equal(scored(folder), before)
    assert len(packings) == 2


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of files with weights that were read to be summed."""
    found: list[str] = []
    summed = hashlib.file_digest

    def counted(opened: Any, *rest: Any) -> Any:
        found.append(Path(opened.name).name)
        return summed(opened, *rest)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    return found


def test_the_same_integers_of_another_quantization_are_packed_again(
    folder: Path, packings: list[str], tmp_path: Path
) -> None:
    """Only the config says whether zero points are kept less one: files and sizes are the same."""
    written = tmp_path / "gptq"
    rewrite(folder, written, tmp_path / "meant", FORMATS["gptq-asymmetric-ordered"])
    first = scored(written, dtype="float32")
    config = json.loads((written / "config.json").read_text())
    config["quantization_config"]["checkpoint_format"] = "gptq_v2"
    (written / "config.json").write_text(json.dumps(config))
    assert not torch.equal(scored(written, dtype="float32"), first)
    assert len(packings) == len(kept()) == 2


def test_the_same_weights_of_another_shape_are_packed_again(
    folder: Path, packings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norms that are kept as their distance from 1 have the same sizes, and mean other numbers."""
    first = scored(folder)

    def moved(described: Any) -> Any:
        return replace(read_native_shape(described), norms_add_one=True)

    monkeypatch.setattr(engine_module, "read_native_shape", moved)
    assert not torch.equal(scored(folder), first)
    assert len(packings) == len(kept()) == 2


def test_the_same_weights_of_another_type_have_a_file_each(
    folder: Path, packings: list[str]
) -> None:
    types = ["float32", "bfloat16", "int8", "int4"]
    for _ in range(2):
        for weight_type in types:
            small = weight_type in ("int8", "int4")
            scored(folder, **{"quantize" if small else "dtype": weight_type})
    assert packings == types
    assert len(kept()) == 4


def test_what_is_known_of_weights_is_not_read_again_for_the_fingerprint(
    packings: list[str], reads: list[str], tmp_path: Path
) -> None:
    model = write_checkpoint(tmp_path / "model")
    for _ in range(2):
        loop, _ = assemble(
            RuntimeConfig(str(model), threads=1, kv_memory_mb=8), LocalRuntimeChannel()
        )
        loop.stop()
    assert reads == ["model.safetensors"]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 64
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def unseal(path: Path) -> None:
    path.with_suffix(".json").unlink()


def tear_seal(path: Path) -> None:
    path.with_suffix(".json").write_text('{"digest": "00')


def forge_seal(path: Path) -> None:
    flip(path)
    path.with_suffix(".json").write_text('{"digest": 7, "identity": [], "boot": {}}')


def open_to_others(path: Path) -> None:
    path.chmod(0o666)


def link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to(path.with_name("moved"))


@pytest.mark.parametrize(
    "damage", [flip, cut, empty, unseal, tear_seal, forge_seal, open_to_others, link]
)
def test_a_file_that_is_not_what_was_written_is_dropped_and_made_again(
    folder: Path, packings: list[str], damage: Any
) -> None:
    first = scored(folder)
    (path,) = kept()
    time.sleep(TICK)
    damage(path)
    assert torch.equal(scored(folder), first)
    assert len(packings) == 2
    assert torch.equal(scored(folder), first)
    assert len(packings) == 2, "the new file is believed"
    assert not path.is_symlink()


def test_after_a_restart_of_the_machine_the_content_is_compared_once(
    folder: Path, packings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scored(folder)
    compared: list[str] = []
    real = weight_cache.hashlib.file_digest

    def counted(opened: Any, kind: str) -> Any:
        compared.append(opened.name if isinstance(opened.name, str) else "packed")
        return real(opened, kind)

    monkeypatch.setattr(weight_cache.hashlib, "file_digest", counted)
    scored(folder)
    assert compared == []
    monkeypatch.setattr(linux, "boot_name", lambda: "another")
    scored(folder)
    scored(folder)
    assert len(compared) == 1
    assert len(packings) == 1


@pytest.fixture
def files(tmp_path: Path) -> PackedFiles:
    return PackedFiles(tmp_path / "weights", limit=1000)


def write(files: PackedFiles, name: str, content: bytes) -> None:
    draft = files.draft(name, len(content), f"model {name}")
    assert draft is not None
    draft.memory[:] = content
    assert bytes(draft.keep()) == content


def test_the_folder_is_bounded_and_what_was_not_used_longest_goes_first(files: PackedFiles) -> None:
    for at, name in enumerate("abc"):
        write(files, name, name.encode() * 300)
        os.utime(files.folder / f"{name}.json", (at, at))
    assert files.mapped("a", 300) is not None  # now "b" was not used for the longest time
    write(files, "d", b"d" * 300)
    assert {one.name for one in files.files()} == {"a", "c", "d"}
    assert files.draft("e", 1001, "too large") is None
    assert files.clear() == 900
    assert list(files.folder.iterdir()) == []


def test_a_mapping_outlives_the_deletion_of_its_file(files: PackedFiles) -> None:
    write(files, "a", b"abc" * 100)
    memory = files.mapped("a", 300)
    files.clear()
    assert memory is not None
    assert bytes(memory) == b"abc" * 100


def test_two_that_write_the_same_at_once_both_end_with_a_whole_file(files: PackedFiles) -> None:
    first = files.draft("a", 300, "one")
    assert first is not None
    write(files, "a", b"abc" * 100)
    first.memory[:] = b"abc" * 100
    assert bytes(first.keep()) == b"abc" * 100
    memory = files.mapped("a", 300)
    assert memory is not None
    assert bytes(memory) == b"abc" * 100


def test_a_full_disk_is_no_error(files: PackedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(linux, "take_room", full)
    assert files.draft("a", 300, "model a") is None
    assert list(files.folder.iterdir()) == []


def test_the_digest_of_a_file_is_that_of_its_content_now(
    packings: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    first = content_digest(path)
    assert content_digest(path) == first
    time.sleep(TICK)
    stat = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert content_digest(path) != first


def test_the_command_lists_and_clears(
    folder: Path, packings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    scored(folder)
    assert main(["cache", "list"]) == 0
    assert "model, float32" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert kept() == []
    assert main(["cache", "list"]) == 0
    assert "model, float32" not in capsys.readouterr().out


def test_loading_holds_little_more_than_the_packed_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of this model is its head, of which nothing is held twice while it is packed."""
    sizes = {"hidden": 512, "layers": 1, "heads": 8, "kv_heads": 8, "inner": 512, "vocab": 18_000}
    monkeypatch.setitem(models.SIZES, "head", sizes)
    models.make(tmp_path, "head")
    (tmp_path / "native").symlink_to(native.cache_folder() / "native")
    took = engine.start(tmp_path, {"model": str(tmp_path), "dtype": "float32", "threads": 1})
    assert took["packed_mb"] > 64
    assert took["peak_mb"] < 1.1 * took["packed_mb"] + 12, took
    assert len(list((tmp_path / "weights").glob("*.weights"))) == 1
