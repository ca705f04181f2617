"""Books: what can be told and asked of them."""

from __future__ import annotations

from training.draw import Draw, ways
from training.kinds.model import Field, FieldType, Kind, between, coin, enumerated, person
from training.words import GENRES


def _title(draw: Draw) -> str:
    return draw.title()


BOOK = Kind(
    "book",
    ("title", "book", "name"),
    _title,
    (
        Field(
            ("author", "writer"),
            FieldType.STRING,
            person,
            ways(
                "{n} was written by {v}.",
                "{v} wrote {n}.",
                "The author of {n} is {v}.",
                "{n} is a book by {v}.",
                held=("{v} is the author of {n}.",),
            ),
            ways(
                "Who wrote {n}?",
                "Who is the author of {n}?",
                "By whom was {n} written?",
                held=("What is the name of the author of {n}?",),
            ),
            ways(
                "Which book did {v} write?",
                "What did {v} write?",
                held=("Which book was written by {v}?",),
            ),
        ),
        Field(
            ("pages", "num_pages"),
            FieldType.INTEGER,
            between(40, 990),
            ways(
                "{n} has {v} pages.",
                "The book {n} is {v} pages long.",
                "There are {v} pages in {n}.",
                held=("With {v} pages, {n} is a fine book.",),
            ),
            ways(
                "How many pages does {n} have?",
                "How long is {n}?",
                "How many pages are in {n}?",
                held=("How many pages are there in {n}?",),
            ),
        ),
        Field(
            ("year", "published"),
            FieldType.INTEGER,
            between(1900, 2029),
            ways(
                "{n} came out in {v}.",
                "{n} was published in {v}.",
                "In {v} the book {n} came out.",
                held=("The book {n} was published in {v}.",),
            ),
            ways(
                "When did {n} come out?",
                "In which year was {n} published?",
                "What year did {n} come out?",
                held=("In what year did {n} come out?",),
            ),
        ),
        Field(
            ("genre", "type"),
            FieldType.ENUM,
            enumerated(GENRES),
            ways(
                "{n} is a {v} book.",
                "The genre of {n} is {v}.",
                "{n} belongs to the genre {v}.",
                held=("The book {n} is {v}.",),
            ),
            ways(
                "What genre is {n}?",
                "What is the genre of {n}?",
                "Which genre is {n}?",
                held=("What type of book is {n}?",),
            ),
            ways("Which book is a {v} book?", held=("Which book has the genre {v}?",)),
            options=GENRES,
        ),
        Field(
            ("in_stock", "available"),
            FieldType.BOOLEAN,
            coin,
            ways(
                "{n} is in stock.",
                "You can buy {n} now.",
                "{n} is available.",
                held=("The book {n} is in stock now.",),
            ),
            ways("Is {n} in stock?", "Is {n} available?", held=("Can you buy {n} now?",)),
            None,
            ways(
                "{n} is not in stock.",
                "{n} is sold out.",
                "{n} is not available.",
                held=("The book {n} is sold out now.",),
            ),
        ),
        Field(
            ("price", "cost"),
            FieldType.INTEGER,
            between(2, 99),
            ways(
                "{n} costs {v} dollars.",
                "The price of {n} is {v} dollars.",
                "You pay {v} dollars for {n}.",
                held=("For {n} you pay {v} dollars.",),
            ),
            ways(
                "How much does {n} cost?",
                "What is the price of {n}?",
                "What does {n} cost?",
                held=("How many dollars does {n} cost?",),
            ),
        ),
    ),
    pronouns=("It",),
)
