"""Animals with a name: what can be told and asked of them."""

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
    person,
    several,
)
from training.words import ANIMALS, COLOURS, FOODS, SIZES

_PET_FIELDS = (
    Field(
        ("species", "animal", "kind"),
        FieldType.STRING,
        listed(ANIMALS),
        ways(
            "{n} is {a}.",
            "{n} the {v} is well known here.",
            "The animal {n} is {a}.",
            held=("Our {n} is {a}.",),
        ),
        ways(
            "What kind of animal is {n}?",
            "What animal is {n}?",
            "Which animal is {n}?",
            held=("What sort of animal is {n}?",),
        ),
        ways(
            "What is the {v} called?",
            "What is the name of the {v}?",
            "Which animal is {a}?",
            held=("What is the {v}'s name?",),
        ),
    ),
    Field(
        ("age", "years"),
        FieldType.INTEGER,
        between(1, 30),
        ways(
            "{n} is {v} years old.",
            "The age of {n} is {v}.",
            "{n} is {v} years of age.",
            held=("{n} is now {v} years old.",),
        ),
        ways(
            "How old is {n}?",
            "What is the age of {n}?",
            "What is {n}'s age?",
            held=("Tell me how old {n} is.",),
        ),
    ),
    Field(
        ("color", "colour"),
        FieldType.STRING,
        listed(COLOURS),
        ways(
            "{n} is {v}.",
            "The color of {n} is {v}.",
            "{n} has {v} fur.",
            "{n} is {v} all over.",
            held=("The fur of {n} is {v}.",),
        ),
        ways(
            "What color is {n}?",
            "Which color is {n}?",
            "What is the color of {n}?",
            held=("{n} has which color?",),
        ),
    ),
    Field(
        ("owner", "belongs_to"),
        FieldType.STRING,
        person,
        ways(
            "{n} belongs to {v}.",
            "The owner of {n} is {v}.",
            "{v} owns {n}.",
            "{v} is the owner of {n}.",
            held=("{v} takes care of {n} as its owner.",),
        ),
        ways(
            "Who owns {n}?",
            "Who is the owner of {n}?",
            "To whom does {n} belong?",
            held=("Who is {n}'s owner?",),
        ),
        ways(
            "Which animal belongs to {v}?",
            "What is the name of {v}'s animal?",
            held=("Which animal does {v} own?",),
        ),
    ),
    Field(
        ("weight", "kilos"),
        FieldType.INTEGER,
        between(1, 90),
        ways(
            "{n} weighs {v} kilos.",
            "The weight of {n} is {v} kilos.",
            held=("{n} has a weight of {v} kilos.",),
        ),
        ways(
            "How much does {n} weigh?",
            "What is the weight of {n}?",
            "How many kilos does {n} weigh?",
            held=("What does {n} weigh?",),
        ),
    ),
    Field(
        ("can_swim", "swims"),
        FieldType.BOOLEAN,
        coin,
        ways(
            "{n} can swim.", "{n} is able to swim.", "{n} swims well.", held=("{n} can swim well.",)
        ),
        ways("Can {n} swim?", "Is {n} able to swim?", held=("Does {n} swim?",)),
        None,
        ways(
            "{n} cannot swim.",
            "{n} is not able to swim.",
            "{n} never learned to swim.",
            held=("{n} is unable to swim.",),
        ),
    ),
    Field(
        ("size",),
        FieldType.ENUM,
        enumerated(SIZES),
        ways(
            "{n} is of {v} size.",
            "The size of {n} is {v}.",
            "For its kind, {n} is {v}.",
            held=("In size {n} is {v}.",),
        ),
        ways("What size is {n}?", "What is the size of {n}?", held=("What is {n}'s size?",)),
        options=SIZES,
    ),
    Field(
        ("eats", "foods"),
        FieldType.LIST,
        several(FOODS),
        ways(
            "{n} eats {v}.",
            "{n} is fed with {v}.",
            "The food of {n} is {v}.",
            held=("{n} likes to eat {v}.",),
        ),
        ways("What does {n} eat?", "What is {n} fed with?", held=("Which foods does {n} eat?",)),
    ),
)
PET = Kind(
    "animal", ("name", "animal_name"), lambda draw: draw.person(), _PET_FIELDS, pronouns=("It",)
)
