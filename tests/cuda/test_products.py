"""Products with weights of 8 and 4 bits: the kernels against their plain twin, and rounding against
the native engine's.
"""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
import torch

from lmprog import native
from lmprog.native import compiler
from lmprog.runtime.engine.device import kernels as declared
from lmprog.runtime.engine.device.driver import ModuleKey, ProductKey
from lmprog.runtime.engine.device.emulated_driver import emulated_kernels
from lmprog.runtime.engine.device.kernels import WEIGHT_KINDS, Count, Kernels, kernel_shapes
from lmprog.runtime.engine.device.products import (
    ProductInputs,
    Products,
    QuantizedWeight,
    WeightKind,
    of_floats,
    rounded,
    unpacked,
)
from tests.cuda.attending import TYPES, ints, placed
from tests.cuda.conftest import make_driver

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
TOLERANCE = {"float": 2e-6, "bf16": 6e-3, "f16": 8e-4}
OUTPUTS, INPUTS = 70, 584
"""Neither whole tiles of outputs nor whole chunks of inputs."""


def products_of(type_name: str, seed: int = 0) -> Kernels:
    """The products alone: nothing else is launched."""
    key = ProductKey(type_name)
    return Kernels(make_driver(key, seed=seed), ModuleKey(type_name, 64), key)


def small_weight(kind: WeightKind, group: int = 384) -> QuantizedWeight:
    rng = torch.Generator().manual_seed(3)
    if kind != "fp8":
        return rounded(torch.randn(OUTPUTS, INPUTS, generator=rng), kind)
    bits = torch.randint(0, 256, (OUTPUTS, INPUTS), generator=rng, dtype=torch.uint8)
    bits[(bits & 127) == 127] = 5  # no NaN
    groups = -(-INPUTS // group)
    return of_floats(bits, torch.rand(OUTPUTS, groups, generator=rng) / 100, group)


def there(kernels: Kernels, weight: QuantizedWeight) -> QuantizedWeight:
    words, scales = (placed(kernels.driver, one) for one in (weight.words, weight.scales))
    return QuantizedWeight(weight.kind, words, scales, weight.inputs, weight.group)


def multiplied(
    kernels: Kernels, weight: QuantizedWeight, x: torch.Tensor, tokens: int, has_bias: bool = True
) -> torch.Tensor:
    """What the kernels give for the first `tokens` of x. # [len(x), outputs]"""
    driver = kernels.driver
    given, bias = placed(driver, x), placed(driver, bias_of(x.dtype)) if has_bias else None
    out = placed(driver, torch.full((len(x), OUTPUTS), math.nan, dtype=x.dtype))
    counts = ints(driver, [tokens, *([0] * 7)])
    products = Products(kernels)
    products.make_room(x.dtype)
    held = there(kernels, weight)
    products.issue(ProductInputs(given, counts.data_ptr(), Count.TOKENS), held, bias, out)
    driver.event().wait()
    driver.event().wait()
    return out.cpu()


def bias_of(dtype: torch.dtype) -> torch.Tensor:
    return torch.linspace(-1, 1, OUTPUTS).to(dtype)


def inputs_of(tokens: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(tokens, INPUTS, generator=torch.Generator().manual_seed(7)).to(dtype)


def error(got: torch.Tensor, x: torch.Tensor, weight: QuantizedWeight) -> float:
    """The worst of a token, relative to its length."""
    wanted = x.double() @ unpacked(weight).double().t() + bias_of(x.dtype).double()
    return float(((got.double() - wanted).norm(dim=1) / wanted.norm(dim=1)).max())


@needs_compiler
@pytest.mark.parametrize(("rows", "tokens"), [(3, 2), (32, 19), (72, 70)])
@pytest.mark.parametrize("kind", WEIGHT_KINDS)
@pytest.mark.parametrize("type_name", TYPES)
def test_a_product_is_that_of_the_numbers_that_weights_mean(
    type_name: str, kind: WeightKind, rows: int, tokens: int
) -> None:
    """By the tile of few tokens, by that of many, and by torch from unpacked weights."""
    kernels, weight = products_of(type_name, rows), small_weight(kind)
    x = inputs_of(rows, TYPES[type_name])
    got = multiplied(kernels, weight, x, tokens)
    assert error(got[:tokens], x[:tokens], weight) < TOLERANCE[type_name]
    if rows <= 64:
        assert got[tokens:].isnan().all(), "a token beyond the count is left alone"


@needs_compiler
@pytest.mark.parametrize("group", [64, 128, 384])
def test_floats_of_8_bits_have_scales_by_groups(group: int) -> None:
    kernels, weight = products_of("bf16"), small_weight("fp8", group)
    x = inputs_of(4, torch.bfloat16)
    assert error(multiplied(kernels, weight, x, 4), x, weight) < TOLERANCE["bf16"]


@needs_compiler
@pytest.mark.parametrize("type_name", TYPES)
def test_every_float_of_8_bits_is_read_exactly(type_name: str) -> None:
    """One input is 1, all others are 0."""
    bits = torch.tensor([byte for byte in range(256) if byte & 127 != 127], dtype=torch.uint8)
    bits = torch.nn.functional.pad(bits, (0, 256 - len(bits))).repeat(OUTPUTS, 1)
    weight = of_floats(bits, torch.ones(OUTPUTS, 1), 256)
    x = torch.zeros(256, 256, dtype=TYPES[type_name])
    x.fill_diagonal_(1)
    kernels = products_of(type_name)
    got = torch.cat(
        [multiplied(kernels, weight, part.clone(), len(part), False) for part in x.split(64)]
    )
    wanted = bits[0].view(torch.float8_e4m3fn).float()
    assert torch.equal(got.float(), wanted[:, None].expand(-1, OUTPUTS))
    tiled = multiplied(kernels, weight, x, 256, False)
    assert torch.equal(tiled.float(), got.float())


@needs_compiler
@pytest.mark.parametrize("kind", WEIGHT_KINDS)
@pytest.mark.parametrize("type_name", TYPES)
def test_a_token_gets_the_same_bits_alone_and_in_company(type_name: str, kind: WeightKind) -> None:
    weight, x = small_weight(kind), inputs_of(40, TYPES[type_name])
    together = multiplied(products_of(type_name, 5), weight, x, 40)
    alone = multiplied(products_of(type_name, 6), weight, x[33:34], 1)
    assert torch.equal(together[33], alone[0])


@needs_compiler
@pytest.mark.parametrize("type_name", TYPES)
def test_python_declares_what_the_products_were_compiled_for(type_name: str) -> None:
    key = ProductKey(type_name)
    said, shapes = emulated_kernels(key).kernels, kernel_shapes(key)
    assert said.keys() == shapes.keys()
    for name, needs in said.items():
        kind = "UnpackArgs" if name.startswith("unpack") else "ProductArgs"
        assert needs.argument_bytes == ctypes.sizeof(getattr(declared, kind)), name
        found = needs.threads, needs.shared_bytes
        assert found == (shapes[name].threads, shapes[name].shared_bytes), name


WEIGHTS = {
    "normal": torch.randn(50, 96, generator=torch.Generator().manual_seed(0)),
    "whole steps": torch.randint(-7, 8, (50, 96), generator=torch.Generator().manual_seed(1))
    * torch.linspace(0.01, 2, 50)[:, None],
    "zeros": torch.cat((torch.zeros(3, 96), torch.eye(47, 96))),
    "not a whole chunk": torch.randn(33, 40, generator=torch.Generator().manual_seed(2)),
}


@pytest.mark.skipif(native.library("engine") is None, reason="no native engine")
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_weights_are_rounded_as_the_native_engine_rounds_them(kind: WeightKind, name: str) -> None:
    from tests.model.packed_twin import pack, unpack

    weight = np.ascontiguousarray(WEIGHTS[name].numpy())
    wanted = unpack(*pack(weight, kind))
    got = unpacked(rounded(WEIGHTS[name], kind)).numpy()
    np.testing.assert_allclose(got, wanted, rtol=2e-7, atol=0)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_outputs_in_another_order_are_the_same_numbers(kind: WeightKind) -> None:
    weight, order = small_weight(kind), torch.randperm(OUTPUTS)
    assert torch.equal(unpacked(weight.rows(order)), unpacked(weight)[order])
