"""What a request says about tools, the constraint under which the model calls them, and the calls
in its answers.

With `tool_choice` "required" or a named function the opening is written for the model and the rest
is constrained to the model's form of calls and the schema of the tools' parameters, so the
arguments always validate. With "auto" the model writes what it likes, and what has the form becomes
calls. With "auto" and a constraint of the answer, the text is such an answer, or calls. The form of
calls is the model's own (`lmprog.tool_calls`). Knows no branches.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec

from lmprog import wire
from lmprog.errors import UnsupportedSchema
from lmprog.server.http.http_errors import refused
from lmprog.server.http.limits import LIMITS, within
from lmprog.server.options.server_settings import Confines
from lmprog.tool_calls.constraining import (
    ToolShape,
    arguments_constraint,
    calls_constraint,
    free_or_calls,
    opening_of,
    opening_of_named,
)
from lmprog.tool_calls.describing import function_shape, tools_text
from lmprog.tool_calls.harmony import THOUGHT_LIMIT, HarmonyStream, ThoughtText, harmony_answer
from lmprog.tool_calls.lexemes import is_tag, lexemes
from lmprog.tool_calls.reading import Parameters, ParsedCall, arguments_in
from lmprog.tool_calls.stream import CallStream
from lmprog.tool_calls.thoughts import Marks, ThoughtStream, after_thought, tokens_in
from lmprog.tool_calls.writing import as_json

Choice: TypeAlias = Literal["none", "auto", "required", "named"]
AnswerPart: TypeAlias = str | ParsedCall | ThoughtText
"""Text for the user, a whole call, or text that was thought."""
_SHORT_ID = re.compile("[A-Za-z0-9]{9}")
_UNKNOWN = wire.ToolSupport()


def call_id(is_short: bool = False) -> str:
    """A new one; `is_short`: nine letters and digits, the only ones that some templates accept."""
    return secrets.token_hex(5)[:9] if is_short else f"call_{secrets.token_hex(12)}"


def shortened(id_: str) -> str:
    """Nine letters and digits for any id, always the same."""
    return id_ if _SHORT_ID.fullmatch(id_) else hashlib.sha256(id_.encode()).hexdigest()[:9]


class AnswerReader:
    """Reads calls out of an answer that comes in pieces: gives contents to pass on, and calls when
    they are whole, with ids that differ.
    """

    def __init__(
        self,
        calls: CallStream | HarmonyStream | ThoughtStream | None,
        one_at_most: bool,
        is_short: bool,
        shows_thoughts: bool = True,
    ) -> None:
        """`calls` None: all text is content."""
        self._calls = calls
        self._shows_thoughts = shows_thoughts
        self._one_at_most = one_at_most
        self._is_short = is_short
        self._ids: set[str] = set()

    def feed(self, text: str, tags: Sequence[int] = ()) -> list[AnswerPart]:
        """What is certain now. `tags`: where in `text` special tokens begin."""
        if self._calls is None:
            return [text] if text else []
        return self._kept(self._calls.feed(text, tags))

    def finish(self, output: wire.Output | None = None) -> list[AnswerPart]:
        """The text has ended, as `output` says: what is held is a call, or it is content after
        all.
        """
        return [] if self._calls is None else self._kept(self._calls.finish(output))

    def _kept(self, parts: Sequence[AnswerPart]) -> list[AnswerPart]:
        kept: list[AnswerPart] = []
        for part in parts:
            if isinstance(part, ParsedCall):
                if self._ids and self._one_at_most:
                    continue
                part = self._named(part)
            if self._shows_thoughts or not isinstance(part, ThoughtText):
                kept.append(part)
        return kept

    def _named(self, call: ParsedCall) -> ParsedCall:
        """With an id of its own: the model's, where it wrote a new one."""
        id_ = call.id if call.id and call.id not in self._ids else call_id(self._is_short)
        self._ids.add(id_)
        return replace(call, id=id_)


class NamedReader:
    """The same where the text is the arguments of one tool."""

    def __init__(self, form: wire.CallForm, name: str, tools: Parameters, id_: str) -> None:
        self._form = form
        self._name = name
        self._tools = tools
        self._id = id_
        self._held = ""

    def feed(self, text: str, tags: Sequence[int] = ()) -> list[AnswerPart]:
        self._held += text
        return []

    def finish(self, output: wire.Output | None = None) -> list[AnswerPart]:
        arguments = arguments_in(self._form, self._held, self._tools[self._name])
        return [ParsedCall(self._name, arguments, self._id)]


class FunctionTool(msgspec.Struct):
    name: Annotated[str, within("name")]
    description: Annotated[str, within("description")] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatTool(msgspec.Struct):
    type: str
    function: FunctionTool | None = None


class NamedFunction(msgspec.Struct):
    name: Annotated[str, within("name")]


class AllowedTools(msgspec.Struct):
    mode: str
    tools: list[NamedTool]


class NamedTool(msgspec.Struct):
    """`tool_choice` as an object: one function, or the tools that may be called."""

    function: NamedFunction | None = None
    type: str = "function"
    allowed_tools: AllowedTools | None = None


class ReadAnswer(NamedTuple):
    """What an answer is made of."""

    content: str
    calls: list[ParsedCall]
    thought: str


class Toolbox(msgspec.Struct, frozen=True):
    """What a request says about tools, decided."""

    choice: Choice = "none"
    tools: tuple[FunctionTool, ...] = ()
    """Those that may be called."""
    parallel: bool = True
    shown: tuple[FunctionTool, ...] = ()
    """Those that the model is shown."""
    answer: wire.Constraint | None = None
    """Of an answer that is not a call, with "auto"."""
    support: wire.ToolSupport = _UNKNOWN
    """How the model calls tools."""
    id: str = ""
    """Of the call of a named tool."""
    thinks: wire.ThoughtState = "closed"
    """How the prompt leaves it to the answer to begin with a thought."""
    shows_thoughts: Literal["apart", "within", "none"] = "apart"
    """Whether they are parts of their own, parts of the content, or left out."""
    confines: Confines = "known"
    """In which answers with a free choice calls are held to their schemas: where a tool is strict,
    also where the template writes calls, always.
    """
    written: str = ""
    """The header of the answer, where it is written before an earlier beginning of the answer."""

    @property
    def form(self) -> wire.CallForm:
        return self.support.form

    @property
    def text(self) -> str:
        """For the system; "" where no tool is to be used, or the template describes them."""
        if self.choice == "none" or self.support.lists_tools:
            return ""
        return tools_text(self._descriptions, self.form)

    @property
    def shown_tools(self) -> list[dict[str, Any]]:
        """The tools as a template takes them; none where it does not."""
        return self._descriptions if self.choice != "none" and self.support.lists_tools else []

    @property
    def warnings(self) -> tuple[str, ...]:
        """Where the form of calls is not the template's own."""
        if self.choice == "none" or not self.support.dialect:
            return ()
        return (
            "the chat template of this model does not write tool calls; they have the form "
            f"{self.support.dialect}",
        )

    @property
    def opening(self) -> str:
        """What is written for the model before it begins; nothing where it may think first."""
        if self.thinks != "closed":
            return ""
        match self.choice:
            case "required":
                return opening_of(self.form)
            case "named":
                return opening_of_named(self.form, self.tools[0].name, self.id)
            case _:
                return ""

    @property
    def constraint(self) -> wire.Constraint | None:
        if self.choice == "named" and self.thinks == "closed":
            return arguments_constraint(self.form, self._shapes[0])
        if self.choice in ("required", "named"):
            many = self.parallel and self.choice == "required"
            calls = calls_constraint(self.form, self._shapes, many, self.opening)
            return self._after_thought(calls)
        if self.answer is not None:
            if self.written:
                return self.answer
            calls = calls_constraint(self.form, self._shapes, self.parallel)
            return self._after_thought(wire.AnyOf((self._in_channel(self.answer), calls)))
        return self._confined if self.is_confined else None

    @property
    def is_confined(self) -> bool:
        """Whether the answer may be text, and what it begins as a call is held to the schemas."""
        if self.choice != "auto" or self.answer is not None or self.written:
            return False
        is_known = self.confines == "known" and not self.support.dialect
        return is_known or self.confines == "all" or any(one.strict for one in self.tools)

    @property
    def _confined(self) -> wire.Constraint:
        """Schemas of tools that are not strict are left out where one cannot be enforced."""
        if all(tool.strict for tool in self.tools):
            return self._free_or_calls(self._shapes)
        some = [
            shape if tool.strict else shape._replace(parameters={"type": "object"})
            for tool, shape in zip(self.tools, self._shapes, strict=True)
        ]
        otherwise = self._free_or_calls(some)
        try:
            return wire.Preferred(self._free_or_calls(self._shapes), otherwise)
        except UnsupportedSchema:
            return otherwise

    def _free_or_calls(self, shapes: list[ToolShape]) -> wire.Constraint:
        return self._after_thought(free_or_calls(self.form, shapes, self.parallel), True)

    def _after_thought(self, then: wire.Constraint, may_be_cut: bool = False) -> wire.Constraint:
        return after_thought(self.support.thought, self.thinks, then, may_be_cut)

    def confined(self, answer: wire.Constraint) -> wire.Constraint:
        """The constraint of a whole answer of which this is the text's."""
        return self._after_thought(self._in_channel(answer))

    def _in_channel(self, answer: wire.Constraint) -> wire.Constraint:
        return harmony_answer(answer) if self.form.harmony and not self.written else answer

    def limit_of(self, most: int | None) -> wire.ThoughtLimit | None:
        """A bound of the thought that the answer may begin with; None where there is none."""
        if most is None:
            return None
        if self.form.harmony:
            return None if self.written else THOUGHT_LIMIT.of(most)
        thought = self.support.thought
        if self.thinks == "closed":
            return None
        begin = "" if self.thinks == "open" else thought.begin
        return wire.ThoughtLimit(begin, thought.end, f"\n{thought.end}\n\n", most)

    @property
    def stop(self) -> tuple[str, ...]:
        """A stop text, where only one call may be made: the tag that ends a call."""
        if self.choice != "auto" or self.answer is not None or self.parallel or self.is_confined:
            return ()
        tags = [lexeme for lexeme in lexemes(self.form.literals[-1]) if is_tag(lexeme)]
        return tuple(tags[-1:])

    @property
    def streams_arguments(self) -> bool:
        """Whether all text is the JSON of one call's arguments, which can go out as it comes."""
        return self.choice == "named" and self.form.keyed is None and self.thinks == "closed"

    @property
    def _shapes(self) -> list[ToolShape]:
        return [ToolShape(tool.name, _parameters(tool)) for tool in self.tools]

    @property
    def _descriptions(self) -> list[dict[str, Any]]:
        return [function_shape(tool.name, tool.description, tool.parameters) for tool in self.shown]

    def reader(self) -> AnswerReader | NamedReader:
        """For a text that comes in pieces."""
        if self._says_text:
            return AnswerReader(None, not self.parallel, self.support.short_ids)
        tools = {shape.name: shape.parameters for shape in self._shapes}
        if self.choice == "named" and self.thinks == "closed":
            return NamedReader(self.form, self.tools[0].name, tools, self.id)
        # under a constraint, it does not matter in which tokens the tags are spelled
        tags = () if self._must_call else self.support.tags
        calls: CallStream | HarmonyStream | None = None
        if self.form.harmony:
            calls = self._channels(tags, tools if self.choice != "none" else {})
        elif self.choice != "none":
            begun = self.thinks == "open" and self.shows_thoughts == "within"
            calls = CallStream(
                self.form,
                tools,
                self.opening,
                self.support.thought.begin if begun else "",
                special=() if self.is_confined else tags,
                is_held=self._is_held,
            )
        whole: CallStream | HarmonyStream | ThoughtStream | None = calls
        if self.thinks != "closed" and self.shows_thoughts != "within":
            whole = ThoughtStream(self._marks, calls)
        shows = self.shows_thoughts != "none"
        return AnswerReader(whole, not self.parallel, self.support.short_ids, shows)

    @property
    def _says_text(self) -> bool:
        """Whether an answer is neither calls nor thoughts."""
        return self.choice == "none" and self.thinks == "closed" and not self.support.form.harmony

    def _channels(self, tags: Sequence[str], tools: Parameters) -> HarmonyStream:
        opening = self.written + self.opening
        return HarmonyStream(tools, opening, special=tags, is_held=self._is_held)

    @property
    def _is_held(self) -> bool:
        """Whether a constraint lets nothing but calls begin as they do."""
        return self._must_call or self.is_confined

    @property
    def _must_call(self) -> bool:
        return self.choice in ("required", "named") or self.answer is not None

    @property
    def _marks(self) -> Marks:
        thought = self.support.thought
        return Marks(thought.begin, thought.end, self.thinks == "open")

    @property
    def may_think(self) -> bool:
        """Whether an answer may have thoughts."""
        return self.form.harmony or self.thinks != "closed"

    def thought_tokens(self, output: wire.Output) -> int:
        """How many of a whole answer's tokens are thoughts, shown or not, with their marks."""
        if not self.may_think or not output.ends:
            return 0
        if not self.form.harmony:
            return tokens_in(self._marks.stretches(output.text), output.ends)
        channels = self._channels(self.support.tags, {})
        channels.feed(output.text, output.tags)
        channels.finish(output)
        return tokens_in(channels.thoughts, output.ends)

    def read(self, output: wire.Output) -> ReadAnswer:
        """A whole answer."""
        if self._says_text:
            return ReadAnswer(output.text, [], "")
        reader = self.reader()
        parts = [*reader.feed(output.text, output.tags), *reader.finish(output)]
        return ReadAnswer(
            "".join(part for part in parts if isinstance(part, str)),
            [part for part in parts if isinstance(part, ParsedCall)],
            "".join(part.text for part in parts if isinstance(part, ThoughtText)),
        )


def toolbox(
    tools: Sequence[ChatTool] | None,
    choice: str | NamedTool | None,
    parallel: bool | None,
    support: wire.ToolSupport = _UNKNOWN,
) -> Toolbox:
    """Raises HttpError where the choice does not go with the tools."""
    if not tools and choice in (None, "none", "auto"):
        return Toolbox(support=support)
    functions = tuple(_function(tool, at) for at, tool in enumerate(tools or ()))
    names = [function.name for function in functions]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise refused(f"Two tools have the name {twice!r}.", "tools")
    is_parallel = parallel is not False
    if isinstance(choice, NamedTool) and choice.type == "allowed_tools":
        allowed, mode = _allowed(choice.allowed_tools, functions)
        return Toolbox(mode, allowed, is_parallel, functions, support=support)
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
                f"tool_choice names {choice.function.name!r}, and the tools are "
                f"{', '.join(names) or 'none'}.",
                "tool_choice",
            )
        new = call_id(support.short_ids)
        return Toolbox("named", named, shown=named, support=support, id=new)
    if choice not in (None, "none", "auto", "required"):
        raise refused(
            f"tool_choice is {str(choice)[:60]!r}; it must be none, auto, required, or an object.",
            "tool_choice",
            "invalid_value",
        )
    if not functions:
        raise refused("tool_choice is 'required', and there are no tools.", "tool_choice")
    kind: Choice = choice or "auto"  # type: ignore[assignment]
    return Toolbox(kind, functions, is_parallel, functions, support=support)


def _allowed(
    given: AllowedTools | None, functions: Sequence[FunctionTool]
) -> tuple[tuple[FunctionTool, ...], Literal["auto", "required"]]:
    """The tools that may be called, and whether one must be. Raises HttpError."""
    at = "tool_choice.allowed_tools"
    if given is None or not given.tools:
        raise refused(f"{at} names no tool; name one at least.", at, "invalid_value")
    mode: Literal["auto", "required"]
    match given.mode:
        case "auto" | "required":
            mode = given.mode
        case other:
            raise refused(
                f"{at}.mode is {other[:60]!r}; it must be auto or required.",
                f"{at}.mode",
                "invalid_value",
            )
    names = [tool.function.name for tool in given.tools if tool.function is not None]
    known = [function.name for function in functions]
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None or len(names) != len(given.tools):
        raise refused(
            f"{at} names {unknown!r}, and the tools are {', '.join(known) or 'none'}.", at
        )
    return tuple(function for function in functions if function.name in names), mode


def _function(tool: ChatTool, at: int) -> FunctionTool:
    if tool.type != "function":
        raise refused(
            f"tools[{at}].type is {tool.type[:60]!r}; only tools of the type 'function' are "
            "supported.",
            f"tools[{at}].type",
            "not_supported",
        )
    if tool.function is None:
        raise refused(f"tools[{at}].function is missing.", f"tools[{at}].function", "invalid_value")
    size = len(as_json(tool.function.parameters or {}))
    if size > LIMITS["schema"].maximum:
        raise refused(
            f"tools[{at}].function.parameters has {size:,} characters as JSON; it may have "
            f"{LIMITS['schema'].words()}.",
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
