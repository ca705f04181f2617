"""Tools: Python functions that a model may call. Their schemas come from signatures, their
descriptions from docstrings: what `Args:` says of a parameter is shown with that parameter, unless
its annotation describes it.

Knows functions and JSON; knows no forms of calls and no branches.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from lmprog.errors import InvalidParameter, ValidationFailed, not_allowed
from lmprog.lang.ops.pydantic_schemas import without_default_bounds
from lmprog.lang.ops.type_schemas import schema_of
from lmprog.lang.ops.type_schemas import value_of as value_of_json
from lmprog.lang.ops.type_values import as_json_data
from lmprog.tool_calls.constraining import ToolShape
from lmprog.tool_calls.describing import function_shape
from lmprog.wire.constraints import exact_json, exact_text

ToolFunction: TypeAlias = Callable[..., Any]
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}")
_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function with what a model is told of it."""

    function: ToolFunction
    name: str
    description: str
    types: Mapping[str, Any]
    """The type of each parameter."""
    required: tuple[str, ...]
    about: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """What is said of a parameter besides its type: a description, and its default as JSON."""

    @classmethod
    def of(cls, given: object) -> Tool:
        """The tool that a function is. Raises `InvalidParameter` for what cannot be one."""
        if isinstance(given, Tool):
            return given
        name = str(getattr(given, "__name__", given))
        if not callable(given) or isinstance(given, type) or not _NAME.fullmatch(name):
            raise not_allowed("tools", given, "a function with a name")
        types: dict[str, Any] = {}
        required: list[str] = []
        hints = typing.get_type_hints(given, include_extras=True)
        description, said = _described(inspect.getdoc(given) or "")
        about = {name: {"description": text} for name, text in said.items()}
        for parameter in inspect.signature(given).parameters.values():
            if parameter.kind not in _KINDS:
                raise not_allowed("tools", given, "a function without *args, **kwargs, or `/`")
            if parameter.name not in hints:
                raise not_allowed("tools", given, f"a type for its parameter {parameter.name!r}")
            types[parameter.name] = hints[parameter.name]
            if parameter.default is parameter.empty:
                required.append(parameter.name)
            elif parameter.default is not None:
                with contextlib.suppress(TypeError):  # JSON does not have it
                    default = as_json_data(parameter.default)
                    about.setdefault(parameter.name, {})["default"] = default
        return cls(given, name, description, types, tuple(required), about)

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of its arguments. Raises `UnsupportedSchema`."""
        definitions: dict[str, Any] = {}
        properties: dict[str, Any] = {}
        for name, tp in self.types.items():
            schema = schema_of(tp)
            definitions.update(schema.pop("$defs", {}))
            properties[name] = {**self.about.get(name, {}), **schema}
        made = {
            "type": "object",
            "properties": properties,
            "required": list(self.required),
            "additionalProperties": False,
        }
        return {**made, "$defs": definitions} if definitions else made

    @property
    def shape(self) -> ToolShape:
        return ToolShape(self.name, self.parameters)

    @property
    def described(self) -> dict[str, Any]:
        """For templates, services and texts."""
        shown = without_default_bounds(self.parameters)
        return function_shape(self.name, self.description, shown)

    def arguments_of(self, text: str) -> dict[str, Any]:
        """The arguments of a call, JSON, as values of the parameters' types. Raises
        `ValidationFailed`.
        """
        try:
            given = exact_json(text or "{}")
        except (ValueError, RecursionError) as error:
            raise ValidationFailed(f"the arguments are not JSON: {error}", text=text) from error
        if not isinstance(given, dict):
            raise ValidationFailed("the arguments are not an object", text=text)
        unknown = next((name for name in given if name not in self.types), None)
        if unknown is not None:
            valid = ", ".join(self.types) or "none"
            raise ValidationFailed(f"unknown argument {unknown!r}; valid: {valid}", text=text)
        missing = next((name for name in self.required if name not in given), None)
        if missing is not None:
            raise ValidationFailed(f"missing argument {missing!r}", text=text)
        return {name: self._value(name, given[name]) for name in given}

    def _value(self, name: str, value: Any) -> Any:
        try:
            return value_of_json(self.types[name], exact_text(value))
        except ValidationFailed as error:
            raise ValidationFailed(f"argument {name!r}: {error.message}", text=error.text) from None


def _described(doc: str) -> tuple[str, dict[str, str]]:
    """A docstring without its section `Args:`, and what that says of each parameter."""
    found = _ARGS.search(doc)
    if found is None:
        return doc, {}
    section = textwrap.dedent(found["section"])
    said = {one["name"]: " ".join(one["text"].split()) for one in _ARGUMENT.finditer(section)}
    rest = doc[: found.start()] + doc[found.end() :]
    return rest.strip(), said


_ARGS = re.compile(
    r"^(?:Args|Arguments|Parameters):[ ]*\n(?P<section>(?:[ \t]+.*(?:\n|\Z)|[ \t]*\n)*)",
    re.MULTILINE,
)
_ARGUMENT = re.compile(
    r"^\*{0,2}(?P<name>\w+)[ ]*(?:\([^\n]*?\))?:(?P<text>.*(?:\n[ \t]+.*|\n[ \t]*$)*)", re.MULTILINE
)
"""One that begins at the margin; its further lines are indented."""


@dataclass(frozen=True, slots=True)
class ToolSet:
    """The tools of one generation, and how they may be called."""

    tools: tuple[Tool, ...]
    is_required: bool = False
    is_parallel: bool = True

    @property
    def shapes(self) -> list[ToolShape]:
        return [tool.shape for tool in self.tools]

    @property
    def described(self) -> list[dict[str, Any]]:
        return [tool.described for tool in self.tools]

    def named(self, name: str) -> Tool:
        return next(tool for tool in self.tools if tool.name == name)


def tools_of(options: dict[str, Any], *, is_free: bool) -> ToolSet | None:
    """`tools`, `tool_choice` and `parallel_tool_calls`, removed from `options`. `is_free`: nothing
    else says what the text must be. Raises `InvalidParameter`.
    """
    given = options.pop("tools", None)
    choice, parallel = options.pop("tool_choice", "auto"), options.pop("parallel_tool_calls", True)
    if given is None:
        return None
    if not is_free:
        raise InvalidParameter(
            "tools cannot be combined with a type or a constraint: an answer with tools is text "
            "and calls; generate the value afterwards",
            name="tools",
            allowed="no constraint",
        )
    if choice not in ("auto", "required"):
        raise not_allowed("tool_choice", choice, "'auto' or 'required'")
    if not isinstance(parallel, bool):
        message = "parallel_tool_calls must be a boolean"
        raise InvalidParameter(message, name="parallel_tool_calls", allowed="True or False")
    return ToolSet(checked_tools(given), choice == "required", parallel)


def checked_tools(given: object) -> tuple[Tool, ...]:
    """Raises `InvalidParameter` where these are no tools, or two have one name."""
    if not isinstance(given, list | tuple) or not given:
        raise not_allowed("tools", given, "a list of functions")
    tools = tuple(Tool.of(one) for one in given)
    names = [tool.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        message = f"two tools have the name {twice!r}"
        raise InvalidParameter(message, name="tools", allowed="different names")
    return tools
