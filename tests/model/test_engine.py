"""The engine: which model a name means, what it decides by itself, what it needs to be imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import InvalidParameter, ModelError
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.machine.resources import allocate, default_threads
from lmprog.runtime.engine.model.locate import NANO, locate
from lmprog.runtime.engine.model.shape import read_config, read_shape
from lmprog.runtime.engine.torch_engine.engine import Threads, TorchEngine
from lmprog.runtime.engine.torch_engine.weights import load_weights
from tests.model.checkpoints import CONTEXT, NATIVE
from tests.model.conftest import Judge
from tests.model.driver import Driver

PROMPT = [5, 250, 3, 77, 13, 13, 8]


def test_a_name_means_a_folder_nano_or_a_dummy(tmp_path: Path) -> None:
    assert locate(str(tmp_path)) == tmp_path
    assert locate("nano") == NANO
    assert locate("dummy:tiny") is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere", "there is no model 'nowhere'"),
        ("./not/there", "there is no model"),
        (__file__, "is a file"),
        ("owner/never-fetched", "HF_HUB_OFFLINE is set"),
        ("dummy:3x", "dummies are"),
        ("dummy:65x2", "dummies are"),
    ],
)
def test_a_model_that_is_not_there_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        load_engine(RuntimeConfig(model=name))


def test_a_hub_id_without_the_hub_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"pip install 'lmprog\[hub\]'"):
        locate("owner/name")


def test_a_dummy_is_the_same_every_time() -> None:
    runs = [
        Driver(load_engine(RuntimeConfig(model="dummy:tiny")), 16).greedy([PROMPT], 20)
        for _ in range(2)
    ]
    assert runs[0][0].new == runs[1][0].new
    assert len(set(runs[0][0].new)) > 3


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_bfloat16_stays_close_to_float32(judged: Judge, name: str, engine: str) -> None:
    made = judged(name, NATIVE[name])
    prompt = made.prompts[-2]
    exact = Driver(made.engine(engine=engine), 16).score(prompt)
    rounded = Driver(made.engine(dtype="bfloat16", engine=engine), 16).score(prompt)
    assert 0 < (exact - rounded).abs().mean() < 0.1


def test_float16_is_computed_in_float32_on_a_processor(judged: Judge) -> None:
    made = judged("llama", NATIVE["llama"])
    prompt = made.prompts[-2]
    engine = made.engine(dtype="float16", kv_dtype="float16", attention="reference")
    assert isinstance(engine, TorchEngine)
    assert (engine.dtype, engine.shape.dtype) == ("float32", torch.float16)
    exact = Driver(made.engine(), 16).score(prompt)
    assert 0 < (exact - Driver(engine, 16).score(prompt)).abs().mean() < 0.01


def test_tokens_without_wanted_logits_cost_no_logits() -> None:
    engine = load_engine(RuntimeConfig(model="dummy:tiny"))
    driver = Driver(engine, 16)
    driver.greedy([[1] * 9], 1, chunk=4)
    assert engine.vocab_size == 263
    assert driver.last_shapes == [(0, 263), (0, 263), (1, 263)]


def test_memory_is_counted_in_pages_of_the_wanted_size() -> None:
    config = RuntimeConfig(
        model="dummy:tiny", kv_memory_mb=1, scheduler=SchedulerConfig(page_size=8)
    )
    engine = load_engine(replace(config, engine="torch"))
    assert isinstance(engine, TorchEngine)
    assert engine.num_pages == (1 << 20) // engine.attention.bytes_per_page
    assert load_engine(config).num_pages == engine.num_pages, "both keep them alike"
    usual = load_engine(RuntimeConfig(model="dummy:tiny"))
    assert usual.num_pages * 16 == 65_536


@pytest.mark.parametrize("num_bytes", [1 << 62, 1 << 80])
def test_memory_that_the_system_does_not_give_is_told_in_a_sentence(num_bytes: int) -> None:
    """More than an address space has, and more than a size can say."""
    with pytest.raises(ModelError, match=r"bytes of memory .* smaller kv_memory_mb"):
        allocate(num_bytes)


def test_a_context_longer_than_the_model_was_made_for_is_refused(judged: Judge) -> None:
    made = judged("llama", NATIVE["llama"])
    assert made.engine(context_len=100).context_len == 100
    assert made.engine().context_len == CONTEXT
    with pytest.raises(InvalidParameter, match="at most 1024 tokens"):
        made.engine(context_len=CONTEXT + 1)


def test_threads_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert default_threads() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert default_threads() >= 1


@pytest.fixture
def threads_of_torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("threads_of_torch")
def test_a_small_step_takes_one_thread_and_a_large_one_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")

    def taken(threads: Threads, num_tokens: int) -> int:
        threads.take(num_tokens)
        return torch.get_num_threads()

    small = Threads(None, 4_000_000, 16 << 20)
    assert [taken(small, tokens) for tokens in (1, 100, 101, 2000, 1)] == [1, 1, 2, 2, 1]
    assert taken(Threads(None, 100_000_000, 400 << 20), 1) == 2, "many weights are read by all"
    assert taken(Threads(2, 4_000_000, 16 << 20), 1) == 2, "who asks for a number gets it"


def test_the_engine_counts_the_weights_that_a_token_meets(judged: Judge) -> None:
    made = judged("llama", NATIVE["llama"])
    weights = load_weights(made.folder, read_shape(read_config(made.folder)), torch.float32)
    products = sum(
        weight.numel() for name, weight in made.model.named_parameters() if "proj.weight" in name
    )
    assert weights.num_weights == products + made.model.lm_head.weight.numel()


def test_loading_a_native_model_imports_nothing_that_takes_seconds() -> None:
    code = (
        "import sys; from lmprog.config import RuntimeConfig; from "
        "lmprog.runtime.engine.engine import load_engine\n"
        "load_engine(RuntimeConfig(model='nano', kv_memory_mb=16))\n"
        "print([m for m in ('torch', 'transformers', 'safetensors', 'sympy', "
        "'huggingface_hub') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
