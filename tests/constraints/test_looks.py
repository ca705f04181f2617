"""Look-ahead at the beginning of a schema's pattern means what `re.search` says, for strings and for
names of properties.
"""

from __future__ import annotations

import itertools
import json
import re

import pytest

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.inspect import accepts
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import UnsupportedSchema

TEXTS = ["".join(some) for size in range(4) for some in itertools.product("ab-(", repeat=size)]
PATTERNS = [
    "^(?!a)b",
    "^(?!a)",
    "^(?=.*a)(?=.*b).{2,3}$",
    "^(?!ab$)(?!.*-)[ab]*$",
    "^(?!^a|b)[ab-]+",
    "^(?!a|-b)(?:a|b|-)+$",
    r"^(?!\(|[(a])(b|-)",
    "^(?!.*--)^[ab]?[^a]*$",
    "^(?=a)(?!aa)a(?:b|-)?$",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_leading_look_ahead_is_exact(pattern: str, small: Vocabulary) -> None:
    text = compile_constraint(
        wire.JsonSchema(json.dumps({"type": "string", "pattern": pattern})), small
    )
    names = {
        "type": "object",
        "patternProperties": {pattern: {"const": 1}},
        "additionalProperties": {"const": 2},
    }
    name = compile_constraint(wire.JsonSchema(json.dumps(names)), small)
    for one in TEXTS:
        found = re.search(pattern, one) is not None
        assert accepts(text, json.dumps(one)) == found, one
        assert accepts(name, json.dumps({one: 1})) == found, one
        assert accepts(name, json.dumps({one: 2})) == (not found), one


@pytest.mark.parametrize(
    "pattern",
    ["^(?!a)b|c", "a(?=b)", "^((?!a).)*$", "^(?=a)*b", "^(?!a(?=b))", "(?!a)b", "^(?<!a)b"],
)
def test_look_ahead_elsewhere_is_refused(pattern: str, small: Vocabulary) -> None:
    schema = wire.JsonSchema(json.dumps({"type": "string", "pattern": pattern}))
    with pytest.raises(UnsupportedSchema):
        compile_constraint(schema, small)


@pytest.mark.parametrize("pattern", [*PATTERNS, "(?!a)[ab]+", "(?=.*b)(?!.*-$)[ab-]{1,3}"])
def test_leading_look_ahead_of_a_regex_is_what_python_says(pattern: str, small: Vocabulary) -> None:
    made = compile_constraint(wire.Regex(pattern), small)
    for one in TEXTS:
        assert accepts(made, one) == (re.fullmatch(pattern, one) is not None), one
