"""Writing: tips, outlines and their expansions, endings of little stories, and judging between two
answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from training.document import ASSISTANT, END, SYSTEM, USER, Document, Family, Page
from training.draw import Draw, ways
from training.kinds.model import shown
from training.passage import draw_passage
from training.tasks import arithmetic
from training.tasks.advice import ADVICE, Advice
from training.tasks.stories import STORIES

_ASK_TIPS = ways(
    "Give {k} tips for {t}.",
    "Write {k} tips for {t}.",
    "Name {k} tips for {t}.",
    "What are {k} tips for {t}?",
    "List {k} tips for {t}.",
    "Here are {k} tips for {t}:",
    "{k} tips for {t}:",
    held=("Please give {k} tips for {t}.",),
)
_EXPAND = ways(
    "Expand the tip into a short paragraph: {p}",
    "Explain this tip: {p}",
    "Tip: {p}\nExpand:",
    "Write more about this tip: {p}",
    "Expand: {p}",
    "Now, expand tip {i} into a paragraph.\n{p}",
    held=("Expand this tip: {p}",),
)
_ASK_BETTER = ("Which answer is better, A or B?", "Better answer (A or B):", "Which is better?")
_ASK_GOOD = ("Is the answer good or bad?", "Judge the answer: good or bad.", "Good or bad?")
_NUMBERS = ("zero", "one", "two", "three", "four", "five")


def _listed(page: Page, points: list[str], start: int = 1) -> None:
    for number, point in enumerate(points, start):
        page.text(f"{number}.")
        page.answer(f" {point}.\n", judged=False, kind="tip")


def _point(advice: Advice, draw: Draw, count: int) -> list[tuple[str, str]]:
    return [advice.points[i] for i in sorted(draw.some(range(len(advice.points)), count))]


def tips(draw: Draw) -> Document:
    """A list of tips, then the expansion of some of them; as plain text."""
    page = Page(Family.WRITING)
    advice = draw.one(ADVICE)
    points = _point(advice, draw, draw.number(2, 4))
    number = draw.one((str(len(points)), _NUMBERS[len(points)]))
    page.text(draw.say(_ASK_TIPS, k=number, t=advice.topic) + "\n")
    if draw.chance(0.5):
        _listed(page, [short for short, _ in points])
    else:
        page.answer(
            "".join(f"{i}. {short}.\n" for i, (short, _) in enumerate(points, 1)),
            judged=False,
            kind="tips",
        )
    for index, (short, long) in enumerate(points, 1):
        if draw.chance(0.4):
            ask = draw.say(_EXPAND, p=f"{short}." if draw.chance(0.5) else short, i=index)
            page.text(
                "\n" + ask + draw.one(("\n", "\n\n")) if not ask.endswith(":") else "\n" + ask
            )
            page.answer(
                (" " if ask.endswith(":") else "") + long + "\n", judged=False, kind="expansion"
            )
    return page.done()


def expansion(draw: Draw) -> Document:
    """One point of an outline, expanded, in plain text or by chat."""
    page = Page(Family.WRITING)
    advice = draw.one(ADVICE)
    short, long = draw.one(advice.points)
    if draw.chance(0.4):
        page.text(f"{USER}{draw.say(_EXPAND, p=short, i=1)}{END}{ASSISTANT}")
        page.answer(long + END, judged=False, kind="expansion")
        return page.done()
    form = draw.number(0, 3)
    if form == 0:
        page.text(f"Question: How can I get better at {advice.topic}?\nPoint: {short}\nExpansion:")
    elif form == 1:
        page.text(f"Topic: {advice.topic}\n{draw.number(1, 5)}. {short}:")
    elif form == 2:
        page.text(f"Topic: {advice.topic}\nTip: {short}.\nExpand the tip:")
    else:
        page.text(f"{draw.say(_EXPAND, p=short, i=1)}\nParagraph:")
    page.answer(f" {long}\n", judged=False, kind="expansion")
    return page.done()


def outline(draw: Draw) -> Document:
    """A question, then a skeleton of short points."""
    page = Page(Family.WRITING)
    advice = draw.one(ADVICE)
    points = _point(advice, draw, draw.number(3, 4))
    ask = draw.one(
        (
            "Write an outline for {t}.",
            "Give a skeleton of an answer: {t}.",
            "Outline: {t}",
            "Question: What should I know about {t}?\nSkeleton:",
            "Question: How to start with {t}?\nOutline:",
        )
    ).format(t=advice.topic)
    chat = draw.chance(0.4)
    body = "".join(f"{i}. {short}\n" for i, (short, _) in enumerate(points, 1))
    page.text(f"{USER}{ask}{END}{ASSISTANT}" if chat else ask + "\n")
    page.answer(body.rstrip("\n") + END if chat else body, judged=False, kind="outline")
    return page.done()


def one_tip(draw: Draw) -> Document:
    """A single tip by chat or in plain text."""
    page = Page(Family.WRITING)
    advice = draw.one(ADVICE)
    short, long = draw.one(advice.points)
    ask = draw.one(
        (
            "Give me a tip for {t}.",
            "One tip for {t}, please.",
            "I want to get better at {t}. What should I do?",
            "Do you have a tip for {t}?",
        )
    ).format(t=advice.topic)
    if draw.chance(0.6):
        system = (
            f"{SYSTEM}{draw.one(('You are a helpful assistant.', 'Be brief.'))}{END}"
            if draw.chance(0.3)
            else ""
        )
        page.text(f"{system}{USER}{ask}{END}{ASSISTANT}")
        page.answer(
            f"{short}. {long}{END}" if draw.chance(0.5) else f"{short}.{END}",
            judged=False,
            kind="tip",
        )
    else:
        page.text(f"{ask}\nTip:")
        page.answer(f" {short}.\n", judged=False, kind="tip")
    return page.done()


def story(draw: Draw) -> Document:
    """The ending of a little story, with the names of its beginning."""
    page = Page(Family.WRITING)
    chosen = draw.one(STORIES)
    names = {"a": draw.person(), "b": draw.person(), "t": draw.town()}
    ask = draw.one(("Story: ", "Finish the story: ", "", "Write an ending.\nStory: "))
    begin, end = (
        draw.one(chosen.beginnings).format(**names),
        draw.one(chosen.endings).format(**names),
    )
    chat = draw.chance(0.3)
    if chat:
        page.text(f"{USER}{ask or 'Finish the story: '}{begin}{END}{ASSISTANT}")
        page.answer(end + END, judged=False, kind="ending")
    else:
        page.text(f"{ask}{begin}{draw.one((chr(10) + 'Ending:', chr(10) + 'The end:', ''))}")
        page.answer(f" {end}\n", judged=False, kind="ending")
    return page.done()


def judge(draw: Draw) -> Document:
    """Which of two answers is better, or is one good: about the subject, the sum or what a text
    says. Mostly with reasoning: what is right, then each answer held against it. At once, a model
    of this size only guesses."""
    page = Page(Family.WRITING)
    for index in range(draw.number(1, 5)):
        judged = draw.one((of_subject, of_sum, of_text))(draw)
        reasons = draw.chance(0.8)
        page.text(("\n" if index else "") + f"{judged.context}Question: {judged.question}\n")
        if draw.chance(0.7):
            order = [judged.good, judged.bad] if draw.chance(0.5) else [judged.bad, judged.good]
            page.text(
                f"Answer A: {order[0].text}\nAnswer B: {order[1].text}\n{draw.one(_ASK_BETTER)}\n"
            )
            if reasons:
                _reason(page, judged, {"A says": order[0], "B says": order[1]})
            page.text(draw.one(("Judgment:", "Better:", "Answer:")))
            page.answer(
                " A\n" if order[0] is judged.good else " B\n", kind="judge", choices=(" A", " B")
            )
        else:
            said = judged.good if draw.chance(0.5) else judged.bad
            page.text(f"Answer: {said.text}\n{draw.one(_ASK_GOOD)}\n")
            if reasons:
                _reason(page, judged, {"It says": said})
            page.text(draw.one(("Judgment:", "Verdict:")))
            page.answer(
                " good\n" if said is judged.good else " bad\n",
                kind="judge",
                choices=(" good", " bad"),
            )
    return page.done()


@dataclass(frozen=True, slots=True)
class Said:
    """An answer, and what it says in a word or two."""

    text: str
    gist: str


@dataclass(frozen=True, slots=True)
class Judged:
    """A question with a good and a bad answer."""

    context: str
    question: str
    good: Said
    bad: Said
    working: str = ""
    """What is written down before the right answer, to come to it."""


def _reason(page: Page, judged: Judged, answers: Mapping[str, Said]) -> None:
    page.text("Reasoning:")
    verdicts = "".join(
        f" {who} {said.gist}: {'yes' if said is judged.good else 'no'}."
        for who, said in answers.items()
    )
    page.answer(
        f" Right is {judged.working}{judged.good.gist}.{verdicts}\n", judged=False, kind="judge"
    )


def of_subject(draw: Draw) -> Judged:
    """Advice on the subject that is asked for, and on another."""
    advice, other = draw.some(ADVICE, 2)
    good, bad = (Said(draw.one(one.points)[1], one.topic) for one in (advice, other))
    return Judged("", f"How can I get better at {advice.topic}?", good, bad)


def of_sum(draw: Draw) -> Judged:
    """A sum, right and wrong."""
    operator = "+" if draw.chance(0.5) else "-"
    x, y = draw.pair(operator)
    right = arithmetic.solve(x, operator, y)
    wrong = right + draw.one((-10, -2, -1, 1, 2, 10))
    good, bad = (Said(str(number), str(number)) for number in (right, wrong))
    return Judged("", f"What is {x} {operator} {y}?", good, bad, f"{x} {operator} {y} = ")


def of_text(draw: Draw) -> Judged:
    """What a text says, and what it does not."""
    passage = draw_passage(draw, most=4)
    record, field, value = draw.one(passage.facts())
    wrong = field.draw(draw)
    while wrong == value:
        wrong = field.draw(draw)
    good, bad = (Said(shown(one), shown(one)) for one in (value, wrong))
    return Judged(f"Text: {passage.text}\n", field.question(draw, record.name), good, bad)
