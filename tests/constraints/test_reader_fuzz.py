"""The native readers survive what is damaged; `reader_fuzz` says how, and tries more of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import RequestRejected, UnsatisfiableConstraint, UnsupportedSchema
from tests.conftest import EXAMPLES, SEED
from tests.constraints.mutations import specification
from tests.constraints.reader_fuzz import fuzz, sanitizers

INPUTS = EXAMPLES or 500
"""Some 4 s of processor time, and 30 more to compile the kernels where they are new."""


def test_damaged_specifications_never_end_the_process() -> None:
    if sanitizers() is None:
        pytest.skip("no GCC with its sanitizers")
    print(f"LMPROG_SEED={SEED}: python -m tests.constraints.reader_fuzz --seed {SEED}")
    outcome = fuzz(SEED, 0, INPUTS, optimize="-O1" if EXAMPLES else "-O0")
    assert not outcome.findings, "\n".join(outcome.findings)
    assert outcome.inputs == INPUTS


def test_an_input_is_known_by_its_seed_and_number() -> None:
    found = [specification(5, number) for number in range(60)]
    assert found == [specification(5, number) for number in range(60)]
    assert {type(one) for one in found} == {wire.JsonSchema, wire.Regex, wire.Grammar, wire.Choices}


# ---- what was found


def test_costs_beyond_all_bounds_are_never_negative(small: Vocabulary) -> None:
    array: dict[str, Any] = {"type": "array", "minItems": 999_999_999}
    for schema in (array | {"items": array | {"items": array}}, array | {"items": array}):
        with pytest.raises(UnsatisfiableConstraint):
            compile_constraint(wire.JsonSchema(json.dumps(schema)), small)
    dear = {"type": "array", "minItems": 30_000}
    made = compile_constraint(wire.JsonSchema(json.dumps(dear | {"items": dear})), small)
    assert made.distance(made.start) > 900_000_000


@pytest.mark.parametrize(
    "schema",
    [
        {"type": [{"a": 1}, "string"]},
        {"type": [["string"]]},
        {"type": "string", "minLength": 1 << 31, "pattern": "^[a-z]*$", "not": {"enum": ["a"]}},
    ],
)
def test_what_says_nothing_is_refused_by_its_place(schema: Any, small: Vocabulary) -> None:
    with pytest.raises(UnsupportedSchema, match="#/"):
        compile_constraint(wire.JsonSchema(json.dumps(schema)), small)


def test_a_contradiction_is_explained_where_names_are_no_names(small: Vocabulary) -> None:
    """The search for it looks at schemas that the readers did not come to."""
    inner = {"type": "object", "properties": {}, "required": [{}]}
    schema = {
        "type": "object",
        "properties": {"a": inner},
        "required": ["a"],
        "propertyNames": False,
    }
    for strict in (True, False):
        with pytest.raises(UnsatisfiableConstraint):
            compile_constraint(wire.JsonSchema(json.dumps(schema), strict=strict), small)


def test_a_number_beyond_all_exponents_is_refused(small: Vocabulary) -> None:
    with pytest.raises(UnsupportedSchema, match="not JSON"):
        compile_constraint(wire.JsonSchema('{"minimum": 1e-' + "3" * 40 + "}"), small)


def test_an_item_that_is_left_out_leaves_nothing_open(small: Vocabulary) -> None:
    spec = wire.JsonSchema('{"contains": {"$ref": "#"}}', "indented", True, strict=False)
    try:
        made = compile_constraint(spec, small)
    except RequestRejected:
        return
    assert made.left_out
