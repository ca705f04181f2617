"""Orders and trips: what can be told and asked of them."""

from __future__ import annotations

from training.draw import ways
from training.kinds.model import (
    Field,
    FieldType,
    Kind,
    between,
    coin,
    enumerated,
    listed,
    several,
    town,
)
from training.words import COLOURS, GOODS, HOBBIES, MONTHS, TRANSPORT

ORDER = Kind(
    "order",
    ("customer", "name", "buyer"),
    lambda draw: draw.person(),
    (
        Field(
            ("item", "product"),
            FieldType.STRING,
            listed(GOODS),
            ways(
                "{n} ordered {v}.",
                "{n} wants to buy {v}.",
                "{n} placed an order for {v}.",
                "{n} asked for {v}.",
                held=("The order of {n} is for {v}.", "{n} would like to order {v}."),
            ),
            ways(
                "What did {n} order?",
                "What does {n} want to buy?",
                "Which item did {n} order?",
                held=("What item does {n} want?",),
            ),
            ways(
                "Who ordered {v}?", "Who wants to buy {v}?", held=("Which customer ordered {v}?",)
            ),
        ),
        Field(
            ("quantity", "amount", "count"),
            FieldType.INTEGER,
            between(1, 99),
            ways(
                "The quantity for {n} is {v}.",
                "{n} needs {v} pieces.",
                "{n} takes {v} pieces.",
                held=("{n} would like {v} pieces.",),
            ),
            ways(
                "How many pieces does {n} need?",
                "What quantity does {n} take?",
                held=("What is the quantity for {n}?",),
            ),
        ),
        Field(
            ("price", "total"),
            FieldType.INTEGER,
            between(2, 999),
            ways(
                "{n} pays {v} dollars.",
                "The price for {n} is {v} dollars.",
                "The bill of {n} is {v} dollars.",
                held=("For this {n} pays {v} dollars.",),
            ),
            ways(
                "How much does {n} pay?",
                "What is the price for {n}?",
                held=("How many dollars does {n} pay?",),
            ),
        ),
        Field(
            ("paid", "is_paid"),
            FieldType.BOOLEAN,
            coin,
            ways(
                "{n} has paid.",
                "{n} already paid.",
                "The bill of {n} is paid.",
                held=("{n} has already paid the bill.",),
            ),
            ways("Has {n} paid?", "Did {n} pay?", held=("Has {n} already paid?",)),
            None,
            ways(
                "{n} has not paid.",
                "{n} did not pay yet.",
                "The bill of {n} is not paid.",
                held=("{n} has not yet paid the bill.",),
            ),
        ),
        Field(
            ("color", "colour"),
            FieldType.STRING,
            listed(COLOURS),
            ways(
                "{n} chose the color {v}.",
                "The color for {n} is {v}.",
                "{n} wants everything in {v}.",
                held=("{n} wants the color {v}.",),
            ),
            ways(
                "Which color did {n} choose?",
                "What color does {n} want?",
                held=("What color did {n} choose?",),
            ),
        ),
        Field(
            ("address", "ship_to", "town"),
            FieldType.STRING,
            town,
            ways(
                "The order of {n} goes to {v}.",
                "Send it to {n} in {v}.",
                "{n} wants the delivery in {v}.",
                held=("Deliver the order of {n} to {v}.",),
            ),
            ways(
                "Where does the order of {n} go?",
                "To which town is the delivery for {n}?",
                held=("To which town does the order of {n} go?",),
            ),
            ways("Whose order goes to {v}?", held=("Whose delivery goes to {v}?",)),
        ),
        Field(
            ("extras", "gifts"),
            FieldType.LIST,
            several(GOODS),
            ways(
                "{n} also gets {v} as a gift.",
                "As extras {n} takes {v}.",
                "The gifts for {n} are {v}.",
                held=("{n} gets {v} as extras.",),
            ),
            ways(
                "Which gifts does {n} get?",
                "What extras does {n} take?",
                held=("What are the gifts for {n}?",),
            ),
        ),
    ),
    pronouns=("He", "She"),
)

TRIP = Kind(
    "trip",
    ("traveler", "name", "person"),
    lambda draw: draw.person(),
    (
        Field(
            ("destination", "to", "city"),
            FieldType.STRING,
            town,
            ways(
                "{n} travels to {v}.",
                "{n} is going to {v}.",
                "{n} visits {v}.",
                "{n} has booked a trip to {v}.",
                held=("{n} has planned a trip to {v}.", "The trip takes {n} to {v}."),
            ),
            ways(
                "Where does {n} travel?",
                "Where is {n} going?",
                "Which town does {n} visit?",
                "What is the destination of {n}?",
                held=("Where does {n} want to travel?", "To which town is {n} going?"),
            ),
            ways(
                "Who travels to {v}?",
                "Who is going to {v}?",
                "Who visits {v}?",
                held=("Which person travels to {v}?",),
            ),
        ),
        Field(
            ("days", "length"),
            FieldType.INTEGER,
            between(2, 60),
            ways(
                "{n} stays for {v} days.",
                "The trip of {n} takes {v} days.",
                "{n} is away for {v} days.",
                held=("For {v} days {n} is away.",),
            ),
            ways(
                "How many days does {n} stay?",
                "How long is the trip of {n}?",
                "For how many days is {n} away?",
                held=("How many days is {n} away?",),
            ),
        ),
        Field(
            ("transport", "vehicle", "by"),
            FieldType.ENUM,
            enumerated(TRANSPORT),
            ways(
                "{n} goes by {v}.",
                "{n} takes the {v}.",
                "{n} travels by {v}.",
                held=("To get there, {n} takes the {v}.",),
            ),
            ways(
                "How does {n} travel?",
                "What does {n} travel by?",
                held=("By what does {n} travel?",),
            ),
            ways("Who goes by {v}?", "Who takes the {v}?", held=("Who travels by {v}?",)),
            options=TRANSPORT,
        ),
        Field(
            ("month", "when"),
            FieldType.STRING,
            enumerated(MONTHS),
            ways(
                "{n} leaves in {v}.",
                "The trip of {n} is in {v}.",
                "In {v} {n} sets off.",
                held=("{n} sets off in {v}.",),
            ),
            ways(
                "In which month does {n} leave?",
                "When does {n} leave?",
                "What month is the trip of {n}?",
                held=("In what month does {n} leave?",),
            ),
        ),
        Field(
            ("activities", "plans"),
            FieldType.LIST,
            several(HOBBIES),
            ways(
                "{n} is looking forward to {v}.",
                "There {n} plans {v}.",
                "The plans of {n} are {v}.",
                held=("{n} has plans for {v}.",),
            ),
            ways(
                "What does {n} plan?",
                "What are the plans of {n}?",
                held=("What plans does {n} have?",),
            ),
        ),
        Field(
            ("return_ticket", "returns"),
            FieldType.BOOLEAN,
            coin,
            ways(
                "{n} has a return ticket.",
                "{n} bought a return ticket.",
                held=("{n} already has a return ticket.",),
            ),
            ways(
                "Does {n} have a return ticket?",
                "Did {n} buy a return ticket?",
                held=("Has {n} got a return ticket?",),
            ),
            None,
            ways(
                "{n} has no return ticket.",
                "{n} did not buy a return ticket.",
                held=("{n} does not have a return ticket.",),
            ),
        ),
    ),
    pronouns=("He", "She"),
)
