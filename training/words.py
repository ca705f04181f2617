"""The closed word lists of the world, and nothing about how they are used in sentences.

Every list is written by hand for this project. People and towns are only partly lists: most names
are spelled from random syllables by `training.draw`, so that copying has to be learned and not
memorised.
"""

from __future__ import annotations


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


PEOPLE = words_of(
    "Ada Alma Amos Anna Arlo Bela Ben Bruno Carla Cato Clara Dana David Dora Edna Eli Ella "
    "Emil Emma Enzo Erik "
    "Eva Felix Fern Fiona Frank Gina Greta Gus Hana Henry Hugo Ida Igor Ines Iris Ivan Jack "
    "Jana Jonas Julia "
    "Karl Kate Kira Lars Lena Leo Lily Lina Lucy Luis Maja Marco Maria Mark Mary Max Mia "
    "Milo Mina Nadia Nils "
    "Nina Noah Nora Olga Oliver Omar Oscar Otto Paul Petra Pia Quinn Rita Robin Rosa Ruth "
    "Sam Sara Simon Sofia "
    "Stella Sven Tara Theo Tina Tom Uma Vera Victor Wanda Will Yara Zoe Alice Bob Carol "
    "Peter Susan John Jane"
)
TOWNS = words_of(
    "Paris London Rome Berlin Madrid Oslo Vienna Prague Dublin Lisbon Athens Cairo Tokyo "
    "Delhi Lima Boston Dallas "
    "Denver Geneva Turin Milan Porto Bergen Bristol Oxford York Krakow Riga Kyoto Quito"
)
TOWN_ENDINGS = words_of("ford ham ton dale burg wick stad mere field port mouth by")
TRADES = words_of(
    "baker doctor teacher farmer painter nurse pilot sailor tailor lawyer singer dancer "
    "writer gardener carpenter "
    "plumber cook waiter driver fisher miner judge dentist barber builder printer potter "
    "actor guard librarian "
    "engineer mechanic shepherd artist poet"
)
ANIMALS = words_of(
    "dog cat horse rabbit parrot goat duck turtle hamster sheep pig hen goose donkey mouse "
    "snake fox owl cow frog "
    "pony lizard pigeon crow ferret eel"
)
FOODS = words_of(
    "bread soup rice pasta cheese apples plums pears grapes cherries olives honey pancakes "
    "noodles salad beans "
    "carrots potatoes fish pizza cake pie nuts eggs porridge yogurt figs melons peaches tomatoes"
)
GOODS = words_of(
    "lamps chairs tables books pens shoes hats coats clocks toys bowls cups plates knives "
    "baskets candles rugs bags "
    "boots gloves scarves maps bells boxes mirrors ropes tents paints brushes kites"
)
COLOURS = words_of(
    "red blue green yellow black white brown grey pink orange purple gold silver teal"
)
HOBBIES = words_of(
    "chess swimming painting running singing cooking fishing reading dancing hiking sailing "
    "knitting climbing cycling "
    "skating gardening drawing juggling camping archery"
)
INSTRUMENTS = words_of("piano violin guitar flute drum harp trumpet cello banjo organ")
MONTHS = words_of(
    "January February March April May June July August September October November December"
)
DAYS = words_of("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
TRANSPORT = words_of("train bus boat plane car bicycle")
SIZES = words_of("small medium large")
MOODS = words_of("happy sad angry calm tired")
GENRES = words_of("mystery romance history adventure poetry comedy")
TITLE_FIRST = words_of(
    "Silent Golden Lost Hidden Broken Winter Summer Distant Secret Burning Frozen Little "
    "Last Crimson Hollow Quiet "
    "Empty Gentle Ancient Wild"
)
TITLE_SECOND = words_of(
    "River Garden Tower Island Forest Letter Mirror Harbor Castle Road Bridge Song Ocean "
    "Lantern Mountain Valley "
    "Window Kingdom Storm Voyage"
)
SINGULARS = words_of(
    "apple pear plum lemon melon carrot onion potato tomato berry cherry peach nut egg cake "
    "pie bun cup plate bowl "
    "spoon fork knife glass bottle box bag basket bucket brush chair table lamp bed desk "
    "shelf door window wall roof "
    "house barn mill tower bridge road river lake hill tree leaf flower rose tulip bush "
    "branch stone rock shell star "
    "cloud boat ship car bus train wagon wheel kite ball drum flute bell clock watch key "
    "coin ring hat coat scarf "
    "glove boot shoe sock dress shirt belt button ribbon rope net hook nail hammer saw pen "
    "pencil book page letter "
    "map card candle match mirror picture toy doll dog cat horse cow pig sheep goat hen duck "
    "goose fox wolf bear "
    "rabbit mouse bird crow owl fish frog snake turtle bee ant fly spider baby lady city "
    "story party pony puppy"
)
PLURAL_EXCEPTIONS = {
    "knife": "knives",
    "shelf": "shelves",
    "leaf": "leaves",
    "scarf": "scarves",
    "sheep": "sheep",
    "goose": "geese",
    "wolf": "wolves",
    "mouse": "mice",
    "fish": "fish",
    "potato": "potatoes",
    "tomato": "tomatoes",
}
OPPOSITES = (
    ("hot", "cold"),
    ("big", "small"),
    ("tall", "short"),
    ("fast", "slow"),
    ("light", "dark"),
    ("happy", "sad"),
    ("old", "young"),
    ("wet", "dry"),
    ("full", "empty"),
    ("open", "closed"),
    ("hard", "soft"),
    ("early", "late"),
    ("rich", "poor"),
    ("strong", "weak"),
    ("clean", "dirty"),
    ("loud", "quiet"),
    ("near", "far"),
    ("high", "low"),
    ("up", "down"),
    ("left", "right"),
    ("day", "night"),
    ("good", "bad"),
    ("first", "last"),
    ("deep", "shallow"),
    ("thick", "thin"),
    ("wide", "narrow"),
    ("sweet", "bitter"),
    ("win", "lose"),
    ("buy", "sell"),
    ("push", "pull"),
)


def plural(noun: str) -> str:
    """The plural of one of `SINGULARS` by the ordinary rules and `PLURAL_EXCEPTIONS`."""
    if noun in PLURAL_EXCEPTIONS:
        return PLURAL_EXCEPTIONS[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    return noun + "s"


def ordinal(number: int) -> str:
    """1 -> 1st, 12 -> 12th, 23 -> 23rd."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def article(word: str) -> str:
    """`a` or `an`, by the first letter."""
    return "an" if word[:1].lower() in "aeiou" else "a"
