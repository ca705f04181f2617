"""Layers with windows that keep no more than these, on small random checkpoints: the same tokens
and log-probabilities, to the last bit, as where all layers keep everything; and less memory."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.native import compiler
from lmprog.radix.frames import WindowPages
from lmprog.runtime.engine.engine import load_engine, native_plan
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.engine.native.sampler import NativeSampler
from lmprog.runtime.model_report import model_report
from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.sequence import Sequence
from lmprog.wire import SamplingParams
from tests.model.checkpoints import FOREIGN, LATER, LAYERED, MIXTURES, VOCABULARY
from tests.model.small_checkpoint import write_checkpoint
from tests.runtime.guesses import knowing
from tests.runtime.rig import Rig

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")

GREEDY = SamplingParams(temperature=0.0, logprobs=2)
MIXED = {
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "hidden_act": "gelu_pytorch_tanh",
    "num_hidden_layers": 4,
    "sliding_window": 40,
    "layer_types": [*["sliding_attention"] * 2, "full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 32,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
}
ALL = {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "sliding_window": 40,
    "max_position_embeddings": 4096,
}
MODELS: dict[str, dict[str, Any]] = {"gemma3": MIXED, "mistral": ALL}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("windows")
    return {name: write_checkpoint(folder / name, **config) for name, config in MODELS.items()}


def rig_of(
    folder: Path,
    *,
    is_apart: bool,
    preempt_every: int = 0,
    context_len: int = 4096,
    num_handles: int = 0,
    **fields: Any,
) -> Rig:
    config = SchedulerConfig(**({"page_size": 16, "num_pages": 400, "speculation": "off"} | fields))
    asked = RuntimeConfig(
        str(folder), engine="native", dtype="float32", threads=1, scheduler=config
    )
    engine = load_engine(asked, knows_frames=is_apart)
    assert isinstance(engine, NativeEngine)
    assert (engine.windows is not None) == is_apart
    sampler = NativeSampler(engine)
    tier = (num_handles, engine.windows, PageContents(engine) if num_handles else None)
    return Rig(config, context_len, preempt_every, engine, sampler, None, *tier)


def prompts() -> list[list[int]]:
    """They share beginnings shorter and longer than the window, and longer than a chunk."""
    dice = random.Random(4)
    base = [dice.randrange(VOCABULARY) for _ in range(900)]
    made = []
    for index in range(18):
        common = [0, 17, 48, 100, 333, 600][index % 6]
        made.append(
            base[:common] + [dice.randrange(VOCABULARY) for _ in range(dice.randrange(1, 60))]
        )
    return [*made, base]


def answers(rig: Rig, at_once: int) -> list[tuple[list[int], list[float]]]:
    made: list[Sequence] = []
    for start in range(0, len(prompts()), at_once):
        made += [rig.gen(one, 20, GREEDY) for one in prompts()[start : start + at_once]]
        rig.run()
    forks = [rig.gen([*one.tokens, index], 8, GREEDY) for one in made[-4:] for index in range(3)]
    rig.run()
    return [told(one) for one in [*made, *forks]]


def told(one: Sequence) -> tuple[list[int], list[float]]:
    assert isinstance(one.task, Generation)
    return list(one.tokens), [scored.logprob for scored in one.task.logprobs]


class PageContents:
    """An engine's pages and frames, for a store."""

    def __init__(self, engine: NativeEngine) -> None:
        self.memory = engine.page_memory()

    def read_page(self, page: int) -> bytearray:
        self.memory.read(page, found := bytearray(self.memory.page_bytes))
        return found

    def write_page(self, page: int, contents: bytearray) -> None:
        self.memory.write(page, contents)

    def spoil_page(self, page: int) -> None:
        self.memory.write(page, bytes([200]) * self.memory.page_bytes)


CASES: dict[str, tuple[dict[str, Any], int, int]] = {
    "alone": ({}, 1, 0),
    "all at once": ({}, 19, 0),
    "without a cache": ({"share": False}, 19, 0),
    "pages of 1": ({"page_size": 1, "num_pages": 1500}, 19, 0),
    "pages of 4": ({"page_size": 4, "num_pages": 1600}, 7, 0),
    "chunks of 7": ({"max_chunk": 7}, 5, 0),
    "chunks of 100": ({"max_chunk": 100}, 19, 0),
    "preempted every third step": ({"max_chunk": 100}, 19, 3),
    "hardly any memory": ({"num_pages": 64}, 19, 0),
    "drafts": ({"speculation": "always"}, 19, 0),
    "drafts, hardly any memory": ({"speculation": "always", "num_pages": 64}, 19, 0),
    "a second tier": ({"num_pages": 64, "num_handles": 2000}, 5, 0),
    "a small one, preempted, drafts": (
        {"num_pages": 64, "num_handles": 60, "max_chunk": 100, "speculation": "always"},
        19,
        3,
    ),
}


@pytest.mark.parametrize("model", MODELS)
def test_the_answer_is_the_same_to_the_last_bit(model: str, folders: dict[str, Path]) -> None:
    wanted = answers(rig_of(folders[model], is_apart=False), 1)
    for case, (fields, at_once, preempt_every) in CASES.items():
        if model == "mistral" and case not in ("all at once", "drafts, hardly any memory"):
            continue  # what the scheduler does is the same
        rig = rig_of(folders[model], is_apart=True, preempt_every=preempt_every, **fields)
        if rig.scheduler.drafting is not None:
            rig.scheduler.drafting.source = knowing([one[0] for one in wanted], 0.8)
        assert answers(rig, at_once) == wanted, case
        assert bool(rig.scheduler.stats.accepted_tokens) == ("drafts" in case), case
        if (tier := rig.scheduler.tier) is not None:
            rig.scheduler.tree.clear()
            assert answers(rig, at_once) == wanted, case
            assert tier.counters.loaded > 20 == 20 + tier.counters.lost, case


OTHERS = {
    **{name: FOREIGN[name] for name in ("gemma2", "phi3")},
    **{name: LATER[name] for name in ("olmo3", "exaone4")},
    **{name: MIXTURES[name] for name in ("gpt-oss", "mixtral", "qwen2-moe")},
    **{name: LAYERED[name] for name in ("gemma4", "gemma4-shared")},
}


@pytest.mark.parametrize("family", OTHERS)
def test_the_answer_is_the_same_in_every_family_with_windows(family: str, tmp_path: Path) -> None:
    OTHERS[family].make(tmp_path)
    sizes = {"context_len": 1024, "num_pages": 200}
    wanted = answers(rig_of(tmp_path, is_apart=False, **sizes), 19)
    rig = rig_of(tmp_path, is_apart=True, **sizes | {"num_pages": 66})
    assert answers(rig, 19) == wanted


def test_memory_for_a_thousand_tokens_of_all_layers_holds_a_text_of_three_thousand(
    folders: dict[str, Path],
) -> None:
    """One layer of four sees all positions: pages for these, frames for a window and one chunk."""
    rig = rig_of(folders["gemma3"], is_apart=True, num_pages=64)
    assert rig.scheduler.longest_sequence == 3072
    dice = random.Random(2)
    sequence = rig.gen([dice.randrange(256) for _ in range(3060)], 12, GREEDY)
    rig.run()
    pages = rig.scheduler.pages
    assert len(sequence.tokens) == 3072
    pages.trim()
    assert pages.num_taken == 192
    assert sum(frame > 0 for frame in pages.frames) == 4, "40 positions lie in four pages of 16"
    assert rig.engine.page_memory().slots is not None
    assert rig.engine.page_memory().page_bytes * 4 == pages.page_cost + pages.frame_cost


def test_all_layers_keep_everything_where_others_share_pages_or_nothing_is_left_of_them(
    folders: dict[str, Path],
) -> None:
    def windows(model: str = "gemma3", **fields: Any) -> object:
        return native_plan(RuntimeConfig(str(folders[model]), **fields), folders[model]).windows

    assert windows() is not None
    assert windows(kv_disk_mb=64) is not None
    assert windows(kv_events="tcp://127.0.0.1:5557") is not None
    assert windows("mistral", kv_events="tcp://127.0.0.1:5557") is not None
    assert windows(kv_disk_mb=64, kv_store="machine") is None
    assert windows("mistral", kv_disk_mb=64) is None
    assert windows(context_len=40) is None
    assert windows(scheduler=SchedulerConfig(page_size=16, num_pages=4)) is None


def test_a_doctor_says_how_long_a_text_fits(folders: dict[str, Path]) -> None:
    scheduler = SchedulerConfig(page_size=16, num_pages=64)
    asked = RuntimeConfig(str(folders["gemma3"]), scheduler=scheduler)
    found = {one.name: one.what for one in model_report(asked)}
    assert (
        "layers with windows keep 40 positions of each text: up to 3,072 tokens" in found["memory"]
    )


@pytest.mark.parametrize("model", MODELS)
def test_memory_that_was_given_back_serves_again(model: str, folders: dict[str, Path]) -> None:
    wanted = answers(rig_of(folders[model], is_apart=False), 19)
    rig = rig_of(folders[model], is_apart=True)
    pages = rig.scheduler.pages
    assert isinstance(pages, WindowPages)
    pages.give_back = rig.engine.give_back
    assert answers(rig, 19) == wanted
    pages.trim()
    pages.return_memory(pages.free_pages())
    assert answers(rig, 19) == wanted
    rig.scheduler.tree.clear()
    pages.return_memory(pages.free_pages())
    assert answers(rig, 19) == wanted
