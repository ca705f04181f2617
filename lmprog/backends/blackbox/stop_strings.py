"""Finds stop strings in text that was generated without them: the first match, and the text that is
certain before it.

Knows strings only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop string in a text, from `begin` to `end`."""

    begin: int
    end: int

    def of(self, text: str) -> str:
        return text[self.begin : self.end]


def first_stop(text: str, stops: Sequence[str]) -> Stop | None:
    """The stop string that is completed first when the text is generated left to right; the longest
    if several end there.
    """
    found = [Stop(begin, begin + len(stop)) for stop in stops if (begin := text.find(stop)) >= 0]
    return min(found, key=lambda stop: (stop.end, stop.begin), default=None)


class Certain:
    """Passes text on once no stop string can begin in it, and nothing after a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._text = ""
        self._given = 0

    def push(self, text: str) -> str:
        """Adds text; returns the text that has become certain."""
        self._text += text
        stop = first_stop(self._text, self._stops)
        end = len(self._text) - self._unsure() if stop is None else stop.begin
        return self._give(end)

    def rest(self, length: int) -> str:
        """Ends the text, of which the first `length` characters count; returns those not returned
        before.
        """
        return self._give(length)

    def _give(self, end: int) -> str:
        given, self._given = self._given, max(self._given, end)
        return self._text[given : self._given]

    def _unsure(self) -> int:
        """Length of the suffix that may still become a stop string."""
        longest = max((len(stop) for stop in self._stops), default=0)
        for size in range(min(longest - 1, len(self._text)), 0, -1):
            end = self._text[-size:]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0
