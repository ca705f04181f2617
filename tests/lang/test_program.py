"""Programs in both spellings, against scripted answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

import pytest

import lmprog
from lmprog import wire
from lmprog.errors import GrammarError, InvalidParameter, ProgramError, UnknownName
from lmprog.lang.ops.type_schemas import schema_of
from lmprog.testing import Scripted


@pytest.fixture
def one() -> Iterator[Scripted]:
    with Scripted(["one"]) as scripted:
        yield scripted


def test_a_plain_program_reads_where_it_needs_a_value(one: Scripted) -> None:
    @lmprog.function
    def program(s: lmprog.Branch, question: str) -> str:
        s.append(f"Q: {question}\nA:")
        return s.gen(max_tokens=5).value + "!"

    run = program.using(backend=one).run("why?")
    assert run.value == "one!"
    assert one.prompts == ["Q: why?\nA:"]
    assert run.text() == "Q: why?\nA:one"
    assert run.usage.generated == 1


def test_an_async_program_awaits_its_values(one: Scripted) -> None:
    @lmprog.function
    async def program(s: lmprog.Branch, question: str) -> str:
        s.append(question)
        return await s.gen()

    assert program.using(backend=one).run("why?").value == "one"


def test_the_operator_spelling_names_its_values(one: Scripted) -> None:
    @lmprog.function
    def program(s, question):  # type: ignore[no-untyped-def]
        s += "Q: " + question + "\nA:" + lmprog.gen("answer", max_tokens=5) + "."

    state = program.run(question="why?", backend=one, temperature=0)
    assert state["answer"] == "one"
    assert state.text() == "Q: why?\nA:one."
    assert state.get_meta_info("answer")["finish_reason"]["type"] == "stop"
    assert "answer" in state


def test_roles_are_pieces_that_the_runtime_writes() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.system("Be kind.")
        s += lmprog.user("Hi " + lmprog.gen("name"))
        with s.assistant():
            s.gen("reply")

    with Scripted(["Ann", "Hello"]) as scripted:
        run = program.using(backend=scripted).run()
        assert run.messages() == [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hi Ann"},
            {"role": "assistant", "content": "Hello"},
        ]
        assert run.text() == "<|system|>\nBe kind.\n<|user|>\nHi Ann\n<|assistant|>\nHello\n"


def test_a_turn_with_content_cannot_be_entered_again(one: Scripted) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        with s.user("hi"):
            pass

    with pytest.raises(ProgramError, match=r"with s.user\(\)"):
        program.using(backend=one).run()
    one.client.call(wire.Generate(1, 99))  # the script is not used up otherwise
    one._script.clear()


def test_a_select_is_a_string_with_the_figures_of_all_options() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> lmprog.Selected:
        s.append("x")
        return s.select(
            "red", "blue", name="color", method=lmprog.sglang.greedy_token_selection
        ).value

    with Scripted(["blue"]) as scripted:
        value = program.using(backend=scripted).run().value
    assert value == "blue"
    assert list(value.scores) == ["red", "blue"]
    assert sum(value.probabilities.values()) == pytest.approx(1)
    assert set(value.logprobs) == set(value.baselines) == {"red", "blue"}
    asked = scripted.asked[0].op
    assert isinstance(asked, wire.Select)
    assert asked.method == "greedy_token_selection"


def test_a_method_of_scoring_is_refused_where_nothing_is_scored() -> None:
    with pytest.raises(InvalidParameter, match="no choices_method"):
        lmprog.gen("x", choices_method=lmprog.sglang.greedy_token_selection)


def test_appending_none_or_an_object_is_refused(one: Scripted) -> None:
    @lmprog.function
    def program(s: lmprog.Branch, content: object) -> None:
        s.append(content)

    for content, kind in ((None, "None"), (object(), "object"), (3, "int")):
        with pytest.raises(ProgramError, match=f"{kind} cannot be appended"):
            program.using(backend=one).run(content)
    one._script.clear()


def test_text_between_two_calls_is_one_append_and_a_lone_call_one_frame(one: Scripted) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        for word in ("a", "b", "c"):
            s.append(word)
        s.gen()

    program.using(backend=one).run()
    opened, appended, asked = one.frames[0]
    assert isinstance(opened, wire.Open)
    assert appended == wire.Append(1, (wire.TextPiece("abc"),))
    assert isinstance(asked, wire.Generate)


def test_the_ops_of_one_turn_of_the_event_loop_are_one_frame() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> list[str]:
        s.append("x")
        draft = s.gen()
        s.append(f"{draft}")
        grade = s.gen()
        return [await draft, await grade]

    with Scripted(["a", "b"]) as scripted:
        assert program.using(backend=scripted).run().value == ["a", "b"]
    assert [len(frame) for frame in scripted.frames] == [5, 1]


def test_typed_generations_are_confined_and_returned_as_their_type() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> Literal["yes", "no"]:
        s.append("x")
        return await s.gen(Literal["yes", "no"])

    with Scripted(["no"]) as scripted:
        assert program.using(backend=scripted).run().value == "no"
    asked = scripted.asked[0].op
    assert isinstance(asked, wire.Generate)
    assert asked.constraint == wire.Choices(("yes", "no"))


def test_constraints_by_keyword_travel_as_they_are() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("x")
        s.gen(regex="[0-9]+")
        s.gen(schema={"type": "object", "properties": {"b": {}, "a": {}}})
        s.gen(choices=["u", "v"])
        s.gen(grammar="root ::= [a-z]")

    with Scripted(["12", "{}", "v", "z"]) as scripted:
        program.using(backend=scripted).run()
    assert [
        asked.op.constraint for asked in scripted.asked if isinstance(asked.op, wire.Generate)
    ] == [
        wire.Regex("[0-9]+"),
        wire.JsonSchema('{"type": "object", "properties": {"b": {}, "a": {}}}'),
        wire.Choices(("u", "v")),
        wire.Grammar("root ::= [a-z]"),
    ]


def test_how_json_is_written_travels_with_schemas_and_types() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s += "x" + lmprog.gen("a", schema={"type": "object"}, whitespace="compact", order="any")
        s.gen(json_schema='{"type": "array"}', whitespace="indented")
        s.gen(list[int], order="any")
        s.gen(schema={}, whitespace=None, order="declared")

    with Scripted(["{}", "[]", "[]", "1"], strict=False) as scripted:
        program.using(backend=scripted).run()
    assert [
        asked.op.constraint for asked in scripted.asked if isinstance(asked.op, wire.Generate)
    ] == [
        wire.JsonSchema('{"type": "object"}', whitespace="compact", any_order=True),
        wire.JsonSchema('{"type": "array"}', whitespace="indented"),
        wire.JsonSchema(json.dumps(schema_of(list[int])), any_order=True),
        wire.JsonSchema("{}"),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schema": {}, "whitespace": "fixed", "whitespace_pattern": " "}, "cannot be combined"),
        ({"schema": {}, "whitespace_pattern": 1}, "as text"),
        ({"schema": {}, "whitespace": "none"}, "'fixed', 'compact', 'indented', 'flexible'"),
        ({"schema": {}, "order": "random"}, "give 'declared', 'any'"),
        ({"schema": {}, "order": True}, "give 'declared', 'any'"),
        ({"regex": "a", "whitespace": "compact"}, "whitespace is an option of JSON only"),
        ({"order": "any"}, "order is an option of JSON only"),
        ({"schema": {}, "whitespaces": "compact"}, "did you mean 'whitespace'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_layout_that_does_not_exist_is_refused_where_it_is_written(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidParameter, match=message):
        lmprog.gen("a", **options)
    if not {"regex", "schema"}.isdisjoint(options):
        with pytest.raises(InvalidParameter, match=message):
            lmprog.constraint(**options)


def test_a_variable_that_does_not_exist_is_named_with_those_that_do(one: Scripted) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s += "x" + lmprog.gen("tip")
        s["count"] = 3
        assert s["count"] == 3
        s["tipp"]

    with pytest.raises(UnknownName, match=r"'tipp'.*count, tip"):
        program.using(backend=one).run()


def test_var_scope_names_all_text_written_inside(one: Scripted) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("a")
        with s.var_scope("part"):
            s.append("<")
            s.gen()
            s.append(">")
        return str(s["part"])

    assert program.using(backend=one).run().value == "<one>"


def test_a_wrong_call_fails_before_anything_is_sent(one: Scripted) -> None:
    @lmprog.function
    def program(s: lmprog.Branch, question: str) -> None:
        s.append(question)

    with pytest.raises(TypeError, match="question"):
        program.using(backend=one).run()  # type: ignore[call-arg]
    assert one.frames == []
    one._script.clear()


def test_a_function_without_a_parameter_for_its_branch_is_refused() -> None:
    with pytest.raises(ProgramError, match="first parameter"):
        lmprog.function(lambda: None)  # type: ignore[arg-type, misc]


def test_vote_takes_the_first_of_the_most_agreed_on() -> None:
    assert lmprog.vote(["a", "B", "b", "a"]) == "a"
    assert lmprog.vote(["a", "B", "b"], key=str.lower) == "B"
    with pytest.raises(ProgramError):
        lmprog.vote([])


def test_a_function_that_yields_is_refused() -> None:
    """It would run nothing, and its value would be the generator."""

    def plain(s: lmprog.Branch) -> Iterator[str]:
        yield "a"

    async def awaiting(s: lmprog.Branch) -> AsyncIterator[str]:
        yield "a"

    for wrong in (plain, awaiting):
        with pytest.raises(ProgramError, match="yields"):
            lmprog.function(wrong)


def test_an_option_that_is_given_twice_is_one_option(one: Scripted) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> float:
        s.append("Q")
        return sum(s.select("one", "two", "one").value.probabilities.values())

    assert program.using(backend=one).run().value == pytest.approx(1.0)


def test_wrong_kinds_of_values_are_refused_by_name(one: Scripted) -> None:
    @lmprog.function
    def program(s: lmprog.Branch, ask: Callable[[lmprog.Branch], object]) -> None:
        ask(s)

    wrong: list[tuple[str, Callable[[Any], object]]] = [
        ("timeout", lambda s: s.gen(timeout="5")),
        ("timeout", lambda s: s.fork(2, timeout="5")),
        ("max_total_tokens", lambda s: s.fork(2, max_total_tokens=5.5)),
        ("choices", lambda s: s.select(1, 2)),
    ]
    for name, ask in wrong:
        with pytest.raises(InvalidParameter) as caught:
            program.using(backend=one).run(ask)
        assert caught.value.name == name
    one._script.clear()


def test_a_program_that_takes_any_name_can_be_bound_to_any(one: Scripted) -> None:
    @lmprog.function
    def program(s: lmprog.Branch, /, **given: object) -> dict[str, object]:
        return given

    assert program.bind(a=1).using(backend=one).run(b=2).value == {"a": 1, "b": 2}
    one._script.clear()


def test_turns_neither_nest_nor_end_before_they_begin(one: Scripted) -> None:
    def nested(s: lmprog.Branch) -> None:
        with s.user(), s.assistant():
            s.append("x")

    def unopened(s: lmprog.Branch) -> None:
        s += lmprog.sglang.user_end()

    def crossed(s: lmprog.Branch) -> None:
        s += lmprog.sglang.user_begin() + "x" + lmprog.sglang.assistant_end()

    def joined(s: lmprog.Branch) -> None:
        forks = s.fork(1)
        forks += lmprog.sglang.user_begin() + "x"
        forks.join("concate_and_append")
        s.user("y")

    for program, why in [
        (nested, "the turn of 'assistant' cannot begin before that of 'user' has ended"),
        (unopened, "no turn of 'user' can end here; open is none"),
        (crossed, "open is that of 'user'"),
        (joined, "the turn of 'user' cannot begin before that of 'user' has ended"),
    ]:
        with pytest.raises(ProgramError, match=why):
            lmprog.function(program).using(backend=one).run()
    one._script.clear()


def test_a_turn_that_a_fork_inherits_ends_there(one: Scripted) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> list[dict[str, str]]:
        s += lmprog.sglang.user_begin() + "a"
        with s.copy() as other:
            other += " b" + lmprog.sglang.user_end() + lmprog.assistant(lmprog.gen())
            return other.messages()

    assert [turn["content"] for turn in program.using(backend=one).run().value] == ["a b", "one"]


def test_an_error_inside_of_a_turn_ends_the_turn() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> list[dict[str, str]]:
        try:
            with s.user():
                s.append("a" + s.gen(regex="(").value)
        except GrammarError:
            s.user("b")
        return s.messages()

    with Scripted([GrammarError("missing )", position=0)]) as scripted:
        turns = program.using(backend=scripted).run().value
    assert [turn["content"] for turn in turns] == ["", "b"]


def test_healing_can_be_set_for_a_run_a_fork_and_a_view() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("x")
        s.gen("run")
        s.gen("call", heal=True)
        s.with_(heal=True).gen("view")
        with s.fork(1, heal=True) as [child]:
            child.gen("fork")

    with Scripted(lambda prompt: "y") as scripted:
        program.using(backend=scripted, heal=False).run()
    heals = [asked.op.heal for asked in scripted.asked if isinstance(asked.op, wire.Generate)]
    assert heals == [False, True, True, True]
