"""Topics: for each its label, the words that give it away, and tips with their expansions. Ours, by
hand.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.words import words_of


@dataclass(frozen=True, slots=True)
class Topic:
    """A label of messages with other names for it, and its telling words."""

    label: str
    aliases: tuple[str, ...]
    things: tuple[str, ...]


def _topic(label: str, aliases: str, things: str) -> Topic:
    return Topic(label, tuple(aliases.split()), tuple(part.strip() for part in things.split(",")))


TOPICS = (
    _topic(
        "sports",
        "sport games",
        (
            "the football match, the tennis player, the winning goal, the coach of the team, the "
            "swimming race, the new stadium, the final score, the marathon runner"
        ),
    ),
    _topic(
        "weather",
        "forecast climate",
        (
            "the heavy rain, the snow storm, the strong wind, the sunny sky, the cold front, the "
            "thunder and lightning, the thick fog, the hot summer days"
        ),
    ),
    _topic(
        "food",
        "cooking kitchen",
        (
            "the tasty soup, the fresh bread, the dinner recipe, the chocolate cake, the pasta "
            "sauce, the restaurant menu, the roasted potatoes, the fruit salad"
        ),
    ),
    _topic(
        "music",
        "songs concerts",
        (
            "the new song, the guitar solo, the concert hall, the piano lesson, the singer and her "
            "band, the violin melody, the drum rhythm, the choir"
        ),
    ),
    _topic(
        "travel",
        "trips holidays",
        (
            "the flight to the island, the hotel room, the train ticket, the lost suitcase, the "
            "passport, the tour guide, the beach holiday, the airport gate"
        ),
    ),
    _topic(
        "money",
        "finance banking",
        (
            "the bank account, the interest rate, the loan, the monthly budget, the credit "
            "card, the "
            "stock market, the savings plan, the tax form"
        ),
    ),
    _topic(
        "health",
        "medicine doctor",
        (
            "the doctor and the nurse, the headache, the flu medicine, the hospital bed, the sore "
            "throat, the fever, the broken arm, the vaccine"
        ),
    ),
    _topic(
        "school",
        "education learning",
        (
            "the math teacher, the homework, the exam results, the classroom, the students, the "
            "history lesson, the school library, the new pencil case"
        ),
    ),
    _topic(
        "animals",
        "pets wildlife",
        (
            "the hungry cat, the barking dog, the wild wolf, the horse in the stable, the "
            "bird nest, "
            "the rabbit, the fish tank, the zoo elephant"
        ),
    ),
    _topic(
        "garden",
        "gardening plants",
        (
            "the rose bush, the tomato plants, the garden soil, the apple tree, the lawn, "
            "the flower "
            "seeds, the watering can, the tulip bulbs"
        ),
    ),
    _topic(
        "cars",
        "vehicles driving",
        (
            "the engine noise, the flat tire, the car brakes, the driver and his truck, the gas "
            "station, the steering wheel, the used car, the parking garage"
        ),
    ),
    _topic(
        "computers",
        "technology software",
        (
            "the laptop screen, the software update, the slow computer, the keyboard, the computer "
            "program, the printer cable, the computer virus, the web browser"
        ),
    ),
    _topic(
        "delivery",
        "shipping parcel",
        (
            "the late parcel, the missing package, the courier, the tracking number, the damaged "
            "box, the shipping address, the delivery van, the mailbox"
        ),
    ),
    _topic(
        "billing",
        "payment invoice",
        (
            "the wrong invoice, the double charge, the monthly bill, the refund of my payment, the "
            "receipt, the unpaid invoice, the billing error, the discount on my bill"
        ),
    ),
    _topic(
        "account",
        "login password",
        (
            "the forgotten password, the login page, the user name, the locked account, the "
            "sign up "
            "form, the profile picture, the reset link, the security code"
        ),
    ),
    _topic(
        "movies",
        "film cinema",
        (
            "the movie theater, the film director, the lead actor, the movie trailer, the film "
            "scene, the cinema ticket, the comedy film, the movie ending"
        ),
    ),
    _topic(
        "books",
        "reading literature",
        (
            "the novel, the first chapter, the famous author, the library book, the poem, the book "
            "cover, the short story collection, the publisher"
        ),
    ),
    _topic(
        "science",
        "research physics",
        (
            "the experiment, the telescope, the chemistry lab, the planet and its moons, the "
            "microscope, the atom, the scientist, the new theory"
        ),
    ),
    _topic(
        "politics",
        "government election",
        (
            "the election, the president, the new law, the mayor of the town, the parliament vote, "
            "the minister, the campaign, the political party"
        ),
    ),
    _topic(
        "clothes",
        "fashion clothing",
        (
            "the blue dress, the leather jacket, the winter coat, the new shoes, the silk "
            "shirt, the "
            "fashion show, the wool sweater, the pair of jeans"
        ),
    ),
)

MESSAGE_FRAMES = (
    "I have a question about {t}.",
    "Can you tell me more about {t}?",
    "We talked about {t} all day.",
    "Yesterday I read about {t}.",
    "{T} is all I can think about.",
    "There is some news about {t}.",
    "My friend told me about {t}.",
    "I want to know about {t}.",
    "Please help me with {t}.",
    "Something is wrong with {t}.",
    "I was surprised by {t}.",
    "{T} made me smile today.",
    "What do you think about {t}?",
    "I saw {t} this morning.",
    "Everybody is talking about {t}.",
    "I am writing because of {t}.",
    "Let me tell you about {t} and {u}.",
    "First {t}, then {u}, what a day!",
)
HELD_MESSAGE_FRAMES = (
    "I would like to talk about {t}.",
    "Do you know anything about {t}?",
    "This morning I thought about {t} and {u}.",
    "My question is about {t}.",
    "All week we heard about {t}.",
    "Please tell me about {t}.",
)

POSITIVE = words_of(
    "great wonderful excellent lovely fantastic delightful perfect amazing superb brilliant "
    "charming pleasant "
    "beautiful good awesome enjoyable impressive outstanding terrific marvelous"
)
NEGATIVE = words_of(
    "terrible awful bad horrible boring disappointing poor dreadful annoying ugly useless "
    "broken nasty "
    "unpleasant weak dull lousy miserable painful disgusting"
)
NEUTRAL = words_of("average ordinary okay acceptable usual standard normal typical fair plain")
POSITIVE_LINES = (
    "I loved it.",
    "I would buy it again.",
    "It made me very happy.",
    "I enjoyed every minute.",
    "I recommend it to everyone.",
    "It works like a dream.",
    "It was worth every cent.",
    "I am so glad that I tried it.",
    "Best choice I ever made.",
    "I cannot wait to come back.",
    "Everything was just right.",
    "Five stars from me.",
)
NEGATIVE_LINES = (
    "I hated it.",
    "I want my money back.",
    "It made me angry.",
    "What a waste of time.",
    "I would not recommend it to anyone.",
    "It broke after one day.",
    "Never again.",
    "I am very disappointed.",
    "Worst choice I ever made.",
    "I will not come back.",
    "Everything went wrong.",
    "One star from me.",
)
NEUTRAL_LINES = (
    "It does what it says.",
    "Nothing special.",
    "It is neither good nor bad.",
    "I have no strong opinion.",
    "It was as expected.",
    "It is fine, I guess.",
    "Some things were good, others were not.",
    "I do not feel much about it.",
    "It came in a box.",
    "It is in the middle.",
    "Three stars from me.",
    "I might use it or not.",
)
REVIEWED = words_of(
    "movie film book hotel restaurant phone laptop camera meal soup cake coffee song concert "
    "show game chair "
    "lamp bag jacket service staff room beach tour museum lesson course trip car bike app "
    "website story play"
)
