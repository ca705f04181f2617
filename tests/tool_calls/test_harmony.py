"""Answers that are messages in channels are told apart the same way, however they come."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.tool_calls.constraining import ToolShape, calls_constraint, free_or_calls
from lmprog.tool_calls.harmony import (
    FINAL,
    HARMONY,
    HarmonyStream,
    ThoughtText,
    harmony_answer,
)
from lmprog.tool_calls.reading import ParsedCall
from lmprog.tool_calls.thoughts import Marks
from tests.tool_calls.test_constraining import VOCABULARY

TOOLS: dict[str, Any] = {"now": {}, "get_weather": {"type": "object"}}
THOUGHT = "<|channel|>analysis<|message|>Hm, <b>.<|end|>"
CALL = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
OLD_CALL = " to=functions.get_weather<|channel|>commentary json<|message|>"
NEXT = "<|start|>assistant"


def read(
    text: str, cuts: list[int] | None = None, opening: str = ""
) -> tuple[str, str, list[tuple[str, Any]]]:
    """Thought, content and calls."""
    stream = HarmonyStream(TOOLS, opening)
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts or [])})
    parts = [part for at, to in itertools.pairwise(borders) for part in stream.feed(text[at:to])]
    parts += stream.finish()
    return (
        "".join(part.text for part in parts if isinstance(part, ThoughtText)),
        "".join(part for part in parts if isinstance(part, str)),
        [(part.name, json.loads(part.arguments)) for part in parts if isinstance(part, ParsedCall)],
    )


@pytest.mark.parametrize(
    ("text", "thought", "content", "calls"),
    [
        (THOUGHT + NEXT + FINAL + "It is late.", "Hm, <b>.", "It is late.", []),
        (FINAL + "It is late.", "", "It is late.", []),
        ("<|channel|>final <|constrain|>json<|message|>{}", "", "{}", []),
        (THOUGHT + NEXT + CALL + '{"a": 1}', "Hm, <b>.", "", [("get_weather", {"a": 1})]),
        (THOUGHT + NEXT + OLD_CALL + '{"a": 1}', "Hm, <b>.", "", [("get_weather", {"a": 1})]),
        (
            "<|channel|>analysis to=functions.now code<|message|>{}",
            "",
            "",
            [("now", {})],
        ),
        (
            "<|channel|>commentary<|message|>I look.<|end|>" + NEXT + CALL + "{}",
            "",
            "I look.",
            [("get_weather", {})],
        ),
        (
            "<|channel|>commentary<|message|>First.<|end|>" + NEXT + FINAL + "Then.",
            "",
            "First.\n\nThen.",
            [],
        ),
        (THOUGHT + NEXT + THOUGHT, "Hm, <b>.\n\nHm, <b>.", "", []),
        (CALL + '{"a": ', "", CALL + '{"a": ', []),
        (CALL + "[1]", "", CALL + "[1]", []),
        (
            "<|channel|>commentary to=browser.open<|message|>{}",
            "",
            "<|channel|>commentary to=browser.open<|message|>{}",
            [],
        ),
        ("No channel at all.", "", "No channel at all.", []),
        ("tonight", "", "tonight", []),
        ("<|channel|>ana", "", "", []),
        (FINAL + "a <|en", "", "a <|en", []),
        ("<|channel|>" + "x" * 600, "", "<|channel|>" + "x" * 600, []),
    ],
)
def test_thoughts_calls_and_answers_are_told_apart(
    text: str, thought: str, content: str, calls: list[tuple[str, Any]]
) -> None:
    assert read(text) == (thought, content, calls)
    assert read(text, list(range(len(text)))) == (thought, content, calls)


PIECES = [
    *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "assistant"),
    *("analysis", "commentary", "final", " to=functions.now", " to=other", "{}", '{"a": [1]}'),
    *("<", "<|", "to=", " ", "\n", "A word.", "{", THOUGHT, CALL, FINAL, NEXT),
]


@given(
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
    st.lists(st.integers(0, 2000), max_size=12),
    st.sampled_from(["", FINAL]),
)
def test_what_is_read_does_not_depend_on_how_the_text_comes(
    text: str, cuts: list[int], opening: str
) -> None:
    assert read(text, cuts, opening) == read(text, None, opening)


def test_texts_go_out_as_they_come_and_half_a_mark_waits() -> None:
    stream = HarmonyStream(TOOLS)
    assert stream.feed("<|channel|>analysis<|mess") == []
    assert stream.feed("age|>I think <|") == [ThoughtText("I think ")]
    assert stream.feed("end|>" + NEXT + FINAL + "So") == ["So"]


def accepts(constraint: wire.Constraint, text: str) -> bool:
    """Whether a text is exactly what the constraint allows."""
    compiled = compile_constraint(constraint, VOCABULARY)
    state = compiled.start
    for byte in text.encode():
        ids = compiled.mask(state, 500).ids
        assert ids is not None
        if byte not in ids:
            return False
        state = compiled.advance(state, byte)
    return compiled.is_final(state)


SHAPES = [
    ToolShape("now", {"type": "object", "properties": {}, "additionalProperties": False}),
    ToolShape("add", {"type": "object", "properties": {"a": {"type": "integer"}}}),
]
ADD = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>"


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        (ADD + '{"a": 3}', True),
        (THOUGHT + NEXT + ADD + '{"a": 3}', True),
        (ADD + '{"a": "x"}', False),
        (ADD.replace("add", "get"), False),
        (FINAL + "No.", False),
        (THOUGHT, False),
    ],
)
def test_a_required_call_is_one_of_the_tools_after_a_thought_or_none(
    text: str, is_allowed: bool
) -> None:
    assert accepts(calls_constraint(HARMONY, SHAPES, many=True), text) is is_allowed


def test_a_constrained_answer_stands_in_its_channel() -> None:
    constraint = harmony_answer(wire.Regex("[0-9]+"))
    assert accepts(constraint, FINAL + "42")
    assert accepts(constraint, THOUGHT + NEXT + FINAL + "42")
    assert not accepts(constraint, "42")


def test_programs_tell_thoughts_apart_by_their_marks() -> None:
    marks = Marks("<|channel|>analysis<|message|>", "<|end|><|start|>assistant" + FINAL)
    assert marks.split(THOUGHT + NEXT + FINAL + "It is late.") == ("Hm, <b>.", "It is late.")


COMMENT = "<|channel|>commentary<|message|>I look.<|end|>" + NEXT


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        (FINAL + "No.", True),
        (THOUGHT + NEXT + COMMENT + THOUGHT + NEXT + ADD + '{"a": 3}', True),
        (THOUGHT + NEXT + FINAL + "No.", True),
        ("<|channel|>analysis<|message|>It is cut", True),
        (THOUGHT + NEXT + ADD + '{"a": "x"}', False),
        (THOUGHT + NEXT + ADD + '{"a": 3', False),
        (FINAL + "No." + ADD + '{"a": 3}', False),
    ],
)
def test_in_an_answer_that_may_call_calls_are_confined(text: str, is_allowed: bool) -> None:
    assert accepts(free_or_calls(HARMONY, SHAPES, many=False), text) is is_allowed


@pytest.mark.parametrize("size", [7, 100_000])
def test_a_header_that_is_too_long_is_text_and_read_in_time(size: int) -> None:
    text = "<|start|>" + "a" * 600 + "<|start|>" + "b" * 600
    stream = HarmonyStream({})
    parts = [part for at in range(0, len(text), size) for part in stream.feed(text[at : at + size])]
    parts += stream.finish()
    assert "".join(map(str, parts)).replace("\n\n", "") == text


@pytest.mark.parametrize("size", [1, 8, 1000])
def test_the_arguments_of_a_held_call_may_spell_marks(size: int) -> None:
    said = '{"text": "a <|end|><|start|>assistant b"}'
    before, between, _ = HARMONY.literals
    text = before + "say" + between + said
    stream = HarmonyStream({"say": {}}, is_held=True)
    parts = [part for at in range(0, len(text), size) for part in stream.feed(text[at : at + size])]
    (call,) = [*parts, *stream.finish()]
    assert isinstance(call, ParsedCall)
    assert call.arguments == said
