"""Several ranks compute what one process computes: to the last bits in float64, to rounding in
float32.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from lmprog.config import SchedulerConfig, SpeculationName
from lmprog.runtime.engine.model.rope import Rope
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.model.stored_weights import RandomSource
from lmprog.runtime.engine.model.weight_table import expected
from lmprog.runtime.engine.torch_engine.sampler import TorchSampler
from tests.model.driver import Driver
from tests.runtime.guesses import knowing
from tests.runtime.rig import Rig
from tests.sharded.threaded_ranks import NUM_PAGES, PAGE_SIZE, SEED, ThreadedRanks, Whole

LLAMA = ModelShape(
    vocab_size=131,  # no multiple of any number of ranks
    hidden=48,
    inner=101,
    num_heads=8,
    num_kv_heads=4,
    head_dim=12,
    context_len=256,
    rope=Rope(),
    windows=(None, None),
)
SHAPES = {
    "llama": LLAMA,
    "tied": replace(LLAMA, tied_head=True),
    "mistral": replace(LLAMA, windows=(13, 13)),
    "qwen2": replace(LLAMA, qkv_bias=True, windows=(None, 20), tied_head=True),
    "qwen3": replace(LLAMA, qk_norm=True, head_dim=16),
    "all biases": replace(LLAMA, qkv_bias=True, out_bias=True, mlp_bias=True),
    "one key/value head": replace(LLAMA, num_kv_heads=1),
    "no shared heads": replace(LLAMA, num_kv_heads=8),
}
CASES = [(name, 2) for name in SHAPES] + [("one key/value head", 8), ("qwen2", 4), ("llama", 8)]


@pytest.fixture(autouse=True)
def _one_thread_each() -> Iterator[None]:
    """Threads of torch that wait for each other would spin."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def prompts() -> list[list[int]]:
    draw = random.Random(5)
    shared = [draw.randrange(131) for _ in range(40)]
    return [shared + [draw.randrange(131) for _ in range(n)] for n in (1, 30, 90)] + [[7]]


@pytest.mark.parametrize(("name", "size"), CASES)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 5e-5)])
def test_ranks_together_compute_the_logits_of_one_process(
    name: str, size: int, dtype: torch.dtype, bound: float
) -> None:
    shape = SHAPES[name]
    ranks = ThreadedRanks(shape, dtype, size)
    wanted = Driver(Whole(shape, dtype), PAGE_SIZE).greedy(prompts(), 6, chunk=50)
    found = Driver(ranks, PAGE_SIZE).greedy(prompts(), 6, chunk=50)
    assert [one.new for one in found] == [one.new for one in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one.logprobs.dtype == dtype
        assert (one.logprobs - other.logprobs).abs().max() <= bound
    assert len({token for one in wanted for token in one.new}) > 2, "it says several things"


@pytest.mark.parametrize("name", ["qwen2", "all biases"])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
def test_ranks_read_their_parts_of_a_checkpoint(
    tmp_path: Path, name: str, stored: torch.dtype
) -> None:
    shape = SHAPES[name]
    source = RandomSource(expected(shape), SEED)
    weights = {one: torch.from_numpy(source.array(one)).to(stored) for one in expected(shape)}
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    ranks = ThreadedRanks(shape, torch.float64, 2, tmp_path)
    wanted = Driver(Whole(shape, torch.float64, tmp_path), PAGE_SIZE).greedy(prompts(), 4)
    found = Driver(ranks, PAGE_SIZE).greedy(prompts(), 4)
    for one, other in zip(found, wanted, strict=True):
        assert (one.logprobs - other.logprobs).abs().max() <= 1e-12


def test_a_layer_is_summed_twice_and_logits_are_gathered_once() -> None:
    ranks = ThreadedRanks(LLAMA, torch.float32, 2)
    Driver(ranks, PAGE_SIZE).greedy([[1, 2, 3]], 5)
    assert [(one.num_sums, one.num_gathers) for one in ranks.ranks] == [(5 * 2 * 2, 5)] * 2


def test_a_step_that_wants_no_logits_gathers_none() -> None:
    ranks = ThreadedRanks(LLAMA, torch.float32, 2)
    Driver(ranks, PAGE_SIZE).greedy([[1] * 9], 1, chunk=4)
    assert [one.num_gathers for one in ranks.ranks] == [1, 1], "of three steps the last one"


def test_ranks_compute_drafted_tokens_as_one_process_does() -> None:
    """Each rank sees rows, some of them with several tokens and the logits of all."""
    texts: list[list[list[int]]] = []
    for engine in (Whole(LLAMA, torch.float64), ThreadedRanks(LLAMA, torch.float64, 2)):
        mode: SpeculationName = "always" if texts else "off"
        config = SchedulerConfig(page_size=PAGE_SIZE, num_pages=NUM_PAGES, speculation=mode)
        rig = Rig(config, 256, engine=engine, sampler=TorchSampler())
        if rig.scheduler.drafting is not None:
            rig.scheduler.drafting.source = knowing(texts[0] if texts else (), 0.8)
        sequences = [rig.gen(prompt, 12) for prompt in prompts()]
        rig.run()
        texts.append([list(one.tokens) for one in sequences])
    assert texts[1] == texts[0]
    assert rig.scheduler.stats.accepted_tokens > 10
