"""Look-around means what `re` says: in schemas' patterns, for strings and for names of properties, and
in regexes.
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
from lmprog.errors import RequestRejected
from lmprog.runtime.programs.call_constraints import MAX_COMPILE_SECONDS
from lmprog.runtime.programs.compile_pool import TimeLimit, never_pause

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


ANYWHERE = [
    "^(?!a)b|a",
    "a(?=b)",
    "^((?!ab).)*$",
    "^(?=a)*b",
    "^(?!a(?=b))",
    "(?!a)b",
    "(?<!a)b",
    "(?<=ab)-|^b",
    r"\bab?\b",
    r"a\B|\(\b",
    r"^(\b(?!ab)|-)+$",
    "(?:a(?!-|$)|b(?<!bb))+$",
    "a$|(?:^|b)-",
    r"(?!(?!-a)\B|a\b)[ab-]",
    "(?:^a|b$){2}|(a^|b)-",
]


@pytest.mark.parametrize("pattern", [*PATTERNS, *ANYWHERE])
def test_look_around_is_exact_in_strings_and_names(pattern: str, small: Vocabulary) -> None:
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


@pytest.mark.parametrize("pattern", ANYWHERE)
def test_look_around_and_word_edges_are_exact_anywhere(pattern: str, small: Vocabulary) -> None:
    text = compile_constraint(
        wire.JsonSchema(json.dumps({"type": "string", "pattern": pattern})), small
    )
    others = compile_constraint(
        wire.JsonSchema(json.dumps({"type": "string", "not": {"pattern": pattern}})), small
    )
    begun = f"(?:{pattern})[ab(-]*"
    regex = compile_constraint(wire.Regex(begun), small)
    for one in TEXTS:
        found = re.search(pattern, one) is not None
        assert accepts(text, json.dumps(one)) == found, one
        assert accepts(others, json.dumps(one)) != found, one
        assert accepts(regex, one) == (re.fullmatch(begun, one) is not None), one


@pytest.mark.parametrize(
    ("pattern", "taken", "refused"),
    [
        (r"(?:a|\n)+(?!a$).?", "a\na\n", "a\nb\n"),  # `$` is also before a last line break
        (r"(?s)\B.*", "-", ""),  # `re` finds no place in an empty text
        (r"(?m)(?:^a$\s?)+", "a\na", "aa"),
        (r"é\b!", "é!", "é"),
    ],
)
def test_a_regex_looks_around_as_python_does(
    pattern: str, taken: str, refused: str, small: Vocabulary
) -> None:
    made = compile_constraint(wire.Regex(pattern), small)
    for one in (taken, refused):
        assert accepts(made, one) == (re.fullmatch(pattern, one) is not None), one
    assert accepts(made, taken)


@pytest.mark.parametrize(
    "pattern", [r"^(?<=a(?!b))", r"(?:\b){9}", "".join(f"(?<!{c})" for c in "abcdefghi")]
)
def test_look_around_that_needs_more_is_refused(pattern: str, small: Vocabulary) -> None:
    schema = wire.JsonSchema(json.dumps({"type": "string", "pattern": pattern}))
    with pytest.raises(RequestRejected, match="look"):
        compile_constraint(schema, small)


@pytest.mark.parametrize("pattern", [*PATTERNS, "(?!a)[ab]+", "(?=.*b)(?!.*-$)[ab-]{1,3}"])
def test_leading_look_ahead_of_a_regex_is_what_python_says(pattern: str, small: Vocabulary) -> None:
    made = compile_constraint(wire.Regex(pattern), small)
    for one in TEXTS:
        assert accepts(made, one) == (re.fullmatch(pattern, one) is not None), one


@pytest.mark.parametrize("pattern", ["(?!a)" * 4_000, r"(?:\b)?" * 600])
def test_look_around_is_decided_soon_however_much_there_is(pattern: str, small: Vocabulary) -> None:
    limit = TimeLimit(MAX_COMPILE_SECONDS, never_pause)
    with pytest.raises(RequestRejected, match=r"states|nothing at all"):
        compile_constraint(wire.Regex(pattern + r"\b"), small, check=limit)
