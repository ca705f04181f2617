"""A constraint without a model: what is accepted, drawn, forced, allowed and shown."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import pytest

import lmprog
from lmprog import constrained
from lmprog.cli import main
from lmprog.errors import GrammarError, InvalidParameter, RequestRejected
from tests.constrained.test_always_closes import CONSTRAINTS, is_instance
from tests.constrained.writer import byte_tokenizer, nano_tokenizer


class Color(Enum):
    RED = "red"
    BLUE = "blue"


def test_importing_it_loads_no_torch_and_no_runtime() -> None:
    code = (
        "import sys, lmprog; assert 'numpy' not in sys.modules; c = lmprog.constraint(regex='a+'); "
        "assert c.accepts('aa'); assert 'torch' not in sys.modules; assert "
        "callable(lmprog.constraint)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_takes_too_long_to_compile_is_refused_as_the_runtime_refuses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nested: dict[str, Any] = {"type": "string"}
    for _ in range(60):  # each level doubles what has to be told apart
        nested = {"properties": {"a": {"type": "integer"}}, "if": nested, "then": False}
    monkeypatch.setattr(constrained, "MAX_COMPILE_SECONDS", 0.1)
    with pytest.raises(GrammarError, match=r"takes more than 0\.1 s of processor time"):
        lmprog.constraint(schema=nested)
    once = lmprog.constraint(regex="a+")
    monkeypatch.setattr(constrained, "MAX_COMPILE_SECONDS", -1.0)
    with pytest.raises(GrammarError, match="of processor time"):
        once.mask([], nano_tokenizer())


def test_every_kind_accepts_what_it_says() -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"regex": r"\d{2}"}, "12", "123"),
        ({"schema": {"type": "integer"}}, "-7", "7.5"),
        ({"schema": '{"type": "integer"}'}, "-7", "7.5"),
        ({"choices": ["yes", "no"]}, "no", "maybe"),
        ({"type": bool}, "true", "True"),
        ({"type": Literal["a", "b"]}, "a", '"a"'),
        ({"type": Color}, "red", "green"),
        ({"type": list[int]}, "[1, 2]", "[1, x]"),
    ]
    for keywords, inside, outside in cases:
        made = lmprog.constraint(**keywords)
        assert made.accepts(inside), keywords
        assert not made.accepts(outside), keywords
        assert made.engine == "lmprog"


def test_json_is_taken_in_the_layout_that_is_given() -> None:
    number = {"type": "integer"}
    schema = {
        "type": "object",
        "properties": {"a": number, "b": number},
        "additionalProperties": False,
    }
    texts = ['{"a": 1, "b": 2}', '{"a":1,"b":2}', '{"b": 2, "a": 1}', '{\n  "a": 1\n}']
    cases: list[tuple[dict[str, Any], list[bool]]] = [
        ({}, [True, False, False, False]),
        ({"whitespace": "compact"}, [False, True, False, False]),
        ({"whitespace": "indented"}, [False, False, False, True]),
        ({"whitespace": "flexible"}, [True, True, False, True]),
        ({"order": "any"}, [True, False, True, False]),
        ({"whitespace": "flexible", "order": "any"}, [True, True, True, True]),
    ]
    for layout, expected in cases:
        made = lmprog.constraint(schema=schema, **layout)
        assert [made.accepts(text) for text in texts] == expected, layout
    assert lmprog.constraint(type=list[int], whitespace="compact").accepts("[1,2]")
    with pytest.raises(InvalidParameter, match="unknown option 'shema'; did you mean 'schema'"):
        lmprog.constraint(regex="a", shema={})  # type: ignore[call-arg]


def test_a_grammar_says_which_engine_serves_it() -> None:
    pytest.importorskip("llguidance")
    assert (
        lmprog.constraint(grammar='start: "if" NAME | NAME "=" NAME\nNAME: /[a-z]+/').engine
        == "llguidance"
    )
    made = lmprog.constraint(grammar='start: "(" start ")" | "x"')
    assert made.engine == "lmprog"
    assert made.accepts("((x))")
    assert not made.accepts("((x)")


def test_exactly_one_keyword_is_given() -> None:
    for keywords in ({}, {"regex": "a", "choices": ["a"]}):
        with pytest.raises(InvalidParameter):
            lmprog.constraint(**keywords)  # type: ignore[arg-type]
    with pytest.raises(RequestRejected):
        lmprog.constraint(regex="(")


@pytest.mark.parametrize("number", range(len(CONSTRAINTS)))
def test_every_example_is_an_instance(number: int) -> None:
    asked = CONSTRAINTS[number]
    from lmprog.constrained import Constrained

    made = Constrained(asked)
    examples = [made.example(seed) for seed in range(25)]
    for text in examples:
        assert is_instance(asked, text), text
        assert made.accepts(text)
    assert examples[:3] == [made.example(seed) for seed in range(3)], "a seed repeats its example"


def test_the_forced_share_is_what_the_constraint_leaves_no_choice_about() -> None:
    assert lmprog.constraint(regex="abcd").forced_share() == 1.0
    assert lmprog.constraint(regex="[ab][cd]").forced_share() == 0.0
    assert lmprog.constraint(regex="[ab]xyz").forced_share() == 0.75


def test_a_mask_holds_the_tokens_that_may_follow() -> None:
    made = lmprog.constraint(regex="ab?")
    letters = byte_tokenizer()
    assert made.mask([], letters) == (ord("a"),)
    assert made.mask([ord("a")], letters) == (ord("b"), *letters.eos_ids)
    with pytest.raises(ValueError, match="not allowed"):
        made.mask([ord("b")], letters)
    nano = nano_tokenizer()
    allowed = {
        nano.token_bytes(token) for token in lmprog.constraint(regex="the cat").mask([], nano)
    }
    assert b"t" in allowed
    assert all(piece and b"the cat".startswith(piece) for piece in allowed)


def test_the_drawing_has_every_state_and_where_a_text_may_end() -> None:
    drawn = lmprog.constraint(regex="a[b-d]?").dot()
    assert drawn.startswith("digraph constraint {")
    assert '[label="a"]' in drawn
    assert '[label="b-d"]' in drawn
    assert drawn.count("doublecircle") == 2
    assert lmprog.constraint(regex="[a-z]{100}").dot(5).count("->") == 5


def test_the_picture_joins_what_is_forced_and_shows_ways_back() -> None:
    picture = ElementTree.fromstring(lmprog.constraint(regex="id: <(ab|c)*>").svg())
    titles = [title.text for title in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert sorted(titles) == [">", "ab", "c", "id:␣<"]
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}circle"))) == 2 + 2  # the end has two
    many = lmprog.constraint(regex="[a-c]{100}").svg(5)
    assert many.count("stroke-dasharray") == 1, (
        "the state after the fifth has moves that are not shown"
    )


def test_the_command_explains_a_regex_and_a_schema_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["constraint", "explain", "id-[0-9]{3}"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"states\s+7$", said, re.MULTILINE)
    assert re.search(r"forced share\s+50%", said)
    assert re.search(r"example\s+id-[0-9]{3}$", said, re.MULTILINE)
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"type": "boolean"}))
    assert main(["constraint", "explain", str(file)]) == 0
    assert re.search(r"example\s+(true|false)$", capsys.readouterr().out, re.MULTILINE)
    assert main(["constraint", "explain", "--dot", "a"]) == 0
    assert capsys.readouterr().out.startswith("digraph")
    assert main(["constraint", "explain", "--svg", "a"]) == 0
    assert capsys.readouterr().out.startswith("<svg")
    assert main(["constraint", "explain", "("]) == 2


def test_the_command_says_what_is_wrong_with_a_schema_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["constraint", "explain", str(tmp_path / "none.json")]) == 2, (
        "a name of no file is not a regex"
    )
    assert "No such file" in capsys.readouterr().err
    (tmp_path / "folder.json").mkdir()
    assert main(["constraint", "explain", str(tmp_path / "folder.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    assert main(["constraint", "explain", str(tmp_path / "bytes.json")]) == 2
    assert "not UTF-8" in capsys.readouterr().err
    (tmp_path / "marked.json").write_bytes(b'\xef\xbb\xbf{"type": "boolean"}')
    assert main(["constraint", "explain", str(tmp_path / "marked.json")]) == 0, (
        "a byte order mark is no part of a text"
    )
    assert main(["constraint", "explain", r"[a-z]+\.json"]) == 0, "a regex may end so"


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"regex": 3}, "regex is 3; it must be text"),
        ({"regex": re.compile("a")}, "give .pattern"),
        ({"grammar": b"a"}, "grammar is b'a'"),
        ({"choices": "abc"}, "a list of texts"),
        ({"choices": 5}, "a list of texts"),
        ({"choices": ["a", 1]}, "a choice is 1"),
        ({"choices": []}, "at least one"),
        ({"choices": ["\ud800"]}, "surrogate"),
        ({"schema": int}, "type="),
        ({"schema": {"enum": {1}}}, "cannot be written as JSON"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(keywords: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestRejected, match=re.escape(said)):
        lmprog.constraint(**keywords)


def test_half_a_surrogate_pair_is_in_no_text() -> None:
    assert not lmprog.constraint(regex="(?s:.*)").accepts("a\ud800")


def test_a_grammar_that_llguidance_gives_up_on_its_way_is_refused() -> None:
    pytest.importorskip("llguidance")
    made = lmprog.constraint(grammar='root ::= "a"{1000000000}')
    with pytest.raises(GrammarError, match="given up by llguidance"):
        made.example()
