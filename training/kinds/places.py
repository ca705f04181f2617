"""Shops and events: what can be told and asked of them."""

from __future__ import annotations

from training.draw import ways
from training.kinds.model import (
    Field,
    FieldType,
    Kind,
    between,
    coin,
    enumerated,
    person,
    several,
    town,
)
from training.words import DAYS, FOODS, GOODS, MONTHS, SIZES

_ON_DAY = tuple(DAYS)

SHOP = Kind(
    "shop",
    ("shop", "name", "store"),
    lambda draw: draw.person(),
    (
        Field(
            ("town", "city", "location"),
            FieldType.STRING,
            town,
            ways(
                "The shop {n} is in {v}.",
                "{n} is a shop in {v}.",
                "You find {n} in {v}.",
                "The shop called {n} stands in {v}.",
                held=("In {v} there is a shop called {n}.",),
            ),
            ways(
                "Where is the shop {n}?",
                "In which town is {n}?",
                "What town is {n} in?",
                held=("Which town is the shop {n} in?",),
            ),
            ways(
                "Which shop is in {v}?",
                "What is the shop in {v} called?",
                held=("What is the name of the shop in {v}?",),
            ),
        ),
        Field(
            ("owner", "boss"),
            FieldType.STRING,
            person,
            ways(
                "{v} owns {n}.",
                "The owner of {n} is {v}.",
                "{n} belongs to {v}.",
                "{n} is run by {v}.",
                held=("{v} is the owner of the shop {n}.",),
            ),
            ways(
                "Who owns {n}?",
                "Who is the owner of {n}?",
                "Who runs {n}?",
                held=("To whom does {n} belong?",),
            ),
            ways(
                "Which shop does {v} own?",
                "Which shop belongs to {v}?",
                held=("What shop does {v} own?",),
            ),
        ),
        Field(
            ("opens", "opening_hour"),
            FieldType.INTEGER,
            between(5, 12),
            ways(
                "{n} opens at {v}.",
                "{n} opens at {v} in the morning.",
                "The doors of {n} open at {v}.",
                held=("In the morning {n} opens at {v}.",),
            ),
            ways(
                "When does {n} open?",
                "At what hour does {n} open?",
                "What time does {n} open?",
                held=("At what time does {n} open?",),
            ),
        ),
        Field(
            ("workers", "staff"),
            FieldType.INTEGER,
            between(2, 80),
            ways(
                "{n} has {v} workers.",
                "{v} people work at {n}.",
                "There are {v} workers at {n}.",
                held=("At {n} there are {v} workers.",),
            ),
            ways(
                "How many workers does {n} have?",
                "How many people work at {n}?",
                held=("How many workers are there at {n}?",),
            ),
        ),
        Field(
            ("sells", "products"),
            FieldType.LIST,
            several(GOODS + FOODS),
            ways("{n} sells {v}.", "You can buy {v} at {n}.", held=("At {n} you can buy {v}.",)),
            ways(
                "What does {n} sell?",
                "What can you buy at {n}?",
                held=("Which things does {n} sell?",),
            ),
        ),
        Field(
            ("open_sunday", "sunday"),
            FieldType.BOOLEAN,
            coin,
            ways(
                "{n} is open on Sunday.",
                "On Sunday {n} is open.",
                "{n} opens on Sunday too.",
                held=("You can visit {n} on Sunday.",),
            ),
            ways(
                "Is {n} open on Sunday?",
                "Can you visit {n} on Sunday?",
                held=("On Sunday, is {n} open?",),
            ),
            None,
            ways(
                "{n} is closed on Sunday.",
                "On Sunday {n} is closed.",
                "{n} does not open on Sunday.",
                held=("You cannot visit {n} on Sunday.",),
            ),
        ),
        Field(
            ("size",),
            FieldType.ENUM,
            enumerated(SIZES),
            ways("{n} is a {v} shop.", "The size of {n} is {v}.", held=("The shop {n} is {v}.",)),
            ways(
                "What size is {n}?",
                "What is the size of {n}?",
                held=("What is the size of the shop {n}?",),
            ),
            options=SIZES,
        ),
    ),
    pronouns=("It",),
)


EVENT = Kind(
    "event",
    ("event", "name", "title"),
    lambda draw: (
        draw.word().capitalize()
        + " "
        + draw.one(("Festival", "Fair", "Party", "Concert", "Race", "Market"))
    ),
    (
        Field(
            ("place", "town", "location"),
            FieldType.STRING,
            town,
            ways(
                "The {n} takes place in {v}.",
                "The {n} is held in {v}.",
                "{v} is the place of the {n}.",
                held=("The {n} will take place in {v}.",),
            ),
            ways(
                "Where does the {n} take place?",
                "Where is the {n}?",
                "In which town is the {n}?",
                held=("Where is the {n} held?",),
            ),
            ways(
                "What takes place in {v}?",
                "Which event is in {v}?",
                held=("Which event takes place in {v}?",),
            ),
        ),
        Field(
            ("month",),
            FieldType.STRING,
            enumerated(MONTHS),
            ways(
                "The {n} is in {v}.",
                "The {n} happens in {v}.",
                "Every {v} there is the {n}.",
                held=("The month of the {n} is {v}.",),
            ),
            ways(
                "In which month is the {n}?",
                "When is the {n}?",
                "What month is the {n} in?",
                held=("In what month is the {n}?",),
            ),
        ),
        Field(
            ("day", "weekday"),
            FieldType.ENUM,
            enumerated(_ON_DAY),
            ways(
                "The {n} starts on a {v}.",
                "The first day of the {n} is {v}.",
                held=("The {n} begins on {v}.",),
            ),
            ways(
                "On which day does the {n} start?",
                "What day does the {n} start?",
                held=("On what day does the {n} start?",),
            ),
            options=_ON_DAY,
        ),
        Field(
            ("guests", "visitors"),
            FieldType.INTEGER,
            between(10, 999),
            ways(
                "The {n} has {v} guests.",
                "{v} guests come to the {n}.",
                "About {v} guests visit the {n}.",
                held=("There are {v} guests at the {n}.",),
            ),
            ways(
                "How many guests come to the {n}?",
                "How many guests does the {n} have?",
                held=("How many guests visit the {n}?",),
            ),
        ),
        Field(
            ("outdoors", "outside"),
            FieldType.BOOLEAN,
            coin,
            ways(
                "The {n} is outdoors.",
                "The {n} is held outside.",
                "The {n} is in the open air.",
                held=("The {n} takes place outdoors.",),
            ),
            ways(
                "Is the {n} outdoors?",
                "Is the {n} held outside?",
                held=("Does the {n} take place outdoors?",),
            ),
            None,
            ways(
                "The {n} is indoors.",
                "The {n} is not outside.",
                "The {n} is held inside.",
                held=("The {n} takes place indoors.",),
            ),
        ),
        Field(
            ("host", "organizer"),
            FieldType.STRING,
            person,
            ways(
                "{v} organizes the {n}.",
                "The host of the {n} is {v}.",
                "The {n} is led by {v}.",
                held=("{v} is the host of the {n}.",),
            ),
            ways(
                "Who organizes the {n}?",
                "Who is the host of the {n}?",
                "Who leads the {n}?",
                held=("What is the name of the host of the {n}?",),
            ),
        ),
    ),
    pronouns=("It",),
)
