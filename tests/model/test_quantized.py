"""Checkpoints that others quantized: each layout means what its documents say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lmprog.config import RuntimeConfig
from lmprog.errors import ModelError
from lmprog.native import compiler
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.model.quantization import read_quantization
from tests.model.checkpoints import MIXTURES, Recipe
from tests.model.conftest import Judge
from tests.model.driver import AnyEngine, Driver
from tests.model.quantized_layouts import FORMATS, rewrite, rewrite_in_mxfp4

PLAIN = Recipe("Qwen2", {"num_hidden_layers": 2})
PROMPT = [int(token) for token in np.random.default_rng(3).integers(0, 160, 50)]
native = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


def engine(folder: Path, **config: Any) -> AnyEngine:
    return load_engine(RuntimeConfig(model=str(folder), kv_memory_mb=8, **config))


def scores(folder: Path, **config: Any) -> torch.Tensor:
    return Driver(engine(folder, **config), 16).score(PROMPT)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    PLAIN.make(folder)
    return folder


@pytest.fixture(params=list(FORMATS))
def written(request: pytest.FixtureRequest, plain: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint in one of the layouts, and what it means."""
    rewrite(plain, tmp_path / "quantized", tmp_path / "meant", FORMATS[request.param])
    return tmp_path / "quantized", tmp_path / "meant"


@pytest.mark.parametrize("which", [pytest.param("native", marks=native), "torch"])
def test_every_layout_gives_the_numbers_that_it_means(
    written: tuple[Path, Path], which: str
) -> None:
    ours, meant = (scores(folder, dtype="float32", engine=which) for folder in written)
    assert torch.equal(ours, meant)


@native
def test_by_default_weights_are_computed_as_small_as_they_came(written: tuple[Path, Path]) -> None:
    found = engine(written[0])
    how = read_quantization(json.loads((written[0] / "config.json").read_text()))
    assert how is not None
    is_float = how.weight_type is None
    assert found.dtype == (engine(written[1]).dtype if is_float else how.weight_type)
    off = Driver(found, 16).score(PROMPT) - scores(written[1], dtype="float32")
    assert off.abs().mean() < (1e-3 if found.dtype == "float32" else 0.05)


@native
@pytest.mark.parametrize("name", ["gptq", "gptq-v2", "awq-symmetric", "compressed-int4"])
def test_groups_that_ours_divide_keep_their_integers(
    plain: Path, tmp_path: Path, name: str
) -> None:
    rewrite(plain, tmp_path / "quantized", tmp_path / "meant", FORMATS[name])
    packed = engine(tmp_path / "quantized").packed  # type: ignore[union-attr]
    meant = load_file(tmp_path / "meant" / "model.safetensors")
    assert packed.weight_type == "int4"
    check_unpacked(packed, meant, "int4")


@native
def test_rows_with_a_scale_each_keep_their_integers(plain: Path, tmp_path: Path) -> None:
    rewrite(plain, tmp_path / "quantized", tmp_path / "meant", FORMATS["compressed-int8"])
    meant = load_file(tmp_path / "meant" / "model.safetensors")
    check_unpacked(engine(tmp_path / "quantized").packed, meant, "int8")  # type: ignore[union-attr]


def check_unpacked(packed: Any, meant: dict[str, torch.Tensor], kind: str) -> None:
    from lmprog.runtime.engine.native import interface
    from tests.model.packed_twin import unpack

    weight = meant["model.layers.1.self_attn.o_proj.weight"].numpy()
    product = interface.CProduct(interface.TYPES[kind], *weight.shape)
    found = unpack(product, packed.layers[1]["out"])
    np.testing.assert_allclose(found, weight, rtol=0, atol=3e-6 * float(np.abs(weight).max()))


@native
@pytest.mark.parametrize("dtype", ["float32", None])
def test_gpt_oss_is_read_from_its_own_four_bits(
    judged: Judge, tmp_path: Path, dtype: str | None
) -> None:
    made = judged("gpt-oss", MIXTURES["gpt-oss"])
    folders = tmp_path / "quantized", tmp_path / "meant"
    rewrite_in_mxfp4(made.folder, *folders)
    wanted = scores(folders[1], dtype="float32")
    if dtype is not None:
        assert torch.equal(scores(folders[0], dtype=dtype), wanted)
        return
    found = engine(folders[0])
    assert found.dtype == "int8"
    assert (Driver(found, 16).score(PROMPT) - wanted).abs().mean() < 0.3


@pytest.mark.parametrize(
    ("described", "named"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "gptq", "bits": 3}, "bits = 3"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "marlin"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:x": {}}}, "dynamic"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size = 0"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "gemv"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "marlin-24"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "e5m2"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size"),
    ],
)
def test_unknown_variants_are_refused_by_name(
    plain: Path, tmp_path: Path, described: dict[str, Any], named: str
) -> None:
    config = json.loads((plain / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": described}))
    with pytest.raises(ModelError, match=named):
        engine(tmp_path)


@pytest.mark.parametrize(
    ("name", "tensor", "change"),
    [
        ("gptq", "q_proj.g_idx", lambda part: part + 7),
        ("gptq", "q_proj.qzeros", lambda part: part[:, 1:]),
        ("awq", "q_proj.scales", lambda part: part[1:]),
        ("compressed-int4", "q_proj.weight_shape", lambda part: part * 2),
        ("compressed-int8", "q_proj.weight_scale", lambda part: part[3:]),
        ("fp8-blocks", "q_proj.weight_scale_inv", lambda part: part[:, 1:]),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    plain: Path, tmp_path: Path, name: str, tensor: str, change: Any
) -> None:
    rewrite(plain, tmp_path / "quantized", tmp_path / "meant", FORMATS[name])
    path = tmp_path / "quantized" / "model.safetensors"
    stored = load_file(path)
    whole = f"model.layers.0.self_attn.{tensor}"
    stored[whole] = change(stored[whole]).contiguous()
    save_file(stored, path)
    with pytest.raises(ModelError, match=r"q_proj"):
        engine(tmp_path / "quantized")
