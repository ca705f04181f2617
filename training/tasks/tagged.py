"""Tags in an answer: a line of thought or the answer itself between a pair of them."""

from __future__ import annotations

from training.document import ASSISTANT, END, SYSTEM, USER, Document, Family, Page
from training.draw import Draw, Split, ways
from training.passage import draw_passage
from training.tasks import reading

_THINK = ways(
    "Think between <{t}> and </{t}>, then answer.",
    "First write your thoughts in <{t}> and </{t}>. Then answer.",
    "Reason inside <{t}>...</{t}> before the answer.",
    "Put your reasoning between <{t}> and </{t}>.",
    held=("Think inside <{t}> and </{t}>, then answer.",),
)
_WRAP = ways(
    "Put the answer between <{t}> and </{t}>.",
    "Write the answer in <{t}> and </{t}>.",
    "Answer inside <{t}>...</{t}>.",
    "Your answer stands between <{t}> and </{t}>.",
    held=("Give the answer between <{t}> and </{t}>.",),
)
_MARK = ways(
    "Mark {w} with <{t}> and </{t}>: {s}",
    "Put {w} between <{t}> and </{t}>: {s}",
    "Set <{t}> and </{t}> around {w}: {s}",
    "Repeat this, but put <{t}> and </{t}> around {w}: {s}",
    "Copy this with {w} inside <{t}> and </{t}>: {s}",
    "Say it again, {w} set between <{t}> and </{t}>: {s}",
    "Write this again. Every {w} stands between <{t}> and </{t}>: {s}",
    "The same with {w} in <{t}>...</{t}>: {s}",
    "Give this back with <{t}> before and </{t}> after each {w}: {s}",
    "With <{t}> and </{t}> at both ends of {w}: {s}",
    "Wherever {w} stands, write <{t}>{w}</{t}>: {s}",
    held=("Write this with {w} between <{t}> and </{t}>: {s}",),
)
_THOUGHTS = ("think", "thinking", "reasoning", "scratch")
_ANSWERS = ("answer", "result", "final", "out", "value")


def _chain(draw: Draw) -> tuple[str, str, str]:
    """A sum of three numbers, its steps, its value."""
    x, y = draw.pair("+")
    while draw.split is Split.TRAIN and x + y < 170 and draw.chance(0.7):
        x, y = draw.pair("+")  # sums beyond 200 are rare otherwise
    z = draw.number(1, 20)
    question = draw.one(
        ("What is {0} + {1} + {2}?", "Add {0}, {1} and {2}.", "{0} + {1} + {2} = ?")
    )
    total = x + y + z
    thought = f"{x} + {y} = {x + y}\n{x + y} + {z} = {total}"
    return question.format(x, y, z), thought, str(total)


def tagged(draw: Draw) -> Document:
    """One of three: thoughts in a tag, the answer in a tag, words of a text in tags."""
    page = Page(Family.TAGGED)
    kind = draw.number(0, 2) if draw.split is Split.HELD else draw.one((0, 1, 2, 2))
    if kind == 0:
        tag = draw.one(_THOUGHTS)
        page.text(f"{SYSTEM}{draw.say(_THINK, t=tag)}{END}")
        for _ in range(draw.number(1, 3)):
            question, thought, answer = _chain(draw)
            page.text(f"{USER}{question}{END}{ASSISTANT}")
            page.answer(f"<{tag}>{thought}</{tag}>{answer}{END}", kind="thought")
    elif kind == 1:
        tag = draw.one(_ANSWERS)
        passage = draw_passage(draw, most=5)
        page.text(f"{SYSTEM}{draw.say(_WRAP, t=tag)}{END}")
        for index in range(draw.number(1, 3)):
            asked = reading.ask(draw, passage)
            lead = passage.text + "\n" if index == 0 else ""
            page.text(f"{USER}{lead}{asked.question}{END}{ASSISTANT}")
            page.answer(f"<{tag}>{asked.answer}</{tag}>{END}", kind="answer")
    else:
        for _ in range(draw.number(1, 3)):
            longer = draw.split is Split.TRAIN and draw.chance(0.4)
            passage = draw_passage(draw, most=4 if longer else 2, things=2 if longer else 1)
            name = passage.records[0].name
            tag = draw.one(("name", "b", "mark", "who"))
            asked_text = draw.say(_MARK, w=name, t=tag, s=passage.text)
            page.text(f"{USER}{asked_text}{END}{ASSISTANT}")
            marked = passage.text.replace(name, f"<{tag}>{name}</{tag}>")
            page.answer(marked + END, kind="mark")
    return page.done()
