"""Tools: Thought / Action / Observation steps, the observations given by the program."""

from __future__ import annotations

from dataclasses import dataclass

from training.document import Document, Family, Page
from training.draw import Draw, ways
from training.kinds import PERSON, Kind, Record
from training.kinds.model import Field, FieldType, shown
from training.passage import sentences

_PREAMBLES = (
    "",
    "",
    "",
    "Answer the question with the tools lookup[name] and calc[expression].\n\n",
    "Use Thought, Action and Observation steps. Actions: lookup[name], calc[expression], "
    "finish[answer].\n\n",
    "Solve the question with Thought, Action, Observation steps.\n",
    "Tools: lookup, calc, finish.\n\n",
    "You can use lookup[name] to read about somebody and calc[expression] to compute. End "
    "with finish[answer].\n\n",
)
_THINK_LOOK = "I need to look up {n}."
_THINK_CALC = "I need to calculate {e}."
_THINK_DONE = "I know the answer."
_HOP = ways("{q}", held=("{q}",))
_CALC = ways(
    "What is {e}?",
    "Calculate {e}.",
    "Compute {e}.",
    "How much is {e}?",
    "Please compute {e}.",
    "What do you get for {e}?",
    "Find {e}.",
    "I want to know {e}.",
    "Calculate this: {e}",
    held=("Work out {e}.", "Please calculate {e}."),
)
_TOTAL = ways(
    "How old are {a} and {b} together?",
    "What is the sum of the ages of {a} and {b}?",
    "What is the total age of {a} and {b}?",
    "Together, how old are {a} and {b}?",
    "Add the ages of {a} and {b}.",
    held=("What is the age of {a} and {b} together?",),
)
_OLDER = ways(
    "How many years older is {a} than {b}?",
    "How much older is {a} than {b}?",
    "How many years is {a} older than {b}?",
    "By how much is {a} older than {b}?",
    "What is the age difference between {a} and {b}?",
    held=("By how many years is {a} older than {b}?",),
)


@dataclass(frozen=True, slots=True)
class Step:
    """What the model thinks and does, and what the program answers (empty at the end)."""

    thought: str
    action: str
    observation: str = ""


def _about(draw: Draw, record: Record) -> str:
    return " ".join(sentences(draw, record))


def _person(draw: Draw, need: dict[str, object] | None = None, name: str | None = None) -> Record:
    record = PERSON.record(draw, draw.number(1, 4), name)
    values = dict(record.values)
    values.update(need or {})  # type: ignore[arg-type]
    keys = list(values)
    draw.rng.shuffle(keys)
    return Record(PERSON, record.name, {key: values[key] for key in keys})


def _look(name: str, observation: str) -> Step:
    return Step(_THINK_LOOK.format(n=name), f"lookup[{name}]", observation)


def _finish(answer: str) -> Step:
    return Step(_THINK_DONE, f"finish[{answer}]")


def _simple_field(draw: Draw, kind: Kind = PERSON) -> Field:
    return draw.one(
        [f for f in kind.fields if f.type in (FieldType.STRING, FieldType.INTEGER, FieldType.ENUM)]
    )


def one_hop(draw: Draw) -> tuple[str, list[Step]]:
    """One look-up answers; sometimes it does not say."""
    field = _simple_field(draw)
    value = field.draw(draw)
    if draw.chance(0.1):
        record = _person(draw)
        if field.key not in record.values:
            return field.question(draw, record.name), [
                _look(record.name, _about(draw, record)),
                _finish("unknown"),
            ]
    record = _person(draw, {field.key: value})
    return field.question(draw, record.name), [
        _look(record.name, _about(draw, record)),
        _finish(shown(value)),
    ]


def two_hops(draw: Draw) -> tuple[str, list[Step]]:
    """The friend of somebody is looked up, then the friend."""
    field = _simple_field(draw)
    while field.key == "friend":
        field = _simple_field(draw)
    value = field.draw(draw)
    first = _person(draw, {"friend": draw.person()})
    friend = str(first.values["friend"])
    second = _person(draw, {field.key: value}, friend)
    role = draw.one(
        ("the friend of {0}", "{0}'s friend", "the best friend of {0}", "{0}'s best friend")
    ).format(first.name)
    question = field.question(draw, role)
    return question[0].upper() + question[1:], [
        _look(first.name, _about(draw, first)),
        _look(friend, _about(draw, second)),
        _finish(shown(value)),
    ]


def calculation(draw: Draw) -> tuple[str, list[Step]]:
    """A calculation is copied into the tool, its result out of it."""
    count = draw.one((2, 2, 2, 3))
    parts = [str(draw.number(2, 10 ** draw.number(1, 4)))]
    for _ in range(count - 1):
        parts += [draw.one(("+", "-", "*", "*")), str(draw.number(2, 10 ** draw.number(1, 3)))]
    text = " ".join(parts)
    result = _value(parts)
    return draw.say(_CALC, e=text), [
        Step(_THINK_CALC.format(e=text), f"calc[{text}]", str(result)),
        _finish(str(result)),
    ]


def _value(parts: list[str]) -> int:
    terms: list[int] = [int(parts[0])]
    for operator, number in zip(parts[1::2], parts[2::2], strict=True):
        if operator == "*":
            terms[-1] *= int(number)
        else:
            terms.append(int(number) if operator == "+" else -int(number))
    return sum(terms)


def two_ages(draw: Draw) -> tuple[str, list[Step]]:
    """Two look-ups, then a calculation with what they said."""
    first, second = draw.distinct(draw.person, 2)
    x, y = draw.number(30, 99), draw.number(3, 60)
    total = draw.chance(0.5)
    if not total and x < y:
        x, y = y, x
    a, b = _person(draw, {"age": x}, first), _person(draw, {"age": y}, second)
    expression = f"{x} + {y}" if total else f"{x} - {y}"
    result = x + y if total else x - y
    return draw.say(_TOTAL if total else _OLDER, a=first, b=second), [
        _look(first, _about(draw, a)),
        _look(second, _about(draw, b)),
        Step(_THINK_CALC.format(e=expression), f"calc[{expression}]", str(result)),
        _finish(str(result)),
    ]


def tools(draw: Draw) -> Document:
    """One question solved with tools, or two in a row (the first serves as the example)."""
    page = Page(Family.TOOLS)
    page.text(draw.one(_PREAMBLES))
    numbered = draw.chance(0.7)
    for index in range(draw.one((1, 1, 1, 2))):
        make = draw.one((one_hop, one_hop, two_hops, two_hops, calculation, two_ages))
        question, steps = make(draw)
        page.text(("\n" if index else "") + f"Question: {question}\n")
        for number, step in enumerate(steps, 1):
            mark = f" {number}:" if numbered else ":"
            page.text("Thought" + mark)
            page.answer(f" {step.thought}\n", kind="thought")
            lead = "Action" + mark
            if draw.chance(0.6):
                page.answer(lead, judged=False, kind="lead")
            else:
                page.text(lead)
            page.answer(f" {step.action}\n", kind="action")
            if step.observation:
                page.text("Observation" + mark + f" {step.observation}\n")
    return page.done()
