"""Kinds of things whose relations are made up for one document: what the wub of Mia is has to be
read, not known.

For training only. They teach that a question meets the sentence that shares its words, whatever
those words are, and how a language denies (`no longer`, `unable to`), on verbs that nothing else is
said of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from training.draw import Draw, Wording, ways
from training.kinds.model import (
    Field,
    FieldType,
    Kind,
    Value,
    between,
    coin,
    listed,
    person,
    several,
    town,
)
from training.words import ANIMALS, COLOURS, FOODS, GOODS, HOBBIES, TRADES, words_of

_NOUNS = words_of(
    "motto neighbor cousin boss leader partner price length height speed engine flag symbol "
    "river mountain language "
    "dish drink tool garden door window captain guide rival teacher pupil uncle aunt sister "
    "brother code label brand "
    "model sound smell shape material street bridge harbor island season prize medal score "
    "rank title nickname"
)
_COUNTED = words_of(
    "room door window page wheel leg tooth seat table tree flower brother sister cousin key "
    "coin stamp chapter song "
    "picture floor bed visitor member player ticket button pocket tower bridge lamp star"
)
_VERBS = words_of(
    "follow carry paint repair watch visit draw sell clean feed call help teach trust miss "
    "admire collect borrow "
    "count find guard hide join know lead lift mend open pack pull push reach save sort test "
    "train wash weigh"
)
_DEEDS = words_of(
    "sing dance drive jump sleep climb whistle cook work travel smile run fly wait write "
    "walk speak laugh fish sail "
    "juggle snore bark hunt win play march float shine knock vote"
)
_QUALITIES = words_of(
    "famous ready broken lucky hungry safe busy alone wet dry open closed sick clean rich "
    "poor brave shy awake full "
    "empty healthy heavy loud useful honest guilty modern"
)

_NOUN_SAY = ways(
    "The {w} of {n} is {v}.",
    "{n} has the {w} {v}.",
    "{v} is the {w} of {n}.",
    "As {w}, {n} has {v}.",
    "For {n} the {w} is {v}.",
    "The {w} {v} belongs to {n}.",
    "With {v} as {w}, {n} is content.",
    "What {n} has as {w} is {v}.",
    "{n} has had {v} as {w} for years.",
    "Our {n} has a {w}, {v}.",
    "{n} got {v} as {w}.",
    "About the {w} of {n}: it is {v}.",
)
_NOUN_ASK = ways(
    "What is the {w} of {n}?",
    "Which {w} does {n} have?",
    "Tell me the {w} of {n}.",
    "What {w} has {n}?",
    "What does {n} have as {w}?",
    "{n} has which {w}?",
    "What is {n}'s {w}?",
    "What is called the {w} of {n}?",
)
_NOUN_WHO = ways(
    "Who has the {w} {v}?",
    "Whose {w} is {v}?",
    "Which one has the {w} {v}?",
    "To whom does the {w} {v} belong?",
    "What is the name of the one with the {w} {v}?",
    "For whom is {v} the {w}?",
)
_VERB_SAY = ways(
    "{n} {w}s {v}.",
    "{n} likes to {w} {v}.",
    "Every day {n} {w}s {v}.",
    "{v} is what {n} {w}s.",
    "{n} started to {w} {v}.",
    "On some days {n} {w}s {v}.",
    "{n} would like to {w} {v}.",
    "To {w} {v} is what {n} wants.",
    "At home {n} {w}s {v}.",
    "It is {n} who {w}s {v}.",
)
_VERB_ASK = ways(
    "What does {n} {w}?",
    "{n} {w}s what?",
    "Tell me what {n} {w}s.",
    "Who or what does {n} {w}?",
    "What is it that {n} {w}s?",
    "What would {n} {w}?",
)
_VERB_WHO = ways(
    "Who {w}s {v}?",
    "Which one {w}s {v}?",
    "Who is it that {w}s {v}?",
    "What is the name of the one who {w}s {v}?",
    "Who likes to {w} {v}?",
)
_COUNT_SAY = ways(
    "{n} has {v} {w}s.",
    "There are {v} {w}s at {n}.",
    "With {v} {w}s, {n} is well known.",
    "{v} {w}s belong to {n}.",
    "You can count {v} {w}s at {n}.",
    "{n} counts {v} {w}s.",
    "The number of {w}s of {n} is {v}.",
    "For {n} there are {v} {w}s.",
    "In all {n} has {v} {w}s.",
)
_COUNT_ASK = ways(
    "How many {w}s does {n} have?",
    "How many {w}s are there at {n}?",
    "What is the number of {w}s of {n}?",
    "Tell me how many {w}s {n} has.",
    "How many {w}s has {n}?",
    "{n} has how many {w}s?",
)
_COUNT_WHO = ways("Who has {v} {w}s?", "Which one has {v} {w}s?", "Whose number of {w}s is {v}?")
_DEED_YES = ways(
    "{n} can {w}.",
    "{n} {w}s well.",
    "{n} is able to {w}.",
    "{n} still {w}s.",
    "{n} already {w}s.",
    "You can see {n} {w}.",
    "{n} knows how to {w}.",
    "{n} began to {w}.",
    "{n} likes to {w}.",
)
_DEED_NO = ways(
    "{n} cannot {w}.",
    "{n} does not {w}.",
    "{n} is unable to {w}.",
    "{n} is not able to {w}.",
    "{n} no longer {w}s.",
    "{n} never {w}s.",
    "{n} can no longer {w}.",
    "{n} does not yet {w}.",
    "{n} does not {w} any more.",
    "{n} has never learned to {w}.",
    "{n} fails to {w}.",
    "{n} refuses to {w}.",
    "You cannot see {n} {w}.",
    "Nobody ever saw {n} {w}.",
)
_DEED_ASK = ways(
    "Can {n} {w}?",
    "Does {n} {w}?",
    "Is {n} able to {w}?",
    "Is it true that {n} {w}s?",
    "Will {n} {w}?",
)
_QUALITY_YES = ways(
    "{n} is {w}.",
    "{n} has been {w} for years.",
    "{n} became {w}.",
    "{n} is still {w}.",
    "{n} is {w} now.",
    "{n} is already {w}.",
)
_QUALITY_NO = ways(
    "{n} is not {w}.",
    "{n} is no longer {w}.",
    "{n} has never been {w}.",
    "{n} is not yet {w}.",
    "{n} is not {w} any more.",
    "{n} was never {w}.",
    "{n} is anything but {w}.",
    "Nobody would call {n} {w}.",
)
_QUALITY_ASK = ways(
    "Is {n} {w}?",
    "Is {n} {w} now?",
    "Would you call {n} {w}?",
    "Is {n} still {w}?",
    "Has {n} been {w}?",
)


def _fill(wording: Wording, word: str) -> Wording:
    """The wordings about this word; `{n}` and `{v}` stay open."""
    return Wording(tuple(way.replace("{w}", word) for way in wording.train))


def _word(draw: Draw, listed: Sequence[str]) -> str:
    return draw.one(listed) if draw.chance(0.5) else draw.word()


def _values(draw: Draw) -> tuple[FieldType, Callable[[Draw], Value]]:
    kind = draw.number(0, 6)
    if kind == 0:
        return FieldType.INTEGER, between(2, 999)
    if kind == 1:
        return FieldType.LIST, several(draw.one((FOODS, GOODS, HOBBIES)))
    listed_words = draw.one((ANIMALS, COLOURS, FOODS, TRADES, GOODS))
    return FieldType.STRING, draw.one((person, town, Draw.word, listed(listed_words)))


def _named(draw: Draw) -> Field:
    """`The motto of Mia is wub.`"""
    word = _word(draw, _NOUNS)
    type_, make = _values(draw)
    who = None if type_ is FieldType.LIST else _fill(_NOUN_WHO, word)
    return Field((word,), type_, make, _fill(_NOUN_SAY, word), _fill(_NOUN_ASK, word), who)


def _done_to(draw: Draw) -> Field:
    """`Mia paints Ben.`"""
    word = _word(draw, _VERBS)
    make = draw.one((person, listed(GOODS), listed(ANIMALS)))
    say, ask, who = (_fill(wording, word) for wording in (_VERB_SAY, _VERB_ASK, _VERB_WHO))
    return Field((word, word + "s"), FieldType.STRING, make, say, ask, who)


def _counted(draw: Draw) -> Field:
    """`There are 12 keys at Mia.`"""
    word = _word(draw, _COUNTED)
    say, ask, who = (_fill(wording, word) for wording in (_COUNT_SAY, _COUNT_ASK, _COUNT_WHO))
    return Field((word + "s", f"num_{word}s"), FieldType.INTEGER, between(2, 999), say, ask, who)


def _deed(draw: Draw) -> Field:
    """`Mia is unable to whistle.`"""
    word = _word(draw, _DEEDS)
    say, ask, no = (_fill(wording, word) for wording in (_DEED_YES, _DEED_ASK, _DEED_NO))
    return Field((word, "can_" + word), FieldType.BOOLEAN, coin, say, ask, None, no)


def _quality(draw: Draw) -> Field:
    """`Mia is no longer famous.`"""
    word = _word(draw, _QUALITIES)
    say, ask, no = (_fill(wording, word) for wording in (_QUALITY_YES, _QUALITY_ASK, _QUALITY_NO))
    return Field((word, "is_" + word), FieldType.BOOLEAN, coin, say, ask, None, no)


_RELATIONS = (_named, _named, _named, _done_to, _counted, _deed, _deed, _quality)


def invented(draw: Draw) -> Kind:
    """A kind of about six relations that nobody has heard of, for this document only."""
    fields: dict[str, Field] = {}
    for _ in range(draw.number(5, 7)):
        field = draw.one(_RELATIONS)(draw)
        fields.setdefault(field.key, field)
    noun = draw.one(("thing", "one", "subject"))
    name = draw.one(
        (Draw.person, Draw.person, Draw.title, lambda source: source.word().capitalize())
    )
    return Kind(noun, ("name", noun), name, tuple(fields.values()))
