"""What facts can be told in this world: kinds of things, each with fields, each with ways to state and ask it."""

from __future__ import annotations

from training.kinds.books import BOOK
from training.kinds.errands import ORDER, TRIP
from training.kinds.further import further
from training.kinds.model import Field, FieldType, Kind, Record, Value
from training.kinds.people import PERSON
from training.kinds.pets import PET
from training.kinds.places import EVENT, SHOP

PERSON, PET, SHOP, BOOK = further(PERSON), further(PET), further(SHOP), further(BOOK)
ORDER, TRIP, EVENT = further(ORDER), further(TRIP), further(EVENT)
KINDS = (PERSON, PERSON, PET, SHOP, BOOK, ORDER, TRIP, EVENT)

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
]
