"""How a model writes calls of tools, what its chat template writes of them, and what a service that
calls tools by itself is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from lmprog.wire.message import Message, ShortText

FormText: TypeAlias = Annotated[str, Meta(max_length=1024)]
CallSlot: TypeAlias = Literal["name", "arguments", "id", "index"]
"""What stands between two literals of a call; the index counts an answer's calls from 0."""


class KeyedValue(Message, frozen=True):
    """The literals around one argument's key and value."""

    before_key: FormText
    before_value: FormText
    after_value: FormText


class KeyedArguments(Message, frozen=True):
    """Arguments that are written one by one, and not as a JSON object.

    `string` is for strings, which are written as they are, or, where they are `quoted`, as the
    inside of a JSON string; `other` is for all other values, which are JSON.
    """

    string: KeyedValue
    other: KeyedValue
    between: FormText = ""
    quoted: bool = False


class CallForm(Message, frozen=True):
    """An answer with calls is `begin`, its calls with `between` between them, and `end`.

    `literals` has one more than `slots`: a call is literal, slot, literal, slot ... literal.
    Without `keyed` the arguments are a JSON object.
    """

    literals: tuple[FormText, ...]
    slots: tuple[CallSlot, ...]
    begin: FormText = ""
    between: FormText = ""
    end: FormText = ""
    keyed: KeyedArguments | None = None
    is_parallel: bool = True
    """Whether several calls can be in one answer."""
    harmony: bool = False
    """Answers are messages in channels: thoughts, calls and texts apart (`tool_calls/harmony`)."""


HERMES = CallForm(
    literals=('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"),
    slots=("name", "arguments"),
    between="\n",
)
"""For templates that say nothing of tools."""


class SentCall(Message, frozen=True):
    """A call of a tool that a service sent in fields of its own, beside the text of its answer."""

    name: str
    arguments: str
    """As they were sent: JSON text, unless the model wrote something else."""
    id: str = ""


ThoughtState: TypeAlias = Literal["free", "open", "closed"]
"""How a prompt leaves it to the answer to begin with a thought: it may, it stands in one, or none
comes any more.
"""


class ThoughtForm(Message, frozen=True):
    """The tags around what a model thinks before it answers; none where it does not think, or in
    channels.
    """

    begin: FormText = ""
    end: FormText = ""
    prompt: ThoughtState = "free"
    switch: ShortText = ""
    """The variable of its template that turns thoughts on and off."""
    on: ThoughtState = "free"
    off: ThoughtState = "free"

    def switched(self, switch: str, on: ThoughtState, off: ThoughtState) -> ThoughtForm:
        return msgspec.structs.replace(self, switch=switch, on=on, off=off)

    def state(self, variables: Mapping[str, Any]) -> ThoughtState:
        """How a prompt leaves it that is written with these variables."""
        if not self.begin:
            return "closed"
        if self.switch not in variables:
            return self.prompt
        return self.on if variables[self.switch] else self.off


class ThoughtLimit(Message, frozen=True):
    """After so many tokens of an answer a thought that is open is closed for the model: by `close`,
    which has its `end`. Without `begin` the answer begins in the thought.
    """

    begin: FormText
    end: Annotated[str, Meta(min_length=1, max_length=1024)]
    close: Annotated[str, Meta(min_length=1, max_length=1024)]
    most: Annotated[int, Meta(ge=0, le=2**31 - 1)]

    def of(self, most: int) -> ThoughtLimit:
        return msgspec.structs.replace(self, most=most)


class ToolSupport(Message, frozen=True):
    """A model's form of calls, and which part of a conversation with tools its template writes."""

    form: CallForm = HERMES
    dialect: ShortText = "hermes"
    """The form's name where the template does not write calls; "" where it was derived from it."""
    lists_tools: bool = False
    """The template writes the descriptions of the tools."""
    writes_calls: bool = False
    """The template writes the calls of earlier turns; else they are part of the content."""
    takes_results: bool = False
    """The template writes turns of the role `tool`; else results are the user's."""
    arguments_as_text: bool = False
    """The template expects a call's arguments as JSON text."""
    short_ids: bool = False
    """The template accepts only ids of nine letters and digits."""
    opens_results: bool = False
    """A branch can open turns of the role `tool`."""
    tags: tuple[FormText, ...] = ()
    """The tags of the form that are special tokens of the model: where an answer spells one in
    other tokens (`Output.tags` does not have it) it is text."""
    thought: ThoughtForm = ThoughtForm()
    """What the model thinks before it answers, or calls."""
    is_native: bool = False
    """The service takes tools in a field of the request (`ToolOffer`) and has fields for calls and
    results; in texts its calls are written in this form.
    """

    def with_tags(self, tags: Iterable[str]) -> ToolSupport:
        return msgspec.structs.replace(self, tags=tuple(tags))


ToolChoice: TypeAlias = Literal["auto", "required", "none"]


class ToolOffer(Message, frozen=True):
    """The tools that a service with fields for calls may use in an answer. It is not sent to a
    runtime: there, tools are described as text and calls are constrained text.
    """

    tools: Annotated[str, Meta(max_length=1_048_576)]
    """JSON: a list of functions in OpenAI's shape."""
    choice: ToolChoice = "auto"
    is_parallel: bool = True
    """Whether one answer may have several calls."""
