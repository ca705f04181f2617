"""The table of a model's weights: each row has one place, and a name of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lmprog.runtime.engine.model.locate import dummy_shape
from lmprog.runtime.engine.model.mixture import Mixture
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.model.weight_table import (
    expected,
    joined_parts,
    products,
    splits,
    vectors,
)

PLAIN = replace(
    dummy_shape("dummy:64x2"), qkv_bias=True, out_bias=True, mlp_bias=True, qk_norm=True
)
SHAPES = {
    "plain": PLAIN,
    "joined": replace(PLAIN, joined=True, mlp_bias=False),
    "wide norms": replace(PLAIN, qk_norm_wide=True),
    "experts": replace(PLAIN, mlp_bias=False, mixture=Mixture(5, 2, 24, frozenset({1}))),
    "tied": replace(PLAIN, tied_head=True),
}


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> ModelShape:
    return SHAPES[request.param]


def test_every_row_of_a_weight_is_in_one_product(shape: ModelShape) -> None:
    rows: dict[str, list[int]] = {}
    for layer in range(shape.num_layers):
        for matrix in products(shape, layer).values():
            for part in matrix.parts:
                rows.setdefault(part.name, []).extend(range(part.begin, part.begin + part.rows))
    sizes = expected(shape)
    assert all(sorted(found) == list(range(sizes[name][0])) for name, found in rows.items())


def test_no_two_rows_become_one_output(shape: ModelShape) -> None:
    for layer in range(shape.num_layers):
        for matrix in products(shape, layer).values():
            places = [
                (part.first + row) * part.step + part.offset
                for part in matrix.parts
                for row in range(part.rows)
            ]
            assert len(set(places)) == len(places)
            assert max(places) < matrix.outputs


def test_joined_weights_are_by_themselves_what_others_keep_so() -> None:
    alone, joined = replace(SHAPES["joined"], joined=False), SHAPES["joined"]
    parts = joined_parts(joined)
    sizes = expected(alone)
    assert parts.keys() == sizes.keys() - expected(joined).keys()
    assert all(part.rows == sizes[name][0] for name, part in parts.items())
    assert splits(joined) == splits(alone)
    assert not joined_parts(alone)


def test_ranks_are_told_how_they_share_every_weight_and_sum_where_a_half_ends(
    shape: ModelShape,
) -> None:
    assert splits(shape).keys() == (expected(replace(shape, joined=False))).keys()
    for layer in range(shape.num_layers):
        for matrix in products(shape, layer).values():
            axes = {part.split.axis for part in matrix.parts if part.split is not None}
            assert axes <= {1 if matrix.ends_half else 0}
        shared = {
            name: [part.split is not None for part in vector.parts]
            for name, vector in vectors(shape, layer).items()
        }
        assert not any(shared["out_bias"]), "added once, after the sum"


def test_what_is_rotated_are_queries_and_keys_alone(shape: ModelShape) -> None:
    for layer in range(shape.num_layers):
        for name, matrix in products(shape, layer).items():
            heads = [part.heads for part in matrix.parts]
            wanted = [shape.num_heads, shape.num_kv_heads, 0] if name == "qkv" else None
            assert heads == (wanted or [0] * len(heads))
