"""Schemas with valid and invalid instances of every keyword, and strings of every enforced
format.
"""

from __future__ import annotations

from typing import Any

OBJECT = {"type": "object", "additionalProperties": False}
KEYWORDS: list[tuple[Any, list[Any], list[Any]]] = [
    # schema, valid instances, invalid instances
    (True, [None, 1, "a", [1, [2]], {"a": {"b": []}}], []),
    ({"type": "null"}, [None], [0, False, "null"]),
    ({"type": "boolean"}, [True, False], [0, None]),
    ({"type": "integer"}, [0, -1, 12345678901234567890], [1.5, "1", True]),
    ({"type": "number"}, [0, -1.5, 1e10, 1e-07, 3.14], ["1", None]),
    ({"type": "string"}, ["", 'a"\\\n\u0007é日😀/', "\x7f"], [1, None]),
    ({"type": ["string", "null"]}, ["a", None], [1, []]),
    (
        {"enum": [1, "a", None, True, [1, 2], {"b": 1.5}]},
        [1, "a", None, True, [1, 2], {"b": 1.5}],
        [2, "b", False, [1], {}],
    ),
    ({"enum": ["a", 2, "ccc"], "type": "string", "minLength": 2}, ["ccc"], ["a", 2]),
    ({"const": "x\ny"}, ["x\ny"], ["x", 1]),
    ({"const": {"a": [1, {"b": None}]}}, [{"a": [1, {"b": None}]}], [{"a": [1]}]),
    ({"minimum": 3, "type": "integer"}, [3, 4, 10, 999], [2, 0, -5, -30]),
    ({"maximum": -3, "type": "integer"}, [-3, -4, -1000], [-2, 0, 5]),
    (
        {"exclusiveMinimum": 0, "exclusiveMaximum": 10, "type": "number"},
        [0.1, 9.99, 5, 1.0],
        [0, 10, -1, 10.5, 11, 100],
    ),
    (
        {"minimum": -1.25, "maximum": 12.5, "type": "number"},
        [-1.25, -1, 0, 0.5, 12.5, 12.49, 9],
        [-1.26, -2, 12.51, 13, 100, -10],
    ),
    ({"minimum": 10, "maximum": 99, "type": "integer"}, [10, 55, 99], [9, 100, -10, 1000]),
    ({"type": "number", "exclusiveMaximum": -0.5}, [-0.51, -1, -100.5], [-0.5, 0, 1, -0.1]),
    ({"type": "integer", "multipleOf": 7}, [0, 7, 14, -21, 700], [1, 8, 13, -22]),
    ({"type": "number", "multipleOf": 0.25}, [0.25, 1.5, 3, -0.75], [0.1, 0.3, 1.26]),
    ({"type": "integer", "multipleOf": 4, "minimum": 10, "maximum": 30}, [12, 28], [8, 10, 30, 32]),
    ({"type": "integer", "allOf": [{"multipleOf": 4}, {"multipleOf": 6}]}, [12, 24, 0], [4, 6, 8]),
    (
        {"minLength": 2, "maxLength": 3, "type": "string"},
        ["ab", "abc", "é日😀", "\n\n"],
        ["", "a", "abcd"],
    ),
    ({"pattern": "^[a-c]+$", "type": "string"}, ["a", "abc"], ["", "d", "abd"]),
    ({"pattern": "b", "type": "string"}, ["b", "abc", '\nb"'], ["", "ac"]),
    ({"pattern": "^a|b$", "type": "string"}, ["axx", "xxb", 'a"b'], ["xa", "bx"]),
    (
        {"pattern": "^[a-z]*$", "minLength": 2, "maxLength": 4, "type": "string"},
        ["ab", "abcd"],
        ["a", "abcde", "AB"],
    ),
    (
        {"pattern": "a.*b", "minLength": 4, "maxLength": 5, "type": "string"},
        ["axxb", "xaxb", "axbxx"],
        ["ab", "axb", "axxxxb", "xxxx"],
    ),
    (
        {"allOf": [{"pattern": "a"}, {"pattern": "b"}, {"pattern": "^.{3}$"}], "type": "string"},
        ["abx", "xba", "bxa"],
        ["ab", "aax", "abxx"],
    ),
    ({"not": {"pattern": "^a"}, "type": "string"}, ["", "ba", "b"], ["a", "ab"]),
    ({"not": {"enum": ["a", 1]}}, ["b", 2, None, "aa"], ["a", 1]),
    ({"not": {"type": "string"}}, [1, None, [], {}, True, 1.5], ["a"]),
    ({"not": {"type": "integer"}}, [1.5, "a", None], [1, -3]),
    ({"not": {"type": "integer", "minimum": 5}}, [4, 1.5, "a", 5.5], [5, 6]),
    (
        {"type": "array", "items": {"type": "integer"}},
        [[], [1], [1, -2, 3]],
        [["a"], [1, None], {}],
    ),
    (
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        [[True], [True, False, True]],
        [[], [True] * 4],
    ),
    (
        {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "type": "array"},
        [[], [1], [1, "a"]],
        [["a"], [1, "a", 2]],
    ),
    (
        {
            "prefixItems": [{"type": "integer"}],
            "items": {"type": "string"},
            "minItems": 2,
            "type": "array",
        },
        [[1, "a"], [1, "a", "b"]],
        [[1], [1, 2]],
    ),
    (
        {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
        [[], ["a"], ["c", "a", "b"]],
        [["a", "a"], ["a", "b", "a"]],
    ),
    (
        {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 1},
        [[True], [False, True]],
        [[], [True, True]],
    ),
    (
        {"type": "array", "contains": {"const": 5}, "items": {"type": "integer"}},
        [[5], [1, 5], [5, 2]],
        [[], [1], [4, 6]],
    ),
    (
        {
            "type": "array",
            "contains": {"minimum": 5},
            "items": {"type": "integer"},
            "minContains": 2,
            "maxContains": 3,
        },
        [[5, 6], [1, 5, 2, 6, 7]],
        [[5], [5, 6, 7, 8], []],
    ),
    (
        {
            "type": "array",
            "contains": {"const": 1},
            "minContains": 0,
            "maxContains": 1,
            "items": {"type": "integer"},
        },
        [[], [1], [2, 1, 3]],
        [[1, 1]],
    ),
    (
        {
            **OBJECT,
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "required": ["a"],
        },
        [{"a": 1}, {"a": 1, "b": "x"}],
        [{}, {"b": "x"}, {"a": "x"}, {"a": 1, "c": 1}],
    ),
    (
        {**OBJECT, "properties": {"a": True, "b": True, "c": True}},
        [{}, {"a": 1}, {"c": 1}, {"a": 1, "c": 1}, {"b": [], "c": {}}],
        [{"d": 1}],
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "additionalProperties": {"type": "string"},
        },
        [{}, {"a": 1}, {"a": 1, "x": "y", "": ""}, {"x": "y"}],
        [{"a": "x"}, {"x": 1}],
    ),
    (
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        [{"b": None}, {"a": 1, "aa": [1]}],
        [{"a": "x"}],
    ),
    (
        {"type": "object", "required": ["z"], "properties": {"a": {"type": "integer"}}},
        [{"a": 1, "z": None}, {"z": 1}],
        [{"a": 1}],
    ),
    (
        {
            **OBJECT,
            "patternProperties": {
                "^x": {"type": "integer"},
                "y$": {"type": "integer", "minimum": 5},
            },
        },
        [{}, {"x": 1}, {"ay": 5}, {"xy": 7}],
        [{"a": 1}, {"x": "1"}, {"xy": 2}],
    ),
    (
        {
            "type": "object",
            "properties": {"xa": {"maximum": 3}},
            "patternProperties": {"^x": {"type": "integer"}},
            "additionalProperties": False,
        },
        [{"xa": 2}, {"xb": 9}],
        [{"xa": 4}, {"xa": "1"}],
    ),
    (
        {
            "type": "object",
            "propertyNames": {"pattern": "^[ab]+$", "maxLength": 2},
            "additionalProperties": {"type": "null"},
        },
        [{}, {"ab": None, "a": None}],
        [{"aba": None}, {"c": None}, {"a": 1}],
    ),
    (
        {"type": "object", "propertyNames": {"enum": ["p", "q"]}},
        [{}, {"p": 1}, {"p": 1, "q": 2}],
        [{"r": 1}],
    ),
    (
        {
            **OBJECT,
            "properties": {"a": True, "b": True, "c": True},
            "minProperties": 1,
            "maxProperties": 2,
        },
        [{"a": 1}, {"a": 1, "c": 1}],
        [{}, {"a": 1, "b": 1, "c": 1}],
    ),
    (
        {
            "type": "object",
            "additionalProperties": {"type": "integer"},
            "minProperties": 1,
            "maxProperties": 2,
        },
        [{"a": 1}, {"a": 1, "b": 2}],
        [{}, {"a": 1, "b": 2, "c": 3}],
    ),
    (
        {
            "type": "object",
            "properties": {"a": True, "b": True},
            "additionalProperties": False,
            "dependentRequired": {"a": ["b"]},
        },
        [{}, {"b": 1}, {"a": 1, "b": 1}],
        [{"a": 1}],
    ),
    (
        {
            "type": "object",
            "properties": {"a": True, "b": True},
            "additionalProperties": False,
            "dependentSchemas": {"a": {"properties": {"b": {"type": "integer"}}}},
        },
        [{"b": "x"}, {"a": 1, "b": 2}, {"a": 1}],
        [{"a": 1, "b": "x"}],
    ),
    (
        {
            "allOf": [
                {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"a": {"minimum": 3}, "b": {"type": "string"}}},
            ],
            "type": "object",
        },
        [{"a": 3}, {"a": 4, "b": "x"}],
        [{"a": 2}, {}, {"a": 3, "b": 1}],
    ),
    (
        {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}], "minimum": 2},
        [2, "", "a"],
        [1, "ab", None],
    ),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [None, 1.5]),
    ({"oneOf": [{"multipleOf": 3}, {"multipleOf": 5}], "type": "integer"}, [], []),
    ({"oneOf": [{"minimum": 5}, {"maximum": 7}], "type": "integer"}, [4, 8], [5, 6, 7]),
    (
        {
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
            "type": "object",
            "properties": {"a": True, "b": True},
            "additionalProperties": False,
        },
        [{"a": 1}, {"b": 1}],
        [{}, {"a": 1, "b": 1}],
    ),
    (
        {
            "if": {"properties": {"k": {"const": "x"}}, "required": ["k"]},
            "then": {"required": ["v"]},
            "else": {"properties": {"v": {"type": "null"}}},
            "type": "object",
            "properties": {"k": {"enum": ["x", "y"]}, "v": True},
            "additionalProperties": False,
        },
        [{"k": "x", "v": 1}, {"k": "y"}, {"k": "y", "v": None}, {}],
        [{"k": "x"}, {"k": "y", "v": 1}],
    ),
    (
        {"$ref": "#/$defs/p", "$defs": {"p": {"type": "integer", "minimum": 1}}, "maximum": 3},
        [1, 3],
        [0, 4],
    ),
    (
        {
            "$defs": {"n": {"$anchor": "here", "type": "null"}},
            "items": {"$ref": "#here"},
            "type": "array",
        },
        [[], [None]],
        [[1]],
    ),
    (
        {
            "$defs": {
                "t": {
                    "type": "object",
                    "properties": {
                        "v": {"type": "integer"},
                        "l": {"type": "array", "items": {"$ref": "#/$defs/t"}},
                    },
                    "required": ["v"],
                    "additionalProperties": False,
                }
            },
            "$ref": "#/$defs/t",
        },
        [{"v": 1}, {"v": 1, "l": [{"v": 2, "l": []}, {"v": 3}]}],
        [{"l": []}, {"v": 1, "l": [{"l": []}]}, {"v": 1, "l": [1]}],
    ),
    (
        {"type": "object", "properties": {"a": True}, "unevaluatedProperties": False},
        [{}, {"a": 1}],
        [{"b": 1}],
    ),
    (
        {
            "type": "object",
            "allOf": [{"properties": {"a": True}}],
            "properties": {"b": True},
            "unevaluatedProperties": False,
        },
        [{"a": 1, "b": 1}, {"a": 1}],
        [{"c": 1}],
    ),
    ({"type": "array", "prefixItems": [True], "unevaluatedItems": False}, [[], [1]], [[1, 2]]),
    (
        {
            "type": "string",
            "title": "t",
            "description": "d",
            "default": 1,
            "examples": [1],
            "$comment": "c",
            "x-unknown": 3,
        },
        ["a"],
        [1],
    ),
]

FORMATS = {
    "date": (
        ["2024-02-29", "2023-12-31", "0001-01-01"],
        ["2023-02-29", "2023-13-01", "2023-1-1", "0000-01-01", "2100-02-29"],
    ),
    "time": (["23:59:59Z", "00:00:00.123+05:30"], ["24:00:00Z", "12:00Z", "12:00:00"]),
    "date-time": (
        ["2024-02-29T12:00:00Z", "2024-01-01T00:00:00.5-08:00"],
        ["2024-02-30T12:00:00Z", "2024-01-01 00:00:00Z", "2024-01-01T00:00:00"],
    ),
    "duration": (["P1D", "PT5M", "P1Y2M3DT4H5M6S", "P2W"], ["P", "PT", "1D", "P1S", "P1W2D"]),
    "email": (["a@b.c", "first.last+tag@example.org"], ["a", "@b", "a@", "a b@c"]),
    "hostname": (["localhost", "a-b.example"], ["-a", "a..b", "a_b"]),
    "ipv4": (["127.0.0.1", "255.255.255.255"], ["256.1.1.1", "1.2.3", "01.2.3.4"]),
    "ipv6": (
        ["::", "::1", "2001:db8::8a2e:370:7334", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4"],
        [":", "1:2", "1:2:3:4:5:6:7:8:9", "12345::", "1::2::3"],
    ),
    "uuid": (
        ["123e4567-e89b-12d3-a456-426614174000"],
        ["123e4567e89b12d3a456426614174000", "g23e4567-e89b-12d3-a456-426614174000"],
    ),
    "uri": (
        ["https://example.org/a?b=c#d", "urn:isbn:0451450523", "mailto:a@b.c"],
        ["no scheme", "//a/b", "http://a b", ""],
    ),
    "json-pointer": (["", "/a/b~0c~1d"], ["a", "/~2"]),
}
