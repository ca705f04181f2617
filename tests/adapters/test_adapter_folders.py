"""What is read of an adapter's folder, and what is refused by name."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter, ModelError
from lmprog.launch.runtime_process import configured
from lmprog.runtime.engine.adapters.adapter_folder import (
    Adapter,
    adapter_folders,
    read_adapter,
    read_adapter_config,
)
from lmprog.runtime.engine.engine import select_engine
from lmprog.runtime.engine.model.families import read_native_shape
from lmprog.runtime.engine.model.locate import NANO
from lmprog.runtime.engine.model.shape import read_config
from lmprog.runtime.engine.sharded.shard import check_ranks
from tests.adapters.peft_files import PREFIX, Made, write_adapter

LAYER = f"{PREFIX}model.layers.0"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "adapter"
    return write_adapter(NANO, folder, Made(2, targets=("q_proj", "down_proj")))


def read(folder: Path) -> Adapter:
    return read_adapter("x", folder, read_native_shape(read_config(NANO)))


def changed(good: Path, folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """A copy with other weights."""
    shutil.copytree(good, folder, dirs_exist_ok=True)
    weights = load_file(good / "adapter_model.safetensors")
    change(weights)
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


def described(good: Path, folder: Path, **fields: Any) -> Path:
    """A copy with another description."""
    shutil.copytree(good, folder, dirs_exist_ok=True)
    config = json.loads((good / "adapter_config.json").read_text()) | fields
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_an_adapter_is_known_by_its_content(good: Path, tmp_path: Path) -> None:
    first = read(good)
    assert read(shutil.copytree(good, tmp_path / "copy")).digest == first.digest
    other = changed(
        good, tmp_path / "other", lambda w: w[f"{LAYER}.mlp.down_proj.lora_A.weight"].mul_(2)
    )
    assert read(other).digest != first.digest
    assert read(described(good, tmp_path / "alpha", lora_alpha=9)).digest != first.digest


def test_what_is_not_changed_is_absent_and_the_scale_is_in_up(good: Path, tmp_path: Path) -> None:
    one, double = read(good), read(described(good, tmp_path / "x", lora_alpha=16.0))
    assert set(one.layers[0]) == {"qkv", "down"}
    (up,), (twice,) = (
        [part.up for part in adapter.layers[0]["down"].raised] for adapter in (one, double)
    )
    assert np.allclose(twice, 2 * up)
    assert np.array_equal(one.layers[0]["down"].down, double.layers[0]["down"].down)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"bias": "lora_only"}, "bias = 'lora_only'"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights = 'pissa_niter_4'"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"peft_type": None}, "peft_type None"),
        ({"r": 0}, "a rank must be a whole number"),
        ({"r": 2.0}, "a rank must be a whole number"),
        ({"r": 10**9}, "a rank must be a whole number"),
        ({"r": True}, "a rank must be a whole number"),
        ({"lora_alpha": "8"}, "lora_alpha must be a number"),
        ({"lora_alpha": float("inf")}, "lora_alpha must be a number"),
        ({"rank_pattern": {"(a*)*b": 3}}, "no name of a module, nor a simple pattern"),
        ({"rank_pattern": {".*.*.*.*.*x": 3}}, "no name of a module, nor a simple pattern"),
        ({"rank_pattern": ["q"]}, "malformed"),
        ({"r": 3}, r"instead of \[3, "),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    good: Path, tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        read(described(good, tmp_path / "x", **fields))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.clear(), "is empty"),
        (lambda w: w.pop(f"{LAYER}.mlp.down_proj.lora_A.weight"), "only one half"),
        (
            lambda w: w.update({"base_model.model.lm_head.lora_A.weight": torch.ones(2, 4)}),
            "lm_head",
        ),
        (
            lambda w: w.update(
                {"base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(2)}
            ),
            "embed_tokens",
        ),
        (
            lambda w: w.update({f"{LAYER}.self_attn.q_proj.lora_magnitude_vector": torch.ones(2)}),
            "lora_magnitude_vector",
        ),
        (
            lambda w: w.update({f"{LAYER}.self_attn.q_prok.lora_A.weight": torch.ones(2, 4)}),
            "did you mean .*q_proj.lora_A.weight",
        ),
        (
            lambda w: w.update(
                {f"{PREFIX}model.layers.99.mlp.up_proj.lora_A.weight": torch.ones(2, 4)}
            ),
            "layers.99",
        ),
        (
            lambda w: w.update({f"{LAYER}.mlp.down_proj.lora_A.weight": torch.ones(2, 7)}),
            r"is \[2, 7\] instead of",
        ),
        (lambda w: w[f"{LAYER}.mlp.down_proj.lora_B.weight"].fill_(torch.nan), "not finite"),
        (
            lambda w: w.update(
                {f"{LAYER}.mlp.down_proj.lora_A.weight": torch.ones(2, 4, dtype=torch.int8)}
            ),
            "is I8, not F32",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(
    good: Path, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        read(changed(good, tmp_path / "x", change))


def test_folders_without_an_adapter_are_refused(good: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no LoRA adapter: it has no adapter_config"):
        read(tmp_path)
    shutil.copy(good / "adapter_config.json", tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"pickled")
    with pytest.raises(ModelError, match=r"no adapter_model.safetensors \(pickled files"):
        read(tmp_path)


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_file_is_an_error_or_another_adapter(
    good: Path, tmp_path: Path, seed: int
) -> None:
    """Never a crash, and never a read beyond the file."""
    dice = random.Random(seed)
    folder = shutil.copytree(good, tmp_path / "x")
    path = folder / dice.choice(["adapter_model.safetensors", "adapter_config.json"])
    content = bytearray(path.read_bytes())
    for _ in range(dice.randrange(1, 4)):
        content[dice.randrange(min(len(content), 2000))] = dice.randrange(256)
    path.write_bytes(content[: dice.choice([len(content), dice.randrange(len(content))])])
    with contextlib.suppress(ModelError):
        read(folder)


def test_names_of_modules_match_as_in_peft(good: Path, tmp_path: Path) -> None:
    config = read_adapter_config(
        described(
            good,
            tmp_path / "x",
            r=2,
            lora_alpha=4,
            rank_pattern={"layers.1.self_attn.q_proj": 3, "q_proj": 5, r"layers\.\d+\.mlp.*": 7},
            alpha_pattern={"^model.layers.0.self_attn.k_proj": 10},
        )
    )
    found = {
        name: config.rank_of(f"model.layers.{name}")
        for name in (
            "1.self_attn.q_proj",
            "11.self_attn.q_proj",
            "2.mlp.up_proj",
            "0.self_attn.k_proj",
        )
    }
    assert list(found.values()) == [3, 5, 7, 2]
    assert config.scale_of("model.layers.1.self_attn.q_proj") == 4 / 3
    assert config.scale_of("model.layers.0.self_attn.v_proj") == 2.0


@pytest.mark.parametrize("given", ["x", "=folder", "x=", "a\n=folder", "n" * 129 + "=f", "nano=f"])
def test_adapters_are_given_as_name_and_folder(given: str) -> None:
    with pytest.raises(InvalidParameter, match="lora = "):
        adapter_folders(RuntimeConfig(lora=(given,)))
    with pytest.raises(InvalidParameter, match="two adapters"):
        adapter_folders(RuntimeConfig(lora=("x=a", "x=b")))
    mapped = configured("nano", {"lora": {"x": Path("a=b"), "y": "c"}})
    assert mapped.lora == ("x=a=b", "y=c")
    assert adapter_folders(mapped) == {"x": Path("a=b"), "y": Path("c")}


def test_what_computes_no_adapters_refuses_them_by_name(good: Path, tmp_path: Path) -> None:
    lora = (f"x={good}",)
    foreign = {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox"}
    (tmp_path / "config.json").write_text(json.dumps(foreign))
    with pytest.raises(InvalidParameter, match="the way through transformers computes no adapters"):
        select_engine(RuntimeConfig(model=str(tmp_path), lora=lora))
    with pytest.raises(InvalidParameter, match="no adapters over several ranks"):
        check_ranks(RuntimeConfig(tp=2, lora=lora))
    with pytest.raises(ModelError, match="the adapter 'x' is no folder"):
        select_engine(RuntimeConfig(lora=("x=/nowhere",)))
