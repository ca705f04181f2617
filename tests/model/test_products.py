"""Packed products: every instruction set against numpy, and every bit independent of company."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lmprog.native import compiler
from lmprog.runtime.engine.native.interface import PATHS
from tests.model.packed_twin import (
    TYPES,
    Floats,
    multiply,
    pack,
    rounded_input,
    rounded_weight,
    unpack,
)

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")

SIZES = [(1, 1), (32, 32), (33, 31), (70, 50), (100, 333), (257, 96)]
ROWS = (1, 2, 3, 4, 5, 7, 12, 13, 30)


@pytest.fixture
def rng() -> np.random.Generator:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def numbers(rng: np.random.Generator, *size: int) -> Floats:
    return rng.standard_normal(size, np.float32)


def computed(path: str, product: tuple[object, object], x: Floats) -> Floats:
    found = multiply(path, *product, x)  # type: ignore[arg-type]
    if found is None:
        pytest.skip(f"this processor has no {path}")
    return found


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("size", SIZES)
def test_packing_keeps_what_the_type_can_hold(
    kind: str, size: tuple[int, int], rng: np.random.Generator
) -> None:
    weight = numbers(rng, *size)
    kept, wanted = unpack(*pack(weight, kind)), rounded_weight(weight, kind)
    steps = np.abs(weight).max() / {"int4": 8, "int8": 127}.get(kind, 1e9)
    assert np.abs(kept - wanted).max() <= 1.01 * steps, "a tie may be rounded the other way"
    assert np.mean(np.abs(kept - wanted) > steps * 1e-3) < 0.02


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", TYPES)
def test_every_path_computes_what_numpy_does(
    kind: str, path: str, rng: np.random.Generator
) -> None:
    for outputs, inputs in SIZES:
        product = pack(numbers(rng, outputs, inputs), kind)
        exact = unpack(*product).astype(np.float64)
        for rows in ROWS:
            x = numbers(rng, rows, inputs)
            wanted = rounded_input(x, kind, path).astype(np.float64) @ exact.T
            size = np.sqrt((x**2).sum(1, keepdims=True) * (exact**2).sum(1)) + 1e-30
            error = np.abs(computed(path, product, x) - wanted) / size
            assert error.max() < (2e-3 if kind in ("int8", "int4") else 1e-5), (outputs, inputs)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", TYPES)
def test_a_row_gets_the_same_bits_in_any_company(
    kind: str, path: str, rng: np.random.Generator
) -> None:
    product, x = pack(numbers(rng, 100, 200), kind), numbers(rng, 40, 200)
    together = computed(path, product, x)
    for first, last in [(0, 1), (1, 3), (3, 6), (6, 10), (10, 15), (15, 27), (27, 40)]:
        assert np.array_equal(computed(path, product, x[first:last]), together[first:last])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", TYPES)
def test_a_row_with_nan_or_infinity_gives_no_numbers_and_harms_no_other(
    kind: str, path: str, rng: np.random.Generator
) -> None:
    product, x = pack(numbers(rng, 40, 64), kind), numbers(rng, 3, 64)
    healthy = computed(path, product, x)
    for broken in (np.nan, np.inf):
        x[1, 17] = broken
        found = computed(path, product, x)
        assert not np.isfinite(found[1]).any()
        assert np.array_equal(found[[0, 2]], healthy[[0, 2]])
