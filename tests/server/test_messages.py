"""Messages as the checkpoint's template writes them: plain ones, tools in its own words, and tools
for the others.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lmprog import wire
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.server.http.http_errors import HttpError
from lmprog.server.openai.messages import ChatMessage, pieces_of
from lmprog.server.openai.tools import Tool, Toolbox, toolbox

SHOWING = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
OWN = (
    "{% if tools %}<tools>{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ "
    "m['role'] }}>{{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}<tool_call>{{ c['function']['name'] }}:{{ "
    "c['function']['arguments']['a'] }}"
    "{% endfor %}{% endfor %}<assistant>"
)
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 4}'}}
WITH_TOOLS: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be short."},
    {"role": "user", "content": [{"type": "text", "text": "Add "}, {"type": "text", "text": "4."}]},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "8"},
    {"role": "tool", "tool_call_id": "1", "content": "9"},
]


def box() -> Toolbox:
    tool = msgspec.convert({"type": "function", "function": {"name": "add"}}, Tool)
    return toolbox([tool], "auto", None)


def written(
    source: str, messages: list[dict[str, Any]], box: Toolbox, goes_on: bool = False
) -> str:
    """What stands in the branch before the assistant writes."""
    pieces = pieces_of(msgspec.convert(messages, list[ChatMessage]), box, goes_on)
    template = ChatTemplate(source, {})
    text = ""
    for piece in pieces:
        if isinstance(piece, wire.Conversation):
            text += template.converse(piece.messages, piece.tools, piece.plain, piece.mark).text
        else:
            assert isinstance(piece, wire.TextPiece)
            text += piece.text
    return text


def test_plain_messages_are_the_templates_to_write() -> None:
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Ü\n "},
        {"role": "user", "content": ""},
    ]
    assert written(SHOWING, messages, Toolbox()) == "<system>S<user>Ü\n <user><assistant>"


def test_a_template_that_teaches_the_form_of_calls_is_given_tools_and_calls_as_they_are() -> None:
    text = written(OWN, WITH_TOOLS, box())
    assert text.startswith('<tools>[{"type": "function", "function": {"name": "add", "parameters"')
    assert text.endswith(
        "<system>Be short.<user>Add 4.<assistant><tool_call>add:4<tool>8<tool>9<assistant>"
    )


def test_any_other_template_is_given_tools_and_calls_as_text() -> None:
    text = written(SHOWING, WITH_TOOLS, box())
    assert text.startswith("<system>Be short.\n\nYou have these functions")
    assert '{"name": "add", "arguments": {"a": 4}}' in text
    assert (
        "<user><tool_response>\n8\n</tool_response>\n<tool_response>\n9\n</tool_response><assistant>"
        in text
    )
    assert "<tool>" not in text


def test_an_answer_that_was_begun_is_gone_on_with() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, my"}]
    assert written(SHOWING, messages, Toolbox(), goes_on=True) == "<user>Hi<assistant>Hello, my"
    with pytest.raises(HttpError, match="must be the assistant's"):
        written(SHOWING, messages[:1], Toolbox(), goes_on=True)


@pytest.mark.parametrize("arguments", ["", "no json", "[" * 5000, "[" * 5000 + "]" * 5000, "7"])
def test_strange_arguments_of_earlier_calls_break_nothing(arguments: str) -> None:
    function = {"name": "add", "arguments": arguments}
    messages = [
        {"role": "assistant", "tool_calls": [{"function": function}]},
        {"role": "user", "content": "x"},
    ]
    assert "add" in written(SHOWING, messages, box())
