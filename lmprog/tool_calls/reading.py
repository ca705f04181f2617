"""Reads calls of tools out of a whole text in a model's form. The twin of `writing.py`.

Models are not held to the form where they are free, so white space in literals may differ, and in
calls that are one JSON object the order of the fields. `stream.py` reads texts that come in
pieces.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from lmprog import wire
from lmprog.tool_calls.lexemes import lexemes
from lmprog.tool_calls.writing import as_json

_DECODER = json.JSONDecoder()
_NAME = re.compile(r"[\w.\-/]+")
_WORD = re.compile(r"[\w.\-:]+")

Parameters = Mapping[str, Mapping[str, Any]]
"""The schema of each tool's arguments, by the tool's name."""

MALFORMED = "this call cannot be read: it is cut, or not in its form; write it whole"


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call that was read."""

    name: str
    arguments: str
    """JSON text."""
    id: str = ""
    problem: str = ""
    """Why this is not a valid call; `arguments` is then the text of the attempt."""


class _Read(NamedTuple):
    """A call and where it ends."""

    call: ParsedCall
    end: int


class _JsonCall(NamedTuple):
    """A call that is one JSON object: the text before it, its fields, the text behind it."""

    before: str
    name: str
    arguments: str
    id: str | None
    after: str


def read_call(
    form: wire.CallForm, text: str, at: int, tools: Parameters
) -> tuple[ParsedCall, int] | None:
    """The call that begins at `at`, and where it ends. None where there is none of these tools."""
    read = read_any_call(form, text, at, tools)
    return None if read is None or read[0].name not in tools else read


def read_any_call(
    form: wire.CallForm, text: str, at: int, tools: Parameters, tags: Collection[int] = ()
) -> tuple[ParsedCall, int] | None:
    """The same, also of a tool that is none of these. `tags`: where in the text tags begin that
    are in no argument; one with such a tag in it is none.
    """
    shape = _json_shape(form)
    read = (
        _read_slots(form, text, at, tools, tags)
        if shape is None
        else _read_object(shape, text, at, tags)
    )
    return None if read is None else (read.call, read.end)


def begins_call(form: wire.CallForm, text: str, at: int) -> bool:
    """Whether the form is there up to where its values begin, whatever comes then."""
    shape = _json_shape(form)
    if shape is not None:
        begin = match_literal(shape.before, text, at)
        return begin is not None and text.startswith("{", begin)
    begin = match_literal(form.literals[0], text, at)
    return begin is not None and _NAME.match(text, begin) is not None


def calls_in(form: wire.CallForm, text: str, tools: Parameters) -> list[ParsedCall]:
    """All calls of a text that consists only of calls; an empty list for any other text."""
    at = match_literal(form.begin, text, 0)
    found: list[ParsedCall] = []
    while at is not None:
        read = read_call(form, text, at, tools)
        if read is None:
            return []
        call, at = read
        found.append(call)
        end = match_literal(form.end, text, at)
        if end is not None and not text[end:].strip():
            return found
        at = match_literal(form.between, text, at)
    return []


def arguments_in(form: wire.CallForm, text: str, schema: Mapping[str, Any]) -> str:
    """The JSON text of arguments that a text is, as far as it goes."""
    if form.keyed is None:
        return text
    return _keyed_arguments(form.keyed, text, 0, schema)[0]


def match_literal(literal: str, text: str, at: int) -> int | None:
    """Where the literal that begins at `at` ends; white space in it and around it may differ."""
    found = _loose(literal).match(text, at)
    return None if found is None else found.end()


@functools.lru_cache(maxsize=256)
def _loose(literal: str) -> re.Pattern[str]:
    words = [re.escape(lexeme) for lexeme in lexemes(literal) if not lexeme.isspace()]
    return re.compile(r"\s*" + r"\s*".join(words) + r"\s*" if words else r"\s*")


@functools.lru_cache(maxsize=64)
def _json_shape(form: wire.CallForm) -> _JsonCall | None:
    """The form as a JSON object with the name and the arguments in fields, where it is one."""
    if form.keyed is not None or "index" in form.slots:
        return None
    marks = {"name": '"', "arguments": "", "id": '"'}
    sample = {"name": "n", "arguments": "1", "id": "i"}
    before, brace, first = form.literals[0].rpartition("{")
    last, closing, after = form.literals[-1].partition("}")
    if not (brace and closing):
        return None
    parts = [brace + first]
    for slot, literal in zip(form.slots, (*form.literals[1:-1], last + closing), strict=True):
        if not parts[-1].rstrip().endswith(marks[slot] or ":"):
            return None
        parts += [sample[slot], literal]
    try:
        value = json.loads("".join(parts))
    except ValueError:
        return None
    fields = {content: key for key, content in value.items() if content in ("n", 1, "i")}
    if len(fields) != len(form.slots):
        return None
    return _JsonCall(before, fields["n"], fields[1], fields.get("i"), after)


def _read_object(shape: _JsonCall, text: str, at: int, tags: Collection[int]) -> _Read | None:
    begin = match_literal(shape.before, text, at)
    if begin is None:
        return None
    try:
        value, end = _DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or _has_tag(tags, begin, end):
        return None
    name, arguments = value.get(shape.name), _object(value.get(shape.arguments))
    if not isinstance(name, str) or arguments is None:
        return None
    after = match_literal(shape.after, text, end)
    if after is None:
        return None
    id_ = value.get(shape.id) if shape.id else None
    return _Read(ParsedCall(name, as_json(arguments), id_ if isinstance(id_, str) else ""), after)


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is, white space around it aside; None where it is none."""
    return _object(text)


def _object(value: Any) -> dict[str, Any] | None:
    """Arguments as a JSON object; models also write one as a JSON string."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _has_tag(tags: Collection[int], begin: int, end: int) -> bool:
    return any(begin <= tag < end for tag in tags)


def _read_slots(
    form: wire.CallForm, text: str, at: int, tools: Parameters, tags: Collection[int]
) -> _Read | None:
    """Literal by literal."""
    name, id_, arguments = "", "", "{}"
    place = match_literal(form.literals[0], text, at)
    for slot, literal in zip(form.slots, form.literals[1:], strict=True):
        if place is None:
            return None
        if slot == "arguments":
            got = (
                _json_arguments(text, place)
                if form.keyed is None
                else _keyed_arguments(form.keyed, text, place, tools.get(name, {}), tags)
            )
            if got is None or (form.keyed is None and _has_tag(tags, place, got[1])):
                return None
            arguments, place = got
        else:
            word = (_NAME if slot == "name" else _WORD).match(text, place)
            if word is None:
                return None
            place = word.end()
            if slot == "name":
                name = word[0]
            elif slot == "id":
                id_ = word[0]
        place = match_literal(literal, text, place)
    return None if place is None else _Read(ParsedCall(name, arguments, id_), place)


def _json_arguments(text: str, at: int) -> tuple[str, int] | None:
    try:
        value, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None
    arguments = _object(value)
    return None if arguments is None else (as_json(arguments), end)


def _keyed_arguments(
    keyed: wire.KeyedArguments,
    text: str,
    at: int,
    schema: Mapping[str, Any],
    tags: Collection[int] = (),
) -> tuple[str, int]:
    """Arguments until none follows."""
    found: dict[str, Any] = {}
    end = at
    while True:
        begin = end if not found else match_literal(keyed.between, text, end)
        read = None if begin is None else _keyed_argument(keyed, text, begin, schema, tags)
        if read is None:
            return as_json(found), end
        key, value, end = read
        found[key] = value


def _keyed_argument(
    keyed: wire.KeyedArguments,
    text: str,
    at: int,
    schema: Mapping[str, Any],
    tags: Collection[int],
) -> tuple[str, Any, int] | None:
    for around, is_string in ((keyed.string, True), (keyed.other, False)):
        place = match_literal(around.before_key, text, at)
        word = None if place is None else _NAME.match(text, place)
        if word is None:
            continue
        key = word[0]
        begin = _exactly(around.before_value, text, word.end())
        if begin is None:
            continue
        read: tuple[Any, int] | None
        if is_string and keyed.quoted:
            read = _quoted(around, text, begin)
        elif not is_string and around.after_value == "":
            read = _json_or_python(text, begin)
        else:
            end = text.find(around.after_value, begin)
            raw = text[begin:end]
            is_text = is_string and keyed.string != keyed.other
            value = raw if is_text or end < 0 else _typed(raw, key, schema)
            read = None if end < 0 else (value, end + len(around.after_value))
        if read is not None and not _has_tag(tags, begin, read[1] - len(around.after_value)):
            return key, *read
    return None


def _exactly(literal: str, text: str, at: int) -> int | None:
    """Where the literal ends: white space behind it is part of a value."""
    return at + len(literal) if text.startswith(literal, at) else None


def _quoted(around: wire.KeyedValue, text: str, at: int) -> tuple[str, int] | None:
    """A string in double or single quotes, the opening one of which stands before `at`."""
    try:
        value, end = _DECODER.raw_decode(text, at - 1)
    except ValueError:
        return None
    end = end - 1 + len(around.after_value)
    return (value, end) if isinstance(value, str) else None


_PYTHON = re.compile(r"True|False|None")


def _json_or_python(text: str, at: int) -> tuple[Any, int] | None:
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        found = _PYTHON.match(text, at)
        return None if found is None else (ast.literal_eval(found[0]), found.end())


def _typed(raw: str, key: str, schema: Mapping[str, Any]) -> Any:
    """A value whose form does not say its type: a string where the schema asks for one, else JSON,
    else Python's spelling of it, else the text.
    """
    properties = schema.get("properties")
    about = properties.get(key) if isinstance(properties, dict) else None
    if isinstance(about, dict) and about.get("type") == "string":
        return raw
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(raw.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            continue
        return value
    return raw
