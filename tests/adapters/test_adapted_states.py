"""Adapters of models with recurrent layers: equal to merged weights in all that they can change,
with prefixes, snapshots and drafts of each adapter's own.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import ModelError
from lmprog.runtime.engine.draft_model import PredictedDrafts
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.engine.native.sampler import NativeSampler
from lmprog.runtime.scheduling.drafting import Guess
from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.namespaces import BASE_ALONE, NamedAdapter, Namespaces
from lmprog.runtime.scheduling.recurrent import StatePool
from lmprog.runtime.scheduling.sequence import Sequence
from lmprog.wire import SamplingParams
from tests.adapters.peft_files import PREFIX, Made, write_adapter, write_merged
from tests.model.checkpoints import RECURRENT, VOCABULARY, Recipe
from tests.model.predicting import saved
from tests.runtime.rig import Rig

ATTENTION = ("q_proj", "k_proj", "v_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
NETS = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
DENSE = RECURRENT["granitemoehybrid"].fields | {"num_local_experts": 0}
FAMILIES = {
    "lfm2": (RECURRENT["lfm2"], (*ATTENTION, "in_proj", "out_proj", "w1", "w2", "w3")),
    "lfm2_moe": (RECURRENT["lfm2_moe"], (*ATTENTION, "in_proj", "out_proj")),
    "olmo_hybrid": (
        RECURRENT["olmo_hybrid"],
        (*ATTENTION, "g_proj", "b_proj", "a_proj", "o_proj", *MLP),
    ),
    "qwen3_5_text": (RECURRENT["qwen3_5_text"], (*ATTENTION, "o_proj", *NETS, *MLP)),
    "qwen3_next": (
        RECURRENT["qwen3_next"],
        (*ATTENTION, "o_proj", "in_proj_qkvz", "in_proj_ba", "out_proj"),
    ),
    "granitemoehybrid": (
        RECURRENT["granitemoehybrid"],
        (*ATTENTION, "o_proj", "in_proj", "out_proj"),
    ),
    "granite without experts": (
        Recipe("GraniteMoeHybrid", DENSE),
        (*ATTENTION, "o_proj", "in_proj", "out_proj", "input_linear", "output_linear"),
    ),
    "nemotron_h": (RECURRENT["nemotron_h"], (*ATTENTION, "o_proj", "in_proj", "out_proj")),
    "nemotron without experts": (
        Recipe(
            "NemotronH",
            RECURRENT["nemotron_h"].fields | {"layers_block_type": ["mamba", "attention", "mlp"]},
        ),
        (*ATTENTION, "o_proj", "in_proj", "out_proj", "up_proj", "down_proj"),
    ),
    "minimax": (
        RECURRENT["minimax"],
        (*ATTENTION, "o_proj", "qkv_proj", "output_gate", "out_proj"),
    ),
    "bamba": (RECURRENT["bamba"], (*ATTENTION, "o_proj", "in_proj", "out_proj", *MLP)),
}
GREEDY = SamplingParams(temperature=0.0, logprobs=2)
NUM_NEW = 6
NAMES = [BASE_ALONE, NamedAdapter(1, "one", "1"), NamedAdapter(2, "two", "2")]


def asked() -> list[tuple[int, list[int]]]:
    """Prompts of the base and of both adapters, with common beginnings; each one twice."""
    dice = random.Random(2)
    base = [dice.randrange(VOCABULARY) for _ in range(70)]
    return [(at % 3, [*base[: 5 + 3 * at], at]) for at in range(12)] * 2


def made_folder(recipe: Recipe, folder: Path) -> Path:
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    recipe.make(folder)
    return folder


def engine_of(base: Path, adapters: list[Path], **config: Any) -> NativeEngine:
    lora = tuple(f"{named.name}={path}" for named, path in zip(NAMES[1:], adapters, strict=False))
    scheduler = SchedulerConfig(page_size=16, num_pages=128)
    config = {"engine": "native", "threads": 1, "lora": lora, "scheduler": scheduler, **config}
    engine = load_engine(RuntimeConfig(model=str(base), **config))
    assert isinstance(engine, NativeEngine)
    return engine


def answers(
    engine: NativeEngine, at_once: int, known: Items[Sequence] = (), **config: Any
) -> list[Sequence]:
    """With speculation, drafts are two tokens of the same answer in `known`, and a wrong one."""
    config = {"speculation": "off", **config}
    scheduler = SchedulerConfig(page_size=16, num_pages=128, **config)
    rig = Rig(scheduler, 512, 0, engine, NativeSampler(engine), StatePool(16, 20))
    texts = [list(one.tokens) for one in known]

    def guess(tokens: Items[int], most: int, evidence: int) -> Guess:
        before = list(tokens)
        text = next(one for one in texts if one[: len(before)] == before)[len(before) :]
        return Guess([*text[:2], 0][:most])

    if rig.scheduler.drafting is not None:
        rig.scheduler.drafting.source = guess
        if "join" in engine.packed.layers[-1]:
            copied = rig.scheduler.tables.copies.origins
            rig.scheduler.drafting.model = PredictedDrafts(engine, rig.sampler, 16, copied)
    spaces, todo, done = Namespaces(VOCABULARY, ()), asked(), list[Sequence]()
    for start in range(0, len(todo), at_once):
        for number, prompt in todo[start : start + at_once]:
            space = spaces.of(array("i", prompt), "", NAMES[number])
            done.append(rig.gen(prompt, NUM_NEW, GREEDY, namespace=space))
        rig.run()
    stats = rig.scheduler.stats
    if config.get("share", True):
        most = sum(len(one.tokens) for one in done)
        assert stats.computed_tokens < most, "prefixes are found"
    if config["speculation"] == "always":
        assert stats.accepted_tokens < stats.drafted_tokens
        assert stats.accepted_tokens > 0 or not texts
    return done


def logprobs(done: list[Sequence]) -> list[Any]:
    return [list(one.task.logprobs) for one in done if isinstance(one.task, Generation)]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_equal_to_merged_weights_and_the_cache_changes_no_bit(
    name: str, tmp_path: Path
) -> None:
    recipe, targets = FAMILIES[name]
    base = made_folder(recipe, tmp_path / "base")
    mades = [Made(3, 6.0, targets, strength=0.3, seed=1), Made(targets=targets[2:], seed=2)]
    adapters = [write_adapter(base, tmp_path / f"a{made.seed}", made) for made in mades]
    merged = [write_merged(base, tmp_path / f"m{made.seed}", made) for made in mades]
    judges: list[Any] = [
        transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        for folder in (base, *merged)
    ]
    engine = engine_of(base, adapters, dtype="float32")
    done = answers(engine, at_once=1)
    for (number, prompt), sequence in zip(asked(), done, strict=True):
        with torch.no_grad():
            said = judges[number](torch.tensor([list(sequence.tokens)])).logits[0].float()
        wanted = said.log_softmax(-1)[len(prompt) - 1 : -1]
        assert list(sequence.tokens)[len(prompt) :] == wanted.argmax(-1).tolist()
        assert isinstance(sequence.task, Generation)
        for scored, row in zip(sequence.task.logprobs, wanted, strict=True):
            assert all(abs(logprob - float(row[token])) < 1e-4 for token, logprob in scored.top)
    said_by = [list(one.tokens)[-NUM_NEW:] for one in done[:3]]
    assert said_by[1] != said_by[0] != said_by[2]
    for case in ({"max_chunk": 5}, {"share": False}, {"speculation": "always"}):
        assert logprobs(answers(engine, 24, done, **case)) == logprobs(done), case


def test_drafts_of_a_layer_of_the_model_change_no_bit_of_an_adapter(tmp_path: Path) -> None:
    """The layer is the base's for all."""
    recipe, targets = FAMILIES["qwen3_5_text"]
    base, folder = made_folder(recipe, tmp_path / "base"), tmp_path / "own"
    adapters = [write_adapter(base, tmp_path / f"a{at}", Made(targets=targets)) for at in range(2)]
    folder.mkdir()
    saved(folder, "qwen3_5_text")
    own = engine_of(folder, adapters, dtype="float32", draft_model="mtp")
    alone = logprobs(answers(engine_of(base, adapters, dtype="float32"), at_once=24))
    assert logprobs(answers(own, 24, speculation="always")) == alone


def test_an_adapter_of_a_checkpoint_with_a_part_for_pictures_is_read(tmp_path: Path) -> None:
    recipe, targets = FAMILIES["qwen3_5_text"]
    base = made_folder(recipe, tmp_path / "base")
    folder = write_adapter(base, tmp_path / "a", Made(targets=targets))
    short = logprobs(answers(engine_of(base, [folder, folder], dtype="float32"), at_once=24))
    path, head = folder / "adapter_model.safetensors", f"{PREFIX}model."
    weights = load_file(path)
    save_file({f"{head}language_model.{k.removeprefix(head)}": w for k, w in weights.items()}, path)
    long = engine_of(base, [folder, folder], dtype="float32")
    assert logprobs(answers(long, at_once=24)) == short


@pytest.mark.parametrize(
    ("name", "target", "known"),
    [
        ("lfm2", "embed_tokens", "in_proj, k_proj, out_proj, q_proj, v_proj, w1, w2, w3"),
        ("granitemoehybrid", "router.layer", "in_proj, k_proj, o_proj, out_proj, q_proj, v_proj"),
    ],
)
def test_what_adapters_can_change_is_said_for_each_family(
    name: str, target: str, known: str, tmp_path: Path
) -> None:
    base = made_folder(RECURRENT[name], tmp_path / "base")
    folder = write_adapter(base, tmp_path / "a", Made(targets=(target,)))
    with pytest.raises(ModelError, match=f"they can change {known} of"):
        engine_of(base, [folder])
