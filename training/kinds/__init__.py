"""What facts can be told in this world: kinds of things, each with fields, each with ways to state
and ask it.
"""

from __future__ import annotations

from training.draw import Draw, Split
from training.kinds.books import BOOK
from training.kinds.errands import ORDER, TRIP
from training.kinds.further import further
from training.kinds.invented import invented
from training.kinds.model import Field, FieldType, Kind, Record, Value
from training.kinds.people import PERSON
from training.kinds.pets import PET
from training.kinds.places import EVENT, SHOP

PERSON, PET, SHOP, BOOK = further(PERSON), further(PET), further(SHOP), further(BOOK)
ORDER, TRIP, EVENT = further(ORDER), further(TRIP), further(EVENT)
KINDS = (PERSON, PERSON, PET, SHOP, BOOK, ORDER, TRIP, EVENT)
INVENTED = 0.2  # share of the kinds of training that are made up for one document


def draw_kind(draw: Draw) -> Kind:
    """One of the world's kinds; in training now and then one that was never heard of."""
    if draw.split is Split.TRAIN and draw.chance(INVENTED):
        return invented(draw)
    return draw.one(KINDS)


__all__ = [
    "BOOK",
    "EVENT",
    "KINDS",
    "ORDER",
    "PERSON",
    "PET",
    "SHOP",
    "TRIP",
    "Field",
    "FieldType",
    "Kind",
    "Record",
    "Value",
    "draw_kind",
]
