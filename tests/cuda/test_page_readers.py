"""Attention by other means than our kernels, and the evidence that decides which one serves."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import InvalidParameter, NotSupported
from lmprog.native import compiler
from lmprog.runtime.engine.attention import AttentionShape, LayerAttention
from lmprog.runtime.engine.device import (
    attention_choice,
    evidence,
    flashinfer_reader,
    step_arrays,
)
from lmprog.runtime.engine.device.driver import ModuleKey
from lmprog.runtime.engine.device.emulated_driver import EmulatedDriver, emulated_kernels
from lmprog.runtime.engine.device.flashinfer_reader import is_installed, paged_rows, why_not
from lmprog.runtime.engine.device.kernels import Kernels
from lmprog.runtime.engine.device.loading import load_device_engine
from lmprog.runtime.engine.engine import load_engine
from tests.cuda import flashinfer_source
from tests.cuda.flashinfer_double import flashinfer_double
from tests.cuda.trees import Row, batch_of

KEY = ModuleKey("bf16", 64)
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def shape(dtype: torch.dtype = torch.bfloat16) -> AttentionShape:
    return AttentionShape((LayerAttention(0.125),), 4, 2, 64, 64, dtype)


# --- FlashInfer's arrays and calls


@pytest.mark.parametrize("seed", range(20))
def test_the_pages_of_a_row_hold_exactly_its_tokens(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.choice([1, 4, 16]))
    rows = []
    for _ in range(int(rng.integers(1, 6))):
        start, count = int(rng.integers(0, 70)), int(rng.integers(1, 20))
        spare = int(rng.integers(0, 3))  # a page table may go on behind the tokens
        num_pages = -(-(start + count) // size) + spare
        rows.append(Row(start, count, tuple(rng.permutation(100)[:num_pages].tolist())))
    found = paged_rows(batch_of(rows, size))
    assert found.query_starts.tolist() == [0, *np.cumsum([row.count for row in rows])]
    for index, row in enumerate(rows):
        pages = found.pages[found.page_starts[index] : found.page_starts[index + 1]]
        length = (len(pages) - 1) * size + found.last_page_lens[index]
        assert length == row.start + row.count
        assert pages.tolist() == list(row.pages[: len(pages)])


def test_what_flashinfer_cannot_do_is_said() -> None:
    assert "float32" in (why_not(shape(torch.float32)) or "")
    if not is_installed():
        assert "lmprog[flashinfer]" in (why_not(shape()) or "")
    with flashinfer_double():
        assert why_not(shape()) is None


@pytest.mark.skipif(flashinfer_source.installed() is None, reason="flashinfer is not installed")
def test_the_recorded_signatures_are_those_of_the_package() -> None:
    folder = flashinfer_source.installed()
    assert folder is not None
    for wrapper, methods in flashinfer_source.record()["wrappers"].items():
        theirs = flashinfer_source.signatures(folder, wrapper)
        for method, signature in methods.items():
            assert theirs[method]["required"] == signature["required"], (wrapper, method)
            assert set(signature["names"]) <= set(theirs[method]["names"]), (wrapper, method)


# --- evidence


@needs_compiler
@pytest.mark.parametrize("name", ["reference", "flashinfer", "cascade"])
def test_other_readers_are_right_on_our_pages(name: attention_choice.DeviceAttentionName) -> None:
    driver = EmulatedDriver(emulated_kernels(KEY))
    scale, dim = KEY.head_dim**-0.5, KEY.head_dim
    layers = (LayerAttention(scale, 100), LayerAttention(scale, None, 15.0), LayerAttention(scale))
    asked = AttentionShape(layers, 4, 2, dim, dim, torch.bfloat16)
    with flashinfer_double():
        found = evidence.gathered(
            driver,
            KEY,
            trees=3,
            reader_of=lambda own: attention_choice.page_reader(name, own, driver.device),
            like=None if name == "reference" else asked,  # FlashInfer is not asked for sinks
        )
    assert found.is_right
    assert 0 < found.worst < 0.01


def without(monkeypatch: pytest.MonkeyPatch, kernel: str) -> EmulatedDriver:
    """A device that loses every launch of `kernel`."""
    monkeypatch.setattr(evidence, "gathered", _few(evidence.gathered))
    launch = Kernels.launch

    def losing(self: Kernels, name: str, *given: object, **more: object) -> None:
        if name != kernel:
            launch(self, name, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Kernels, "launch", losing)
    return EmulatedDriver(emulated_kernels(KEY))


def _few(gathered: object) -> object:
    def few(driver: object, key: object, **more: object) -> object:
        return gathered(driver, key, trees=1, **more)  # type: ignore[operator]

    return few


@needs_compiler
def test_where_the_tree_kernels_are_wrong_another_attention_serves_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = without(monkeypatch, "tree_merge")
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path))

    def choose(asked: attention_choice.DeviceAttentionName | None = None) -> str:
        return attention_choice.right_attention(driver, KEY, shape(), asked, "a GPU")

    with caplog.at_level(logging.WARNING, "lmprog"):
        if not is_installed():
            assert choose() == "reference"  # a cascade serves where it is asked for
        with flashinfer_double():
            assert choose() == "flashinfer"
    assert "tree attention is wrong" in caplog.text
    assert "flashinfer serves" in caplog.text
    with pytest.raises(NotSupported, match="tree attention is wrong"):
        choose("tree")


@needs_compiler
def test_another_release_of_flashinfer_is_looked_at_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = EmulatedDriver(emulated_kernels(KEY))
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path))
    looks: list[object] = []
    few = _few(evidence.gathered)

    def counted(*given: object, **more: object) -> object:
        looks.append(given)
        return few(*given, **more)  # type: ignore[operator]

    monkeypatch.setattr(evidence, "gathered", counted)
    with flashinfer_double():
        for release in ("0.7.2", "0.7.2", "0.8.0"):
            monkeypatch.setattr(flashinfer_reader, "version", lambda release=release: release)
            attention_choice.right_attention(driver, KEY, shape(), "flashinfer", "a GPU")
    assert len(looks) == 2


@needs_compiler
def test_flashinfer_is_looked_at_for_the_model_alone_since_it_compiles_each_kind_of_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = EmulatedDriver(emulated_kernels(KEY))
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path))
    seen: set[object] = set()
    real = evidence.tree_error

    def counted(*given: object) -> float:
        own = given[2]
        assert isinstance(own, AttentionShape)
        seen.add((own.layers, own.num_heads, own.num_kv_heads))
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(evidence, "tree_error", counted)
    monkeypatch.setattr(evidence, "_TREES", 2)
    gathered = evidence.gathered
    monkeypatch.setattr(
        evidence, "gathered", lambda *given, **more: gathered(*given, trees=2, **more)
    )
    own = shape()
    with flashinfer_double():
        attention_choice.right_attention(driver, KEY, own, "flashinfer", "a GPU")
    assert seen == {(own.layers[:1], own.num_heads, own.num_kv_heads)}


@needs_compiler
def test_a_device_that_cannot_write_pages_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = without(monkeypatch, "rope_append")
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path))
    for _ in range(2):  # found the first time, and looked at again: it may have been a mishap
        with pytest.raises(NotSupported, match=r"tree .* wrong.*reference .* wrong.* on a GPU"):
            attention_choice.right_attention(driver, KEY, shape(), None, "a GPU")
    assert not list(tmp_path.rglob("*.json"))


# --- the choice in a configuration


def config(attention: str | None, device: str = "emulated") -> RuntimeConfig:
    scheduler = SchedulerConfig(num_pages=8, token_budget=16, max_rows=4)
    return RuntimeConfig(
        "dummy:tiny",
        device=device,
        attention=attention,  # type: ignore[arg-type]
        scheduler=scheduler,
    )


def test_attention_of_the_other_kind_of_machine_is_refused() -> None:
    with pytest.raises(InvalidParameter, match=r"of the processor; a device has tree, flashinfer"):
        load_device_engine(config("native"), "emulated")
    for name in ("tree", "flashinfer", "cascade"):
        with pytest.raises(InvalidParameter, match="of a device; the processor has native"):
            load_engine(config(name, "cpu"))


@needs_compiler
def test_where_something_else_reads_the_pages_nothing_is_planned_for_our_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planned(*given: object) -> object:
        raise AssertionError("a plan that nobody reads")

    monkeypatch.setattr(step_arrays, "plan_items", planned)
    rows = [Row(0, 5, (0,)), Row(0, 3, (1,))]
    batch = replace(batch_of(rows, 16), tokens=np.arange(8, dtype=np.int32))
    engine = load_device_engine(config("reference"), "emulated")
    logits = engine.forward(batch)
    engine.finish()
    assert logits.values.isfinite().all()
    with pytest.raises(AssertionError, match="nobody reads"):
        load_device_engine(config("tree"), "emulated").forward(batch)
