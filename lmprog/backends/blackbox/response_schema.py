"""JSON schemas as services take them: in their subset of JSON Schema, the root an object.

What a subset has no words for is written in another form, and the answer is read back, so that a
program sees what it asked for: another root is the property `value`, a map the list of its entries,
a tuple an object, a field that may be left out one that may be null, and what has no form at all
(any value; recursion, where there is none) is JSON in a string. Bounds, lengths and patterns that
the service does not take are checked in the answer. Knows JSON and the subsets, no requests.
"""

from __future__ import annotations

import decimal
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from lmprog import wire
from lmprog.backends.blackbox.api import JsonBody
from lmprog.errors import NotSupported, UnsupportedSchema, ValidationFailed
from lmprog.wire.constraints import exact_json, exact_text

Reader: TypeAlias = Callable[[Any], Any]
"""Makes what was asked for of what was answered. Raises `ValueError` and the like."""

_WRAPPED = "value"
ROOM = 16  # tokens reserved for the wrapper
_MOST_LEVELS = 4
"""How often a definition stands in itself where a service knows no recursion."""


@dataclass(frozen=True, slots=True, eq=False)
class SchemaSubset:
    """What a service documents that it takes of JSON Schema."""

    keywords: Mapping[str, frozenset[str]]
    """By type, besides `type`, `enum`, `const`, `anyOf`, `$ref`, `$defs` and `description`."""
    formats: frozenset[str]
    requires_all: bool
    """Whether every property of an object must be required."""
    recurses: bool
    most_min_items: int | None = None
    """The largest `minItems`; None for any."""

    def takes(self, kind: str, keyword: str, value: Any) -> bool:
        """Whether a schema of that type may say this."""
        if keyword not in self.keywords[kind]:
            return False
        if keyword == "format":
            return value in self.formats
        if keyword == "pattern":
            return not _UNUSUAL_PATTERN.search(value)
        if keyword == "minItems" and self.most_min_items is not None:
            return bool(value <= self.most_min_items)
        return True


_UNUSUAL_PATTERN = re.compile(r"\(\?(?!:)|\\[bB1-9]|\\[pP]\{")
"""Lookarounds, flags, named groups, word bounds, references backwards, classes of Unicode."""
_OBJECT = frozenset(["properties", "required", "additionalProperties"])
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
_NO_KEYWORDS = {"boolean": frozenset[str](), "null": frozenset[str](), "object": _OBJECT}
OPENAI_SUBSET = SchemaSubset(
    {
        **_NO_KEYWORDS,
        "string": frozenset(["pattern", "format"]),
        "integer": frozenset(_BOUNDS),
        "number": frozenset(_BOUNDS),
        "array": frozenset(["items", "minItems", "maxItems"]),
    },
    frozenset(_FORMATS),
    requires_all=True,
    recurses=True,
)
ANTHROPIC_SUBSET = SchemaSubset(
    {
        **_NO_KEYWORDS,
        "string": frozenset(["pattern", "format"]),
        "integer": frozenset(),
        "number": frozenset(),
        "array": frozenset(["items", "minItems"]),
    },
    frozenset([*_FORMATS, "uri"]),
    requires_all=False,
    recurses=False,
    most_min_items=1,
)


@dataclass(frozen=True, slots=True)
class ResponseSchema:
    """A response format, and how to read an answer in it."""

    schema: JsonBody
    is_wrapped: bool
    is_bare: bool
    """Whether the value is a string that the program wants without quotes (a `Literal` of strings).
    """
    reader: Reader
    is_changed: bool
    """Whether the program sees another text than was answered."""
    asked: str | None = None
    """The schema that the answer is held to here, since the sent one says less."""

    def field(self) -> JsonBody:
        """The `response_format` field of a request."""
        inner = {"name": "answer", "schema": self.schema, "strict": True}
        return {"type": "json_schema", "json_schema": inner}

    def read(self, text: str, finish: wire.FinishReason) -> str:
        """The requested text. Raises `ValidationFailed` if the answer does not match."""
        text = unfenced(text)
        if (not self.is_changed and self.asked is None) or (
            finish == "length" and not self.is_wrapped
        ):
            return text  # of a value that was cut, the program is told that it was
        try:
            answered = exact_json(text)
            value = self.reader(answered[_WRAPPED] if self.is_wrapped else answered)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            raise ValidationFailed(
                f"the model's JSON was cut, or is no answer: {text!r}", text=text
            ) from None
        if self.is_bare and isinstance(value, str):
            return value
        made = text if value == answered else exact_text(value)
        if self.asked is not None and not is_valid(self.asked, made):
            raise ValidationFailed(
                f"the model wrote {made}, which the schema does not allow, and of which the "
                "service can be asked for a part only",
                text=made,
            )
        return made


_FENCED = re.compile(r"\s*```[\w-]*[ \t]*\n(.*?)\n?[ \t]*```\s*", re.DOTALL)


def unfenced(text: str) -> str:
    """What stands in the one block of code that a text consists of: models that are not held to a
    format often write one around their JSON. Any other text as it is.
    """
    found = _FENCED.fullmatch(text)
    return text if found is None or "```" in found[1] else found[1]


def has_format(constraint: wire.Constraint) -> bool:
    return constraint.as_schema() is not None or constraint.as_choices() is not None


def format_of(constraint: wire.Constraint | None, subset: SchemaSubset) -> ResponseSchema | None:
    """None without a constraint, and for one that has no format. Raises `UnsupportedSchema`."""
    asked = None if constraint is None else constraint.as_schema()
    choices = None if constraint is None else constraint.as_choices()
    if choices is not None:
        options = {"type": "string", "enum": list(choices)}
        return ResponseSchema(_wrapped(options), True, True, lambda value: value, True)
    return None if asked is None else _written(asked.schema, subset)


@functools.lru_cache(maxsize=256)
def _written(asked: str, subset: SchemaSubset) -> ResponseSchema:
    writer = _Writer(json.loads(asked), subset)
    schema, reader = writer.write_root()
    is_wrapped = schema.get("type") != "object"
    sent = _wrapped(schema) if is_wrapped else dict(schema)
    if writer.defs:
        sent["$defs"] = writer.defs
    checked = asked if writer.is_looser else None
    return ResponseSchema(
        sent, is_wrapped, False, reader, is_wrapped or writer.is_coded, asked=checked
    )


def _wrapped(schema: JsonBody) -> JsonBody:
    return _closed_object({_WRAPPED: schema})


def _closed_object(properties: JsonBody) -> JsonBody:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_SAYS_NOTHING = frozenset([
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly",
    "discriminator", "$defs", "definitions", "$schema", "$id", "$comment", "contentEncoding",
    "contentMediaType", "format",
])  # fmt: skip
"""Keywords without which the same values are allowed. Formats are read as values afterwards."""
_INT64 = {"minimum": -(2**63), "maximum": 2**63 - 1}
"""Bounds that only keep digits from going on for ever; services end them themselves."""
_KINDS = {
    bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null",
    decimal.Decimal: "number",
}  # fmt: skip


@dataclass(slots=True)
class _Writer:
    """Writes one schema in a service's subset, and puts together what reads its answers."""

    root: Any
    subset: SchemaSubset
    defs: JsonBody = field(default_factory=dict)
    is_coded: bool = False
    """Whether some value is answered in another form."""
    is_looser: bool = False
    """Whether the written schema allows what the asked one does not."""
    _readers: dict[str, Reader] = field(default_factory=dict)
    _names: dict[tuple[str, int], str] = field(default_factory=dict)

    def write_root(self) -> tuple[JsonBody, Reader]:
        return self._write(self._followed(self.root), 0)

    def _write(self, asked: Any, level: int) -> tuple[JsonBody, Reader]:
        """`level`: how many definitions it stands in that refer to themselves."""
        schema = self._merged(asked)
        if "$ref" in schema:
            return self._reference(schema["$ref"], level)
        if "enum" in schema or "const" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            return self._described(schema, self._enumeration(values))
        if "anyOf" in schema:
            self._drops(schema, {"anyOf", "type"})
            found = [self._write(variant, level) for variant in schema["anyOf"]]
            return self._described(schema, self._any_of(found))
        kind = schema.get("type") or _kind_of(schema)
        if isinstance(kind, list):
            variants = [{**schema, "type": one, "description": ""} for one in kind]
            written = self._any_of([self._write(variant, level) for variant in variants])
            return self._described({"description": schema.get("description")}, written)
        if kind == "object":
            return self._described(schema, self._object(schema, level))
        if kind == "array":
            return self._described(schema, self._array(schema, level))
        if kind not in self.subset.keywords:
            return self._described(schema, self._as_text(schema))
        sent = {"type": kind, **self._kept(kind, schema)}
        return self._described(schema, (sent, lambda value: value))

    # --- references, and schemas that hold together

    def _merged(self, asked: Any) -> JsonBody:
        """One schema of what `allOf` and references beside keywords put together. `oneOf` is
        `anyOf`, whose answer is checked.
        """
        schema: JsonBody = dict(asked) if isinstance(asked, dict) else {}
        if "oneOf" in schema:
            self.is_looser |= "discriminator" not in schema or "anyOf" in schema
            schema["anyOf"] = schema.pop("oneOf")
        parts = list(schema.get("allOf") or ())
        if "$ref" in schema and (parts or set(schema) - {"$ref", "$defs"}):
            if self._is_cyclic(schema["$ref"]):
                self._drops(schema, {"$ref"})
                return {"$ref": schema["$ref"]}
            parts.append({"$ref": schema["$ref"]})
        elif not parts:
            return schema
        merged = {key: value for key, value in schema.items() if key not in ("allOf", "$ref")}
        if not merged and len(parts) == 1:
            return self._merged(parts[0])
        for part in parts:
            for key, value in self._followed(part).items():
                if key == "properties":
                    merged[key] = {**value, **merged.get(key, {})}
                elif key == "required":
                    merged[key] = [*merged.get(key, ()), *value]
                else:
                    self.is_looser |= key not in _SAYS_NOTHING and merged.get(key, value) != value
                    merged.setdefault(key, value)
        return merged

    def _followed(self, schema: Any) -> JsonBody:
        """What a reference refers to at last. Raises `UnsupportedSchema` if that is itself."""
        one = self._merged(schema)
        seen: set[str] = set()
        while "$ref" in one:
            if one["$ref"] in seen:
                raise UnsupportedSchema(
                    f"{one['$ref']!r} refers to itself only", keyword="$ref", path=one["$ref"]
                )
            seen.add(one["$ref"])
            one = self._merged(self._target(one["$ref"]))
        return one

    def _reference(self, ref: str, level: int) -> tuple[JsonBody, Reader]:
        """A definition, written when it is first referred to."""
        level = level + 1 if not self.subset.recurses and self._is_cyclic(ref) else 0
        if level > _MOST_LEVELS:
            return self._as_text({"$ref": ref})
        name = self._names.get((ref, level))
        if name is None:
            begin = re.sub(r"\W", "_", ref.rpartition("/")[2], flags=re.ASCII).strip("#_") or "root"
            begin = f"{begin}_{level}" if level else begin
            name = begin
            while name in self.defs:
                name = f"{begin}_{len(self.defs)}"
            self._names[ref, level] = name
            self.defs[name] = {}
            self.defs[name], self._readers[name] = self._write(self._followed({"$ref": ref}), level)
        return {"$ref": f"#/$defs/{name}"}, lambda value: self._readers[name](value)

    def _target(self, ref: str) -> Any:
        """Raises `UnsupportedSchema` for what the schema does not have."""
        found = self.root
        try:
            begin, *path = ref.split("/")
            if begin != "#":
                raise LookupError(ref)
            for part in path:
                part = part.replace("~1", "/").replace("~0", "~")
                found = found[int(part)] if isinstance(found, list) else found[part]
        except (LookupError, TypeError, ValueError):
            raise UnsupportedSchema(
                f"{ref!r} refers to nothing in the schema", keyword="$ref", path=ref
            ) from None
        return found

    def _is_cyclic(self, ref: str) -> bool:
        """Whether a definition refers to itself, by way of others or not."""
        seen: set[str] = set()
        left = _references(self._target(ref))
        while left:
            one = left.pop()
            if one == ref:
                return True
            if one not in seen:
                seen.add(one)
                left += _references(self._target(one))
        return False

    # --- values

    def _enumeration(self, values: Sequence[Any]) -> tuple[JsonBody, Reader]:
        if not all(type(value) in _KINDS for value in values):
            return self._as_text({"enum": values})
        found: list[tuple[JsonBody, Reader]] = []
        for kind in dict.fromkeys(_KINDS[type(value)] for value in values):
            these = [value for value in values if _KINDS[type(value)] == kind]
            sent = {"type": kind} if kind == "null" else {"type": kind, "enum": these}
            found.append((sent, lambda value: value))
        return self._any_of(found)

    def _any_of(self, found: Sequence[tuple[JsonBody, Reader]]) -> tuple[JsonBody, Reader]:
        if len(found) == 1:
            return found[0]

        def read(value: Any) -> Any:
            return next((one for sent, one in found if self._fits(sent, value)), found[0][1])(value)

        flat: list[JsonBody] = []
        for sent, _ in found:
            flat += [one for one in sent.get("anyOf", [sent]) if one not in flat]
        return {"anyOf": flat}, read

    def _object(self, schema: JsonBody, level: int) -> tuple[JsonBody, Reader]:
        properties = schema.get("properties") or {}
        others = schema.get("additionalProperties", True)
        keys = schema.get("propertyNames")
        handled = {"type", "properties", "required", "additionalProperties", "propertyNames"}
        self._drops(schema, handled)
        if not properties and others is not False:
            names = (self._merged(keys) if keys else {}).get("enum")
            if names is None or not all(isinstance(name, str) for name in names):
                return self._entries(keys, others, level)
            properties = dict.fromkeys(names, others)  # each at most once
        required = set(schema.get("required", ()))
        sent: JsonBody = {}
        readers: dict[str, Reader] = {}
        may_be_null: set[str] = set()
        for name, part in properties.items():
            sent[name], readers[name] = self._write(part, level)
            if (
                name not in required
                and self.subset.requires_all
                and not self._fits(sent[name], None)
            ):
                sent[name] = {"anyOf": [*sent[name].get("anyOf", [sent[name]]), {"type": "null"}]}
                may_be_null.add(name)
                self.is_coded = True

        def read(value: Any) -> Any:
            return {
                name: readers[name](part) if name in readers else part
                for name, part in value.items()
                if part is not None or name not in may_be_null
            }

        made = _closed_object(sent)
        if not self.subset.requires_all:
            made["required"] = [name for name in sent if name in required]
        return made, read

    def _entries(self, keys: Any, others: Any, level: int) -> tuple[JsonBody, Reader]:
        """A map: the list of its entries."""
        self.is_coded = True
        key, read_key = self._write({"type": "string", **(keys or {})}, level)
        item, read_item = self._write(others, level)

        def read(value: Any) -> Any:
            if isinstance(value, dict):  # of a server that does not hold to the form
                return {name: read_item(part) for name, part in value.items()}
            return {read_key(entry["key"]): read_item(entry["value"]) for entry in value}

        return {"type": "array", "items": _closed_object({"key": key, "value": item})}, read

    def _array(self, schema: JsonBody, level: int) -> tuple[JsonBody, Reader]:
        fixed = schema.get("prefixItems", [])
        is_closed = schema.get("items") is False or schema.get("maxItems") == len(fixed)
        if is_closed and schema.get("minItems", 0) == len(fixed):
            return self._tuple(fixed, level)
        if fixed:
            return self._as_text(schema)
        item, read_item = self._write(schema.get("items", {}), level)
        kept = self._kept("array", {k: v for k, v in schema.items() if k != "items"})
        if schema.get("minItems", 0) > 0 and "minItems" not in kept:
            kept["minItems"] = self.subset.most_min_items
        return {"type": "array", "items": item, **kept}, lambda value: [*map(read_item, value)]

    def _tuple(self, items: Sequence[Any], level: int) -> tuple[JsonBody, Reader]:
        """A list of a known length, each item with a schema of its own: an object."""
        self.is_coded = True
        found = {f"item_{place}": self._write(one, level) for place, one in enumerate(items, 1)}

        def read(value: Any) -> Any:
            given = value if isinstance(value, list) else [value[name] for name in found]
            return [reader(one) for (_, reader), one in zip(found.values(), given, strict=True)]

        return _closed_object({name: sent for name, (sent, _) in found.items()}), read

    def _as_text(self, schema: JsonBody) -> tuple[JsonBody, Reader]:
        self.is_coded = True
        self._drops(schema, set())
        sent = {"type": "string", "description": "The value, written as JSON."}
        return sent, lambda value: exact_json(value) if isinstance(value, str) else value

    # --- keywords

    def _kept(self, kind: str, schema: JsonBody) -> JsonBody:
        """The keywords that the service takes; the others are checked afterwards."""
        kept = {
            key: value
            for key, value in schema.items()
            if self.subset.takes(kind, key, value) and _INT64.get(key) != value
        }
        self._drops(schema, {"type", *kept, *(key for key in _INT64 if _is_open(schema, key))})
        return kept

    def _drops(self, schema: JsonBody, handled: set[str]) -> None:
        """All but the handled keywords are not sent."""
        self.is_looser |= bool(schema.keys() - handled - _SAYS_NOTHING)

    def _described(
        self, schema: JsonBody, written: tuple[JsonBody, Reader]
    ) -> tuple[JsonBody, Reader]:
        """With its description, which also says what the service cannot be asked for."""
        sent, reader = written
        if "$ref" in sent:
            return written
        rules = ", ".join(
            f"{key}: {value}"
            for key, value in schema.items()
            if key in _TELLING and key not in sent and _INT64.get(key) != value
            if sent.get("type") == schema.get("type")
        )
        texts = [schema.get("description"), sent.get("description"), rules]
        about = "\n".join(text for text in texts if text)
        return ({**sent, "description": about} if about else sent), reader

    def _fits(self, sent: JsonBody, value: Any) -> bool:
        """Whether a value has the form of a written schema."""
        if "$ref" in sent:
            return self._fits(self.defs[sent["$ref"].rpartition("/")[2]], value)
        if "anyOf" in sent:
            return any(self._fits(one, value) for one in sent["anyOf"])
        kind = sent.get("type")
        if kind == "integer" and isinstance(value, decimal.Decimal):
            return value == value.to_integral_value()
        if "enum" in sent:
            return _KINDS.get(type(value)) == kind and value in sent["enum"]
        if kind == "object" and isinstance(value, dict):
            parts = sent["properties"]
            return set(sent["required"]) <= value.keys() <= parts.keys() and all(
                self._fits(parts[name], part) for name, part in value.items()
            )
        if kind == "array" and isinstance(value, list):
            return all(self._fits(sent["items"], one) for one in value)
        return _KINDS.get(type(value)) == kind or (kind == "number" and type(value) is int)


_TELLING = frozenset([
    *_BOUNDS, "minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems",
    "minProperties", "maxProperties",
])  # fmt: skip
"""Bounds that stand in the description where the service does not take them."""


def _is_open(schema: JsonBody, key: str) -> bool:
    return schema.get(key) == _INT64[key]


def _kind_of(schema: JsonBody) -> str:
    """Of a schema that does not say its type; empty if it may be any."""
    if "properties" in schema or "additionalProperties" in schema:
        return "object"
    if "items" in schema or "prefixItems" in schema:
        return "array"
    return "string" if "pattern" in schema or "minLength" in schema else ""


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [ref for part in node for ref in _references(part)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
    return own + [ref for part in node.values() for ref in _references(part)]


def is_valid(schema: str, text: str) -> bool:
    """By the library `jsonschema`. Raises `NotSupported` where it is missing."""
    try:
        import jsonschema
    except ImportError:
        raise NotSupported(
            "to look at JSON afterwards, the package jsonschema is needed: pip install "
            "'lmprog[openai]'"
        ) from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return bool(jsonschema.Draft202012Validator(json.loads(schema)).is_valid(value))
