"""Safetensors folders: sharded or not, and every way in which they can be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmprog.errors import ModelError
from lmprog.runtime.engine.model.shape import ModelShape, read_config, read_shape
from lmprog.runtime.engine.torch_engine.decoder import Weights
from lmprog.runtime.engine.torch_engine.weights import load_weights
from tests.model.checkpoints import NATIVE
from tests.model.conftest import Judge

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def whole(judged: Judge) -> Path:
    return judged("llama", NATIVE["llama"]).folder


def shape_of(folder: Path) -> ModelShape:
    return read_shape(read_config(folder))


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Weights:
    return load_weights(folder, shape_of(folder), dtype)


def changed(whole: Path, target: Path, change: Callable[[Tensors], None]) -> Path:
    """A copy of the checkpoint `whole` with other weights."""
    (target / "config.json").write_text((whole / "config.json").read_text())
    tensors = load_file(whole / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors")
    return target


def test_a_sharded_checkpoint_is_read_like_a_whole_one(whole: Path, tmp_path: Path) -> None:
    NATIVE["llama"].make(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    sharded, single = load(tmp_path), load(whole)
    torch.testing.assert_close(sharded.head, single.head)
    torch.testing.assert_close(sharded.layers[2].qkv, single.layers[2].qkv)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            lambda t: t.pop("model.layers.1.mlp.up_proj.weight"),
            "missing weights: model.layers.1.mlp.up_proj.weight",
        ),
        (
            lambda t: t.update({"model.layers.0.extra": torch.ones(2)}),
            "does not explain: model.layers.0.extra",
        ),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(3)}),
            r"wrong sizes: model.norm.weight is \[3\] instead of \[64\]",
        ),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}),
            "model.norm.weight is I8",
        ),
    ],
)
def test_weights_that_do_not_fit_the_config_are_named(
    whole: Path, tmp_path: Path, change: Callable[[Tensors], None], named: str
) -> None:
    with pytest.raises(ModelError, match=named):
        load(changed(whole, tmp_path, change))


def test_one_error_tells_all_that_is_wrong(whole: Path, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        del tensors["lm_head.weight"]
        tensors["surplus"] = torch.ones(1)

    with pytest.raises(ModelError, match=r"lm_head.weight.*surplus"):
        load(changed(whole, tmp_path, change))


def test_frequencies_that_old_tools_saved_are_passed_over(whole: Path, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    folder = changed(whole, tmp_path, lambda t: t.update({name: torch.ones(8)}))
    torch.testing.assert_close(load(folder).norm, load(whole).norm)


def test_a_truncated_file_is_an_error_that_names_it(whole: Path, tmp_path: Path) -> None:
    folder = changed(whole, tmp_path, lambda _: None)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelError, match=r"model\.safetensors is no readable"):
        load(folder)


def test_pickled_weights_are_refused_with_the_reason(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((whole / "config.json").read_text())
    (tmp_path / "pytest_model.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match="unpickling runs code"):
        load(tmp_path)
    (tmp_path / "pytest_model.bin").unlink()
    with pytest.raises(ModelError, match="has no weights"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("index", "named"),
    [
        (
            json.dumps({"weight_map": {"a": "gone.safetensors"}}),
            "files that are not there: gone.safetensors",
        ),
        (json.dumps({"weights": {}}), "malformed"),
        ("{", "malformed"),
    ],
)
def test_a_wrong_index_is_refused(whole: Path, tmp_path: Path, index: str, named: str) -> None:
    folder = changed(whole, tmp_path, lambda _: None)
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=named):
        load(folder)


def test_a_weight_in_two_files_is_refused(whole: Path, tmp_path: Path) -> None:
    folder = changed(whole, tmp_path, lambda _: None)
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    (folder / "b.safetensors").write_bytes((folder / "a.safetensors").read_bytes())
    with pytest.raises(ModelError, match="in two files"):
        load(folder)


def test_weights_are_converted_once_to_the_wanted_type(whole: Path) -> None:
    weights = load(whole, torch.bfloat16)
    kept = (
        weights.embedding,
        weights.head,
        weights.norm,
        weights.layers[0].qkv,
        weights.layers[0].down,
    )
    assert {tensor.dtype for tensor in kept} == {torch.bfloat16}
