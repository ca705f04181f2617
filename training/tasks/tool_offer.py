"""A tool as it is offered in one document, and a use of it. Knows no forms of calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from training.draw import Draw

JsonValue = str | int | bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument: its name, and its JSON schema."""

    key: str
    schema: dict[str, object]


@dataclass(frozen=True, slots=True)
class Use:
    """A request for a tool: what is asked, the arguments, what the tool returns, what is then said."""

    request: str
    arguments: dict[str, JsonValue]
    result: str
    reply: str


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as it is offered in one document. `use` draws a request for it."""

    name: str
    about: str
    parameters: tuple[Parameter, ...]
    use: Callable[[Draw], Use]

    @property
    def schema(self) -> dict[str, object]:
        """The JSON schema of the arguments, as the language writes it."""
        return {
            "type": "object",
            "properties": {parameter.key: parameter.schema for parameter in self.parameters},
            "required": [parameter.key for parameter in self.parameters],
            "additionalProperties": False,
        }
