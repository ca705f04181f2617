"""Tools: how they are told to the model, how it is made to call them, how a call is read out of its
text.

There is one form, for every model: the system's text lists the tools between `<tools>` tags (in the
checkpoint's own words, where its template teaches this form), and a call is

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    </tool_call>

With `tool_choice` "required" or a named function the opening is written for the model and the rest
is confined to the schema of the tools' parameters, so the arguments always validate. With "auto"
the model writes what it likes, and what has this form becomes calls; nothing else does. Knows
texts; knows no branches.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from lmprog import wire
from lmprog.server.http.http_errors import refused
from lmprog.server.http.limits import LIMITS, within

BEGIN, END = "<tool_call>", "</tool_call>"
MOST_CALLS = 16
"""In one answer of `required` with parallel calls."""


class FunctionTool(msgspec.Struct):
    name: Annotated[str, within("name")]
    description: Annotated[str, within("description")] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    type: str
    function: FunctionTool | None = None


class NamedFunction(msgspec.Struct):
    name: Annotated[str, within("name")]


class NamedTool(msgspec.Struct):
    function: NamedFunction | None = None
    type: str = "function"


@dataclass(frozen=True, slots=True)
class ParsedCall:
    name: str
    arguments: str
    """JSON text."""


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What a request says about tools, decided."""

    choice: Literal["none", "auto", "required", "named"] = "none"
    tools: tuple[FunctionTool, ...] = ()
    parallel: bool = True

    @property
    def text(self) -> str:
        """For the system; "" where no tool is to be used."""
        return "" if self.choice == "none" else text_of(self.told)

    @property
    def told(self) -> list[dict[str, Any]]:
        """The tools as a template is told of them."""
        return [] if self.choice == "none" else [_described(tool) for tool in self.tools]

    @property
    def opening(self) -> str:
        """What is written for the model before it begins."""
        match self.choice:
            case "required":
                return BEGIN + "\n"
            case "named":
                return f'{BEGIN}\n{{"name": {_json(self.tools[0].name)}, "arguments": '
            case _:
                return ""

    @property
    def constraint(self) -> wire.Constraint | None:
        if self.choice == "named":
            return wire.JsonSchema(_json(_parameters(self.tools[0])))
        if self.choice == "required":
            one: dict[str, Any] = {
                "anyOf": [_call_schema(tool, at) for at, tool in enumerate(self.tools)]
            }
            many = {"type": "array", "items": one, "minItems": 1, "maxItems": MOST_CALLS}
            return wire.JsonSchema(_json(many if self.parallel else one))
        return None

    @property
    def stop(self) -> tuple[str, ...]:
        """A stop text, where only one call may be made."""
        return (END,) if self.choice == "auto" and not self.parallel else ()

    def read(self, text: str) -> tuple[str, list[ParsedCall]]:
        """A whole answer: its content, and the calls in it."""
        reader = ToolCallReader(self)
        parts = [*reader.feed(text), *reader.finish()]
        content = "".join(part for part in parts if isinstance(part, str))
        return content, [part for part in parts if isinstance(part, ParsedCall)]


def toolbox(
    tools: Sequence[Tool] | None, choice: str | NamedTool | None, parallel: bool | None
) -> Toolbox:
    """Raises HttpError where the choice does not go with the tools."""
    functions = tuple(_function(tool, at) for at, tool in enumerate(tools or ()))
    names = [function.name for function in functions]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise refused(f"Two tools have the name {twice!r}.", "tools")
    if isinstance(choice, NamedTool):
        if choice.type != "function" or choice.function is None:
            raise refused(
                f"tool_choice has the type {choice.type[:60]!r}; as an object it must be "
                '{"type": "function", "function": {"name": ...}}.',
                "tool_choice",
                "invalid_value",
            )
        named = tuple(function for function in functions if function.name == choice.function.name)
        if not named:
            raise refused(
                f"tool_choice names {choice.function.name!r}, and the tools are {', '.join(names) or 'none'}.",
                "tool_choice",
            )
        return Toolbox("named", named)
    if choice not in (None, "none", "auto", "required"):
        raise refused(
            f"tool_choice is {str(choice)[:60]!r}; it must be none, auto, required, or name a function.",
            "tool_choice",
            "invalid_value",
        )
    if not functions:
        if choice in ("auto", "required"):
            raise refused(f"tool_choice is {choice!r}, and there are no tools.", "tool_choice")
        return Toolbox()
    kind: Literal["none", "auto", "required"] = choice or "auto"  # type: ignore[assignment]
    return Toolbox(kind, functions, parallel is not False)


def _described(tool: FunctionTool) -> dict[str, Any]:
    about: dict[str, Any] = {"name": tool.name}
    if tool.description:
        about["description"] = tool.description
    about["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": about}


def text_of(told: Sequence[dict[str, Any]]) -> str:
    """The system's text about the tools, for templates that have none of their own."""
    return (
        "You have these functions, each described by the JSON schema of its arguments:\n<tools>\n"
        + "\n".join(_json(tool) for tool in told)
        + "\n</tools>\n\nTo call one, write its name and arguments as a JSON object between tags, and nothing after:\n"
        + f'{BEGIN}\n{{"name": "the function", "arguments": {{"an argument": "its value"}}}}\n{END}'
    )


def called(name: str, arguments: str) -> str:
    """A call of an earlier turn, as the model would have written it."""
    return f'{BEGIN}\n{{"name": {_json(name)}, "arguments": {arguments or "{}"}}}\n{END}'


def result(text: str) -> str:
    """What a tool answered."""
    return f"<tool_response>\n{text}\n</tool_response>"


def call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class ToolCallReader:
    """Reads calls out of a text that comes in pieces: gives contents to pass on, and calls when
    they are whole.
    """

    def __init__(self, box: Toolbox) -> None:
        self._box = box
        self._names = {tool.name for tool in box.tools}
        self._held = box.opening
        """Text that may be, or is, a call, and is not decided yet."""
        self._num_calls = 0

    def feed(self, text: str) -> list[str | ParsedCall]:
        """What is certain now."""
        if self._box.choice == "none":
            return [text] if text else []
        self._held += text
        if self._box.choice != "auto":
            return []
        found: list[str | ParsedCall] = []
        while True:
            begin = self._held.find(BEGIN)
            end = self._held.find(END, begin + len(BEGIN)) if begin >= 0 else -1
            if end < 0:
                break
            found += self._block(self._held[:begin], self._held[begin : end + len(END)])
            self._held = self._held[end + len(END) :]
        keep = len(self._held) - begin if begin >= 0 else _overlap(self._held, BEGIN)
        certain = self._held[: len(self._held) - keep]
        if self._num_calls and not certain.strip():
            return found  # white space between calls is nobody's content
        self._held = self._held[len(certain) :]
        return [*found, certain] if certain else found

    def finish(self) -> list[str | ParsedCall]:
        """The text has ended: what is held is a call, or it is content after all."""
        held, self._held = self._held, ""
        if self._box.choice == "named":
            return [ParsedCall(self._box.tools[0].name, held.removeprefix(self._box.opening))]
        if self._box.choice == "required" or (
            held.lstrip().startswith(BEGIN) and not self._num_calls
        ):
            calls = self._calls(held.strip().removeprefix(BEGIN))
            if calls:
                return list(calls)
        return [] if self._num_calls and not held.strip() else [held] if held else []

    def _block(self, before: str, block: str) -> list[str | ParsedCall]:
        calls = self._calls(block.removeprefix(BEGIN).removesuffix(END))
        if not calls:
            return [before + block]
        self._num_calls += len(calls)
        return [before.rstrip(), *calls] if before.strip() else list(calls)

    def _calls(self, text: str) -> list[ParsedCall]:
        """The calls that a block holds; none where it is not JSON of the form, or names no tool."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return []
        values = value if isinstance(value, list) else [value]
        for one in values:
            if not (
                isinstance(one, dict)
                and one.get("name") in self._names
                and isinstance(one.get("arguments"), dict)
            ):
                return []
        return [ParsedCall(one["name"], _json(one["arguments"])) for one in values]


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`."""
    return next(
        (
            size
            for size in range(min(len(text), len(mark) - 1), 0, -1)
            if text.endswith(mark[:size])
        ),
        0,
    )


def _function(tool: Tool, at: int) -> FunctionTool:
    if tool.type != "function":
        raise refused(
            f"tools[{at}].type is {tool.type[:60]!r}; only tools of the type 'function' are supported.",
            f"tools[{at}].type",
            "not_supported",
        )
    if tool.function is None:
        raise refused(f"tools[{at}].function is missing.", f"tools[{at}].function", "invalid_value")
    size = len(_json(tool.function.parameters or {}))
    if size > LIMITS["schema"].maximum:
        raise refused(
            f"tools[{at}].function.parameters has {size:,} characters as JSON; it may have {LIMITS['schema'].words()}.",
            f"tools[{at}].function.parameters",
            "invalid_value",
        )
    return tool.function


def _parameters(tool: FunctionTool) -> dict[str, Any]:
    """The schema of the arguments: an object, and an empty one where no parameters are named, as
    OpenAI has it.
    """
    if tool.parameters is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    given = tool.parameters
    return (
        given
        if "type" in given or "$ref" in given or "anyOf" in given
        else {"type": "object", **given}
    )


def _call_schema(tool: FunctionTool, at: int) -> dict[str, Any]:
    """One whole call. The parameters stay a document of their own, so that `#/$defs/...` in them
    leads where it did.
    """
    parameters = _parameters(tool)
    if "$id" not in parameters and '"$ref"' in _json(parameters):
        parameters = {"$id": f"urn:lmprog:tool:{at}", **parameters}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _json(value: Any) -> str:
    """As models write it: a space after comma and colon."""
    return json.dumps(value, ensure_ascii=False)
