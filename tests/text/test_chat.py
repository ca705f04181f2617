"""Conversations that grow turn by turn against the template's own rendering of the whole."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from lmprog.errors import InvalidParameter, ModelError, NotSupported, UnknownName
from lmprog.runtime.text.chat_template import (
    MAX_MESSAGES,
    MAX_TEMPLATE_LEN,
    PLAIN,
    ChatTemplate,
    load_template,
)
from tests.text.templates import CHATML, GEMMA, MISTRAL, MISTRAL_LAST, SHAPES, SPECIAL

CHATS = {
    "short": ["user"],
    "answer": ["user", "assistant"],
    "long": ["user", "assistant"] * 3 + ["user"],
    "system": ["system", "user", "assistant", "user"],
}


def messages_of(roles: list[str]) -> list[dict[str, str]]:
    return [{"role": role, "content": f"text of {role} {at}."} for at, role in enumerate(roles)]


def grown(template: ChatTemplate, messages: list[dict[str, str]]) -> str:
    text = ""
    for at, message in enumerate(messages):
        role, content = message["role"], message["content"]
        text += (
            template.begin(messages[:at], role)
            + content
            + template.end(messages[:at], role, content)
        )
    return text


@pytest.mark.parametrize(
    ("shape", "chat"),
    [
        (shape, chat) for shape in SHAPES for chat in CHATS if (shape, chat) != ("gemma", "system")
    ],  # it has none
)
def test_a_conversation_grown_turn_by_turn_asks_the_model_what_the_template_would(
    shape: str, chat: str
) -> None:
    """Up to where the model answers: turns of the program, then the generation prompt."""
    template = ChatTemplate(SHAPES[shape], SPECIAL)
    messages = messages_of(CHATS[chat])
    if messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": "and then?"})
    text = grown(template, messages) + template.begin(messages, "assistant")
    whole = template.render(messages, add_generation_prompt=True)
    if shape == "mistral":  # writes a space before answers, which generated text brings itself
        whole = whole.replace("[/INST] ", "[/INST]")
    assert text == whole


@pytest.mark.parametrize(
    ("shape", "role", "begin", "end"),
    [
        ("chatml", "user", "<|im_start|>user\n", "<|im_end|>\n"),
        ("chatml", "assistant", "<|im_start|>assistant\n", "<|im_end|>\n"),
        ("mistral", "user", "[INST] ", "[/INST]"),
        ("gemma", "user", "<start_of_turn>user\n", "<end_of_turn>\n"),
        ("phi3", "user", "<|user|>\n", "<|end|>\n"),
        ("qwen3", "assistant", "<|im_start|>assistant\n", "<|im_end|>\n"),
    ],
)
def test_the_texts_around_a_turn_are_the_templates(
    shape: str, role: str, begin: str, end: str
) -> None:
    template = ChatTemplate(SHAPES[shape], SPECIAL)
    before = messages_of(["user"] if role == "assistant" else ["user", "assistant"])
    assert template.begin(before, role) == begin
    assert template.end(before, role, "whatever") == end


def test_a_system_text_that_goes_into_the_users_turn_opens_it() -> None:
    template = ChatTemplate(MISTRAL, SPECIAL)
    system = messages_of(["system"])
    assert (
        grown(template, messages_of(["system", "user"]))
        == "<s>[INST] text of system 0.\n\ntext of user 1.[/INST]"
    )
    assert template.begin([], "system") == "<s>[INST] "
    assert template.end([], "system", "x") + template.begin(system, "user") == "\n\n"


def test_what_a_template_writes_before_all_turns_stands_in_the_first_opening() -> None:
    template = ChatTemplate(SHAPES["llama3"], SPECIAL)
    opening = template.begin([], "user")
    assert opening.startswith("<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: ")
    assert opening.endswith("<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n")


def test_contents_are_never_trimmed_though_the_template_would() -> None:
    template = ChatTemplate(SHAPES["llama3"], SPECIAL)
    messages = [{"role": "user", "content": "  spaces  "}]
    assert "\n\n  spaces  <|eot_id|>" in grown(template, messages)


def test_a_template_that_moves_earlier_text_is_refused_with_the_role() -> None:
    template = ChatTemplate(MISTRAL_LAST, SPECIAL)
    asked = messages_of(["system", "user"])
    assert grown(template, asked) + template.begin(asked, "assistant") == template.render(asked)
    assert template.end(asked, "assistant", "x") == ""
    with pytest.raises(NotSupported, match=r"'user' turn"):
        template.begin(messages_of(["system", "user", "assistant"]), "user")


def test_a_template_that_rewrites_an_earlier_turn_is_refused_with_the_role() -> None:
    """It numbers turns from the end, so each new one changes all before."""
    source = (
        "{% for m in messages %}<{{ loop.revindex }} {{ m['role'] }}>{{ m['content'] "
        "}}</>{% endfor %}"
    )
    template = ChatTemplate(source, {})
    assert template.begin([], "user") == "<1 user>"
    with pytest.raises(NotSupported, match=r"rewrites earlier turns when a 'user' turn"):
        template.begin(messages_of(["user"]), "user")


@pytest.mark.parametrize("role", ["system", "tool"])
def test_a_role_that_the_template_refuses_is_named_with_the_templates_words(role: str) -> None:
    with pytest.raises(
        NotSupported, match=f"{role!r} turn after nothing is not possible.*(supported|alternate)"
    ):
        ChatTemplate(GEMMA, SPECIAL).begin([], role)


def test_a_role_that_the_template_leaves_out_is_unknown() -> None:
    with pytest.raises(UnknownName, match="'critic'") as raised:
        ChatTemplate(SHAPES["qwen3"], SPECIAL).begin(messages_of(["user"]), "critic")
    assert raised.value.name == "critic"


def test_the_program_may_write_what_looks_like_a_marker_of_ours() -> None:
    template = ChatTemplate(CHATML, SPECIAL)
    messages = [{"role": "user", "content": "QZTURN0TURNZQ"}]
    assert grown(template, messages) == template.render(messages, False)


def test_a_template_of_a_long_conversation_costs_a_few_renders_per_turn() -> None:
    template = ChatTemplate(CHATML, SPECIAL)
    renders = 0
    plain = template.render

    def counted(*arguments: object) -> str:
        nonlocal renders
        renders += 1
        return plain(*arguments)  # type: ignore[arg-type]

    template.render = counted  # type: ignore[method-assign, assignment]
    grown(template, messages_of(["user", "assistant"] * 20))
    assert renders <= 40 * 16


# --- rendering ------------------------------------------------------------------------------------


def test_templates_find_the_names_that_transformers_gives_them() -> None:
    source = (
        "{{ tools | tojson }} {{ {'a': 'ü<'} | tojson(indent=1) }} {{ strftime_now('%Y') | "
        "length }}"
        "{% generation %} made{% endgeneration %}{% for i in [1, 2, 3] %}{% if i == 2 %}{% "
        "break %}{% endif %}"
        " {{ i }}{% endfor %} [{{ bos_token }}]{{ eos_token is defined }}"
    )
    text = ChatTemplate(source, {"bos_token": "<s>"}).render(
        [], variables={"tools": [{"n": "<f>"}]}
    )
    assert text == '[{"n": "<f>"}] {\n "a": "ü<"\n} 4 made 1 [<s>]False'


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages['append'](1) }}",
        "{{ messages.extend(messages) }}",
        "{{ raise_exception('no') }}",
        "{{ nothing.at.all }}",
        "{{ 1 // 0 }}",
        "{{ 'a' + 1 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ [1] * 10 ** 9 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ 9 ** 64 ** 64 ** 64 }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ "
        "f(40) }}",
        "{% for i in range(9999) %}{{ messages[0]['content'] }}{% endfor %}",
    ],
)
def test_a_template_that_fails_or_does_too_much_is_refused_and_soon(source: str) -> None:
    template = ChatTemplate(source, {})
    started = time.process_time()
    with pytest.raises(NotSupported, match="chat template"):
        template.render([{"role": "user", "content": "x" * 10_000}])
    assert time.process_time() - started < 20


def test_too_many_messages_are_refused_with_the_limit() -> None:
    with pytest.raises(NotSupported, match="4,096"):
        ChatTemplate(CHATML, {}).render([{"role": "user", "content": ""}] * (MAX_MESSAGES + 1))


@pytest.mark.parametrize("source", ["{% for %}", "{{", "x" * (MAX_TEMPLATE_LEN + 1)])
def test_a_template_that_does_not_parse_or_is_too_large_is_a_fault_of_the_checkpoint(
    source: str,
) -> None:
    with pytest.raises(ModelError, match="chat template"):
        ChatTemplate(source, {})


# --- where templates come from --------------------------------------------------------------------


def folder_with(tmp_path: Path, config: object = None, jinja: str | None = None) -> Path:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config or {}))
    if jinja is not None:
        (tmp_path / "chat_template.jinja").write_text(jinja)
    return tmp_path


def test_the_file_of_its_own_comes_before_the_configuration(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path, {"chat_template": "old", "bos_token": {"content": "<B>"}}, "{{ bos_token }}new"
    )
    assert load_template(folder).render([]) == "<B>new"


def test_of_several_templates_the_default_one_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "this"}]
    assert load_template(folder_with(tmp_path, {"chat_template": named})).render([]) == "this"


def test_a_checkpoint_without_a_template_says_how_to_give_one(tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match=r"no chat template.*explicitly"):
        load_template(folder_with(tmp_path))


def test_the_plain_template_is_only_used_when_asked_for(tmp_path: Path) -> None:
    template = load_template(folder_with(tmp_path), PLAIN)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert grown(template, messages) + template.begin(messages, "assistant") == (
        "System: Be brief.\nUser: Hi\nAssistant:"
    )


def test_a_model_without_files_has_a_template_of_its_special_tokens() -> None:
    template = load_template(None)
    assert template.begin([], "user") == "<|user|>"
    assert (
        template.end([], "user", "x") + template.begin(messages_of(["user"]), "assistant")
        == "<|end|><|assistant|>"
    )


def test_the_shipped_template_is_the_one_its_folder_has() -> None:
    nano = Path(__file__).parents[2] / "lmprog" / "nano"
    template = load_template(nano)
    messages = messages_of(["system", "user", "assistant", "user"])
    assert grown(template, messages) + template.begin(messages, "assistant") == template.render(
        messages
    )


def test_a_whole_conversation_is_what_the_template_writes_of_it() -> None:
    messages = messages_of(["system", "user", "assistant", "user"])
    template = ChatTemplate(CHATML, SPECIAL)
    assert template.converse(json.dumps(messages)).text == template.render(
        messages, add_generation_prompt=True
    )


@pytest.mark.parametrize("wrong", ["", "{", "{}", "[1]", "[" * 100_000, '["x"]'])
def test_a_conversation_that_is_no_list_of_objects_is_refused(wrong: str) -> None:
    with pytest.raises(NotSupported, match="the conversation is not"):
        ChatTemplate(CHATML, SPECIAL).converse(wrong)


def test_a_whole_conversation_of_many_turns_is_written_in_one_go() -> None:
    """Turn by turn each of them costs as much as all before it; this is for those who have them
    all.
    """
    messages = messages_of(["user", "assistant"] * (MAX_MESSAGES // 2))
    template = ChatTemplate(CHATML, SPECIAL)
    began = time.process_time()
    text = template.converse(json.dumps(messages)).text
    assert text.count("<|im_start|>") == MAX_MESSAGES + 1
    assert time.process_time() - began < 20


THINKING = (
    "{% set seal = '[quiet]' if enable_thinking is defined and not enable_thinking else '' %}"
    "{{ documents }}"
    "{% for m in messages %}{{ m.content }};{% endfor %}{{ seal }}{{ bos_token }}"
)


def test_variables_are_given_to_a_template_that_uses_them() -> None:
    template = ChatTemplate(THINKING, SPECIAL)
    asked = json.dumps([{"role": "user", "content": "x"}])
    quiet = json.dumps({"enable_thinking": False})
    assert "[quiet]" in template.converse(asked, variables=quiet).text
    assert "[quiet]" not in template.converse(asked).text


@pytest.mark.parametrize("name", ["seal", "messages", "bos_token", "thinking"])
def test_variables_that_are_the_templates_own_or_unknown_are_refused(name: str) -> None:
    with pytest.raises(InvalidParameter, match="documents, enable_thinking"):
        ChatTemplate(THINKING, SPECIAL).converse("[]", variables=json.dumps({name: 1}))


def test_a_template_changes_lists_of_its_own_and_copies() -> None:
    source = "{% set own = [] %}{% set _ = own.append(1) %}{% set _ = tools.append(2) %}{{ tools }}"
    given = [1]
    for _ in range(2):
        assert ChatTemplate(source, {}).render([], variables={"tools": given}) == "[1, 2]"
    endless = "{% set own = [] %}{% for _ in range(99999) %}{% set _ = own.append(1) %}{% endfor %}"
    with pytest.raises(NotSupported, match="steps"):
        ChatTemplate(endless, {}).render([])
    with pytest.raises(NotSupported, match="unsafe"):
        ChatTemplate("{% set own = [1] %}{% set _ = own.extend(own) %}", {}).render([])


def test_a_template_that_goes_through_tools_is_given_none_as_a_list() -> None:
    through = ChatTemplate("{% for one in tools %}{{ one }}{% endfor %}{{ messages | length }}", {})
    assert through.converse("[]").text == "0"
    telling = ChatTemplate("{{ tools is none }}", {})
    assert telling.converse("[]").text == "True"
    refusing = ChatTemplate("{{ raise_exception('never') }}{{ tools }}", {})
    with pytest.raises(NotSupported, match="never"):
        refusing.converse("[]")


def test_a_template_that_refuses_what_is_missing_is_given_it_empty() -> None:
    source = (
        "{% for one in tools %}{% for name, about in one.function.parameters.properties.items() %}"
        "{{ name + ': ' + about.description }};{% endfor %}{% endfor %}"
    )
    properties = {"a": {"description": "first"}, "b": {"type": "integer"}, "c": True}
    function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    tools = json.dumps([{"type": "function", "function": function}])
    with pytest.raises(NotSupported, match="description"):
        ChatTemplate(source, {}).converse("[]", tools)
    del properties["c"]
    tools = json.dumps([{"type": "function", "function": function}])
    assert ChatTemplate(source, {}).converse("[]", tools).text == "a: first;b: ;"


def test_a_template_without_a_system_has_its_text_in_the_first_turn_of_the_user() -> None:
    source = (
        "{% for one in messages %}{% if one.role == 'system' %}{{ raise_exception('no system') }}"
        "{% endif %}<{{ one.role }}>{{ one.content }}{% endfor %}"
    )
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}
    template = ChatTemplate(source, {})
    assert template.converse(json.dumps([system, user])).text == "<user>Be brief.\n\nHi"
    for turns in ([system], [user, system], [system, system, user]):
        with pytest.raises(NotSupported, match="no system"):
            template.converse(json.dumps(turns))
