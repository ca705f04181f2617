"""The native engine's promise, to the last bit and for every type of weights: what a token gets
depends on the tokens it sees and on nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from lmprog.errors import InvalidParameter, NotSupported
from lmprog.native import compiler
from lmprog.runtime.engine.model.shape import read_config, read_shape
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.engine.native.interface import PATHS
from lmprog.runtime.engine.native.page_memory import page_bytes
from tests.model.checkpoints import LATER, LAYERED, MIXTURES, NATIVE, RECURRENT
from tests.model.conftest import Judge, Judged
from tests.model.driver import Driver

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")

TYPES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantize": "int8"},
    "int4": {"dtype": "float32", "quantize": "int4"},
}
KV_INT8: dict[str, Any] = {"dtype": "float32", "kv_dtype": "int8"}


@pytest.fixture
def checkpoint(judged: Judge) -> Judged:
    return judged("qwen3", NATIVE["qwen3"])


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    "name",
    [
        *("qwen3", "qwen3-moe", "gpt-oss", "lfm2", "qwen3_next", "granitemoehybrid"),
        *("gemma4-shared", "gemma4-mixture", "lfm2_moe", "nemotron_h", "minimax", "glm4-moe"),
    ],
)
def test_company_and_chunks_and_threads_change_no_bit(judged: Judge, name: str, kind: str) -> None:
    checkpoint = judged(name, (NATIVE | MIXTURES | RECURRENT | LAYERED | LATER)[name], judge=False)
    prompts = checkpoint.prompts
    alone = Driver(checkpoint.engine(threads=1, **TYPES[kind]), 16).greedy(
        prompts, 6, together=False
    )
    for threads, chunk in ((1, 0), (1, 1), (1, 13), (3, 0), (3, 64)):
        engine = checkpoint.engine(threads=threads, **TYPES[kind])
        mixed = Driver(engine, 16, seed=threads + chunk).greedy(prompts, 6, chunk)
        for one, other in zip(alone, mixed, strict=True):
            assert one.new == other.new, (threads, chunk)
            assert torch.equal(one.logprobs, other.logprobs), (threads, chunk)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("name", "kind"), [*(("qwen3", kind) for kind in TYPES), ("qwen3_5_text", "float32")]
)
def test_every_instruction_set_scores_alike(
    name: str, kind: str, path: str, judged: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = judged(name, (NATIVE | RECURRENT)[name], judge=False)
    prompt = checkpoint.prompts[-2]
    monkeypatch.setenv("LMPROG_ENGINE_PATH", "generic")
    plain = Driver(checkpoint.engine(**TYPES[kind]), 16).score(prompt)
    monkeypatch.setenv("LMPROG_ENGINE_PATH", path)
    try:
        engine = checkpoint.engine(**TYPES[kind])
    except NotSupported:
        pytest.skip(f"this processor has no {path}")
    assert isinstance(engine, NativeEngine)
    assert engine.path == path
    difference = (Driver(engine, 16).score(prompt) - plain).abs().mean()
    assert difference < (1e-4 if kind == "float32" else 0.05)


@pytest.mark.parametrize(("kind", "most"), [("bfloat16", 0.02), ("int8", 0.05), ("int4", 0.4)])
@pytest.mark.parametrize("name", ["qwen3", "lfm2", "qwen3_5_text", "bamba", "gemma4-shared"])
def test_smaller_types_stay_close_to_float32(
    name: str, kind: str, most: float, judged: Judge
) -> None:
    checkpoint = judged(name, (NATIVE | RECURRENT | LAYERED)[name], judge=False)
    prompt = checkpoint.prompts[-2]
    exact = Driver(checkpoint.engine(engine="torch"), 16).score(prompt)
    rounded = Driver(checkpoint.engine(**TYPES[kind]), 16).score(prompt)
    if name == "gemma4-shared":  # scores of 8 bits in torch, rounded alike, differ by 0.09 too
        most *= 2.5
    assert 0 < (exact - rounded).abs().mean() < most


def test_keys_and_values_of_bytes_change_with_no_company_and_stay_close(checkpoint: Judged) -> None:
    prompts = checkpoint.prompts
    alone = Driver(checkpoint.engine(threads=1, **KV_INT8), 16).greedy(prompts, 6, together=False)
    for threads, chunk in ((1, 13), (3, 64)):
        engine = checkpoint.engine(threads=threads, **KV_INT8)
        mixed = Driver(engine, 16, seed=chunk).greedy(prompts, 6, chunk)
        for one, other in zip(alone, mixed, strict=True):
            assert torch.equal(one.logprobs, other.logprobs), (threads, chunk)
    exact = Driver(checkpoint.engine(dtype="float32"), 16).score(prompts[-2])
    off = (Driver(checkpoint.engine(**KV_INT8), 16).score(prompts[-2]) - exact).abs()
    assert 0 < off.mean() < 0.02
    ours = Driver(checkpoint.engine(**KV_INT8), 16).score(prompts[-2])
    for attention in ("native", "reference"):
        judge = checkpoint.engine(engine="torch", attention=attention, **KV_INT8)
        torch.testing.assert_close(Driver(judge, 16).score(prompts[-2]), ours, rtol=0, atol=5e-2)


def test_a_page_of_bytes_takes_less_memory(checkpoint: Judged) -> None:
    sizes = [
        page_bytes(read_shape(read_config(checkpoint.folder)), kind, 16)
        for kind in ("float32", "bfloat16", "int8")
    ]
    assert sizes[1] < 0.6 * sizes[0]
    assert sizes[2] < 0.7 * sizes[1]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["qwen3-moe", "gpt-oss"])
def test_every_instruction_set_sends_tokens_to_the_same_experts(
    judged: Judge, name: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = judged(name, MIXTURES[name])
    monkeypatch.setenv("LMPROG_ENGINE_PATH", path)
    try:
        engine = made.engine()
    except NotSupported:
        pytest.skip(f"this processor has no {path}")
    prompt = made.prompts[-2]
    with torch.no_grad():
        wanted = made.model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    torch.testing.assert_close(Driver(engine, 16).score(prompt), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("kind", "most"), [("bfloat16", 0.05), ("int8", 0.1), ("int4", 0.5)])
def test_smaller_types_of_a_mixture_stay_close_to_float32(
    judged: Judge, kind: str, most: float
) -> None:
    made = judged("qwen3-moe", MIXTURES["qwen3-moe"])
    prompt = made.prompts[-2]
    exact = Driver(made.engine(), 16).score(prompt)
    rounded = Driver(made.engine(**TYPES[kind]), 16).score(prompt)
    assert 0 < (exact - rounded).abs().mean() < most


def test_smaller_types_take_less_memory(checkpoint: Judged) -> None:
    sizes = []
    for kind in TYPES:
        engine = checkpoint.engine(**TYPES[kind])
        assert isinstance(engine, NativeEngine)
        sizes.append(engine.packed.num_bytes)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0] / 3


def test_a_token_outside_the_vocabulary_is_refused(checkpoint: Judged) -> None:
    with pytest.raises(ValueError, match="out of range"):
        Driver(checkpoint.engine(), 16).score([1, checkpoint.engine().vocab_size])


def test_rounding_to_integers_needs_the_native_engine(judged: Judge) -> None:
    known = judged("qwen3", NATIVE["qwen3"])
    with pytest.raises(InvalidParameter, match="quantize = 'int8' needs the native engine"):
        known.engine(engine="torch", quantize="int8")
    with pytest.raises(InvalidParameter, match="'reference' was asked for"):
        known.engine(engine="native", attention="reference")


def test_loading_and_computing_import_no_torch() -> None:
    code = (
        "import sys; import numpy as np\n"
        "from lmprog.config import RuntimeConfig\n"
        "from lmprog.runtime.scheduling.batch import Batch\n"
        "from lmprog.runtime.engine.engine import select_engine\n"
        "config = RuntimeConfig(model='nano', kv_memory_mb=16, engine='native', device='cpu')\n"
        "engine = select_engine(config).engine\n"
        "ints = lambda *numbers: np.array(numbers, np.int32)\n"
        "each, none = ints(0, 1), np.zeros((0, 2), np.int32)\n"
        "batch = Batch(ints(5, 6), each, ints(0, 2), ints(2), ints(0, 1), ints(0), each, each,"
        " none, ints(1), 16)\n"
        "print(engine.forward(batch).shape[0], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False"]
