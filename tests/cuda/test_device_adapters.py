"""Adapters on the emulated device: what the processor computes, whoever else is in the batch."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.native import compiler
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.model.locate import NANO
from tests.adapters.peft_files import Made, write_adapter
from tests.adapters.test_adapted_engines import Mixed
from tests.cuda.test_quantized_device import Awaited, on_device
from tests.model.driver import AnyEngine

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(
        not (NANO / "model.safetensors").exists(),
        reason="the shipped model is not in this checkout",
    ),
]
MADES = {
    "all": Made(strength=0.5, seed=5),
    "some": Made(3, 5.0, ("q_proj", "o_proj", "up_proj"), strength=0.5, seed=6),
}


def test_several_adapters_in_one_batch_give_what_they_give_on_the_processor(
    tmp_path: Path,
) -> None:
    """Prompts, chunks of them, and decoding, of the base and of two adapters together."""
    lora = tuple(
        f"{name}={write_adapter(NANO, tmp_path / name, made)}" for name, made in MADES.items()
    )
    scheduler = SchedulerConfig(num_pages=16, token_budget=128)
    judge = load_engine(
        RuntimeConfig("nano", engine="torch", dtype="float32", lora=lora, scheduler=scheduler)
    )
    device = on_device("nano", dtype="float32", lora=lora)
    assert device.adapters == judge.adapters
    asked = [[(17 * at + 5 * row) % 2000 for at in range(3 + 4 * row)] for row in range(4)]
    found = []
    for engine in (judge, Awaited(device)):
        driver = Mixed(cast(AnyEngine, engine), 16)
        driver.numbers = {tuple(one): index % 3 for index, one in enumerate(asked)}
        found.append(driver.greedy(asked, 3, chunk=9))
    for wanted, got in zip(*found, strict=True):
        assert got.new == wanted.new
        assert (got.logprobs - wanted.logprobs).abs().max() < 1e-4
    assert device.num_replays == 0, "whose a token is stands in no graph"
