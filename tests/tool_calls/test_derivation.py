"""The form of a model's calls is found in its own template."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lmprog import wire
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.runtime.text.tool_call_derivation import tool_support
from lmprog.tool_calls.harmony import HARMONY
from lmprog.tool_calls.reading import calls_in
from lmprog.tool_calls.writing import WrittenCall, written
from tests.tool_calls.call_templates import CHANNELS, ENDS, FAMILIES, native

CALLS = [
    WrittenCall("get_weather", {"city": 'Oslo "N"\nB', "days": [1, {"deep": "x"}]}, "abcdefgh1"),
    WrittenCall("now", {}, "abcdefgh2"),
    WrittenCall("add", {"a": 2, "b": -3.5}, "abcdefgh3"),
]
PARAMETERS: dict[str, Any] = {"get_weather": {}, "now": {}, "add": {}}


def support_of(family: str) -> wire.ToolSupport:
    return tool_support(ChatTemplate(native(FAMILIES[family]), {}), ENDS)


def calls_for(support: wire.ToolSupport, family: str) -> list[WrittenCall]:
    calls = CALLS if family != "gemma" else CALLS[1:]  # its lists are not JSON
    return calls if support.form.is_parallel else calls[:1]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_form_writes_calls_as_the_template_does(family: str) -> None:
    support = support_of(family)
    assert support.dialect == ""
    calls = calls_for(support, family)
    made = [
        {
            "id": call.id,
            "function": {
                "name": call.name,
                "arguments": json.dumps(call.arguments)
                if support.arguments_as_text
                else call.arguments,
            },
        }
        for call in calls
    ]
    answer = {"role": "assistant", "content": "", "tool_calls": made}
    whole = ChatTemplate(native(FAMILIES[family]), {}).render([answer], False)
    assert written(support.form, calls).strip() in whole


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_form_writes_is_read_back(family: str) -> None:
    support = support_of(family)
    calls = calls_for(support, family)
    read = calls_in(support.form, written(support.form, calls), PARAMETERS)
    assert [(call.name, json.loads(call.arguments)) for call in read] == [
        (call.name, call.arguments) for call in calls
    ]


def test_a_template_says_which_part_of_a_conversation_it_writes() -> None:
    support = support_of("hermes")
    assert support.lists_tools
    assert support.writes_calls
    assert support.takes_results
    assert support.opens_results
    assert not support.arguments_as_text
    assert not support.short_ids


def test_a_template_that_refuses_a_second_call_allows_one() -> None:
    assert not support_of("llama").form.is_parallel


def test_a_template_that_drops_a_second_call_allows_one() -> None:
    dropping = FAMILIES["hermes"].replace("m['tool_calls']", "m['tool_calls'][:1]")
    assert not tool_support(ChatTemplate(native(dropping), {}), ENDS).form.is_parallel


def test_arguments_are_given_as_text_where_the_template_joins_them_to_text() -> None:
    assert support_of("deepseek").arguments_as_text


def test_ids_are_short_where_the_template_refuses_others() -> None:
    assert support_of("mistral").short_ids
    assert support_of("mistral").form.slots == ("name", "arguments", "id")


def test_calls_that_a_template_counts_have_their_number_as_a_slot() -> None:
    assert support_of("kimi").form.slots == ("name", "index", "arguments")
    assert support_of("command").form.slots == ("index", "name", "arguments")


@pytest.mark.parametrize(
    ("mark", "dialect"),
    [
        ("<|tool_call|>", "granite"),
        ("<|tool_list_start|>", "pythonic"),
        ("<tool_call>", "hermes"),
        ("", "hermes"),
    ],
)
def test_a_template_that_leaves_calls_out_gets_the_dialect_of_its_marks(
    mark: str, dialect: str
) -> None:
    support = tool_support(ChatTemplate(native(mark and f"{{# {mark} #}}"), {}), ENDS)
    assert support.dialect == dialect
    assert support.lists_tools
    assert not support.writes_calls


def test_a_template_that_knows_no_tools_gets_them_as_text() -> None:
    plain = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    refusing = "{% if messages[-1]['role'] == 'tool' %}{{ raise_exception('no') }}{% endif %}"
    support = tool_support(ChatTemplate(refusing + plain, {}))
    assert support == wire.ToolSupport()


def test_a_form_that_nests_values_in_a_way_of_its_own_is_still_found_for_plain_ones() -> None:
    keyed = support_of("gemma").form.keyed
    assert keyed is not None
    assert keyed.string == wire.KeyedValue("", ':<|"|>', '<|"|>')
    assert keyed.other == wire.KeyedValue("", ":", "")


def test_a_template_that_rewrites_names_hides_its_form() -> None:
    shouting = FAMILIES["hermes"].replace("f['name']", "f['name'] | upper")
    assert tool_support(ChatTemplate(native(shouting), {}), ENDS).dialect == "hermes"


def test_a_template_of_channels_has_the_form_that_its_model_was_trained_on() -> None:
    support = tool_support(ChatTemplate(CHANNELS, {}), ("<|return|>", "<|call|>"))
    assert support.form == HARMONY
    assert support.dialect == ""
    assert support.lists_tools
    assert support.writes_calls
    assert support.takes_results
    assert not support.arguments_as_text


@pytest.mark.parametrize(
    ("family", "old", "new"),
    [
        ("dsml", "{% endfor %}</DSML|invoke>", "{% endfor %}{% if not f['arguments'] %}\n{% endif %}</DSML|invoke>"),
        ("deepseek", "<｜calls▁end｜>", "{% if m['tool_calls'] | length > 1 %}<｜calls▁end｜>{% endif %}"),
        ("hermes", "| tojson", "| tojson(indent=4)"),
        ("coder", "v | tojson if", "'of a kind of its own' if"),
    ],
    ids=["no arguments", "one call lacks the end", "JSON on lines", "lists and objects"],
)  # fmt: skip
def test_a_form_is_found_whatever_a_template_does_in_special_cases(
    family: str, old: str, new: str
) -> None:
    source = FAMILIES[family]
    assert old in source
    changed = tool_support(ChatTemplate(native(source.replace(old, new)), {}), ENDS)
    assert changed.dialect == ""
    form, usual = changed.form, support_of(family).form
    assert (form.begin, form.slots, form.end) == (usual.begin, usual.slots, usual.end)
    assert form.literals == usual.literals
    assert form.keyed == usual.keyed


def test_a_template_may_keep_a_list_of_ids() -> None:
    counting = "{% set seen = namespace(ids=[]) %}" + FAMILIES["kimi"].replace(
        "{{ f['name'] }}:{{ loop.index0 }}",
        "{% set _ = seen.ids.append(f['name']) %}{{ f['name'] }}:{{ seen.ids | length - 1 }}",
    )
    support = tool_support(ChatTemplate(native(counting), {}), ENDS)
    assert support.form == support_of("kimi").form


THINKING = """
{%- for m in messages -%}
<|{{ m['role'] }}|>{% if m['role'] == 'assistant' %}WRITTEN{% endif %}{{ m['content'] }}<|end|>
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>OPENED{% endif -%}
"""
WRITTEN = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
CLOSED = "<think>\n\n</think>\n\n"
SWITCHED = "{% if enable_thinking is defined and not enable_thinking %}" + CLOSED + "{% endif %}"
DROPPED = "{% set unused = m['content'].split('</think>') %}"
CALLED = WRITTEN.replace("if m.reasoning", "if m.tool_calls and m.reasoning") + (
    "{% for c in m.tool_calls %}<call>{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "</call>{% endfor %}"
)
ASKED = "{% if thinking %}<think>{% else %}</think>{% endif %}"


@pytest.mark.parametrize(
    ("rendered", "opened", "form"),
    [
        ("", "", ()),
        ("{{ m.reasoning_content }}", "", ()),
        ("", "<think>\n", ("<think>", "</think>", "open")),
        ("", "[THINK]", ("[THINK]", "[/THINK]", "open")),
        ("", CLOSED, ("<think>", "</think>", "closed")),
        (WRITTEN, "", ("<think>", "</think>", "free")),
        (WRITTEN, "<think>\n", ("<think>", "</think>", "open")),
        (WRITTEN, SWITCHED, ("<think>", "</think>", "free", "enable_thinking", "free", "closed")),
        (DROPPED, ASKED, ("<think>", "</think>", "closed", "thinking", "open", "closed")),
        (
            WRITTEN.replace("<think>", "<|channel>thought").replace("</think>", "<channel|>"),
            "",
            ("<|channel>thought", "<channel|>", "free"),
        ),
        (
            WRITTEN.replace("<think>\n", "<|open|>think<|sep|>").replace(
                "\n</think>", "<|close|>think<|sep|>"
            ),
            "",
            ("<|open|>think<|sep|>", "<|close|>think<|sep|>", "free"),
        ),
        (CALLED, "", ("<think>", "</think>", "free")),
        ("{# <|START_THINKING|> #}", "", ("<|START_THINKING|>", "<|END_THINKING|>", "free")),
        (DROPPED.replace("</think>", "◁/think▷"), "", ("◁think▷", "◁/think▷", "free")),
    ],
)
def test_what_stands_around_a_thought_is_derived_from_the_template(
    rendered: str, opened: str, form: tuple[Any, ...]
) -> None:
    source = THINKING.strip().replace("WRITTEN", rendered).replace("OPENED", opened)
    assert tool_support(ChatTemplate(source, {}), ENDS).thought == wire.ThoughtForm(*form)


def test_a_switch_may_change_what_the_system_says_alone() -> None:
    source = "{% if thinking %}Think.{% endif %}" + THINKING.strip()
    source = source.replace("WRITTEN", WRITTEN).replace("OPENED", "")
    support = tool_support(ChatTemplate(source, {}), ENDS)
    form = ("<think>", "</think>", "free", "thinking", "free", "free")
    assert support.thought == wire.ThoughtForm(*form)
