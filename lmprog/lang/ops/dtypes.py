"""SGLang's keyword `dtype`: a type, or its name.

Knows names of types; does not know what confines a text to one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lmprog.errors import InvalidParameter

QUOTED = r'"([^"\\\x00-\x1f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
"""A string in double quotes, with any characters that JSON allows."""
_NAMES = {
    **dict.fromkeys(("str", "string"), str),
    **dict.fromkeys(("int", "integer"), int),
    **dict.fromkeys(("float", "number"), float),
    **dict.fromkeys(("bool", "boolean"), bool),
}


def dtype_of(options: dict[str, Any], constraints: Iterable[str]) -> object:
    """The type that the option `dtype` asks for, which it takes away; `str` without one.

    As in SGLang `dtype=str` is a string in double quotes, unless one of `constraints` is given.
    """
    given = options.pop("dtype", None)
    if isinstance(given, str) and given not in _NAMES:
        allowed = f"a type, or one of {', '.join(_NAMES)}"
        raise InvalidParameter(
            f"dtype={given!r} is not allowed; give dtype as {allowed}",
            name="dtype",
            value=given,
            allowed=allowed,
        )
    tp = _NAMES[given] if isinstance(given, str) else given
    if tp is str and not any(options.get(name) for name in constraints):
        options["regex"] = QUOTED
    return str if tp is None else tp
