"""Arithmetic: sums and differences up to 99, comparison, counting, and short problems solved in
steps.
"""

from __future__ import annotations

from training.document import Document, Family, Page
from training.draw import Draw, Split, ways
from training.probes import steps_of
from training.words import FOODS, GOODS, SINGULARS, plural

_SUM = ways(
    "What is {x} + {y}?",
    "{x} + {y} = ?",
    "Add {x} and {y}.",
    "What is {x} plus {y}?",
    "Compute {x} + {y}.",
    "How much is {x} + {y}?",
    "Calculate {x} + {y}.",
    "{x} + {y}",
    "{x} plus {y} is what?",
    held=("Work out {x} + {y}.", "How much is {x} plus {y}?", "What do you get for {x} + {y}?"),
)
_DIFFERENCE = ways(
    "What is {x} - {y}?",
    "{x} - {y} = ?",
    "Subtract {y} from {x}.",
    "What is {x} minus {y}?",
    "Compute {x} - {y}.",
    "How much is {x} - {y}?",
    "Calculate {x} - {y}.",
    "{x} - {y}",
    "{x} minus {y} is what?",
    held=("Work out {x} - {y}.", "How much is {x} minus {y}?", "What do you get for {x} - {y}?"),
)
_LARGER = ways(
    "Which is larger, {x} or {y}?",
    "Which number is bigger: {x} or {y}?",
    "Which is greater, {x} or {y}?",
    held=("Which is bigger, {x} or {y}?", "Which number is larger, {x} or {y}?"),
)
_SMALLER = ways(
    "Which is smaller, {x} or {y}?",
    "Which number is smaller: {x} or {y}?",
    "Which is less, {x} or {y}?",
    held=("Which number is smaller, {x} or {y}?",),
)
_IS_LARGER = ways(
    "Is {x} larger than {y}?",
    "Is {x} greater than {y}?",
    "Is {x} more than {y}?",
    held=("Is {x} bigger than {y}?",),
)
_COUNT = ways(
    "How many items are in this list: {v}?",
    "Count the items: {v}",
    "How many words are here: {v}?",
    "{v}\nHow many items?",
    "List: {v}. How many items are there?",
    held=("Count the items in this list: {v}", "How many items are there: {v}?"),
)
_FORMS = (
    ("Q: ", "A:"),
    ("Q: ", "A:"),
    ("Question: ", "Answer:"),
    ("", "Answer:"),
    ("Problem: ", "Solution:"),
)


def solve(x: int, operator: str, y: int) -> int:
    """The value of a sum or a difference."""
    return x + y if operator == "+" else x - y


def question(draw: Draw) -> tuple[str, str, str, tuple[str, ...]]:
    """One question: text, answer, kind, choices."""
    roll = draw.rng.random()
    if roll < 0.72:
        operator = "+" if draw.chance(0.5) else "-"
        x, y = draw.pair(operator)
        wording = _SUM if operator == "+" else _DIFFERENCE
        return (
            draw.say(wording, x=x, y=y),
            str(solve(x, operator, y)),
            "sum" if operator == "+" else "difference",
            (),
        )
    if roll < 0.86:
        return _comparison(draw)
    listed = draw.distinct(
        lambda: draw.one(SINGULARS) if draw.chance(0.7) else draw.word(), draw.number(2, 9)
    )
    return draw.say(_COUNT, v=", ".join(listed)), str(len(listed)), "count", ()


def _comparison(draw: Draw, near: float = 0.0) -> tuple[str, str, str, tuple[str, ...]]:
    x, y = draw.distinct(lambda: draw.number(0, 99), 2)
    if near and draw.chance(near):
        x = draw.number(1, 98)
        y = draw.one(
            [n for n in (x // 10, x % 10, x - 1, x + 1, x + 9, x - 9) if n != x and n >= 0]
        )
    kind = draw.number(0, 2)
    if kind == 0:
        return draw.say(_LARGER, x=x, y=y), str(max(x, y)), "comparison", (str(x), str(y))
    if kind == 1:
        return draw.say(_SMALLER, x=x, y=y), str(min(x, y)), "comparison", (str(x), str(y))
    return draw.say(_IS_LARGER, x=x, y=y), "yes" if x > y else "no", "comparison", ("yes", "no")


def arithmetic(draw: Draw) -> Document:
    """One to eight questions in one form."""
    page = Page(Family.ARITHMETIC)
    if draw.chance(0.5):
        return bare(draw)
    if draw.chance(0.25):
        page.text(draw.one(("Answer the questions.\n", "Solve.\n", "Solve these problems.\n\n")))
    before, cue = draw.one(_FORMS)
    gap = draw.one(("", "", "\n"))
    for index in range(draw.number(1, 8)):
        text, answer, kind, choices = question(draw)
        page.text((gap if index else "") + f"{before}{text}\n{cue}")
        page.answer(f" {answer}\n", kind=kind, choices=tuple(f" {c}" for c in choices))
    return page.done()


def bare(draw: Draw) -> Document:
    """Lines of `12 + 34 = 46`."""
    page = Page(Family.ARITHMETIC)
    for _ in range(draw.number(2, 16)):
        operator = "+" if draw.chance(0.5) else "-"
        x, y = draw.pair(operator)
        page.text(f"{x} {operator} {y} =")
        page.answer(f" {solve(x, operator, y)}\n", kind="sum" if operator == "+" else "difference")
    return page.done()


_GAIN = ways(
    "{p} gets {y} more.",
    "{p} buys {y} more.",
    "{p} finds {y} more.",
    "Then {p} is given {y} more.",
    held=("After that {p} gets {y} more.",),
)
_LOSS = ways(
    "{p} gives away {y}.",
    "{p} loses {y}.",
    "{p} sells {y}.",
    "Then {p} throws away {y}.",
    held=("After that {p} gives away {y}.",),
)
_ASK_LEFT = ways(
    "How many {g} does {p} have now?",
    "How many {g} are there now?",
    "How many {g} does {p} have in the end?",
    held=("How many {g} does {p} have at the end?",),
)


def problem(draw: Draw) -> tuple[str, list[str], int]:
    """A story with two or three numbers: its text, the steps, the answer."""
    person = draw.person()
    goods = draw.one(
        (*GOODS, *(f for f in FOODS if f.endswith("s")), *(plural(s) for s in SINGULARS[:40]))
    )
    total = draw.number(2, 60)
    text = [
        draw.say(
            ways(
                "{p} has {x} {g}.",
                "{p} starts with {x} {g}.",
                "There are {x} {g} at the house of {p}.",
                held=("At first {p} has {x} {g}.",),
            ),
            p=person,
            x=total,
            g=goods,
        )
    ]
    steps = []
    for _ in range(draw.one((1, 2, 2))):
        gain = draw.chance(0.5)
        change = draw.number(1, 99 - total if gain and total < 98 else max(1, total))
        if not gain and change > total:
            gain = True
        text.append(draw.say(_GAIN if gain else _LOSS, p=person, y=change))
        after = total + change if gain else total - change
        steps.append(f"{total} {'+' if gain else '-'} {change} = {after}")
        total = after
    text.append(draw.say(_ASK_LEFT, g=goods, p=person))
    return " ".join(text), steps, total


def steps(draw: Draw) -> Document:
    """A problem, its numbered steps, its answer; now and then the check of a proposed step."""
    page = Page(Family.ARITHMETIC)
    text, lines, answer = problem(draw)
    mark = draw.one(("Question: ", "Q: ", "Problem: "))
    page.text(
        draw.one(("", "", "Solve step by step.\n", "Think step by step.\n")) + mark + text + "\n"
    )
    for number, line in enumerate(lines, 1):
        page.text(f"Step {number}:")
        page.answer(f" {line}\n", kind="step")
    page.text("Answer:")
    page.answer(f" {answer}\n", kind="story")
    return page.done()


_IS_RIGHT = ways(
    "Is this right? {x} {o} {y} = {r}",
    "Is {x} {o} {y} = {r} right?",
    "Step: {x} {o} {y} = {r}\nIs the step right?",
    "{x} {o} {y} = {r}\nRight or wrong? Answer yes or no.",
    held=("Is this step right? {x} {o} {y} = {r}",),
)


def check(draw: Draw) -> Document:
    """Whether a proposed result is right: yes or no."""
    page = Page(Family.ARITHMETIC)
    for _ in range(draw.number(1, 4)):
        x, operator, y, right, shown = _proposed(draw)
        form = draw.say(_IS_RIGHT, x=x, o=operator, y=y, r=shown)
        page.text(form + "\n")
        if draw.split is Split.TRAIN and draw.chance(0.8):
            _done_again(page, f"{x} {operator} {y}", right, shown)
        _verdict(page, right, shown)
    return page.done()


def many_checks(draw: Draw) -> Document:
    """A drill: written results judged at once, with wrong ones of more kinds."""
    page = Page(Family.ARITHMETIC)
    for _ in range(draw.number(2, 9)):
        x, operator, y, right, shown = _proposed(draw)
        if shown != right and draw.chance(0.5):
            shown = right + draw.one((-30, -20, -11, -9, -3, 3, 4, 7, 9, 11, 20, 30, 40))
        page.text(draw.say(_IS_RIGHT, x=x, o=operator, y=y, r=shown) + "\n")
        _verdict(page, right, shown)
    return page.done()


def _verdict(page: Page, right: int, shown: int) -> None:
    page.text("Answer:")
    page.answer(
        " yes\n" if shown == right else " no\n",
        kind="check",
        choices=(" yes", " no"),
        steps=steps_of(right, shown),
    )


def _proposed(draw: Draw) -> tuple[int, str, int, int, int]:
    """A sum or a difference, its value, and the result to be judged."""
    operator = "+" if draw.chance(0.5) else "-"
    x, y = draw.pair(operator)
    right = solve(x, operator, y)
    shown = right if draw.chance(0.5) else right + draw.one((-10, -2, -1, 1, 2, 10, 5))
    return x, operator, y, right, shown


def _done_again(page: Page, task: str, right: int, shown: int) -> None:
    """The sum is written down before it is judged, as a program may ask; the line is the one that
    `writing.judge` reasons in.
    """
    verdict = "yes" if shown == right else "no"
    page.text("Check:")
    page.answer(f" Right is {task} = {right}. It says {shown}: {verdict}.\n", judged=False)


def many_comparisons(draw: Draw) -> Document:
    """A drill: which of two numbers is larger, often near each other or of one and two digits."""
    page = Page(Family.ARITHMETIC)
    before, cue = draw.one(_FORMS)
    for _ in range(draw.number(3, 10)):
        text, answer, kind, choices = _comparison(draw, near=0.6)
        page.text(f"{before}{text}\n{cue}")
        page.answer(f" {answer}\n", kind=kind, choices=tuple(f" {c}" for c in choices))
    return page.done()
