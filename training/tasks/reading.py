"""Reading: a passage, then questions that it answers (or does not: `unknown`)."""

from __future__ import annotations

from dataclasses import dataclass

from training.document import Document, Family, Page
from training.draw import Draw, Split, ways
from training.kinds.model import FieldType, shown
from training.passage import Passage, draw_passage

UNKNOWN = "unknown"

_INSTRUCTIONS = ways(
    "",
    "",
    "Read the text and answer the questions.",
    "Answer from the text.",
    "Answer the question from the passage.",
    "Read the passage. Answer each question with a few words.",
    "Use only the text to answer. If the text does not say, answer unknown.",
    "Answer the questions below. Say unknown if the passage does not tell.",
    "Here is a text. Answer the questions.",
    "Answer with words of the text. If the text does not tell, say unknown.",
    "Read this and answer. If it does not say, answer unknown.",
    "Please answer the questions about the passage.",
    held=(
        "",
        "Read the passage and answer the questions.",
        "Answer with the text only. If it does not say, answer unknown.",
    ),
)
_HEADS = ways(
    "",
    "",
    "Text: ",
    "Passage: ",
    "Story: ",
    "Context: ",
    "Text:\n",
    "Passage:\n",
    held=("", "Text: ", "Passage: ", "Context:\n"),
)
_FORMS = (
    ("Q:", "A:"),
    ("Q:", "A:"),
    ("Question:", "Answer:"),
    ("Question:", "Answer:"),
    ("question:", "answer:"),
)


# Up to these draws a question is one without an answer, or one for the thing that has a value. In
# training they are asked more often than in evaluation, because they are what nano fails on.
_KINDS = {Split.TRAIN: (0.20, 0.52), Split.HELD: (0.16, 0.40)}
# Most questions to a passage. More of them in training: the passage costs most tokens, and only
# answers teach.
_MOST = {Split.TRAIN: 11, Split.HELD: 7}


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and its right answer."""

    question: str
    answer: str
    kind: str
    choices: tuple[str, ...] = ()


def ask(draw: Draw, passage: Passage) -> Asked:
    """One question to a passage."""
    roll = draw.rng.random()
    unknown, who = _KINDS[draw.split]
    if roll < unknown:
        return _ask_unknown(draw, passage)
    facts = passage.facts()
    if roll < who:
        asked = _ask_who(draw, passage)
        if asked is not None:
            return asked
    if roll < who + 0.08:
        asked = _ask_yes_no(draw, passage)
        if asked is not None:
            return asked
    record, field, value = draw.one(facts)
    kind = "yes or no" if field.type is FieldType.BOOLEAN else "value"
    return Asked(field.question(draw, record.name), shown(value), kind)


def _ask_who(draw: Draw, passage: Passage) -> Asked | None:
    reverse = [
        (r, f, v)
        for r, f, v in passage.facts()
        if f.who is not None and len(passage.holders(f.key, v)) == 1
    ]
    if not reverse:
        return None
    record, field, value = draw.one(reverse)
    question = field.question_for_thing(draw, value, passage.kind.name)
    assert question is not None
    return Asked(question, record.name, "who")


def _ask_yes_no(draw: Draw, passage: Passage) -> Asked | None:
    """`Does Mia live in Oslo?` needs a verb per field: only the town and the age of people are
    asked so.
    """
    able = [(r, f, v) for r, f, v in passage.facts() if f.key in ("town", "age")]
    if not able:
        return None
    record, field, value = draw.one(able)
    right = draw.chance(0.5)
    if field.key == "town":
        place = value if right else draw.town()
        form = (
            ways("Is {n} in {v}?", held=("Is {n} in {v}?",))
            if passage.kind.name == "shop"
            else ways(
                "Does {n} live in {v}?",
                "Is {n} from {v}?",
                "Is {n} at home in {v}?",
                "Is {v} the home of {n}?",
                "Is the town of {n} {v}?",
                held=("Is the home of {n} in {v}?",),
            )
        )
        return Asked(
            draw.say(form, n=record.name, v=place),
            "yes" if place == value else "no",
            "yes or no",
            ("yes", "no"),
        )
    age = value if right else draw.number(3, 99)
    question = draw.say(
        ways(
            "Is {n} {v} years old?",
            "Is {n} {v}?",
            "Is {v} the age of {n}?",
            "Is the age of {n} {v}?",
            "Is {n} at the age of {v}?",
            held=("Is {n} {v} years of age?",),
        ),
        n=record.name,
        v=age,
    )
    return Asked(question, "yes" if age == value else "no", "yes or no", ("yes", "no"))


def _ask_unknown(draw: Draw, passage: Passage) -> Asked:
    record = draw.one(passage.records)
    missing = [field for field in passage.kind.fields if field.key not in record.values]
    named = {value for r in passage.records for value in r.values.values()} | {
        r.name for r in passage.records
    }
    reverse = [
        field for field in missing if field.who is not None and field.type is FieldType.STRING
    ]
    if reverse and draw.chance(0.25):
        field = draw.one(reverse)
        value = field.draw(draw)
        question = field.question_for_thing(draw, value, passage.kind.name)
        if not passage.holders(field.key, value) and question is not None:
            return Asked(question, UNKNOWN, "unknown")
    if missing and draw.chance(0.65):
        return Asked(draw.one(missing).question(draw, record.name), UNKNOWN, "unknown")
    stranger = passage.kind.draw_name(draw)
    while stranger in named:
        stranger = passage.kind.draw_name(draw)
    return Asked(draw.one(passage.kind.fields).question(draw, stranger), UNKNOWN, "unknown")


def reading(draw: Draw) -> Document:
    """Passage, then some questions in plain text."""
    passage = draw_passage(draw)
    page = Page(Family.READING)
    instruction = draw.template(_INSTRUCTIONS)
    question_mark, answer_mark = draw.one(_FORMS)
    gap = draw.one(("\n", "\n", "\n\n"))
    page.text(
        (instruction + draw.one(("\n", "\n\n")) if instruction else "")
        + draw.template(_HEADS)
        + passage.text
        + gap
    )
    between = draw.one(("\n", "\n", "\n\n"))
    before: set[str] = set()
    for index in range(draw.number(1, _MOST[draw.split])):
        asked = ask(draw, passage)
        if draw.split is Split.TRAIN and asked.question in before and draw.chance(0.8):
            continue  # a repeated question is answered by copying the first answer
        before.add(asked.question)
        page.text(
            ("" if index == 0 else between[1:]) + f"{question_mark} {asked.question}\n{answer_mark}"
        )
        page.answer(
            f" {asked.answer}\n", choices=tuple(f" {c}" for c in asked.choices), kind=asked.kind
        )
    return page.done()
