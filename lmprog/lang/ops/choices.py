"""The scoring methods of `select`, as named values. The runtime computes the scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, get_args

from lmprog import wire
from lmprog.errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class ChoiceMethod:
    """A method of comparing options; pass it as `method=` (or `choices_method=`)."""

    name: wire.SelectMethod


token_length_normalized = ChoiceMethod("token_length_normalized")
"""The mean log-probability of an option's tokens (the default)."""

greedy_token_selection = ChoiceMethod("greedy_token_selection")
"""Token by token, as greedy decoding would; a shorter option goes on with its own mean."""

unconditional_likelihood_normalized = ChoiceMethod("unconditional_likelihood_normalized")
"""The mean of log p(token | context) - log p(token): options that are likely anywhere gain nothing
from it.
"""

Method: TypeAlias = ChoiceMethod | wire.SelectMethod


def method_name(method: Method) -> wire.SelectMethod:
    """The wire's name of `method`. Raises `InvalidParameter` for an unknown one."""
    name = method.name if isinstance(method, ChoiceMethod) else method
    if name not in get_args(wire.SelectMethod):
        allowed = ", ".join(get_args(wire.SelectMethod))
        raise InvalidParameter(
            f"there is no choices method {name!r}; there are: {allowed}",
            name="method",
            value=str(name),
            allowed=allowed,
        )
    return name
