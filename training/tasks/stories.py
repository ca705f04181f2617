"""Little stories, their beginnings and endings. All of it written for this project."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Story:
    """A little story with `{a}`, `{b}` for people and `{t}` for a town: ways to begin it and to end
    it.
    """

    beginnings: tuple[str, ...]
    endings: tuple[str, ...]


STORIES = (
    Story(
        (
            "{a} lost a ring in the river near {t}. {b} saw it shine under the water.",
            "Near {t}, {a} dropped a ring into the river, and {b} saw where it fell.",
        ),
        (
            "{b} jumped in and brought it back. {a} laughed, and they were friends from that day.",
            "{b} gave the ring to {a}, and both went home happy.",
        ),
    ),
    Story(
        (
            "{a} and {b} wanted to bake a cake, but there was no sugar in {t}.",
            "There was no sugar left in {t}, and {a} had promised {b} a cake.",
        ),
        (
            "{a} used honey in its place, and {b} said it was the best cake of all.",
            "They used honey, and the cake of {a} and {b} became famous.",
        ),
    ),
    Story(
        (
            "One night {a} heard a noise at the door. It was a small dog, cold and wet.",
            "In the rain {a} found a small dog on the road to {t}.",
        ),
        (
            "{a} took the dog in, and it never left again.",
            "{a} gave it food and a warm bed, and the dog stayed.",
        ),
    ),
    Story(
        (
            "{a} was afraid of the dark forest behind {t}. One day {b} got lost in it.",
            "{b} got lost in the forest near {t}, and {a} was afraid to go in.",
        ),
        (
            "{a} took a lamp and found {b} under a tree. The forest was never dark again.",
            "{a} called and called until {b} answered, and they walked home hand in hand.",
        ),
    ),
    Story(
        (
            "{a} found an old map in the tower of {t}. {b} knew how to read it.",
            "In {t} an old map was hidden, and {a} showed it to {b}.",
        ),
        (
            "The map led {a} and {b} to a box of letters, and they read them all night.",
            "They followed the map and found a garden that nobody knew.",
        ),
    ),
    Story(
        (
            "{a} planted one small seed and waited. {b} said that nothing would grow.",
            "{b} laughed when {a} planted a seed in the dry soil of {t}.",
        ),
        (
            "But in spring there was a tree, and {b} sat in its shade with {a}.",
            "A year later {a} and {b} ate the first apples together.",
        ),
    ),
    Story(
        (
            "The boat of {a} was old, and the sea near {t} was wild.",
            "{a} sailed from {t} in an old boat, and a storm came up.",
        ),
        (
            "But {a} held on, and in the morning the boat came home.",
            "At last the wind grew calm, and {a} saw the lights of {t}.",
        ),
    ),
    Story(
        (
            "{a} and {b} both wanted to win the race in {t}. Then {b} fell.",
            "In the race of {t}, {b} fell just before the end, and {a} saw it.",
        ),
        (
            "{a} stopped and helped {b} up, and they crossed the line together.",
            "{a} turned back for {b}, and the people cheered for both.",
        ),
    ),
)
