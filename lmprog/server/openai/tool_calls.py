"""The form in which tools are called: how it is taught, written, and read out of a text.

There is one form, for every model: the system's text lists the tools between `<tools>` tags (in the
checkpoint's own words, where its template teaches this form), and a call is

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    </tool_call>

Knows texts; knows no requests and no constraints.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

BEGIN, END = "<tool_call>", "</tool_call>"
_CALL = '{"name": "'
"""How a call without tags begins, as constrained JSON is written."""
Choice: TypeAlias = Literal["none", "auto", "required", "named"]


@dataclass(frozen=True, slots=True)
class ParsedCall:
    name: str
    arguments: str
    """JSON text."""


def text_of(shown: Sequence[dict[str, Any]]) -> str:
    """The system's text about the tools, for templates that have none of their own."""
    return (
        "You have these functions, each described by the JSON schema of its arguments:\n<tools>\n"
        + "\n".join(as_json(tool) for tool in shown)
        + "\n</tools>\n\nTo call one, write its name and arguments as a JSON object between "
        "tags, and nothing after:\n"
        + f'{BEGIN}\n{{"name": "the function", "arguments": {{"an argument": "its value"}}}}\n{END}'
    )


def called(name: str, arguments: str) -> str:
    """A call of an earlier turn, as the model would have written it."""
    return f'{BEGIN}\n{{"name": {as_json(name)}, "arguments": {arguments or "{}"}}}\n{END}'


def result(text: str) -> str:
    """What a tool answered."""
    return f"<tool_response>\n{text}\n</tool_response>"


def call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class ToolCallReader:
    """Reads calls out of a text that comes in pieces: gives contents to pass on, and calls when
    they are whole.
    """

    def __init__(self, choice: Choice, names: Sequence[str], opening: str, is_json: bool) -> None:
        """`opening` was written before the text began. `is_json`: the text is one JSON value, a
        call or the answer itself.
        """
        self._choice = choice
        self._names = tuple(names)
        self._opening = opening
        self._is_json = is_json
        self._held = opening
        """Text that may be, or is, a call, and is not decided yet."""
        self._num_calls = 0

    def feed(self, text: str) -> list[str | ParsedCall]:
        """What is certain now."""
        if self._choice == "none":
            return [text] if text else []
        self._held += text
        if self._is_json and not self._may_be_call():
            self._choice, self._is_json, held, self._held = "none", False, self._held, ""
            return [held]
        if self._is_json or self._choice != "auto":
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
            return found  # white space between calls is not content
        self._held = self._held[len(certain) :]
        return [*found, certain] if certain else found

    def finish(self) -> list[str | ParsedCall]:
        """The text has ended: what is held is a call, or it is content after all."""
        held, self._held = self._held, ""
        if self._choice == "named":
            return [ParsedCall(self._names[0], held.removeprefix(self._opening))]
        begins = held.lstrip().startswith(BEGIN) and not self._num_calls
        if self._is_json or self._choice == "required" or begins:
            calls = self._calls(held.strip().removeprefix(BEGIN))
            if calls:
                return list(calls)
        return [] if self._num_calls and not held.strip() else [held] if held else []

    def _may_be_call(self) -> bool:
        """Whether the JSON value so far may become a call, or a list of them."""
        held = self._held.lstrip()
        return held.startswith(("[", _CALL)) or _CALL.startswith(held)

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
        return [ParsedCall(one["name"], as_json(one["arguments"])) for one in values]


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


def as_json(value: Any) -> str:
    """As models write it: a space after comma and colon."""
    return json.dumps(value, ensure_ascii=False)
