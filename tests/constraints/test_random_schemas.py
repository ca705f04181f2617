"""Random schemas and a model with random wishes: whatever is accepted validates, and every output
is finished.
"""

from __future__ import annotations

import json
import random
from decimal import Decimal, localcontext
from typing import Any

import jsonschema

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.constraint import Constraint
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import RequestRejected, UnsatisfiableConstraint
from tests.constraints.conftest import EOS

OUTPUTS = 6000
PATTERNS = ["^a", "b$", "^[a-c]{1,4}$", "x|y", "[^a]", "^(ab)+$", "[0-9]", "^[A-Za-z0-9_]*$"]
"""Such as mean the same in ECMA-262, which JSON Schema asks for, and in `re`, by which jsonschema
judges (where digits and words are those of all Unicode)."""
VALUES = [1, 2, -3, 0.5, "a", "b", "abc", "", True, False, None]


def random_schema(rng: random.Random, depth: int) -> Any:
    if rng.random() < 0.06:
        return rng.choice([True, {}, {"const": rng.choice(VALUES)}])
    schema: dict[str, Any] = {}
    if rng.random() < 0.85:
        types = ["null", "boolean", "integer", "number", "string"] + (
            ["array", "object"] * 2 if depth else []
        )
        schema["type"] = (
            rng.choice(types) if rng.random() < 0.8 else sorted(set(rng.choices(types, k=2)))
        )
    add_scalar_keywords(rng, schema)
    if depth:
        add_array_keywords(rng, schema, depth)
        add_object_keywords(rng, schema, depth)
        add_applicators(rng, schema, depth)
    return schema


def maybe(
    rng: random.Random, schema: dict[str, Any], keyword: str, value: Any, chance: float = 0.15
) -> None:
    if rng.random() < chance:
        schema[keyword] = value


def add_scalar_keywords(rng: random.Random, schema: dict[str, Any]) -> None:
    maybe(rng, schema, "enum", rng.sample(VALUES, 4), 0.08)
    maybe(rng, schema, "minimum", rng.choice([-20, -1.5, 0, 3, 7.25]))
    maybe(rng, schema, "maximum", rng.choice([-2, 5, 10.5, 100, 1000]))
    maybe(rng, schema, "exclusiveMinimum", rng.choice([-7, 0, 0.5]), 0.08)
    maybe(rng, schema, "exclusiveMaximum", rng.choice([4, 8.75, 50]), 0.08)
    maybe(rng, schema, "multipleOf", rng.choice([2, 3, 5, 0.5, 0.25]), 0.08)
    maybe(rng, schema, "minLength", rng.randint(0, 3))
    maybe(rng, schema, "maxLength", rng.randint(2, 6))
    maybe(rng, schema, "pattern", rng.choice(PATTERNS))


def add_array_keywords(rng: random.Random, schema: dict[str, Any], depth: int) -> None:
    maybe(rng, schema, "items", random_schema(rng, depth - 1), 0.4)
    maybe(
        rng,
        schema,
        "prefixItems",
        [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 2))],
    )
    maybe(rng, schema, "minItems", rng.randint(0, 2))
    maybe(rng, schema, "maxItems", rng.randint(1, 4))
    maybe(rng, schema, "contains", random_schema(rng, 0), 0.08)
    maybe(rng, schema, "maxContains", rng.randint(1, 2), 0.05)
    maybe(rng, schema, "uniqueItems", True, 0.05)


def add_object_keywords(rng: random.Random, schema: dict[str, Any], depth: int) -> None:
    names = rng.sample(["a", "b", "name", "x y", 'q"'], rng.randint(1, 3))
    maybe(rng, schema, "properties", {name: random_schema(rng, depth - 1) for name in names}, 0.5)
    maybe(rng, schema, "required", rng.sample(["a", "b", "name"], rng.randint(0, 2)), 0.3)
    maybe(rng, schema, "additionalProperties", rng.choice([False, False, {"type": "null"}]), 0.5)
    maybe(
        rng, schema, "patternProperties", {rng.choice(PATTERNS): random_schema(rng, depth - 1)}, 0.1
    )
    maybe(rng, schema, "propertyNames", {"maxLength": rng.randint(1, 4)}, 0.08)
    maybe(rng, schema, "minProperties", rng.randint(0, 2), 0.08)
    maybe(rng, schema, "maxProperties", rng.randint(1, 3), 0.08)
    maybe(rng, schema, "dependentRequired", {"a": ["b"]}, 0.05)
    maybe(rng, schema, "unevaluatedProperties", False, 0.05)


def add_applicators(rng: random.Random, schema: dict[str, Any], depth: int) -> None:
    def some() -> list[Any]:
        return [random_schema(rng, depth - 1) for _ in range(2)]

    maybe(rng, schema, "anyOf", some(), 0.08)
    maybe(rng, schema, "oneOf", some(), 0.08)
    maybe(rng, schema, "allOf", some(), 0.08)
    maybe(rng, schema, "not", random_schema(rng, 0), 0.06)
    if rng.random() < 0.05:
        schema |= {
            "if": random_schema(rng, 0),
            "then": random_schema(rng, 0),
            "else": random_schema(rng, 0),
        }


def written(
    constraint: Constraint, budget: int, vocabulary: Vocabulary, rng: random.Random
) -> tuple[bytes, bool]:
    """What the model with random wishes writes, and whether it ended in an accepting state."""
    state, out = constraint.start, b""
    for left in range(budget, 0, -1):
        ids = constraint.mask(state, left).ids
        assert ids is not None
        token = rng.choice(ids.tolist()) if len(ids) else EOS
        if token == EOS:
            break
        out += vocabulary.bytes_of(token) or b""
        state = constraint.advance(state, token)
    return out, constraint.is_final(state)


def test_every_output_for_a_random_schema_is_finished_and_valid(
    small: Vocabulary, rng: random.Random
) -> None:
    outputs = schemas = refused = unsatisfiable = 0
    while outputs < OUTPUTS:
        schema = random_schema(rng, 2)
        text = json.dumps(schema)
        try:
            constraint = compile_constraint(wire.JsonSchema(text), small)
        except UnsatisfiableConstraint:
            unsatisfiable += 1
            continue
        except RequestRejected:
            refused += 1
            continue
        schemas += 1
        judge = jsonschema.Draft202012Validator(json.loads(text, parse_float=Decimal))
        for _ in range(10):
            budget = constraint.distance(constraint.start) + rng.randint(0, 25)
            out, finished = written(constraint, budget, small, rng)
            assert finished, (text, out)
            with localcontext(prec=1000):  # a judge's remainder of many digits
                assert judge.is_valid(json.loads(out, parse_float=Decimal)), (text, out)
            outputs += 1
    print(
        f"{outputs} outputs of {schemas} schemas; {refused} refused, {unsatisfiable} unsatisfiable"
    )
    assert schemas > refused
