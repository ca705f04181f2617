"""Structural tags as SGLang, vLLM and XGrammar write them, read into a constraint.

The text is free; where a trigger occurs in it, one of the tags that begin with the trigger begins,
whose content is confined up to the tag's end. Knows JSON values; knows no requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lmprog import wire
from lmprog.tool_calls.constraining import ToolShape, arguments_constraint
from lmprog.wire import (
    AnyOf,
    Choices,
    Constraint,
    FreeText,
    Grammar,
    InOrder,
    JsonSchema,
    KeyedArguments,
    KeyedValue,
    Regex,
    Repeated,
)

_MOST_TAGS = 1024
_DEEPEST = 20
"""Formats within formats."""


class TagError(ValueError):
    """What is wrong, and the field of the structural tag that is wrong."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


def structural_tag(given: Mapping[str, Any] | str) -> Constraint:
    """The constraint of `{"structures": [...], "triggers": [...]}` or `{"format": {...}}`. Raises
    TagError.
    """
    value: Any = given
    if isinstance(given, str):
        try:
            value = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise TagError(f"must be JSON: {error}", "") from error
    if not isinstance(value, Mapping):
        raise TagError("must be an object", "")
    if value.get("type", "structural_tag") != "structural_tag":
        raise TagError('must be "structural_tag"', "type")
    if "format" in value:
        _only(value, "", ("type", "format"))
        return _format(value["format"], "format", 0)
    _only(value, "", ("type", "structures", "triggers"))
    tags = [
        _tag(one, at, _JSON_ONLY, 0) for at, one in _objects(value.get("structures"), "structures")
    ]
    return _triggered(tags, _texts(value.get("triggers"), "triggers"), "triggers")


_JSON_ONLY = ("begin", "schema", "end")
_TAG = ("type", "begin", "content", "end")


def _format(given: Any, at: str, depth: int) -> Constraint:
    if depth > _DEEPEST:
        raise TagError(f"formats nest deeper than {_DEEPEST}", at)
    if not isinstance(given, Mapping):
        raise TagError("must be an object", at)
    match given.get("type"):
        case "json_schema":
            _only(given, at, ("type", "json_schema", "style", "any_order"))
            return _styled(given, at, given.get("style", "json"))
        case "qwen_xml_parameter":
            _only(given, at, ("type", "json_schema", "any_order"))
            return _styled(given, at, "qwen_xml")
        case "grammar":
            _only(given, at, ("type", "grammar"))
            return Grammar(_text(given.get("grammar"), f"{at}.grammar"))
        case "token":
            _only(given, at, ("type", "token"))
            return Choices((_text(given.get("token"), f"{at}.token"),))
        case "optional" | "star" | "plus" | "repeat" as kind:
            return _repeated(given, at, kind, depth)
        case "regex":
            _only(given, at, ("type", "pattern"))
            return Regex(_text(given.get("pattern"), f"{at}.pattern"))
        case "const_string":
            _only(given, at, ("type", "value"))
            return Choices((_text(given.get("value"), f"{at}.value"),))
        case "any_text":
            _only(given, at, ("type", "excludes"))
            return FreeText(_texts(given.get("excludes", []), f"{at}.excludes"))
        case "sequence" | "or" as kind:
            _only(given, at, ("type", "elements"))
            parts = [
                _format(one, where, depth + 1)
                for where, one in _objects(given.get("elements"), f"{at}.elements")
            ]
            return InOrder(tuple(parts)) if kind == "sequence" else AnyOf(tuple(parts))
        case "tag":
            begin, rest = _tag(given, at, _TAG, depth)
            return InOrder((*_literal(begin), rest))
        case "triggered_tags":
            return _triggered_format(given, at, depth)
        case "tags_with_separator":
            return _separated(given, at, depth)
    raise TagError(
        f"unknown type {str(given.get('type'))[:40]!r}; valid: any_text, const_string, grammar, "
        "json_schema, optional, or, plus, qwen_xml_parameter, regex, repeat, sequence, star, tag, "
        "tags_with_separator, token, triggered_tags",
        f"{at}.type",
    )


_ROUNDS: Mapping[str, tuple[int, int | None]] = {
    "optional": (0, 1),
    "star": (0, None),
    "plus": (1, None),
}
_MOST_ROUNDS = 1_000_000


def _repeated(given: Mapping[str, Any], at: str, kind: str, depth: int) -> Constraint:
    bounds = ("min", "max") if kind == "repeat" else ()
    _only(given, at, ("type", "content", *bounds))
    low, high = _ROUNDS.get(kind, (0, None))
    if kind == "repeat":
        low, most = (_count(given.get(name), f"{at}.{name}") for name in bounds)
        high = None if most < 0 else most
        if low < 0 or (high is not None and high < low):
            raise TagError("must be at least 0, and max at least min, or -1", f"{at}.min")
    return Repeated(_format(given.get("content"), f"{at}.content", depth + 1), low, high)


def _count(given: Any, at: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not -1 <= given <= _MOST_ROUNDS:
        raise TagError(f"must be an integer up to {_MOST_ROUNDS:,}", at)
    return given


def _keyed(before_key: str, before_value: str, after_value: str) -> KeyedArguments:
    """Strings as they are and all else as JSON, in the same tags."""
    around = KeyedValue(before_key, before_value, after_value)
    return KeyedArguments(around, around)


_STYLES = {
    "qwen_xml": _keyed("<parameter=", ">", "</parameter>"),
    "minimax_xml": _keyed('<parameter name="', '">', "</parameter>"),
    "glm_xml": _keyed("<arg_key>", "</arg_key><arg_value>", "</arg_value>"),
}


def _styled(given: Mapping[str, Any], at: str, style: Any) -> Constraint:
    """A value of the schema: JSON, or an object whose properties are tags one after the other, in
    the schema's order.
    """
    schema = _schema(given.get("json_schema"), f"{at}.json_schema")
    any_order = _flag(given, "any_order", at)
    if style == "json":
        return JsonSchema(schema.schema, any_order=any_order)
    keyed = _STYLES.get(style) if isinstance(style, str) else None
    if keyed is None:
        raise TagError(f"must be json, {', '.join(_STYLES)}", f"{at}.style")
    form = wire.CallForm(("", "", ""), ("name", "arguments"), keyed=keyed)
    shape = ToolShape("", json.loads(schema.schema) if schema.schema[0] == "{" else {})
    return arguments_constraint(form, shape)


def _tag(
    given: Mapping[str, Any], at: str, names: Sequence[str], depth: int
) -> tuple[str, Constraint]:
    """How a tag begins, and what is confined after that, its end included."""
    _only(given, at, names)
    begin = _text(_token_of(given.get("begin")), f"{at}.begin")
    ends = given.get("end")
    if isinstance(ends, list) and len(ends) == 1:
        ends = ends[0]
    end = _text(_token_of(ends), f"{at}.end", 0)
    if "schema" in names:
        content: Constraint = _schema(given.get("schema"), f"{at}.schema")
    else:
        content = _format(given.get("content"), f"{at}.content", depth + 1)
    if isinstance(content, FreeText) and content.end is None:
        if not end:
            raise TagError("must not be empty after any_text", f"{at}.end")
        return begin, FreeText(content.avoided, end)
    return begin, InOrder((content, *_literal(end)))


def _token_of(given: Any) -> Any:
    """The text of a tag that is given as a token."""
    is_token = isinstance(given, Mapping) and given.get("type") == "token"
    return given.get("token") if is_token else given


def _triggered_format(given: Mapping[str, Any], at: str, depth: int) -> Constraint:
    flags = ("at_least_one", "stop_after_first")
    _only(given, at, ("type", "triggers", "tags", "excludes", *flags))
    at_least_one, once = (_flag(given, name, at) for name in flags)
    tags = [
        _tag(one, where, _TAG, depth) for where, one in _objects(given.get("tags"), f"{at}.tags")
    ]
    excludes = _texts(given.get("excludes", []), f"{at}.excludes")
    triggers = _texts(given.get("triggers"), f"{at}.triggers")
    return _triggered(tags, triggers, f"{at}.triggers", at_least_one, once, excludes)


def _triggered(
    tags: list[tuple[str, Constraint]],
    triggers: tuple[str, ...],
    at: str,
    at_least_one: bool = False,
    once: bool = False,
    excludes: tuple[str, ...] = (),
) -> Constraint:
    """Free text with tags in it: `at_least_one` of them, or at most `once`, with nothing behind."""
    if not triggers:
        raise TagError("must be a list of at least one text", at)
    for begin, _ in tags:
        if not any(begin.startswith(trigger) for trigger in triggers):
            raise TagError(f"no trigger is a beginning of the tag {begin[:80]!r}", at)
    watched = (*triggers, *excludes)
    regions: list[Constraint] = []
    for trigger in triggers:
        here = [
            InOrder((*_literal(begin[len(trigger) :]), rest))
            for begin, rest in tags
            if begin.startswith(trigger)
        ]
        if not here:
            raise TagError(f"no tag begins with the trigger {trigger[:80]!r}", at)
        regions.append(InOrder((FreeText(watched, trigger), AnyOf(tuple(here)))))
    tagged, free = AnyOf(tuple(regions)), FreeText(watched)
    if once:
        return tagged if at_least_one else AnyOf((tagged, free))
    return InOrder((Repeated(tagged, int(at_least_one), None), free))


def _separated(given: Mapping[str, Any], at: str, depth: int) -> Constraint:
    flags = ("at_least_one", "stop_after_first")
    _only(given, at, ("type", "tags", "separator", *flags))
    at_least_one, once = (_flag(given, name, at) for name in flags)
    tags = [
        _tag(one, where, _TAG, depth) for where, one in _objects(given.get("tags"), f"{at}.tags")
    ]
    one = AnyOf(tuple(InOrder((*_literal(begin), rest)) for begin, rest in tags))
    between = _literal(_text(given.get("separator"), f"{at}.separator", 0))
    more = Repeated(InOrder((*between, one)), 0, 0 if once else None)
    return Repeated(InOrder((one, more)), int(at_least_one), 1)


def _literal(text: str) -> tuple[Constraint, ...]:
    return (Choices((text,)),) if text else ()


def _schema(given: Any, at: str) -> JsonSchema:
    if not isinstance(given, dict | bool):
        raise TagError("must be a JSON schema", at)
    return JsonSchema(json.dumps(given, ensure_ascii=False))


def _text(given: Any, at: str, least: int = 1) -> str:
    if not isinstance(given, str) or len(given) < least:
        raise TagError("must be a text" + " that is not empty" * (least > 0), at)
    return given


def _texts(given: Any, at: str) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or len(given) > _MOST_TAGS:
        raise TagError(f"must be a list of at most {_MOST_TAGS} texts", at)
    return tuple(_text(one, f"{at}[{place}]") for place, one in enumerate(given))


def _objects(given: Any, at: str) -> list[tuple[str, Mapping[str, Any]]]:
    if not isinstance(given, list | tuple) or not 0 < len(given) <= _MOST_TAGS:
        raise TagError(f"must be a list of 1 to {_MOST_TAGS} objects", at)
    for place, one in enumerate(given):
        if not isinstance(one, Mapping):
            raise TagError("must be an object", f"{at}[{place}]")
    return [(f"{at}[{place}]", one) for place, one in enumerate(given)]


def _flag(given: Mapping[str, Any], name: str, at: str) -> bool:
    found = given.get(name, False)
    if not isinstance(found, bool):
        raise TagError("must be a boolean", f"{at}.{name}")
    return found


def _only(given: Mapping[str, Any], at: str, names: Sequence[str]) -> None:
    unknown = next((str(name) for name in given if name not in names), None)
    if unknown is not None:
        place = f"{at}.{unknown[:60]}" if at else unknown[:60]
        raise TagError(f"unknown field; valid: {', '.join(names)}", place)
