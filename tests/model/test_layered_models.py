"""Models whose layers have heads of several sizes: prompts beyond the window, cut, in company and
forked; pages as bytes; checkpoints as they are published; and where they are refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import ModelError, NotSupported
from lmprog.native import compiler
from lmprog.runtime.engine.engine import load_engine, select_engine
from lmprog.runtime.engine.model.families import read_native_shape
from lmprog.runtime.engine.model.shape import read_config
from lmprog.runtime.engine.native.engine import NativeEngine, page_bytes
from lmprog.runtime.engine.native.sampler import NativeSampler
from lmprog.runtime.engine.torch_engine.sampler import TorchSampler
from lmprog.runtime.model_report import model_report
from lmprog.runtime.scheduling.generation import Generation
from lmprog.wire import SamplingParams
from tests.model.checkpoints import LAYERED, VOCABULARY, Recipe
from tests.model.conftest import Judge, Judged
from tests.model.driver import Driver
from tests.runtime.rig import Rig

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")

GREEDY = SamplingParams(temperature=0.0, logprobs=3)
LONG = {"max_position_embeddings": 4096, "sliding_window": 300}


def rig_of(made: Judged, kind: Any, **config: Any) -> Rig:
    scheduler = SchedulerConfig(page_size=16, num_pages=400, **config)
    asked = RuntimeConfig(str(made.folder), engine=kind, dtype="float32", scheduler=scheduler)
    engine = load_engine(asked)
    sampler = NativeSampler(engine) if isinstance(engine, NativeEngine) else TorchSampler()
    return Rig(scheduler, 4096, 0, engine, sampler)


@pytest.mark.parametrize("kind", ["native", "torch"])
@pytest.mark.parametrize("name", LAYERED)
def test_long_prompts_that_share_a_beginning_generate_what_transformers_does(
    name: str, kind: str, judged: Judge
) -> None:
    """In chunks and company, each going on from pages of the one before, then forked."""
    recipe = Recipe(LAYERED[name].family, LAYERED[name].fields | LONG)
    made = judged(f"{name}-long", recipe, judge=False)
    dice = random.Random(8)
    base = [dice.randrange(VOCABULARY) for _ in range(2500)]
    rig = rig_of(made, kind, max_chunk=190)
    several = [rig.gen([*base[:length], 7], 3, GREEDY) for length in (1, 299, 1100, 2500)]
    rig.run()
    assert rig.scheduler.stats.computed_tokens < 2600, "what is common is computed once"
    forks = [rig.gen([*several[-1].tokens, token], 3, GREEDY) for token in range(3)]
    rig.run()
    for sequence in (*several, *forks):
        tokens, start = list(sequence.tokens), sequence.group.prompt_len
        with torch.no_grad():
            wanted = made.model(torch.tensor([tokens])).logits[0, start - 1 : -1].log_softmax(-1)
        assert wanted.argmax(-1).tolist() == tokens[start:], f"prompt of {start} tokens"
        assert isinstance(sequence.task, Generation)
        for scored, row in zip(sequence.task.logprobs, wanted, strict=True):
            assert all(abs(logprob - float(row[token])) < 1e-4 for token, logprob in scored.top)


def test_a_page_has_the_bytes_of_each_layer_that_keeps_keys(judged: Judge) -> None:
    made = judged("gemma4-shared", LAYERED["gemma4-shared"], judge=False)
    shape = read_native_shape(read_config(made.folder))
    assert shape.sources == (None, None, None, None, 2, 3)
    numbers = 2 * (2 * 16 * 2 + 2 * 32 * 2)  # two layers of two heads of 16, two of 32
    assert page_bytes(shape, "float32", 16) == 16 * 4 * numbers
    engine = made.engine(engine="native", dtype="float32")
    assert isinstance(engine, NativeEngine)
    memory = engine.page_memory()
    assert memory.page_bytes == 16 * 4 * numbers
    driver = Driver(engine, 16)
    before = driver.score(made.prompts[-2])
    contents = [bytearray(memory.page_bytes) for _ in range(engine.num_pages)]
    for page, one in enumerate(contents):
        memory.read(page, one)
        memory.write(page, bytes(len(one)))
    for page, one in enumerate(contents):
        memory.write(page, one)
        again = bytearray(memory.page_bytes)
        memory.read(page, again)
        assert again == one
    assert torch.equal(Driver(engine, 16).score(made.prompts[-2]), before)


@pytest.mark.parametrize("name", ["gemma4", "gemma4-shared"])
def test_a_checkpoint_as_it_is_published_is_computed(name: str, tmp_path: Path) -> None:
    """Beside parts that see and hear, with unused weights, and heads in fields of the config."""
    recipe = LAYERED[name]
    model = recipe.make(tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())
    own = told.pop("per_layer_config")["1"]
    told["global_head_dim"] = own["head_dim"]
    told["num_global_key_value_heads"] = own.get("num_key_value_heads")
    whole = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4"}
    whole |= {"text_config": told, "tie_word_embeddings": True, "dtype": "float32"}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    weights = load_file(tmp_path / "model.safetensors")
    weights = {f"model.language_model.{key[6:]}": one for key, one in weights.items()}
    weights["model.vision_tower.proj.weight"] = torch.ones(2, 2)
    weights["model.embed_audio.proj.weight"] = torch.ones(2, 2)
    if name == "gemma4-shared":
        weights["model.language_model.layers.5.self_attn.k_proj.weight"] = torch.ones(64, 64)
    save_file(weights, tmp_path / "model.safetensors")
    prompt = [random.Random(1).randrange(VOCABULARY) for _ in range(90)]
    with torch.no_grad():
        wanted = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    engine = load_engine(RuntimeConfig(str(tmp_path), engine="native", kv_memory_mb=8))
    torch.testing.assert_close(Driver(engine, 16).score(prompt), wanted, rtol=0, atol=1e-4)


def test_the_report_says_that_it_runs_natively_and_what_a_token_takes(judged: Judge) -> None:
    made = judged("gemma4-shared", LAYERED["gemma4-shared"], judge=False)
    found = {one.name: one for one in model_report(RuntimeConfig(str(made.folder)))}
    assert found["engine"].state == "ok"
    assert found["engine"].what.startswith("native; ")
    assert "keys and values (1.5 kB each)" in found["memory"].what


def test_a_device_refuses_it_by_name(judged: Judge) -> None:
    made = judged("gemma4", LAYERED["gemma4"], judge=False)
    with pytest.raises(NotSupported, match="gemma4_text"):
        select_engine(RuntimeConfig(str(made.folder), device="emulated"))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("use_bidirectional_attention", "all", "both sides"),
        ("num_kv_shared_layers", 4, "leaves no layer"),
        ("vocab_size_per_layer_input", 12, "do not fit 160"),
        ("hidden_size_per_layer_input", 24, "multiples of 16"),
        ("per_layer_config", {"1": {"head_dim": 32}, "3": {"head_dim": 48}}, "as it is"),
        ("layer_types", ["full_attention", "linear_attention"] * 2, "layer_types"),
    ],
)
def test_what_is_not_computed_is_said(field: str, value: Any, says: str, judged: Judge) -> None:
    made = judged("gemma4", LAYERED["gemma4"], judge=False)
    config = read_config(made.folder) | {"hidden_size_per_layer_input": 32, field: value}
    with pytest.raises(ModelError, match=says):
        read_native_shape(config | {"vocab_size_per_layer_input": 160, field: value})
