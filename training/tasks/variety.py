"""More ways to name a tool and to ask for it, for training only.

A model that meets each tool under a few usual names writes the usual one and not the one that it is
offered. Held-out documents are left as they are, so that figures of one month compare with those of
another; none of these ways is a held-out wording.
"""

from __future__ import annotations

from training.draw import Draw, Split
from training.words import words_of

_BEFORE = ("do", "my", "run", "api", "fast", "home", "new", "the", "go", "auto")
_AFTER = ("now", "tool", "v2", "api", "service", "it", "for_me", "here", "2", "task")
_ORDERS = frozenset(
    words_of(
        "Add Subtract Compute Tell Send Write Message Let Call Make Ring Set Start Buy Order Get Put "
        "Play Turn Switch Color Remind Book Reserve Find Search Look Say Translate Note Keep Save Take "
        "Multiply Wake Phone Polish Clean Paint Move Check Open Close Lock Count Test Fold Mend Wash "
        "Pack Weigh Label Rent Sell Clear Hide Lift Shake Warm Cool Fill Print Scan Show Give Dial "
        "Remember Work Change Increase Light Begin Arrange"
    )
)
_ANY = (
    "Hi! {0}",
    "Hello. {0}",
    "Quick: {0}",
    "{0} Thanks!",
    "{0} Thank you.",
    "One more: {0}",
    "Now this: {0}",
    "Next: {0}",
    "Good morning. {0}",
    "{0} It is for a friend.",
)
_ORDERED = (
    "Could you {0}",
    "Can you {0}",
    "I want you to {0}",
    "You should {0}",
    "Now {0}",
    "Then {0}",
    "First {0}",
    "It is time to {0}",
    "Be so kind and {0}",
    "Would you {0}",
    "Try to {0}",
    "Go and {0}",
    "Do {0}",
    "Please try to {0}",
    "Please go and {0}",
    "Could you please {0}",
    "Please, would you {0}",
    "Please now {0}",
    "Please be quick and {0}",
    "Please just {0}",
    "Please quickly {0}",
    "Please kindly {0}",
    "Please also {0}",
    "Please simply {0}",
    "Please, please {0}",
)


def tool_name(draw: Draw, usual: str) -> str:
    """The usual name, or one with more words, or one that says nothing."""
    if draw.split is Split.HELD or draw.chance(0.45):
        return usual
    kind = draw.number(0, 4)
    if kind == 0:
        return f"{draw.one(_BEFORE)}_{usual}"
    if kind == 1:
        return f"{usual}_{draw.one(_AFTER)}"
    if kind == 2:
        return f"{draw.word()}_{draw.one(usual.split('_'))}"
    if kind == 3:
        return f"{draw.one(usual.split('_'))}_{draw.word()}"
    return draw.word() if draw.chance(0.6) else f"{draw.word()}_{draw.word()}"


def argument_name(draw: Draw, usual: str) -> str:
    """The usual name of an argument, or another one."""
    if draw.split is Split.HELD or draw.chance(0.7):
        return usual
    return draw.one(
        (f"the_{usual}", f"{usual}_{draw.word()}", f"{draw.word()}_{usual}", draw.word())
    )


def request(draw: Draw, text: str) -> str:
    """The request, or it with some words around."""
    if draw.split is Split.HELD or draw.chance(0.5):
        return text
    plain = text.endswith(".") and ":" not in text
    if text.split()[0] not in _ORDERS or draw.chance(0.3):
        return draw.one(_ANY).format(text)
    if plain and draw.chance(0.2):
        return text.removesuffix(".") + ", please."
    lead = draw.one(_ORDERED)
    said = lead.format(text[0].lower() + text[1:])
    asks = plain and lead.startswith(("Could", "Can", "Would", "Please, would"))
    return said.removesuffix(".") + "?" if asks and draw.chance(0.7) else said
