"""Frames around a statement, for training only: words that change nothing of what it says.

Whoever only knows `{n} lives in {v}.` stumbles over `As far as we know, {n} lives in {v} these
days.` A framed sentence is never a wording that is held out: the caller gives those, and they are
avoided.
"""

from __future__ import annotations

from training.draw import Draw, Wording

_LEADS = (
    "As we know, ",
    "As far as we know, ",
    "It is said that ",
    "Everybody knows that ",
    "I heard that ",
    "These days ",
    "By the way, ",
    "In fact, ",
    "For some time now ",
    "Of course, ",
    "Listen: ",
    "It is true that ",
    "In this story ",
    "Well, ",
    "They say ",
    "Since last summer ",
    "To be exact, ",
    "For now, ",
)
_TRAILS = (
    ", as we know",
    ", I think",
    " these days",
    ", they say",
    " after all",
    ", by the way",
    ", of course",
    " since last summer",
    ", that is sure",
    " for some time now",
    ", just as before",
    " again",
)
_ADVERBS = (
    "now",
    "really",
    "still",
    "certainly",
    "indeed",
    "in fact",
    "today",
    "surely",
    "once more",
    "just",
)
_BEFORE_ADVERBS = (" is ", " has ", " can ", " will ", " would ")
_OPENERS = ("{n}", "{v}")  # a capital that stays one


def framed(draw: Draw, template: str, wording: Wording) -> str:
    """The template with a lead, a trail or an adverb, or as it was where that would be a held-out
    one.
    """
    made = _frame(draw, template)
    return template if made in wording.held else made


def _frame(draw: Draw, template: str) -> str:
    kind = draw.number(0, 2)
    if kind == 0:
        keep = template.startswith(_OPENERS)
        return draw.one(_LEADS) + (template if keep else template[0].lower() + template[1:])
    if kind == 1 and template.endswith("."):
        return template[:-1] + draw.one(_TRAILS) + "."
    for verb in _BEFORE_ADVERBS:
        if verb in template:
            return template.replace(verb, f"{verb}{draw.one(_ADVERBS)} ", 1)
    return template
