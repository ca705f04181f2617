"""What a program would do, without doing it: traces, previews, explanations; and that the run then
does just that.
"""

from __future__ import annotations

import dataclasses
import json
import re
from enum import Enum
from typing import Any, Literal

import pytest

import lmprog
from lmprog import wire
from lmprog.backends.client import RuntimeBackend, describe
from lmprog.errors import ProgramError
from lmprog.lang.ops.type_schemas import schema_of, value_of
from lmprog.lang.rehearsal import rehearsing
from lmprog.lang.rehearsal.op_graph import Planned
from lmprog.lang.rehearsal.prompts import split
from lmprog.lang.rehearsal.rehearsing import placeholder
from lmprog.testing import Scripted


@lmprog.function
def tips(s: lmprog.Branch, topic: str) -> None:
    s += f"Two tips about {topic}: " + lmprog.gen("list", max_tokens=16)
    forks = s.fork(2)
    forks += lambda i: f"Tip {i + 1}: " + lmprog.gen("short", max_tokens=8)
    forks.join()
    s += f" In short: {s['short'][0]}. "
    s += lmprog.select("kind", ["good", "bad"])


@lmprog.function
async def drafts(s: lmprog.Branch, topic: str) -> str:
    s.append(topic)
    first = s.gen(name="first", max_tokens=5)
    s.append(f" so {first} then ")
    async with s.fork(2) as branches:
        await branches.map(lambda b: b.gen(max_tokens=4))
    return await s.gen(max_tokens=6)


def _without_lines(text: str) -> str:
    return re.sub(r" +\[line \d+\]", "", text)


def test_11_a_program_with_fork_and_join_can_be_traced() -> None:
    assert _without_lines(str(tips.trace("health"))).splitlines() == [
        "tips: 4 calls, 3 branches, 1 forks",
        "branch 1",
        "  text 'Two tips about health: '",
        "  list = gen(at most 16 tokens)",
        "  fork into branch 2, branch 3",
        "    branch 2",
        "      text 'Tip 1: '",
        "      short = gen(at most 8 tokens)",
        "    branch 3",
        "      text 'Tip 2: '",
        "      short (2) = gen(at most 8 tokens)",
        "  join branch 2, branch 3",
        "  text ' In short: ⟨short⟩. '",
        "  kind = select(good | bad, token_length_normalized)",
    ]


def test_a_trace_of_a_coroutine_shows_references_and_the_end_of_its_fork() -> None:
    assert _without_lines(str(drafts.trace())).splitlines()[1:] == [
        "branch 1",
        "  text '⟨topic⟩'",
        "  first = gen(at most 5 tokens)",
        "  text ' so ' ⟨first⟩ ' then '",
        "  fork into branch 2, branch 3",
        "    branch 2",
        "      gen 2 = gen(at most 4 tokens)",
        "    branch 3",
        "      gen 3 = gen(at most 4 tokens)",
        "  join branch 2, branch 3",
        "  gen 4 = gen(at most 6 tokens)",
    ]


def test_a_trace_can_be_drawn_with_its_forks_joins_and_uses_of_results() -> None:
    dot = tips.trace('a "quoted" topic').to_dot()
    nodes = dict(re.findall(r"  (n\d+) \[shape=\w+, label=\"(.*)\"\];", dot))
    label = {name: re.sub(r" ?=.*| into.*| branch.*", "", text) for name, text in nodes.items()}
    edges = {(label[a], label[b]) for a, b in re.findall(r"  (n\d+) -> (n\d+);", dot)}
    assert {("list", "fork"), ("short", "join"), ("short (2)", "join"), ("fork", "join")} <= edges
    [(source, target)] = re.findall(r"  (n\d+) -> (n\d+) \[style=dashed\];", dot)
    assert (label[source], label[target]) == ("short", "text ' In short: ⟨short⟩. '")
    assert r"\"quoted\"" in dot
    assert dot.count("{") == dot.count("}") == 1


def test_a_trace_calls_no_backend() -> None:
    with Scripted() as scripted:
        tips.using(backend=scripted).trace("health")
    assert scripted.frames == []


def test_what_is_previewed_is_what_is_sent() -> None:
    with Scripted(["⟨list⟩", "⟨short⟩", "⟨short (2)⟩", "good"]) as scripted:
        preview = tips.using(backend=scripted).preview("health")
        tips.using(backend=scripted).run("health")
    assert [prompt.text for prompt in preview.prompts] == scripted.prompts
    assert preview["kind"].text == "Two tips about health: ⟨list⟩ In short: ⟨short⟩. "
    assert not preview["list"].is_exact, "the double counts words"


def test_a_preview_shows_each_branch_once_and_how_it_goes_on() -> None:
    with Scripted() as scripted:
        shown = str(tips.using(backend=scripted).preview("health"))
    assert shown.splitlines()[:6] == [
        "--- branch 1",
        "Two tips about health: ⟨list⟩ In short: ⟨short⟩. ⟨kind⟩",
        "--- branch 2, goes on from branch 1",
        "...Tip 1: ⟨short⟩",
        "--- branch 3, goes on from branch 1",
        "...Tip 2: ⟨short (2)⟩",
    ]


def test_roles_are_previewed_as_the_runtime_writes_them() -> None:
    @lmprog.function
    def chat(s: lmprog.Branch) -> None:
        s.user("hello")
        with s.assistant():
            s.gen("answer")

    with Scripted(["⟨answer⟩"]) as scripted:
        preview = chat.using(backend=scripted).preview()
        run = chat.using(backend=scripted).run()
    assert preview.branches[1] == run.text() == "<|user|>\nhello\n<|assistant|>\n⟨answer⟩\n"


def test_previewed_tokens_are_those_of_the_run(backend: RuntimeBackend) -> None:
    program = drafts.using(backend=backend, ignore_eos=True)
    preview = program.preview("the topic ")
    run = program.run("the topic ")
    longest = {
        planned.label: planned.op.sampling.max_tokens
        for planned in preview.graph.calls.values()
        if isinstance(planned.op, wire.Generate)
    }
    for prompt, gen in zip(preview.prompts, run.scope.gens, strict=True):
        assert gen.usage is not None
        results = sum(longest[label] or 0 for label in prompt.results)
        if prompt.is_exact:
            assert prompt.num_tokens + results == gen.usage.prompt
    assert [prompt.is_exact for prompt in preview.prompts] == [True, False, False, False]


def test_explained_tokens_are_those_of_a_run_that_generates_as_much_as_it_may(
    backend: RuntimeBackend,
) -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> None:
        s.append("a prefix ")
        s.gen(name="first", max_tokens=5)
        async with s.fork(3) as branches:
            for index, branch in enumerate(branches):
                branch.append("x" * (index + 1))
            await branches.map(lambda b: b.gen(max_tokens=7))
        s.select("yes", "no")

    program = program.using(backend=backend, ignore_eos=True)  # type: ignore[assignment]
    explanation = program.explain()
    run = program.run()
    for cost, gen in zip(explanation.calls, run.scope.gens, strict=True):
        assert gen.usage is not None
        assert cost.prompt == gen.usage.prompt
    assert run.usage.computed <= explanation.worst_tokens
    assert explanation.prompt_tokens == run.usage.prompt
    assert explanation.worst_pages * explanation.page_size >= explanation.worst_tokens
    assert (explanation.num_forks, explanation.num_branches) == (1, 4)
    assert [cost.shared for cost in explanation.calls] == [0, 14, 15, 16, 14]
    assert explanation.calls[1].shared_with == "first"


def test_a_call_that_can_outgrow_the_context_is_named(backend: RuntimeBackend) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("abc")
        s.gen("small", max_tokens=5)
        s.gen("large", max_tokens=5000)

    explanation = program.using(backend=backend).explain()
    assert [cost.label for cost in explanation.refused] == ["large"]
    assert "large can need 5,008 tokens" in str(explanation)


def test_a_rehearsal_leaves_nothing_in_the_runtime(backend: RuntimeBackend) -> None:
    before = describe(backend)["generated_tokens"]
    tips.using(backend=backend).preview("health")
    tips.using(backend=backend).explain("health")
    after = describe(backend)
    assert (after["open_branches"], after["generated_tokens"]) == (0, before)


def test_nested_programs_are_rehearsed_too() -> None:
    @lmprog.function
    def inner(s: lmprog.Branch, word: str) -> str:
        s.append(word)
        return s.gen("inner").value

    @lmprog.function
    def outer(s: lmprog.Branch) -> None:
        s.append("outer ")
        s.gen("own")
        inner(s, " goes on ")
        inner.run("alone ")

    lines = _without_lines(str(outer.trace())).splitlines()
    assert lines.count("branch 2") == 1
    assert "  inner (2) = gen(at most 1024 tokens)" in lines


def test_a_program_that_never_ends_on_placeholders_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert rehearsing.MAX_CALLS == 10_000
    monkeypatch.setattr(rehearsing, "MAX_CALLS", 1000)

    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        while s.gen(max_tokens=1).value != "stop":
            pass

    with pytest.raises(ProgramError, match=r"more than 1,000 calls"):
        program.trace()


def test_what_fails_on_placeholders_says_that_it_was_a_rehearsal() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> int:
        return int(s.gen(name="x").value)

    with pytest.raises(ValueError, match="invalid literal") as caught:
        program.trace()
    assert any("rehearsal" in note for note in caught.value.__notes__)


class Color(Enum):
    RED = "red"


@dataclasses.dataclass
class Tree:
    name: str
    size: float
    tags: list[str]
    kind: Literal["leaf", "inner"]
    color: Color
    below: Tree | None = None
    least: tuple[int, str] = (0, "")


@pytest.mark.parametrize(
    "tp", [int, float, bool, list[int], dict[str, int], Tree, Tree | None, Literal[3, 4]]
)
def test_a_placeholder_of_a_type_is_a_value_of_it(tp: Any) -> None:
    text = placeholder(wire.JsonSchema(json.dumps(schema_of(tp))), "⟨x⟩")
    value_of(tp, text)


def test_placeholders_satisfy_common_expressions_and_else_are_marks() -> None:
    assert placeholder(wire.Regex(r"[0-9]+\.[0-9]{2}"), "⟨x⟩") == "0.00"
    assert placeholder(wire.Choices(("b", "a")), "⟨x⟩") == "b"
    assert placeholder(wire.Regex(r"qu[i1]te special"), "⟨x⟩") == "⟨x⟩"
    assert placeholder(None, "⟨x⟩") == "⟨x⟩"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer", "minimum": 5, "multipleOf": 4}, 8),
        ({"type": "number", "exclusiveMaximum": 0}, -1),
        ({"type": "string", "minLength": 6}, "textxx"),
        ({"type": "string", "format": "date"}, "2000-01-01"),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, [False, False]),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"const": 7}}}, 7),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, None),
    ],
)
def test_placeholders_keep_to_the_bounds_of_a_schema(schema: dict[str, Any], value: Any) -> None:
    assert json.loads(placeholder(wire.JsonSchema(json.dumps(schema)), "")) == value


def test_a_text_is_cut_at_its_results_in_their_order_and_keeps_other_mentions() -> None:
    x, y = (Planned(name, wire.Generate(1, 1)) for name in "xy")
    assert split("a⟨x⟩b⟨x⟩⟨y⟩", [x, y]) == ("a", x, "b⟨x⟩", y)
    assert split("⟨x⟩⟨y⟩c", [x, y]) == ("", x, y, "c")
    assert split("", []) == ("",)


def test_counts_without_a_tokenizer_are_called_approximate() -> None:
    with Scripted() as scripted:
        cost = drafts.using(backend=scripted).explain("health")
        preview = drafts.using(backend=scripted).preview("health")
    assert not cost.is_exact
    assert str(cost).endswith("(this backend has no tokenizer: all counts are approximate)")
    assert "prompt about 1;" in str(cost)
    assert "about at most" in str(cost)
    assert not any(prompt.is_exact for prompt in preview.prompts)
    assert "about 1 tokens" in str(preview)


def test_counts_of_a_runtime_are_exact_unless_a_result_stands_in_literal_text(
    backend: RuntimeBackend,
) -> None:
    cost = drafts.using(backend=backend).explain("health")
    assert [call.is_exact for call in cost.calls] == [True, False, False, False], (
        "the first result is in a later text"
    )
    assert str(cost).endswith("(about: a result stands in literal text, and its mark was counted)")

    @lmprog.function
    def plain(s: lmprog.Branch) -> None:
        s.append("abc")
        s.gen(max_tokens=3)

    exact = plain.using(backend=backend).explain()
    assert exact.is_exact
    assert "about" not in str(exact)


def test_a_rehearsal_never_asks_the_backend_that_a_nested_program_names() -> None:
    with Scripted() as service, Scripted() as counted:

        @lmprog.function
        def inner(s: lmprog.Branch) -> str:
            s.append("paid:")
            return s.gen("inner").value

        @lmprog.function
        def outer(s: lmprog.Branch) -> None:
            s.append(inner.using(backend=service).run().value)
            s.append(inner.run(backend=service).value)  # type: ignore[call-arg]
            s.gen("outer")

        outer.using(backend=counted).preview()
        outer.using(backend=counted).explain()
        assert len(outer.trace().calls) == 3
        assert service.asked == []
