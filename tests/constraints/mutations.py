"""Specifications as strangers might send them: those of the tests and benchmarks, damaged.

An input is known by a seed and its number: `specification(seed, number)` is the same every time.
Schemas are mutated as trees and as texts; patterns and grammars as texts, by what means something
there. Knows what specifications look like, not how they are read.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import string
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema

from benchmarks.constraint_cases import BOMBS, CASES, COSTLY, generated
from lmprog import wire
from lmprog.constraints.schema.keywords import ASSERTIONS
from tests.constraints.random_grammars import random_grammar
from tests.constraints.random_patterns import random_pattern
from tests.constraints.schema_cases import KEYWORDS
from tests.constraints.test_grammars import ASSIGNMENTS, CALC, CALCULATOR, GBNF, JSON, SEPARATED
from tests.constraints.test_native_reader import CYCLES, SHAPES
from tests.constraints.test_random_schemas import random_schema
from tests.constraints.test_strictness import UNREACHABLE

ONE = ["allOf", "anyOf", "oneOf", "prefixItems"]
OTHER = [
    "not",
    "if",
    "then",
    "else",
    "items",
    "contains",
    "additionalProperties",
    "propertyNames",
    "unevaluatedProperties",
    "unevaluatedItems",
    "additionalItems",
]
NAMED = [
    "properties",
    "patternProperties",
    "dependentSchemas",
    "dependencies",
    "$defs",
    "definitions",
]
WORDS = [
    *(one for one in ASSERTIONS if one[0] != "\0"),
    *ONE,
    *OTHER,
    *NAMED,
    "$ref",
    "$dynamicRef",
]
NUMBERS: list[Any] = [0, -1, 1, 2, 31, 255, 1 << 31, (1 << 31) - 1, 999_999_999, 10**12, 10**400]
NUMBERS += [0.1, -0.0, 1e300, 1e-300, 0.3, 12.5, -7]
TEXTS = [
    "",
    "a",
    "#",
    "#/",
    "#/$defs/a",
    "é",
    "日\U0001f600",
    "\0",
    '"\\',
    "\ud800",
    "a" * 5000,
    "/",
]
TEXTS += [
    "string",
    "object",
    "array",
    "integer",
    "number",
    "null",
    "date-time",
    "email",
    "uri",
    "^",
]
JSON_LETTERS = [*'{}[]",:\\/0123456789.eE-+ntfu \n\t\0é\ud800', "\U0001f600", '"$ref"', "\\u0000"]
PATTERN_PIECES = [
    *"()[]|*+?.^$-\\ab0 é日\U0001f600\n\0\ud800&",
    *("(?:", "(?i:", "(?s-i:", "(?P<a>", "(?#", "(?=", "[^", "[a-z", "\\d", "\\w", "\\W", "\\s"),
    *("\\S", "\\D", "\\b", "\\x41", "\\u00e9", "\\p{Lu}", "\\1", "{2}", "{0,1000}", "{1000000}"),
    *("{,5}", "{3,}", "{2,1}", "(a|b)*", "(?i)", "[\\w\\s]", "&&"),
]
GRAMMAR_PIECES = [
    *'"|*+?()[]/:~.\\\n -{}%',
    *("::=", "root", "start", "%ignore", "%import common.WS", "~2..5", "~1000000", "/a+/", '"a"i'),
    *("[a-z]", "[^", "{3,9}", "{1000000000}", "\\x", "#", "//", "A: ", "a: ", "_b{x}: x", "é"),
]


@functools.cache
def documents() -> list[str]:
    """Schemas to begin with, as texts; the large ones are left out."""
    cases = [case.source for case in CASES if case.kind == "schema"]
    made: list[Any] = [*SHAPES, *CYCLES, *(case[0] for case in KEYWORDS), *COSTLY.values()]
    made += [*(case[0] for case in UNREACHABLE), jsonschema.Draft202012Validator.META_SCHEMA]
    texts = [*cases, *map(json.dumps, made), *(text for text, _ in generated(150, 7))]
    return [text for text in texts if len(text) < 4000]


@functools.cache
def donors() -> list[str]:
    """Parts of these that others are given."""
    found = [json.dumps(at[key]) for text in documents() for at, key in _places([json.loads(text)])]
    return [text for text in dict.fromkeys(found) if len(text) < 500]


@functools.cache
def patterns() -> list[str]:
    found = [case.source for case in CASES if case.kind == "regex"]
    for text in documents():
        found += [one for one in _values_of(json.loads(text), "pattern") if isinstance(one, str)]
    return [*dict.fromkeys([*found, *BOMBS])]


def specification(seed: int, number: int) -> wire.Constraint:
    rng = random.Random(f"{seed}:{number}")
    kind = rng.random()
    if kind < 0.6:
        return _schema(rng, _schema_text(rng))
    if kind < 0.7:
        return wire.Regex(_pattern(rng))
    if kind < 0.85:
        return _schema(rng, json.dumps(_of_patterns(rng)))
    if kind < 0.97:
        return wire.Grammar(_grammar(rng))
    count = rng.choice([1, 2, 30, 300])
    return wire.Choices(
        tuple(_damaged(rng, rng.choice(WORDS), PATTERN_PIECES) for _ in range(count))
    )


def _schema(rng: random.Random, text: str) -> wire.JsonSchema:
    usual = rng.random() < 0.7
    ways: list[wire.Whitespace] = ["fixed", "compact", "flexible", "indented"]
    whitespace = rng.choice(ways[:2] if usual else ways)
    any_order = not usual and rng.random() < 0.5
    return wire.JsonSchema(text, whitespace, any_order, strict=usual or rng.random() < 0.5)


def _schema_text(rng: random.Random) -> str:
    if rng.random() < 0.2:
        document: Any = random_schema(rng, 2)
    else:
        document = json.loads(rng.choice(documents()))
    text = json.dumps(document)
    for _ in range(rng.choice([1, 1, 2, 3, 6])):
        document = _mutated(rng, document)
    is_plain = rng.random() < 0.8
    with contextlib.suppress(RecursionError):  # else it is left as it was before
        text = json.dumps(document, ensure_ascii=is_plain)
    return _damaged(rng, text, JSON_LETTERS) if rng.random() < 0.2 else text


# ---- trees


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Containers and keys of all values within."""
    waiting = [value]
    while waiting:
        at = waiting.pop()
        keys = at if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ()
        for key in keys:
            yield at, key
            waiting.append(at[key])


def _values_of(document: Any, keyword: str) -> list[Any]:
    return [at[key] for at, key in _places([document]) if key == keyword]


def _pointer(rng: random.Random, document: Any) -> str:
    steps, at = ["#"], document
    while isinstance(at, dict | list) and at and rng.random() < 0.8:
        step = rng.choice([*at]) if isinstance(at, dict) else rng.randrange(len(at))
        steps.append(str(step).replace("~", "~0").replace("/", "~1"))
        at = at[step]
    return "/".join(steps) if rng.random() < 0.95 else "/".join(steps) + rng.choice(TEXTS)


def _wrapped(rng: random.Random, value: Any, other: Any) -> Any:
    kind = rng.random()
    if kind < 0.4:
        several = [value, other] if rng.random() < 0.6 else [value]
        rng.shuffle(several)
        return {rng.choice(ONE): several}
    if kind < 0.75:
        return {rng.choice(OTHER): value}
    return {rng.choice(NAMED): {rng.choice(TEXTS[:9]): value}}


def _nested(rng: random.Random, value: Any, other: Any) -> Any:
    """Within itself so often, each time alike."""
    keyword, depth = rng.choice([*ONE, *OTHER, *NAMED]), rng.choice([2, 3, 5, 12, 60, 220])
    for _ in range(depth):
        value = {
            keyword: [value] if keyword in ONE else {"a": value} if keyword in NAMED else value
        }
    return value


def _wide(rng: random.Random, value: Any, other: Any) -> Any:
    count = rng.choice([3, 3, 9, 20, 70])
    if rng.random() < 0.5:
        return {"type": "object", "properties": {f"n{i}": value for i in range(count)}}
    kind = rng.choice([*ONE, "enum", "required", "type"])
    return {kind: [value if i % 7 else i for i in range(count)]}


def _scalar(rng: random.Random, value: Any, other: Any) -> Any:
    return rng.choice([*NUMBERS, *TEXTS, True, False, None, [], {}])


def _required(rng: random.Random, value: Any, other: Any) -> Any:
    """An object that tells itself from others by a member."""
    names = rng.sample(["a", "kind", "left", "right", "é"], 3)
    made = {"type": "object", "required": names[: rng.randint(0, 3)]}
    return made | {
        "properties": {names[0]: value, names[1]: {"const": rng.choice(TEXTS)}, names[2]: other}
    }


CHANGES: list[Callable[[random.Random, Any, Any], Any]] = [
    _wrapped,
    _wrapped,
    _nested,
    _wide,
    _scalar,
    _required,
    lambda rng, value, other: other,
]


def _mutated(rng: random.Random, document: Any) -> Any:
    """The document, which is changed, or one in its place."""
    holder = [document]
    at, key = rng.choice([*_places(holder)])
    kind = rng.random()
    if kind < 0.3:
        at[key] = {"$ref": _pointer(rng, document)}
    elif kind < 0.4 and at is not holder:
        del at[key]
    elif kind < 0.55 and isinstance(at, dict):
        at[rng.choice(WORDS)] = at.pop(key) if rng.random() < 0.5 else at[key]
    elif kind < 0.6 and isinstance(at, list) and at is not holder:
        at[key:key] = [at[key]] * rng.randint(1, 3)
    else:
        at[key] = rng.choice(CHANGES)(rng, at[key], json.loads(rng.choice(donors())))
    return holder[0]


# ---- texts


def _damaged(rng: random.Random, text: str, pieces: list[str]) -> str:
    for _ in range(rng.choice([1, 1, 2, 4])):
        begin = rng.randint(0, len(text))
        end = min(len(text), begin + rng.choice([0, 0, 1, 1, 4, 30]))
        kind = rng.random()
        if kind < 0.6:
            text = text[:begin] + rng.choice(pieces) + text[end:]
        elif kind < 0.8:
            text = text[:begin] + text[end:]
        else:
            text = text[:begin] + text[begin:end] * rng.choice([2, 3, 40]) + text[end:]
    return text[:20_000]


def _pattern(rng: random.Random) -> str:
    text = random_pattern(rng) if rng.random() < 0.5 else rng.choice(patterns())
    if rng.random() < 0.3:
        text += rng.choice(patterns())
    if rng.random() < 0.05:
        depth = rng.choice([5, 90, 110, 3000])
        text = "(" * depth + text + rng.choice([")", ")?", ")*"]) * depth
    return _damaged(rng, text, PATTERN_PIECES) if rng.random() < 0.8 else text


def _of_patterns(rng: random.Random) -> Any:
    """A schema whose strings are of several patterns, lengths and formats at once."""
    made: dict[str, Any] = {"type": "string", "pattern": _pattern(rng)}
    if rng.random() < 0.5:
        made["minLength"] = rng.choice([0, 1, 3, 40, 1000, 1 << 31])
    if rng.random() < 0.5:
        made["maxLength"] = rng.choice([0, 2, 9, 64, 5000, 10**9])
    if rng.random() < 0.2:
        made["format"] = rng.choice(["email", "uri", "date", "hostname", "regex"])
    if rng.random() < 0.4:
        made["allOf"] = [{"pattern": _pattern(rng)} for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.3:
        other: dict[str, Any] = {"pattern": _pattern(rng)}
        made["not"] = other if rng.random() < 0.5 else {"enum": ["", "a", *rng.sample(TEXTS, 3)]}
    if rng.random() < 0.3:
        made = {
            "type": "object",
            "patternProperties": {made["pattern"]: made},
            "properties": {"ab": {}},
        }
    return made


def _grammar(rng: random.Random) -> str:
    if rng.random() < 0.4:
        return _damaged(rng, rng.choice(random_grammar(rng)), GRAMMAR_PIECES)
    known = (ASSIGNMENTS, CALC, CALCULATOR, GBNF, JSON, SEPARATED)
    return _damaged(rng, rng.choice(known), [*GRAMMAR_PIECES, *string.ascii_letters])
