"""A kind of thing, its fields, and a record of one thing. Knows how a value is drawn and stated,
not why.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from training.draw import Draw, Split, Wording, ways
from training.kinds.framed import framed
from training.words import article

_GENERAL = ways(
    "What is the {k} of {n}?",
    "Tell me the {k} of {n}.",
    "{k} of {n}?",
    "Say the {k} of {n}.",
    "What is {n}'s {k}?",
)
_GENERAL_WHO = ways(
    "Whose {k} is {v}?",
    "Who has {v} as {k}?",
    "Which {kind} has {v} as {k}?",
    "For which {kind} is {v} the {k}?",
    "Tell me whose {k} is {v}.",
    "What is the name of the {kind} whose {k} is {v}?",
)
FRAMED = 0.12  # share of the statements of training that are framed
_LEADS = (
    "Tell me, ",
    "Please tell me ",
    "Can you say ",
    "I want to know: ",
    "Do you know ",
    "Tell me: ",
    "Now, ",
)
Value = str | int | bool | tuple[str, ...]


class FieldType(enum.Enum):
    """The JSON type of a field."""

    STRING = "string"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    LIST = "list of strings"
    ENUM = "enum"


@dataclass(frozen=True, slots=True)
class Field:
    """One attribute. In wordings `{n}` is the thing, `{v}` the value, `{a}` the value with its
    article.

    `say_no` states a false boolean. `who` asks for the thing by the value. `keys` are its names in
    JSON.
    """

    keys: tuple[str, ...]
    type: FieldType
    draw: Callable[[Draw], Value]
    say: Wording
    ask: Wording
    who: Wording | None = None
    say_no: Wording | None = None
    options: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The first of its names."""
        return self.keys[0]

    def state(self, draw: Draw, name: str, value: Value) -> str:
        """A sentence that tells the value."""
        wording = self.say_no if value is False and self.say_no is not None else self.say
        template = draw.template(wording)
        if draw.split is Split.TRAIN and draw.chance(FRAMED):
            template = framed(draw, template, wording)
        return template.format(n=name, v=shown(value), a=with_article(value))

    def question_for_thing(self, draw: Draw, value: Value, kind: str) -> str | None:
        """A question for the thing by the value, now and then a general one; none where the field
        has no such.
        """
        if self.who is None:
            return None
        if draw.split is Split.TRAIN and draw.chance(0.2):
            return draw.say(
                _GENERAL_WHO, k=draw.one(self.keys).replace("_", " "), v=shown(value), kind=kind
            )
        return draw.say(self.who, v=shown(value), a=with_article(value))

    def question(self, draw: Draw, name: str) -> str:
        """A question for the value, now and then a general one by the field's name."""
        if draw.split is Split.TRAIN and self.type is not FieldType.BOOLEAN and draw.chance(0.12):
            return draw.say(_GENERAL, n=name, k=draw.one(self.keys).replace("_", " "))
        asked = draw.say(self.ask, n=name)
        if draw.split is Split.TRAIN and draw.chance(0.08):
            return (
                draw.one(_LEADS) + asked[0].lower() + asked[1:]
                if not asked.startswith(name)
                else asked
            )
        return asked


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of thing: how it is named in a sentence, and what can be said of it."""

    name: str
    name_keys: tuple[str, ...]
    draw_name: Callable[[Draw], str]
    fields: tuple[Field, ...]
    intro: Wording | None = None
    pronouns: tuple[str, ...] = ()

    def record(self, draw: Draw, count: int, name: str | None = None) -> Record:
        """A thing with `count` drawn fields."""
        chosen = draw.some(self.fields, min(count, len(self.fields)))
        return Record(
            self, name or self.draw_name(draw), {field.key: field.draw(draw) for field in chosen}
        )

    def field(self, key: str) -> Field:
        """The field of that first key."""
        return next(field for field in self.fields if field.key == key)


@dataclass(frozen=True, slots=True)
class Record:
    """One thing and what is told of it."""

    kind: Kind
    name: str
    values: Mapping[str, Value]


def shown(value: Value) -> str:
    """The value as it stands in a sentence."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return value[0] if len(value) == 1 else ", ".join(value[:-1]) + " and " + value[-1]
    return str(value)


def with_article(value: Value) -> str:
    """`a dog`, `an owl`; anything that is no word is only shown."""
    return f"{article(value)} {value}" if isinstance(value, str) and value else shown(value)


def listed(options: tuple[str, ...]) -> Callable[[Draw], Value]:
    """Draws from a closed list (rarely an unknown word)."""
    return lambda draw: draw.listed(options)


def enumerated(options: tuple[str, ...]) -> Callable[[Draw], Value]:
    """Draws from an enum: never an unknown word."""
    return lambda draw: draw.one(options)


def between(low: int, high: int) -> Callable[[Draw], Value]:
    """Draws an integer."""
    return lambda draw: draw.number(low, high)


def several(options: tuple[str, ...]) -> Callable[[Draw], Value]:
    """Draws a list of two to four."""
    return lambda draw: tuple(draw.distinct(lambda: draw.listed(options), draw.number(2, 4)))


def coin(draw: Draw) -> Value:
    """Draws true or false."""
    return draw.chance(0.5)


def person(draw: Draw) -> Value:
    """Draws a person."""
    return draw.person()


def town(draw: Draw) -> Value:
    """Draws a town."""
    return draw.town()
