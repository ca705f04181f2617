"""What a generated value must pass besides its type, and how often it is asked for.

Knows values and texts; knows no branches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from lmprog.errors import InvalidParameter, ValidationFailed

Check: TypeAlias = Callable[[Any], object]
"""Gives False or a text that says what is wrong, or raises ValueError or AssertionError, where a
value is not to be taken.
"""
MAX_TRIES = 16


def trying(options: dict[str, Any]) -> tuple[int, Check | None]:
    """`tries` and `check`, removed from `options`. Raises `InvalidParameter`."""
    tries, check = options.pop("tries", 1), options.pop("check", None)
    allowed = f"1 <= x <= {MAX_TRIES}"
    if not isinstance(tries, int) or isinstance(tries, bool) or not 1 <= tries <= MAX_TRIES:
        raise InvalidParameter(
            f"tries={tries!r} is not allowed; give tries as {allowed}",
            name="tries",
            value=str(tries),
            allowed=allowed,
        )
    if check is not None and not callable(check):
        raise InvalidParameter(
            f"check={check!r} is not allowed; give a function of the value",
            name="check",
            value=str(check),
            allowed="a function of the value",
        )
    if tries > 1 and options.get("n", 1) != 1:
        raise InvalidParameter(
            "tries and n cannot be combined: only one result can be asked for again",
            name="tries",
            value=str(tries),
            allowed="1 with n > 1",
        )
    return tries, check


def passed(check: Check, value: object, text: str) -> None:
    """Raises `ValidationFailed` where the value does not pass."""
    try:
        said = check(value)
    except (ValueError, AssertionError) as error:
        raise ValidationFailed(str(error) or f"{text!r} does not pass", text=text) from error
    if isinstance(said, str) and said:
        raise ValidationFailed(said, text=text)
    if said is False:
        raise ValidationFailed(f"{text!r} does not pass", text=text)
