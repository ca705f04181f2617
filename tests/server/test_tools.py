"""Calls of tools are read out of texts the same way, however a text is cut into pieces."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmprog import wire
from lmprog.server.http.http_errors import HttpError
from lmprog.server.openai.tools import ChatTool, FunctionTool, NamedTool, Toolbox, toolbox
from lmprog.tool_calls.reading import ParsedCall
from lmprog.tool_calls.writing import WrittenCall, written

BOX = Toolbox("auto", (FunctionTool("add"), FunctionTool("get_weather")))
EITHER = Toolbox("auto", BOX.tools, answer=wire.JsonSchema('{"type": "object"}'))
"""The text is an answer of the schema, or calls."""


def called(name: str, arguments: str) -> str:
    """As a model of Hermes' form writes it."""
    return written(wire.HERMES, [WrittenCall(name, json.loads(arguments))])


PIECES = [
    "Hello.",
    " ",
    "\n",
    "<tool_call>",
    "</tool_call>",
    '{"name": "add", "arguments": {"a": 1}}',
    '[{"name": "add", "arguments": {}}, {"name": "get_weather", "arguments": {"city": "Oslo"}}]',
    '{"name": "other", "arguments": {}}',
    called("add", '{"a": 2}'),
    "<tool",
    "<",
    "{",
]


def said(text: str) -> wire.Output:
    return wire.Output(text, (), "stop")


def read(text: str, cuts: list[int], box: Toolbox = BOX) -> tuple[str, list[ParsedCall]]:
    reader = box.reader()
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    parts = [part for at, to in itertools.pairwise(borders) for part in reader.feed(text[at:to])]
    parts += reader.finish()
    return (
        "".join(part for part in parts if isinstance(part, str)),
        [without_id(part) for part in parts if isinstance(part, ParsedCall)],
    )


def without_id(call: ParsedCall) -> ParsedCall:
    assert call.id
    return ParsedCall(call.name, call.arguments)


@given(
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
    st.lists(st.integers(0, 1000), max_size=12),
    st.sampled_from([BOX, EITHER]),
)
def test_the_calls_do_not_depend_on_how_the_text_comes(
    text: str, cuts: list[int], box: Toolbox
) -> None:
    content, calls = read(text, cuts, box)
    whole_content, whole_calls = read(text, [], box)
    assert calls == whole_calls
    assert content == whole_content


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("Hello.", "Hello.", []),
        (called("add", '{"a": 1}'), "", [ParsedCall("add", '{"a": 1}')]),
        ("I add.\n" + called("add", "{}"), "I add.", [ParsedCall("add", "{}")]),
        (
            called("add", "{}") + "\n" + called("get_weather", "{}"),
            "",
            [ParsedCall("add", "{}"), ParsedCall("get_weather", "{}")],
        ),
        ("<tool_call>nonsense</tool_call>", "<tool_call>nonsense</tool_call>", []),
        (called("unknown", "{}"), called("unknown", "{}"), []),
        (
            '<tool_call>\n{"name": "add", "arguments": {"a": 1}}',
            "",
            [ParsedCall("add", '{"a": 1}')],
        ),
        ('<tool_call>\n{"name": "add", "argum', '<tool_call>\n{"name": "add", "argum', []),
        ("a < b <tool", "a < b <tool", []),
    ],
)
def test_only_the_exact_form_is_a_call_and_all_else_is_content(
    text: str, content: str, calls: list[ParsedCall]
) -> None:
    got, found, _ = BOX.read(said(text))
    assert (got, [without_id(call) for call in found]) == (content, calls)


def test_content_before_a_call_goes_out_at_once_and_half_a_tag_waits() -> None:
    reader = BOX.reader()
    assert reader.feed("I will <too") == ["I will"]
    assert reader.feed("l") == []
    assert reader.feed("s>") == [" <tools>"]


def test_without_tools_everything_is_content() -> None:
    text = called("add", "{}")
    assert Toolbox().read(said(text)) == (text, [], "")


def test_a_tool_that_names_no_parameters_takes_none() -> None:
    schema = Toolbox("named", (FunctionTool("now"),)).constraint
    assert schema == wire.JsonSchema(
        '{"type": "object", "properties": {}, "additionalProperties": false}'
    )


def test_several_calls_of_one_answer_have_different_ids() -> None:
    _, calls, _ = BOX.read(said(called("add", "{}") + called("add", "{}")))
    assert len({call.id for call in calls}) == 2


def test_where_one_call_may_be_made_the_first_one_counts() -> None:
    one = Toolbox("auto", BOX.tools, parallel=False)
    assert one.stop == ("</tool_call>",)
    assert len(one.read(said(called("add", "{}") + called("add", "{}")))[1]) == 1


def test_a_form_that_is_not_the_templates_is_warned_of() -> None:
    assert "they have the form hermes" in BOX.warnings[0]
    own = Toolbox("auto", BOX.tools, support=wire.ToolSupport(dialect=""))
    assert own.warnings == ()
    assert Toolbox("none", BOX.tools).warnings == ()


def test_the_named_tools_arguments_are_json_whatever_form_the_model_writes() -> None:
    keyed = wire.KeyedValue("<key>", "</key><value>", "</value>")
    form = wire.CallForm(
        ("<call>", "", "</call>"),
        ("name", "arguments"),
        keyed=wire.KeyedArguments(keyed, keyed),
    )
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    box = Toolbox(
        "named", (FunctionTool("add", parameters=schema),), support=wire.ToolSupport(form), id="x"
    )
    assert box.opening == "<call>add"
    assert not box.streams_arguments
    (call,) = box.read(said("<key>a</key><value>7</value>")).calls
    assert call == ParsedCall("add", '{"a": 7}', "x")


def test_a_choice_of_another_type_is_refused_with_the_form_that_there_is() -> None:
    with pytest.raises(HttpError, match="tool_choice has the type 'custom'; as an object it must"):
        toolbox([ChatTool("function", FunctionTool("now"))], NamedTool(type="custom"), None)


def test_a_tool_without_its_function_is_told_what_is_missing() -> None:
    with pytest.raises(HttpError, match=r"tools\[0\]\.function is missing"):
        toolbox([ChatTool("function")], None, None)
