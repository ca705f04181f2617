"""What the constraint benchmark walks: 18 regexes and 22 schemas, each with texts that match and
texts that do not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    kind: str  # "regex" or "schema"
    source: str
    valid: tuple[str, ...]
    invalid: tuple[str, ...]


_REGEXES: list[tuple[str, str, list[str], list[str]]] = [
    ("yes-no", r"(yes|no)", ["yes", "no"], ["maybe", "yess"]),
    ("phone", r"\(\d{3}\) \d{3}-\d{4}", ["(415) 555-0132"], ["415 555-0132", "(41) 555-0132"]),
    (
        "date",
        r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
        ["2024-02-29"],
        ["2024-13-01", "24-01-01"],
    ),
    ("decimal", r"-?\d+(\.\d+)?", ["0.5", "-12", "3.14159"], [".5", "1.", "--1"]),
    ("optional", r"ab(xc)?", ["ab", "abxc"], ["abx", "abc"]),
    (
        "email",
        r"[\w.+-]{1,32}@[a-z0-9-]{1,32}(\.[a-z]{2,8}){1,3}",
        ["jane.doe@example.co.uk"],
        ["jane@", "a@b"],
    ),
    ("identifier", r"[A-Za-z_][A-Za-z0-9_]{0,30}", ["snake_case_name"], ["9lives", "a-b"]),
    (
        "ipv4",
        r"((25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(25[0-5]|2[0-4]\d|1?\d?\d)",
        ["192.168.0.254"],
        ["256.1.1.1", "1.2.3"],
    ),
    ("word-run", r"(\w+\s?){1,40}", ["the quick brown fox jumps"], ["!", "a  b!"]),
    (
        "sentence",
        r"[A-Z][a-z]*( [a-z]+){2,20}\.",
        ["The fox jumps over dogs."],
        ["the fox jumps.", "The fox."],
    ),
    ("quoted", r'"([^"\\\x00-\x1f]|\\.){1,200}"', ['"he said \\"no\\" and left"'], ['""', '"a']),
    ("hex-color", r"#[0-9a-fA-F]{6}", ["#12ab9F"], ["#12ab9", "12ab9f"]),
    (
        "uuid",
        r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}",
        ["123e4567-e89b-12d3-a456-426614174000"],
        ["123e4567"],
    ),
    ("time", r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?", ["23:59", "00:00:01"], ["24:00", "1:00"]),
    (
        "react",
        r"Thought: [^\n]{1,80}\nAction: (search|finish)\[[^\]\n]{1,40}\]",
        ["Thought: I look it up\nAction: search[Paris]"],
        ["Action: search[x]"],
    ),
    ("csv", r"[a-z]+(,[a-z]+){1,8}", ["red,green,blue"], ["red", "red,,blue"]),
    ("unicode", r"\w{1,16}", ["naïveté", "日本語"], ["a b", ""]),
    (
        "character",
        r'\{\n  "name": "[\w\d\s]{1,16}",\n  "house": '
        r'"(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",'
        r'\n  "blood status": '
        r'"(Pure-blood|Half-blood|Muggle-born)",\n  "alive": "(Alive|Deceased)",'
        r'\n  "wand": \{\n    "wood": "[\w\d\s]{1,16}",'
        r'\n    "length": [0-9]{1,2}\.[0-9]{0,2}\n  \}\n\}',
        [
            '{\n  "name": "Harry Potter",\n  "house": "Gryffindor",'
            '\n  "blood status": "Half-blood",\n  "alive": "Alive",'
            '\n  "wand": {\n    "wood": "holly",\n    "length": 11.0\n  }\n}'
        ],
        ['{\n  "name": "Harry"}'],
    ),
]


def _closed(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    names = list(properties) if required is None else required
    return {
        "type": "object",
        "properties": properties,
        "required": names,
        "additionalProperties": False,
    }


_STRING, _INTEGER, _NUMBER, _BOOLEAN = (
    {"type": name} for name in ("string", "integer", "number", "boolean")
)
_TREE = {
    "$defs": {
        "t": _closed({"v": _INTEGER, "l": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, ["v"])
    },
    "$ref": "#/$defs/t",
}
_WIDE = _closed({f"option_{i}": _BOOLEAN for i in range(200)}, [])

_SCHEMAS: list[tuple[str, Any, list[Any], list[Any]]] = [
    (
        "person",
        _closed({"name": _STRING, "age": _INTEGER}),
        [{"name": "Ada Lovelace", "age": 36}],
        [{"name": "A"}, {"name": 1, "age": 2}],
    ),
    (
        "bounded",
        _closed(
            {
                "name": {"type": "string", "minLength": 1, "maxLength": 40},
                "age": {"type": "integer", "minimum": 0, "maximum": 130},
            }
        ),
        [{"name": "Grace Hopper", "age": 85}],
        [{"name": "", "age": 1}, {"name": "a", "age": 131}],
    ),
    (
        "enum",
        _closed({"color": {"enum": ["red", "green", "blue"]}, "level": {"enum": [1, 2, 3]}}),
        [{"color": "green", "level": 3}],
        [{"color": "pink", "level": 1}],
    ),
    (
        "list",
        {"type": "array", "items": _STRING, "maxItems": 5},
        [["alpha", "beta", "gamma"]],
        [[1], ["a"] * 6],
    ),
    ("numbers", {"type": "array", "items": _NUMBER}, [[1, -2.5, 1e-7, 0.125]], [["1"], [None]]),
    (
        "nested",
        _closed(
            {
                "user": _closed({"id": _INTEGER, "tags": {"type": "array", "items": _STRING}}),
                "ok": _BOOLEAN,
            }
        ),
        [{"user": {"id": 7, "tags": ["new", "staff"]}, "ok": True}],
        [{"user": {"id": 7}, "ok": True}],
    ),
    (
        "optional",
        _closed({"a": _INTEGER, "b": _STRING, "c": _BOOLEAN}, ["b"]),
        [{"b": "x"}, {"a": 1, "b": "y", "c": False}],
        [{"a": 1}, {"b": "x", "d": 1}],
    ),
    (
        "any-of",
        {
            "anyOf": [
                _closed({"kind": {"const": "dog"}, "bark": _STRING}),
                _closed({"kind": {"const": "cat"}, "lives": _INTEGER}),
            ]
        },
        [{"kind": "cat", "lives": 9}],
        [{"kind": "cat", "bark": "woof"}],
    ),
    ("one-of", {"oneOf": [_STRING, _INTEGER, {"type": "null"}]}, ["text here", 5, None], [1.5, []]),
    (
        "pattern",
        _closed(
            {
                "zip": {"type": "string", "pattern": "^[0-9]{5}(-[0-9]{4})?$"},
                "sku": {"type": "string", "pattern": "[A-Z]{2}"},
            }
        ),
        [{"zip": "94110-1234", "sku": "xxAB9"}],
        [{"zip": "9411", "sku": "AB"}, {"zip": "94110", "sku": "ab"}],
    ),
    ("alternation", {"type": "string", "pattern": "^(a|b)$"}, ["a", "b"], ["ab", "ax"]),
    ("quotes", {"type": "string", "pattern": '^"x"$'}, ['"x"'], ["x"]),
    (
        "range",
        _closed(
            {
                "p": {"type": "number", "minimum": 0, "maximum": 1},
                "q": {"type": "integer", "multipleOf": 5},
            }
        ),
        [{"p": 0.75, "q": 35}],
        [{"p": 1.5, "q": 5}, {"p": 0.5, "q": 7}],
    ),
    (
        "format",
        _closed(
            {
                "at": {"type": "string", "format": "date-time"},
                "id": {"type": "string", "format": "uuid"},
            }
        ),
        [{"at": "2024-02-29T12:00:00Z", "id": "123e4567-e89b-12d3-a456-426614174000"}],
        [{"at": "2024-02-30T12:00:00Z", "id": "x"}],
    ),
    (
        "recursive",
        _TREE,
        [{"v": 1, "l": [{"v": 2, "l": []}, {"v": 3, "l": [{"v": 4}]}]}],
        [{"v": 1, "l": [{"l": []}]}],
    ),
    (
        "open",
        {"type": "object", "properties": {"a": _INTEGER}, "required": ["a"]},
        [{"a": 1, "extra": {"deep": [1, None]}}],
        [{"a": "x"}, {}],
    ),
    (
        "map",
        {"type": "object", "additionalProperties": _INTEGER},
        [{"one": 1, "two": 2}],
        [{"one": "1"}],
    ),
    (
        "all-of",
        {
            "allOf": [
                {"type": "object", "properties": {"a": _INTEGER}, "required": ["a"]},
                {"properties": {"a": {"minimum": 10}, "b": _STRING}},
            ],
            "unevaluatedProperties": False,
        },
        [{"a": 12, "b": "x"}],
        [{"a": 9}, {"b": "x"}],
    ),
    (
        "tuple",
        {"type": "array", "prefixItems": [_STRING, _INTEGER], "items": False, "minItems": 2},
        [["x", 1]],
        [["x"], [1, "x"], ["x", 1, 2]],
    ),
    (
        "unique",
        {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
        [["b", "a"]],
        [["a", "a"]],
    ),
    ("wide", _WIDE, [{"option_3": True, "option_150": False}], [{"option_3": 1}, {"other": True}]),
    (
        "extraction",
        _closed(
            {
                "title": _STRING,
                "year": {"type": "integer", "minimum": 1900, "maximum": 2100},
                "authors": {
                    "type": "array",
                    "items": _closed({"given": _STRING, "family": _STRING}),
                    "minItems": 1,
                },
                "abstract": {"type": "string", "maxLength": 2000},
                "open_access": _BOOLEAN,
            }
        ),
        [
            {
                "title": "Attention Is All You Need",
                "year": 2017,
                "authors": [{"given": "Ashish", "family": "Vaswani"}],
                "abstract": "The dominant sequence transduction models are based on complex "
                "recurrent or "
                "convolutional neural networks.",
                "open_access": True,
            }
        ],
        [{"title": "x", "year": 1800, "authors": [], "abstract": "", "open_access": True}],
    ),
]

CASES: tuple[Case, ...] = (
    *(
        Case(name, "regex", source, tuple(valid), tuple(invalid))
        for name, source, valid, invalid in _REGEXES
    ),
    *(
        Case(
            name,
            "schema",
            json.dumps(schema),
            tuple(json.dumps(instance, ensure_ascii=False) for instance in valid),
            tuple(json.dumps(instance, ensure_ascii=False) for instance in invalid),
        )
        for name, schema, valid, invalid in _SCHEMAS
    ),
)

BOMBS: tuple[str, ...] = (
    "[ab]*a[ab]{24}",
    r"(\w+\s?){1,200}",
    ".{1,100000}",
    "((a{1,30}){1,30}){1,30}",
    "a{1000000000}",
    r"(.*a.{24}){3}",
    r"(\w{1,100}){1,100}",
    r"[\w\s]{1,1000}[\W\d]{1,1000}",
)

COSTLY: dict[str, Any] = {
    "enum of 2,000 texts": {"enum": [f"value number {i}" for i in range(2000)]},
    "2,000 optional properties": _closed({f"p{i}": _STRING for i in range(2000)}, []),
    "open object, 50 optional properties": {
        "type": "object",
        "properties": {f"property_{i}": _STRING for i in range(50)},
    },
    "pattern, at most 2,048 characters": {
        "type": "string",
        "pattern": r"^\w+( \w+)*$",
        "maxLength": 2048,
    },
    "uri, at most 200 characters": {"type": "string", "format": "uri", "maxLength": 200},
    "oneOf of 30 tagged objects": {
        "oneOf": [_closed({"kind": {"const": f"k{i}"}, "value": _STRING}) for i in range(30)],
    },
}
