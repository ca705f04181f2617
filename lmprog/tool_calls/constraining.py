"""The constraint under which a model writes calls of tools in its own form.

Knows forms and the schemas of arguments; what a schema means is the compiler's to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lmprog import wire
from lmprog.errors import UnsupportedSchema
from lmprog.tool_calls.harmony import harmony_calls, harmony_turn
from lmprog.tool_calls.lexemes import is_tag, lexemes
from lmprog.tool_calls.stream import mark_of
from lmprog.tool_calls.writing import as_json

MOST_CALLS = 16
"""In one constrained answer."""
_MOST_OPTIONAL = 24
"""Optional arguments of a tool that a constraint knows, where they are not a JSON object."""
_NO_STRING = {"not": {"type": "string"}}
_ID = wire.Regex("[A-Za-z0-9]{9}")
_INDEX = wire.Regex("[1-9][0-9]?")


class ToolShape(NamedTuple):
    """A tool that may be called: its name and the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any]


def opening_of(form: wire.CallForm) -> str:
    """What every answer with calls begins with and no other: up to the last tag before the name,
    and the white space behind it. "" where the form has no tag, or may begin with a thought.
    """
    if form.harmony:
        return ""
    parts = lexemes(form.begin + form.literals[0])
    tags = [place for place, lexeme in enumerate(parts) if is_tag(lexeme)]
    if not tags:
        return ""
    last = tags[-1]
    while last + 1 < len(parts) and parts[last + 1].isspace():
        last += 1
    return "".join(parts[: last + 1])


def opening_of_named(form: wire.CallForm, name: str, id_: str) -> str:
    """Everything before the arguments of the one call of this tool."""
    values = {"name": name, "id": id_, "index": "0"}
    text = form.begin + form.literals[0]
    for slot, literal in zip(form.slots, form.literals[1:], strict=True):
        if slot == "arguments":
            break
        text += values[slot] + literal
    return text


def calls_constraint(
    form: wire.CallForm, tools: Sequence[ToolShape], many: bool, written: str = ""
) -> wire.Constraint:
    """An answer that calls one of `tools`, or, with `many`, several in a row. `written` is the
    beginning that already stands there.
    """
    if form.harmony:
        return harmony_calls([(tool.name, arguments_constraint(form, tool)) for tool in tools])
    first = wire.AnyOf(tuple(_call(form, tool, None) for tool in tools))
    parts: list[wire.Constraint] = [first]
    if many and form.is_parallel:
        further = wire.AnyOf(tuple(_call(form, tool, _INDEX) for tool in tools))
        whole = wire.InOrder((*_texts(form.between + form.literals[0]), further))
        parts.append(wire.Repeated(whole, 0, MOST_CALLS - 1))
    opening = (form.begin + form.literals[0]).removeprefix(written)
    return wire.InOrder((*_texts(opening), *parts, *_texts(form.end)))


def free_or_calls(form: wire.CallForm, tools: Sequence[ToolShape], many: bool) -> wire.Constraint:
    """Any text, in which nothing but calls of `tools` follows once one has begun. Calls that begin
    without a tag are told from other text by the beginning of the answer.
    """
    if form.harmony:
        return harmony_turn([(tool.name, arguments_constraint(form, tool)) for tool in tools])
    mark = mark_of(form)
    if mark.only_at_start:
        openings = [mark.text] if mark.text else [one.name + form.literals[1] for one in tools]
        words = [[one for one in lexemes(text) if not one.isspace()] for text in openings]
        other = wire.Regex(f"(?s){_beginning_with_none(words)}")
        return wire.AnyOf((other, calls_constraint(form, tools, many)))
    opening = form.begin + form.literals[0]
    written = opening[: len(opening) - len(opening.lstrip())] + mark.text
    calls = calls_constraint(form, tools, many, written)
    free = wire.FreeText((mark.text,))
    return wire.AnyOf((free, wire.InOrder((wire.FreeText((mark.text,), mark.text), calls))))


def _beginning_with_none(openings: Sequence[Sequence[str]]) -> str:
    """A pattern of the texts that begin with none of these sequences of words, between which, and
    before which, there may be white space.
    """
    rests: dict[str, list[Sequence[str]]] = {}
    for word, *more in openings:
        rest = [word[1:], *more] if len(word) > 1 else more
        rests.setdefault(word[0], []).append(rest)
    firsts = "".join(map(re.escape, rests))
    ways = [rf"[^\s{firsts}].*"]
    for char, left in rests.items():
        if all(left):
            ways.append(re.escape(char) + _beginning_with_none(left))
    return rf"\s*(?:{'|'.join(ways)})?"


def arguments_constraint(form: wire.CallForm, tool: ToolShape) -> wire.Constraint:
    if form.keyed is None:
        return wire.JsonSchema(as_json(tool.parameters))
    return _Keyed(form.keyed, tool.parameters).all()


def _texts(*texts: str) -> tuple[wire.Constraint, ...]:
    return tuple(wire.Choices((text,)) for text in texts if text)


def _call(form: wire.CallForm, tool: ToolShape, index: wire.Constraint | None) -> wire.Constraint:
    """One call, without its first literal. The first call's index is 0."""
    parts: list[wire.Constraint] = []
    for slot, literal in zip(form.slots, form.literals[1:], strict=True):
        match slot:
            case "name":
                parts += _texts(tool.name)
            case "arguments":
                parts.append(arguments_constraint(form, tool))
            case "id":
                parts.append(_ID)
            case "index":
                parts += [index] if index is not None else _texts("0")
        parts += _texts(literal)
    return wire.InOrder(tuple(parts))


_OF_OBJECTS = frozenset([
    "patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentRequired",
    "dependencies", "dependentSchemas", "allOf", "anyOf", "oneOf", "not", "if", "then", "else",
    "enum", "const", "$ref", "$dynamicRef",
])  # fmt: skip
"""What says more of an object than what its properties are."""
_ANY_STRING = frozenset(["type", "title", "description", "default", "examples"])
_UNLIKE_JSON = {
    "allOf": [
        {"pattern": "^(?:$|[^\\s0-9+.\"'\\[({-])"},
        {"not": {"pattern": "^(?:true|false|null|None|True|False)(?:[^A-Za-z0-9_]|$)"}},
        {"not": {"pattern": "^[A-Za-z][A-Za-z]?[\"']"}},
    ]
}
"""Strings that no reader takes for JSON, or for Python's spelling of it."""


class _Keyed:
    """Arguments one by one, in the order of the schema's properties."""

    def __init__(self, keyed: wire.KeyedArguments, schema: Mapping[str, Any]) -> None:
        self._keyed = keyed
        self._schema = schema

    def all(self) -> wire.Constraint:
        """Raises UnsupportedSchema for what says more of an object than its properties."""
        schema = self._resolved(self._schema)
        for choice in ("anyOf", "oneOf"):
            if choice in schema and "properties" not in schema:
                shared = {name: value for name, value in schema.items() if name != choice}
                options = [{**shared, **self._resolved(one)} for one in schema[choice]]
                return wire.AnyOf(tuple(_Keyed(self._keyed, one).all() for one in options))
        wrong = next((name for name in schema if name in _OF_OBJECTS), None)
        if wrong is not None:
            raise UnsupportedSchema(
                f"{wrong} at #/{wrong}: this model writes arguments one by one, of which a schema "
                "may say their own schemas and which are required",
                keyword=wrong,
                path=f"#/{wrong}",
            )
        required = [name for name in schema.get("required") or () if isinstance(name, str)]
        further = schema.get("additionalProperties", True)
        properties = {**dict.fromkeys(required, further), **(schema.get("properties") or {})}
        if not properties:
            is_none = further is False or schema.get("properties") == {}
            return wire.InOrder(()) if is_none else self._any()
        free = [name for name in properties if name not in required][:_MOST_OPTIONAL]
        names = [name for name in properties if name in required or name in free]
        parts = [(self._argument(name, properties[name]), name in required) for name in names]
        return self._from(parts, started=False)

    def _from(
        self, parts: Sequence[tuple[wire.Constraint, bool]], started: bool
    ) -> wire.Constraint:
        """The arguments `parts`, each with whether it must be there, after others or as first."""
        between = _texts(self._keyed.between)
        if started or not between:
            made = [wire.InOrder((*between, part)) if started else part for part, _ in parts]
            return wire.InOrder(
                tuple(
                    part if must else wire.Repeated(part, 0, 1)
                    for part, (_, must) in zip(made, parts, strict=True)
                )
            )
        options: list[wire.Constraint] = []
        for place, (part, must) in enumerate(parts):
            options.append(wire.InOrder((part, self._from(parts[place + 1 :], started=True))))
            if must:
                return wire.AnyOf(tuple(options))
        return wire.AnyOf((*options, wire.InOrder(())))

    def _any(self) -> wire.Constraint:
        """Any arguments, of a tool that does not name them."""
        key = wire.Regex(r"[A-Za-z_]\w*")
        one = wire.AnyOf((self._string(key, {}), self._other(key, _NO_STRING)))
        more = wire.Repeated(wire.InOrder((*_texts(self._keyed.between), one)), 0, None)
        return wire.Repeated(wire.InOrder((one, more)), 0, 1)

    def _argument(self, name: str, schema: Any) -> wire.Constraint:
        key = wire.Choices((name,))
        if schema is False:
            return wire.JsonSchema("false")
        about = self._resolved(schema)
        is_told = self._keyed.string != self._keyed.other
        is_told |= isinstance(schema, dict) and schema.get("type") == "string"
        kind = about.get("type")
        if kind == "string":
            return self._string(key, about, is_told)
        if isinstance(kind, str) or _has_only(about, int | float | bool | None):
            return self._other(key, about)
        rest = {"allOf": [about, {"not": {"type": "string"}}]} if about else _NO_STRING
        return wire.AnyOf((self._string(key, about, is_told), self._other(key, rest)))

    def _resolved(self, schema: Any) -> dict[str, Any]:
        """An argument's schema as a document of its own."""
        about = schema if isinstance(schema, dict) else {}
        target = re.fullmatch(r"#/(\$defs|definitions)/([^/]+)", str(about.get("$ref", "")))
        if target is not None:
            found = (self._schema.get(target[1]) or {}).get(target[2])
            about = found if isinstance(found, dict) else about
        shared = {
            name: self._schema[name] for name in ("$defs", "definitions") if name in self._schema
        }
        return {**about, **shared} if '"$ref"' in as_json(about) else about

    def _string(
        self, key: wire.Constraint, about: Mapping[str, Any], is_told: bool = True
    ) -> wire.Constraint:
        """A string argument. Unless it `is_told` from other values, it is none that is like one."""
        around, limits = self._keyed.string, [about, {"type": "string"}]
        limits += [] if is_told else [_UNLIKE_JSON]
        limits = [one for one in limits if one]
        schema = as_json(_shared(about) | {"allOf": limits})
        if self._keyed.quoted:
            inner: wire.Constraint = wire.JsonSchema(schema)
            before, after = around.before_value[:-1], around.after_value[1:]
            value: tuple[wire.Constraint, ...] = (inner, *_texts(after))
        elif is_told and around.after_value and _ANY_STRING.issuperset(about):
            before, value = around.before_value, (wire.FreeText(end=around.after_value),)
        else:
            before, end = around.before_value, around.after_value
            value = (wire.PlainStrings(schema, end or "\n"), *_texts(end))
        return wire.InOrder((*_texts(around.before_key), key, *_texts(before), *value))

    def _other(self, key: wire.Constraint, about: Mapping[str, Any]) -> wire.Constraint:
        around = self._keyed.other
        return wire.InOrder(
            (
                *_texts(around.before_key),
                key,
                *_texts(around.before_value),
                wire.JsonSchema(as_json(about)),
                *_texts(around.after_value),
            )
        )


def _has_only(about: Mapping[str, Any], kind: Any) -> bool:
    """Whether the schema lists its values, all of this kind."""
    values = about.get("enum", [about["const"]] if "const" in about else [])
    return bool(values) and all(isinstance(value, kind) for value in values)


def _shared(about: Mapping[str, Any]) -> dict[str, Any]:
    """What references in a schema point to, which stays where it is."""
    return {name: about[name] for name in ("$defs", "definitions") if name in about}
