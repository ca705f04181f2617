"""Messages as the checkpoint's template writes them: plain ones, tools in its own words, and tools
for the others.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lmprog import wire
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.runtime.text.tool_call_derivation import tool_support
from lmprog.server.http.http_errors import HttpError
from lmprog.server.openai.messages import ChatMessage, pieces_of
from lmprog.server.openai.tools import ChatTool, Toolbox, shortened, toolbox
from tests.tool_calls.call_templates import FAMILIES, native

SHOWING = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
OWN = (
    "{% if tools %}<tools>{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ "
    "m['role'] }}>{{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}<call>{{ c['function']['name'] }}:{{ "
    "c['function']['arguments'] | tojson }}</call>"
    "{% endfor %}{% endfor %}<assistant>"
)
PLAIN = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('unknown role') }}"
    "{% endif %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
)
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 4}'}}
WITH_TOOLS: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be short."},
    {"role": "user", "content": [{"type": "text", "text": "Add "}, {"type": "text", "text": "4."}]},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "8"},
    {"role": "tool", "tool_call_id": "1", "content": "9"},
]


def box(source: str) -> Toolbox:
    tool = msgspec.convert({"type": "function", "function": {"name": "add"}}, ChatTool)
    return toolbox([tool], "auto", None, tool_support(ChatTemplate(source, {})))


def written(
    source: str, messages: list[dict[str, Any]], box: Toolbox, goes_on: bool = False
) -> str:
    """What stands in the branch before the assistant writes."""
    pieces = pieces_of(msgspec.convert(messages, list[ChatMessage]), box, goes_on)
    template = ChatTemplate(source, {})
    text = ""
    for piece in pieces:
        if isinstance(piece, wire.Conversation):
            text += template.converse(piece.messages, piece.tools).text
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


def test_a_template_that_writes_tools_and_calls_is_given_them_as_they_are() -> None:
    text = written(OWN, WITH_TOOLS, box(OWN))
    assert text.startswith('<tools>[{"type": "function", "function": {"name": "add", "parameters"')
    assert text.endswith(
        '<system>Be short.<user>Add 4.<assistant><call>add:{"a": 4}</call><tool>8<tool>9<assistant>'
    )


def test_any_other_template_is_given_tools_and_calls_as_text() -> None:
    text = written(PLAIN, WITH_TOOLS, box(PLAIN))
    assert text.startswith("<system>Be short.\n\nYou have these functions")
    assert '{"name": "add", "arguments": {"a": 4}}' in text
    assert (
        "<user><tool_response>\n8\n</tool_response>\n<tool_response>\n9\n</tool_response><assistant>"
        in text
    )
    assert "<tool>" not in text


def test_results_have_their_own_role_where_the_template_writes_it() -> None:
    text = written(SHOWING, WITH_TOOLS, box(SHOWING))
    assert text.endswith("</tool_call><tool>8<tool>9<assistant>")


def test_ids_that_a_template_refuses_are_shortened_alike_in_calls_and_results() -> None:
    picky = native(FAMILIES["mistral"])
    text = written(picky, WITH_TOOLS[1:4], box(picky))
    assert f'"id": "{shortened("1")}"' in text
    assert len(shortened("1")) == 9
    assert shortened("a1B2c3D4e") == "a1B2c3D4e"


def test_the_system_text_teaches_the_models_own_form_where_the_template_lists_no_tools() -> None:
    source = native(FAMILIES["devstral"]).replace("{%- if tools %}", "{%- if false %}")
    text = written(source, WITH_TOOLS[:2], box(source))
    assert '[TOOL_CALLS]the_function[ARGS]{"an_argument": "its value"}' in text


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
    assert "add" in written(SHOWING, messages, box(SHOWING))
