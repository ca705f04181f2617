"""What is wrong with a field of a body, as a sentence: which field, what was sent, what is allowed.

Knows msgspec's complaints and the table of limits; reads no request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from lmprog.server.http.http_errors import HttpError, refused
from lmprog.server.http.limits import LIMITS, OPTION_OF_SPELLING, Limit

MAX_SHOWN = 60
"""Characters of a value that a message repeats."""
_AT = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_TYPES = {
    str: "str",
    bool: "bool",
    type(None): "null",
    int: "int",
    float: "float",
    dict: "object",
    list: "array",
}
"""What msgspec calls them."""
_EXPECTED = {
    "str": "a string",
    "bool": "a boolean",
    "int": "an integer",
    "float": "a number",
    "object": "an object",
    "array": "an array",
}
"""What messages call msgspec's types. null, which means that a field is left out, is not said."""


def wrong_field(said: str, value: Mapping[str, Any]) -> HttpError:
    """msgspec's complaint as a sentence: which field, what was sent, what is allowed."""
    found = _AT.search(said)
    what = said[: found.start()] if found else said
    path = _spelled(found["path"] if found else "", what, value)
    sent = _find(value, path)
    limit = _limit_of(path)
    if limit is not None and limit.unit == "items" and isinstance(sent, str):
        limit = _limit_of(f"{path}[]") or limit
    if limit is not None and (" >= " in what or " <= " in what or "length" in what):
        if "length" in what and isinstance(sent, str | list | dict):
            message = f"{path} has {len(sent):,} {limit.unit}; it may have {limit.words()}."
        else:
            message = f"{path} is {_show(sent)}; it must be {limit.words()}."
    elif what.startswith("Object missing required field"):
        name = what.rpartition("`")[0].rpartition("`")[2]
        path = f"{path}.{name}" if path else name
        message = f"{path} is missing."
    elif what.startswith("Object contains unknown field"):
        name = what.rpartition("`")[0].rpartition("`")[2]
        path = f"{path}.{name}" if path else name
        message = f"unknown field {json.dumps(path[:MAX_SHOWN])}."
    elif what.startswith("Invalid"):
        message = (
            f"{path} is {_show(sent)}, which is none of its values; docs/server.md lists them."
        )
    else:
        expected = (
            what.partition(", got")[0].removeprefix("Expected ").replace("`", "").split(" | ")
        )
        words = " or ".join(_EXPECTED.get(one, one) for one in expected if one != "null")
        message = f"{path or 'The body'} is {_show(sent)}; it must be {words}."
    return refused(message, path or None, "invalid_value")


def _limit_of(path: str) -> Limit | None:
    """`stop[3]` has the limits of `stop[]`; `a.b` those of `b`."""
    last = re.sub(r"\[[^\]]*\]", "[]", path).rpartition(".")[2]
    name, brackets, _ = last.partition("[]")
    last = OPTION_OF_SPELLING.get(name, name) + brackets
    return LIMITS.get(last) or LIMITS.get(last.replace("[]", ""))


def _spelled(path: str, what: str, value: Any) -> str:
    """The path with the key of the object's value that is wrong, where msgspec says `[...]` for
    it.
    """
    before, dots, after = path.partition("[...]")
    inside = _find(value, before)
    if not dots or not isinstance(inside, dict):
        return path
    limit = _limit_of(f"{before}[]")
    for key, one in inside.items():
        is_number = isinstance(one, int | float) and not isinstance(one, bool)
        beyond = is_number and limit is not None and not limit.minimum <= one <= limit.maximum
        if beyond or what.endswith(f"got `{_TYPES.get(type(one))}`"):
            return f"{before}[{key[:MAX_SHOWN]}]{after}"
    return path


def _find(value: Any, path: str) -> Any:
    """The value at msgspec's path; of `[...]`, which names no key, the whole."""
    for key in re.findall(r"[^.\[\]]+", path):
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, ValueError, TypeError):
            return value
    return value


def _show(value: Any) -> str:
    if isinstance(value, dict | list):
        return kind_of(value)
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text):,} characters)"


def kind_of(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"an array of {len(value):,}"
    return {str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")
