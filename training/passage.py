"""A passage: records of one kind told in sentences. Knows which facts it tells, not what will be
asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from training.draw import Draw
from training.kinds import Field, Kind, Record, Value, draw_kind

_FILLERS = (
    "The weather was fine.",
    "It rained all night.",
    "Nobody knows why.",
    "That is how it is.",
    "The story is old.",
    "It was a quiet week.",
    "Many people know this.",
    "Life goes on.",
)


@dataclass(frozen=True, slots=True)
class Passage:
    """Some records and their text."""

    kind: Kind
    records: tuple[Record, ...]
    text: str

    def facts(self) -> list[tuple[Record, Field, Value]]:
        """Every fact told."""
        return [
            (record, self.kind.field(key), value)
            for record in self.records
            for key, value in record.values.items()
        ]

    def holders(self, key: str, value: Value) -> list[str]:
        """The things that have this value."""
        return [record.name for record in self.records if record.values.get(key) == value]


def sentences(draw: Draw, record: Record) -> list[str]:
    """One sentence a fact, in the order of the record; later ones may say he or she."""
    told: list[str] = []
    for key, value in record.values.items():
        field = record.kind.field(key)
        wording = field.say_no if value is False and field.say_no is not None else field.say
        starts = draw.template(wording).startswith("{n} ")
        sentence = field.state(draw, record.name, value)
        pronoun = record.kind.pronouns
        if (
            told
            and pronoun
            and starts
            and sentence.startswith(record.name + " ")
            and draw.chance(0.15)
        ):
            sentence = pronoun[len(record.name) % len(pronoun)] + sentence[len(record.name) :]
        told.append(sentence)
    return told


def draw_passage(
    draw: Draw, *, kind: Kind | None = None, most: int = 8, things: int | None = None
) -> Passage:
    """A passage of 2 to `most` facts about one to four things of a kind."""
    kind = kind or draw_kind(draw)
    wanted = draw.number(2, most)
    count = min(things or draw.one((1, 1, 2, 2, 2, 3, 3, 4)), wanted)
    names = draw.distinct(lambda: kind.draw_name(draw), count)
    shares = [wanted // count + (1 if i < wanted % count else 0) for i in range(count)]
    records = tuple(
        kind.record(draw, share, name) for share, name in zip(shares, names, strict=True)
    )
    return Passage(kind, records, tell(draw, records))


def tell(draw: Draw, records: Sequence[Record]) -> str:
    """The records as text: thing by thing, or their sentences interleaved."""
    groups = [sentences(draw, record) for record in records]
    if draw.chance(0.3):
        plain = [
            [record.kind.field(k).state(draw, record.name, v) for k, v in record.values.items()]
            for record in records
        ]
        flat = [sentence for group in plain for sentence in group]
        draw.rng.shuffle(flat)
    else:
        flat = [sentence for group in groups for sentence in group]
    if draw.chance(0.2):
        flat.insert(draw.number(0, len(flat)), draw.one(_FILLERS))
    return draw.one((" ", " ", " ", " ", "\n")).join(flat)
