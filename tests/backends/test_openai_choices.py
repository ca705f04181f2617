"""Selects and constraints on an API: enforced by it, or looked at afterwards, or refused."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest

import lmprog
from lmprog import wire
from lmprog.backends.blackbox.call_answers import can_be_checked
from lmprog.backends.blackbox.dialects import DIALECTS, ApiDialect
from lmprog.backends.blackbox.openai_body import enforceable
from lmprog.errors import (
    NotSupported,
    ValidationFailed,
)
from tests.backends.programs import FACTS, chat, on
from tests.backends.scripted_api import ScriptedApi, document

# --- select


@lmprog.function
def choose(
    s: lmprog.Branch, method: wire.SelectMethod = "token_length_normalized"
) -> lmprog.Selected:
    s.append("The capital of Italy is")
    return s.select(" Rome", " Paris", " London town", method=method).value


@pytest.mark.parametrize("method", ["token_length_normalized", "greedy_token_selection"])
def test_a_select_is_scored_in_one_request_where_the_server_echoes_logprobs(
    method: wire.SelectMethod,
) -> None:
    with ScriptedApi(FACTS) as api, on(api, dialect="vllm") as backend:
        won = choose.using(backend=backend).run(method).value
        assert won == " Rome"
        assert won.logprobs == {" Rome": (-0.1,), " Paris": (-4.0,), " London town": (-4.0, -4.0)}
        assert won.probabilities[" Rome"] > 0.9
        [request] = api.requests
        assert (request["echo"], request["max_tokens"], len(request["prompt"])) == (True, 0, 3)


@pytest.mark.parametrize("owner", ["vllm", "sglang", "lmprog"])
def test_a_server_is_asked_once_what_it_is(owner: str) -> None:
    with ScriptedApi(FACTS) as api, on(api) as backend:
        api.owner = owner
        assert api.looks == []
        for _ in range(2):
            won = choose.using(backend=backend).run().value
            assert won.logprobs == {
                " Rome": (-0.1,),
                " Paris": (-4.0,),
                " London town": (-4.0, -4.0),
            }
        assert api.looks == ["/v1/models"]


def test_a_server_that_says_nothing_of_itself_is_a_plain_one() -> None:
    with ScriptedApi(FACTS) as api, on(api) as backend:
        with pytest.raises(NotSupported):
            choose.using(backend=backend).run()
        assert api.looks == ["/v1/models"]


def test_a_server_whose_dialect_is_named_is_not_asked() -> None:
    with ScriptedApi(FACTS) as api, on(api, dialect="vllm") as backend:
        assert choose.using(backend=backend).run().value == " Rome"
        assert api.looks == []


def test_a_server_that_does_not_say_now_is_asked_again() -> None:
    with ScriptedApi(FACTS) as api, on(api) as backend:
        api.owner, api.is_deaf = "vllm", True
        with pytest.raises(NotSupported):
            choose.using(backend=backend).run()
        api.is_deaf = False
        assert choose.using(backend=backend).run().value == " Rome"


def test_any_server_can_be_said_to_echo() -> None:
    with ScriptedApi(FACTS) as api, on(api, echo=True) as backend:
        assert choose.using(backend=backend).run().value == " Rome"
        assert "top_k" not in api.requests[0]


def test_a_select_that_compares_likelihoods_without_the_text_is_refused_where_first_tokens_have_none() -> (
    None
):
    with (
        ScriptedApi(FACTS) as api,
        on(api, dialect="vllm") as backend,
        pytest.raises(NotSupported, match="first token"),
    ):
        choose.using(backend=backend).run("unconditional_likelihood_normalized")


def test_a_select_on_a_chat_asks_for_one_of_the_choices_and_has_no_figures() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> lmprog.Selected:
        s.user("Which?")
        return s.select("invoice", "other").value

    with ScriptedApi(chat({"Which?": '{"value": "other"}'})) as api, on(api) as backend:
        won = program.using(backend=backend).run().value
        assert won == "other"
        assert all(
            math.isnan(score) for score in [*won.scores.values(), *won.probabilities.values()]
        )
        schema = api.requests[0]["response_format"]["json_schema"]["schema"]
        assert schema["properties"]["value"] == {"type": "string", "enum": ["invoice", "other"]}


# --- constraints


def test_types_travel_as_json_schemas_and_come_back_as_values() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> tuple[object, ...]:
        s.user("number")
        number = s.gen(int, max_tokens=4)
        s.user("word")
        word = s.gen(Literal["yes", "no"])
        s.user("object")
        return (
            number.value,
            word.value,
            s.gen(schema={"type": "object", "properties": {"a": {"type": "number"}}}).value,
        )

    answers = {"number": '{"value": 42}', "word": '{"value": "no"}', "object": '{"a": 1e-3}'}
    with ScriptedApi(chat(answers)) as api, on(api) as backend:
        assert program.using(backend=backend).run().value == (42, "no", '{"a": 1e-3}')
        formats = [request["response_format"]["json_schema"] for request in api.requests]
        assert all(one["strict"] for one in formats)
        assert api.requests[0]["max_tokens"] == 4 + 16  # room for what it is wrapped in
        assert api.requests[1]["messages"][1] == {"role": "assistant", "content": "42"}


@pytest.mark.parametrize("constraints", ["enforced", "best_effort"])
def test_json_in_a_block_of_code_is_read(constraints: Any) -> None:
    """As models write it where a server ignores the format, or is not asked for one."""

    @lmprog.function
    def program(s: lmprog.Branch) -> tuple[object, ...]:
        s.user("object")
        found = s.gen(schema={"type": "object", "properties": {"a": {"type": "number"}}})
        s.user("number")
        number = s.gen(int).value
        s.user("word")
        return (
            found.value,
            number,
            s.gen(regex="[a-z]+" if constraints == "best_effort" else None).value,
        )

    answers = {
        "object": '```json\n{"a": 1}\n```',
        "number": '\n```\n{"value": 7}\n```\n',
        "word": "```text\nyes\n```",
    }
    word = "yes" if constraints == "best_effort" else answers["word"]
    with ScriptedApi(chat(answers)) as api, on(api, constraints=constraints) as backend:
        assert program.using(backend=backend).run().value == ('{"a": 1}', 7, word)


def test_a_content_of_parts_is_their_text() -> None:
    content = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "Ro"},
        {"type": "text", "text": "me"},
    ]

    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.user("Where?")
        return s.gen().value

    with ScriptedApi(chat({})) as api, on(api) as backend:
        end = {"index": 0, "finish_reason": "stop"}
        api.extra["/v1/chat/completions"] = lambda body: {
            "choices": [{"message": {"content": content}, **end}]
        }
        assert program.using(backend=backend).run().value == "Rome"
        api.extra["/v1/chat/completions"] = lambda body: (
            *({"choices": [{"index": 0, "delta": {"content": [part]}}]} for part in content),
            {"choices": [{"delta": {}, **end}]},
        )
        events = list(program.using(backend=backend).stream())
        assert "".join(event.delta for event in events if isinstance(event, lmprog.Text)) == "Rome"


def test_json_that_was_cut_is_a_failed_validation_with_its_text() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> int:
        s.user("number")
        return s.gen(int).value

    with (
        ScriptedApi(chat({"number": '{"val'})) as api,
        on(api) as backend,
        pytest.raises(ValidationFailed) as caught,
    ):
        program.using(backend=backend).run()
    assert caught.value.text == '{"val'


@lmprog.function
def dated(s: lmprog.Branch) -> str:
    s.append("When? ")
    return s.gen(regex=r"[0-9]{4}").value


def test_a_regex_is_refused_where_the_api_cannot_enforce_it() -> None:
    with ScriptedApi(document("When? 1815")) as api, on(api) as backend:
        with pytest.raises(NotSupported, match="best_effort"):
            dated.using(backend=backend).run()
        assert api.requests == []


@pytest.mark.parametrize("layout", [{"whitespace": "compact"}, {"order": "any"}])
@pytest.mark.parametrize("options", [{}, {"dialect": "vllm"}, {"constraints": "best_effort"}])
def test_a_layout_of_json_is_refused_as_no_api_has_a_field_for_it(
    layout: dict[str, Any], options: dict[str, Any]
) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> list[int]:
        s.user("numbers")
        return s.gen(list[int], **layout).value

    with ScriptedApi(chat({"numbers": "[1]"})) as api, on(api, **options) as backend:
        with pytest.raises(NotSupported, match="whitespace and order"):
            program.using(backend=backend).run()
        assert api.requests == []


@pytest.mark.parametrize(
    ("dialect", "field"),
    [("vllm", {"structured_outputs": {"regex": "[0-9]{4}"}}), ("sglang", {"regex": "[0-9]{4}"})],
)
def test_servers_that_know_regexes_are_told(dialect: str, field: dict[str, object]) -> None:
    with ScriptedApi(document("When? 1815")) as api, on(api, dialect=dialect) as backend:
        assert dated.using(backend=backend).run().value == "1815"
        assert api.requests[0].items() >= field.items()


def test_best_effort_asks_until_the_text_fits() -> None:
    tries = iter(["long ago", "about 1815", " 1815\n"])
    with (
        ScriptedApi(lambda prompt: next(tries)) as api,
        on(api, constraints="best_effort") as backend,
    ):
        run = dated.using(backend=backend).run()
        assert run.value == "1815"
        assert len(api.requests) == 3
        assert run.usage.prompt == api.prompt_tokens
        assert len({request["seed"] for request in api.requests}) == 3


def test_best_effort_gives_up_with_the_text() -> None:
    with (
        ScriptedApi(lambda prompt: "long ago") as api,
        on(api, constraints="best_effort", tries=2) as backend,
        pytest.raises(ValidationFailed, match="asked 2 times") as caught,
    ):
        dated.using(backend=backend).run()
    assert caught.value.text == "long ago"
    assert len(api.requests) == 2


def test_best_effort_looks_at_json_by_its_schema() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> list[int]:
        s.append("numbers:")
        return s.gen(list[int]).value

    tries = iter(["one, two", '["1"]', "[1, 2]"])
    with (
        ScriptedApi(lambda prompt: next(tries)) as api,
        on(api, constraints="best_effort") as backend,
    ):
        assert program.using(backend=backend).run().value == [1, 2]


def test_best_effort_finds_choices_that_begin_with_a_space() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("Is it so? Answer:")
        return s.select(" yes", " no").value

    with (
        ScriptedApi(lambda prompt: " no\n") as api,
        on(api, constraints="best_effort") as backend,
    ):
        run = program.using(backend=backend).run()
        assert run.value == " no"
        assert run.text() == "Is it so? Answer: no"
        assert len(api.requests) == 1


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=list(DIALECTS))
def test_no_service_enforces_a_constraint_made_of_others(dialect: ApiDialect) -> None:
    part = wire.Choices(("a", "b"))
    for composed in (wire.InOrder((part,)), wire.AnyOf((part,)), wire.Repeated(part, 0, 2)):
        assert not enforceable(composed, dialect, is_chat=True)
        assert not can_be_checked(composed)
