"""The generator: the same seed gives the same text, what is held out stays out, answers follow from
the prompt.
"""

from __future__ import annotations

import hashlib
import json
import math
import re

import jsonschema
import pytest

from training.document import Document, Family
from training.draw import Draw, Split, Wording, is_held
from training.items import BARS, Item, draw_items, items_of
from training.kinds import KINDS, draw_kind
from training.kinds.framed import framed
from training.kinds.further import FURTHER
from training.kinds.model import shown
from training.passage import draw_passage
from training.tasks import memories, reading
from training.world import SHARES, document


def _items(family: Family, count: int = 60) -> list[Item]:
    return draw_items(family, count, start=10_000)


@pytest.mark.parametrize("maker", SHARES)
def test_a_document_is_a_function_of_its_split_and_number(maker: object) -> None:
    for split in Split:
        assert document(split, 7, maker) == document(split, 7, maker)  # type: ignore[arg-type]
    texts = {document(Split.TRAIN, number, maker).text for number in range(30)}  # type: ignore[arg-type]
    assert len(texts) > 10


@pytest.mark.parametrize("maker", SHARES)
def test_every_document_asks_for_something_and_ends(maker: object) -> None:
    for number in range(40):
        doc: Document = document(Split.TRAIN, number, maker)  # type: ignore[arg-type]
        assert any(segment.answer for segment in doc.segments)
        assert doc.segments[-1].answer
        assert doc.text.endswith("<|end|>")
        assert "{" not in doc.text or "}" in doc.text


def test_names_and_number_pairs_of_the_two_splits_are_disjoint() -> None:
    train, held = Draw("a"), Draw("b", Split.HELD)
    for make in ("person", "town", "word", "title"):
        ours = {getattr(train, make)().lower() for _ in range(400)}
        theirs = {getattr(held, make)().lower() for _ in range(400)}
        assert not ours & theirs
    ours_pairs = {train.pair("+") for _ in range(2000)}
    assert not ours_pairs & {held.pair("+") for _ in range(400)}


def test_held_wordings_are_never_used_in_training() -> None:
    def check(wording: Wording | None) -> None:
        if wording is not None:
            assert not set(wording.train) & set(wording.held) - {""}
            draw = Draw("wording")
            assert {draw.template(wording) for _ in range(50)} <= set(wording.train)

    for kind in KINDS:
        for field in kind.fields:
            for wording in (field.say, field.ask, field.who, field.say_no):
                check(wording)
            assert field.say.held
            assert field.ask.held
    for memory in memories.MEMORIES:
        check(memory.say)
        check(memory.ask)


def test_every_field_has_further_wordings_and_none_of_them_is_held() -> None:
    fields = {(kind.name, field.key): field for kind in KINDS for field in kind.fields}
    assert set(FURTHER) == set(fields)
    for place, added in FURTHER.items():
        field = fields[place]
        for use, wording in (
            ("say", field.say),
            ("no", field.say_no),
            ("ask", field.ask),
            ("who", field.who),
        ):
            assert (use in added) <= (wording is not None)
            assert not set(added.get(use, ())) & set(wording.held if wording else ())
            assert set(added.get(use, ())) <= set(wording.train if wording else ())


def test_a_frame_keeps_what_a_sentence_says_and_never_makes_a_held_one() -> None:
    draw = Draw("frames")
    for kind in KINDS:
        for field in kind.fields:
            for template in field.say.train:
                for made in (framed(draw, template, field.say) for _ in range(20)):
                    assert made not in field.say.held
                    assert ("{n}" in made, "{v}" in made, "{a}" in made) == tuple(
                        place in template for place in ("{n}", "{v}", "{a}")
                    )
    assert (
        framed(draw, "{n} is old.", Wording(("{n} is old.",), tuple(_frames_of("{n} is old."))))
        == "{n} is old."
    )


def _frames_of(template: str) -> set[str]:
    draw = Draw("all frames")
    return {framed(draw, template, Wording((template,))) for _ in range(2000)}


def test_made_up_relations_are_only_for_training_and_differ_between_documents() -> None:
    kinds = [draw_kind(Draw(f"kind:{number}")) for number in range(300)]
    made_up = [kind for kind in kinds if kind not in KINDS]
    assert 0.1 < len(made_up) / len(kinds) < 0.3
    assert len({kind.fields[0].key for kind in made_up}) > len(made_up) // 2
    assert all(len(kind.fields) >= 2 for kind in made_up)
    assert all(draw_kind(Draw(f"kind:{number}", Split.HELD)) in KINDS for number in range(300))


def test_about_one_name_in_eight_is_held_out() -> None:
    draw = Draw("share")
    held = sum(is_held(draw.spelled(2)) for _ in range(4000))
    assert 0.09 < held / 4000 < 0.16


def test_a_reading_answer_is_told_by_the_passage_or_unknown() -> None:
    for number in range(300):
        draw = Draw(f"reading:{number}")
        passage = draw_passage(draw)
        told = {shown(value) for _, _, value in passage.facts()} | {
            record.name for record in passage.records
        }
        asked = reading.ask(draw, passage)
        assert asked.answer in told | {"yes", "no", reading.UNKNOWN}
        if asked.kind in ("value", "who"):
            assert asked.answer in passage.text


def test_extracted_objects_obey_their_schema_and_stand_in_the_text() -> None:
    for item in _items(Family.EXTRACTION):
        assert item.schema is not None
        value = json.loads(item.answer)
        jsonschema.validate(value, dict(item.schema))
        assert list(value) == item.schema["required"]
        for part in value.values():
            if isinstance(part, str):
                assert part in item.prompt
        assert item.answer.strip() in (json.dumps(value), json.dumps(value, separators=(",", ":")))


def test_sums_and_differences_are_right() -> None:
    checked = 0
    for item in _items(Family.ARITHMETIC, 200):
        asked = re.search(r"(\d+) ([+-]) (\d+) ?=$", item.prompt)
        if asked and item.kind in ("sum", "difference"):
            x, operator, y = int(asked[1]), asked[2], int(asked[3])
            assert int(item.answer) == (x + y if operator == "+" else x - y)
            checked += 1
    assert checked > 20


def test_a_choice_is_among_its_choices_and_its_labels_are_in_the_prompt() -> None:
    for item in _items(Family.CLASSIFICATION):
        assert item.answer in item.choices
        if item.kind == "topic":
            assert all(choice.strip() in item.prompt for choice in item.choices)


def _value(expression: str) -> int:
    terms = re.findall(r"(?:^|([+-]) )(\d+(?: \* \d+)*)", expression)
    return sum(
        (-1 if sign == "-" else 1) * math.prod(map(int, term.split(" * "))) for sign, term in terms
    )


def test_a_calculation_of_the_tools_is_observed_rightly() -> None:
    seen = 0
    for number in range(200):
        text = document(Split.TRAIN, number, next(m for m in SHARES if m.__name__ == "tools")).text
        for expression, result in re.findall(
            r"calc\[([0-9 +*-]+)\]\nObservation[^:]*: (-?\d+)", text
        ):
            assert _value(expression) == int(result)
            seen += 1
    assert seen > 20


def test_an_item_is_right_only_if_the_answer_is_the_same() -> None:
    item = items_of(document(Split.HELD, 3, next(m for m in SHARES if m.__name__ == "arithmetic")))[
        0
    ]
    assert item.right(item.answer)
    assert not item.right(item.answer + "1")
    shaped = _items(Family.EXTRACTION, 1)[0]
    assert shaped.right(json.dumps(json.loads(shaped.answer), separators=(",", ":")))
    assert not shaped.right("{}")
    assert not shaped.right("no json")


def test_the_questions_of_the_evaluation_stay_the_same() -> None:
    """Whoever changes them on purpose measures anew, and says so in docs/nano.md."""
    found = hashlib.sha256()
    for family in BARS:
        for item in draw_items(family, 200):
            found.update(repr(item).encode())
    assert found.hexdigest()[:12] == "1c17a366ba61"
