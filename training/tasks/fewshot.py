"""Few-shot: what to do is shown only by examples. Long ones fill up to two thousand tokens."""

from __future__ import annotations

from collections.abc import Callable

from training.document import Document, Family, Page
from training.draw import Draw, Split
from training.words import (
    ANIMALS,
    COLOURS,
    FOODS,
    HOBBIES,
    OPPOSITES,
    SINGULARS,
    TRADES,
    ordinal,
    plural,
)

Example = tuple[str, str]
Maker = Callable[[], Example]

_FORMS = (
    ("Input: ", "\nOutput:", "\n\n"),
    ("Input: ", "\nOutput:", "\n"),
    ("Q: ", "\nA:", "\n\n"),
    ("Q: ", "\nA:", "\n"),
    ("", " ->", "\n"),
    ("", " =>", "\n"),
    ("", ":", "\n"),
    ("Text: ", "\nLabel:", "\n\n"),
    ("word: ", "\nanswer:", "\n\n"),
    ("", " =", "\n"),
)
_GROUPS = {"animal": ANIMALS, "food": FOODS, "color": COLOURS, "job": TRADES, "hobby": HOBBIES}


def _noun(draw: Draw) -> str:
    if draw.split is Split.TRAIN and draw.chance(0.4):
        return draw.extended()
    return draw.word() if draw.chance(0.3) else draw.of_split(lambda: draw.one(SINGULARS))


def _field_copy(draw: Draw) -> Maker:
    keys = draw.some(
        ("name", "town", "age", "job", "color", "pet", "food", "id"), draw.number(2, 4)
    )
    pick = draw.number(0, len(keys) - 1)
    labelled = draw.chance(0.6)
    gap = draw.one((", ", ", ", "; ", " | "))

    def make() -> Example:
        values = [_value(draw, key) for key in keys]
        parts = [
            f"{key}: {value}" if labelled else value
            for key, value in zip(keys, values, strict=True)
        ]
        return gap.join(parts), values[pick]

    return make


def _value(draw: Draw, key: str) -> str:
    if key == "name":
        return draw.person()
    if key == "town":
        return draw.town()
    if key in ("age", "id"):
        return str(draw.number(1, 99 if key == "age" else 9999))
    return draw.listed({"job": TRADES, "color": COLOURS, "pet": ANIMALS, "food": FOODS}[key])


def _table(draw: Draw) -> Maker:
    """Keys already seen come back: the answer is what the table (or an earlier example) said."""
    keys = draw.distinct(lambda: _noun(draw), draw.number(2, 5))
    kind = draw.number(0, 2)
    table = {
        k: (str(draw.number(0, 99)) if kind == 0 else draw.word() if kind == 1 else draw.person())
        for k in keys
    }
    return lambda: (lambda k: (k, table[k]))(draw.one(keys))


def _category(draw: Draw) -> Maker:
    names = draw.some(sorted(_GROUPS), draw.number(2, 3))
    labels = (
        dict(zip(names, names, strict=True))
        if draw.chance(0.6)
        else {name: draw.word() for name in names}
    )
    return lambda: (lambda name: (draw.one(_GROUPS[name]), labels[name]))(draw.one(names))


def _opposite(draw: Draw) -> Maker:
    def make() -> Example:
        left, right = draw.one(OPPOSITES)
        return (left, right) if draw.chance(0.5) else (right, left)

    return make


def _words_of(draw: Draw) -> Maker:
    first = draw.chance(0.5)

    def make() -> Example:
        parts = [_noun(draw) for _ in range(draw.number(2, 4))]
        return " ".join(parts), parts[0] if first else parts[-1]

    return make


def _wrapped(draw: Draw) -> Maker:
    frame = draw.one(
        (
            "the {0}",
            "my {0}",
            "{0} {0}",
            "({0})",
            "{0}!",
            "hello {0}",
            "{0} and {0}",
            "no {0}",
            '"{0}"',
            "I like {0}",
            "dear {0}",
        )
    )
    return lambda: (lambda w: (w, frame.format(w)))(_noun(draw))


def _upper(draw: Draw) -> Maker:
    return lambda: (lambda w: (w, w.upper()))(_noun(draw))


def _lower(draw: Draw) -> Maker:
    return lambda: (lambda w: (w.upper(), w))(_noun(draw))


def _capital(draw: Draw) -> Maker:
    return lambda: (lambda w: (w, w.capitalize()))(_noun(draw))


def _same(draw: Draw) -> Maker:
    return lambda: (lambda w: (w, w))(_noun(draw) if draw.chance(0.5) else draw.person())


def _ordinal(draw: Draw) -> Maker:
    return lambda: (lambda n: (str(n), ordinal(n)))(draw.number(1, 99))


def _plural(draw: Draw) -> Maker:
    return lambda: (lambda w: (w, plural(w)))(draw.one(SINGULARS))


def _next_number(draw: Draw) -> Maker:
    step = draw.one((1, 1, 2, 10))
    return lambda: (lambda n: (str(n), str(n + step)))(draw.number(1, 88))


TASKS: dict[str, Callable[[Draw], Maker]] = {
    "field": _field_copy,
    "table": _table,
    "category": _category,
    "opposite": _opposite,
    "word of": _words_of,
    "wrap": _wrapped,
    "upper": _upper,
    "lower": _lower,
    "capital": _capital,
    "same": _same,
    "ordinal": _ordinal,
    "plural": _plural,
    "next": _next_number,
}


def few_shot(draw: Draw) -> Document:
    """Two to five examples are given; what follows is judged."""
    return _write(draw, draw.number(2, 5), draw.number(1, 5))


def long_few_shot(draw: Draw) -> Document:
    """As many examples as fill hundreds to two thousand tokens."""
    return _write(draw, draw.number(20, 110), 3)


def _write(draw: Draw, shown: int, asked: int) -> Document:
    name = draw.one(("field", "field", "table", *TASKS))
    make = TASKS[name](draw)
    before, cue, after = draw.one(_FORMS)
    page = Page(Family.FEW_SHOT)
    if draw.chance(0.1):
        page.text(
            draw.one(("Follow the examples.\n\n", "Do the same for each input.\n\n", "Continue.\n"))
        )
    seen: dict[str, str] = {}
    for index in range(shown + asked):
        given, answer = make()
        if name == "table" and index >= shown:
            for _ in range(20):
                if given in seen:
                    break
                given, answer = make()
        known = (
            name not in ("table", "category")
            or given in seen
            or (name == "category" and answer in seen.values())
        )
        page.text(f"{before}{given}{cue}")
        if known and index > 0:
            page.answer(f" {answer}\n", judged=index >= shown, kind=name)
            page.text(after[1:])
        else:
            page.text(f" {answer}{after}")
        seen[given] = answer
    return page.done()


def mapping(draw: Draw) -> Document:
    """A table given in words, then questions to it."""
    page = Page(Family.FEW_SHOT)
    keys = draw.distinct(lambda: _noun(draw), draw.number(2, 7))
    numbers = draw.chance(0.5)
    values = [str(draw.number(0, 99)) if numbers else draw.word() for _ in keys]
    sign = draw.one((" = ", ": ", " -> ", " means "))
    gap = draw.one((", ", "\n", "; "))
    page.text(
        draw.one(("", "Table:\n", "Use this table:\n", "Code: "))
        + gap.join(f"{k}{sign}{v}" for k, v in zip(keys, values, strict=True))
        + draw.one(("\n", "\n\n"))
    )
    before, cue, after = draw.one(_FORMS)
    back = draw.chance(0.2) and len(set(values)) == len(values)
    pairs = list(zip(values, keys, strict=True) if back else zip(keys, values, strict=True))
    for given, answer in draw.some(pairs, draw.number(1, len(pairs))):
        page.text(f"{before}{given}{cue}")
        page.answer(f" {answer}\n", kind="mapping", judged=not back)
        page.text(after[1:])
    return page.done()


def copying(draw: Draw) -> Document:
    """Plain repetition: the densest lesson in copying."""
    page = Page(Family.FEW_SHOT)
    makers: tuple[Callable[[], str], ...] = (
        lambda: _noun(draw),
        draw.person,
        draw.town,
        lambda: str(draw.number(0, 9999)),
    )
    items = [draw.one(makers)() for _ in range(draw.number(2, 16))]
    gap = draw.one((" ", ", ", "\n"))
    form = draw.one(
        (
            "Repeat: {0}\n",
            "Repeat the words.\n{0}\n",
            "Say again: {0}\n",
            "Copy this: {0}\n",
            "{0}\n",
        )
    )
    page.text(form.format(gap.join(items)))
    cue = draw.one(("Answer:", "Copy:", "Again:"))
    for _ in range(draw.one((1, 1, 2, 3))):
        page.text(cue)
        page.answer(" " + gap.join(items) + "\n", judged=False, kind="copy")
    return page.done()


def casing(draw: Draw) -> Document:
    """Drills: many words in capitals, in small letters or with a capital, and what fails else with
    few examples.
    """
    page = Page(Family.FEW_SHOT)
    make = draw.one((_upper, _lower, _upper, _capital, _capital, _words_of, _same))(draw)
    before, cue, after = draw.one(_FORMS)
    for index in range(draw.number(5, 22)):
        given, answer = make()
        page.text(f"{before}{given}{cue}")
        if index == 0:
            page.text(f" {answer}\n")
        else:
            page.answer(f" {answer}\n", judged=False, kind="casing")
        page.text(after[1:])
    return page.done()
