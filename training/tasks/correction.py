"""Being asked again: a wrong answer is shown with what is wrong with it, and the right one follows.

The wrong answers are given, never learned. The request is in the words of `gen(tries=...)`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from training.document import ASSISTANT, END, USER, Document, Family, Page
from training.draw import Draw
from training.passage import draw_passage
from training.tasks import arithmetic, extraction, reading
from training.words import COLOURS, FOODS, SINGULARS, TRADES


@dataclass(frozen=True, slots=True)
class Case:
    """A task, the wrong answers before, each with what is wrong with it, and the right one."""

    kind: str
    task: str
    wrong: tuple[tuple[str, str], ...]
    right: str
    choices: tuple[str, ...] = ()
    schema: dict[str, object] | None = None


def _not(draw: Draw, answer: str) -> str:
    return draw.one((f"It is not {answer}.", f"{answer} is wrong.", f"Not {answer}.", "Wrong."))


def _read(draw: Draw) -> Case:
    passage = draw_passage(draw, most=6)
    asked = reading.ask(draw, passage)
    others = {r.name for r in passage.records} | {
        str(v) for r in passage.records for v in r.values.values() if isinstance(v, str | int)
    }
    others = {o for o in others | {reading.UNKNOWN} if o not in (asked.answer, "True", "False")}
    wrong = draw.some(sorted(others), 1)[0]
    task = passage.text + draw.one(("\n", " ", "\n\n")) + asked.question
    return Case("reading", task, ((wrong, _not(draw, wrong)),), asked.answer)


def _calculation(draw: Draw) -> Case:
    text, answer, kind, _ = arithmetic.question(draw)
    if kind not in ("sum", "difference", "count"):
        return _calculation(draw)
    wrong = str(int(answer) + draw.one((-10, -2, -1, 1, 2, 3, 10)))
    return Case("sum", text, ((wrong, _not(draw, wrong)),), answer)


def _guess(draw: Draw) -> Case:
    """The first of the list that was not refused."""
    options = draw.distinct(
        lambda: draw.one(draw.one((COLOURS, FOODS, SINGULARS, TRADES))), draw.number(3, 6)
    )
    tried = draw.number(1, len(options) - 1)
    listed = ", ".join(options[:-1]) + " or " + options[-1]
    ask = draw.one(
        (
            "Which word do I think of: {0}?",
            "Guess my word: {0}?",
            "I think of one of these: {0}. Which one?",
            "Choose one: {0}.",
        )
    )
    wrong = tuple((option, _not(draw, option)) for option in options[:tried])
    return Case("guess", ask.format(listed), wrong, options[tried])


def _spelling(draw: Draw) -> Case:
    word = draw.word()
    if draw.chance(0.5):
        told = draw.one(
            ("Use capital letters.", "It must be in capital letters.", "Not in capitals.")
        )
        ask = draw.one(("Write {0} in capital letters.", "{0} in capital letters, please."))
        return Case("form", ask.format(word), ((word, told),), word.upper())
    sentence = draw.one(("The word is {0}.", "It is {0}.", "I think it is {0}.")).format(word)
    told = draw.one(("One word only.", "Answer in one word.", "It must be one word."))
    ask = draw.one(("Say the word {0}.", "Write {0}.", "What is the word in: the word is {0}?"))
    return Case("form", ask.format(word), ((sentence, told),), word)


def _object(draw: Draw) -> Case:
    want = extraction.wanted(draw, 4)
    key = draw.one(want.keys)
    wrong = dict(want.right)
    value = wrong[key]
    if isinstance(value, bool | list):
        return _object(draw)
    if isinstance(value, int):
        if draw.chance(0.5):
            wrong[key] = "unknown"
            told = f"{key}: Input should be a valid integer"
        else:
            wrong[key] = value + draw.one((-7, -1, 1, 5))
            told = f"{key}: {wrong[key]} is not in the text"
    else:
        wrong[key] = draw.one(("", draw.word(), "unknown"))
        told = f"{key}: {json.dumps(wrong[key])} is not in the text"
    ask = f"Extract {want.asked} as JSON."
    task = draw.one((f"{ask} {want.text}", f"{want.text}\n{ask}"))
    right = extraction.dumped(want.right, False)
    return Case(
        "object", task, ((extraction.dumped(wrong, False), told),), right, (), dict(want.schema)
    )


def request(message: str) -> str:
    """What a program's next attempt begins with."""
    return f"That is not right: {message}{'' if message.endswith('.') else '.'} Answer again."


def correction(draw: Draw) -> Document:
    """By chat or in plain text."""
    make = draw.one((_read, _read, _calculation, _guess, _spelling, _object))
    case = make(draw)
    page = Page(Family.CORRECTION)
    if draw.chance(0.75):
        page.text(f"{USER}{case.task}{END}{ASSISTANT}")
        for answer, message in case.wrong:
            page.text(f"{answer}{END}{USER}{request(message)}{END}{ASSISTANT}")
        page.answer(case.right + END, kind=case.kind, choices=case.choices, schema=case.schema)
        return page.done()
    before, cue = draw.one((("Q: ", "A:"), ("Question: ", "Answer:"), ("", "Answer:")))
    page.text(f"{before}{case.task}\n{cue}")
    for answer, message in case.wrong:
        page.text(f" {answer}\n{request(message)}\n{cue}")
    page.answer(f" {case.right}\n", kind=case.kind, choices=case.choices, schema=case.schema)
    return page.done()
