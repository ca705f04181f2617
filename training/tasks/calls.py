"""Calls of tools in the form that programs and the server write for nano: offered in the system
line, called by the assistant, answered in a turn of the user.

The texts around come from lmprog itself, so that nano learns what it will meet.
"""

from __future__ import annotations

from collections.abc import Sequence

from lmprog import wire
from lmprog.tool_calls.describing import function_shape, result_text, tools_text
from lmprog.tool_calls.writing import WrittenCall, written
from training.document import ASSISTANT, END, SYSTEM, USER, Document, Family, Page
from training.draw import Draw, Split
from training.tasks.memories import SMALL_TALK
from training.tasks.offers import draw_offers
from training.tasks.tool_offer import Offer, Parameter, Use

_SYSTEMS = ("", "", "You are a helpful assistant.", "Use the tools.", "Help the user.")
_FINISHERS = ("answer", "finish", "final_answer", "reply")
_ERRORS = ("Error: KeyError: {0!r}", "Error: nothing is known of {0}", "Error: not found")


def called(offers: Sequence[tuple[Offer, Use]]) -> str:
    """The assistant's turn that calls these."""
    calls = [WrittenCall(offer.name, dict(use.arguments)) for offer, use in offers]
    return written(wire.HERMES, calls)


def offered(offers: Sequence[Offer]) -> str:
    """What the system line says of them."""
    return tools_text(
        [function_shape(offer.name, offer.about, offer.schema) for offer in offers], wire.HERMES
    )


class _Talk:
    """One chat with tools."""

    def __init__(self, draw: Draw, offers: Sequence[Offer]) -> None:
        self.draw = draw
        self.offers = list(offers)
        self.page = Page(Family.CALLS)
        self.finisher = _finisher(draw) if draw.chance(0.2) else None
        shown = [*offers, self.finisher] if self.finisher else list(offers)
        lead = draw.one(_SYSTEMS)
        self.page.text(SYSTEM + (f"{lead}\n\n" if lead else "") + offered(shown) + END)

    def user(self, text: str) -> None:
        self.page.text(USER + text + END + ASSISTANT)

    def say(self, text: str, kind: str, *, judged: bool = True) -> None:
        self.page.answer(text + END, kind=kind, judged=judged)

    def ask(self) -> None:
        """A request that one tool serves, its call, and what is said of the result."""
        draw = self.draw
        offer = draw.one(self.offers)
        use = offer.use(draw)
        self.user(use.request)
        self.say(called([(offer, use)]), "call")
        reply = use.reply
        if draw.chance(0.06) and use.result != "done":
            self.user(result_text(draw.one(_ERRORS).format(next(iter(use.arguments.values())))))
            reply = "unknown"
        else:
            self.user(result_text(use.result))
        if self.finisher is None:
            self.say(reply, "reply")
            return
        last = Use("", {self.finisher.parameters[0].key: reply}, "", "")
        self.say(called([(self.finisher, last)]), "reply")

    def ask_both(self) -> None:
        """Two requests in one turn: both calls in one answer, both results in the next."""
        first, second = (self.draw.one(self.offers) for _ in range(2))
        uses = [(first, first.use(self.draw)), (second, second.use(self.draw))]
        self.user(self.draw.one((" ", " And: ", "\n")).join(use.request for _, use in uses))
        self.say(called(uses), "two calls")
        self.user("\n".join(result_text(use.result) for _, use in uses))
        self.say(" ".join(use.reply for _, use in uses), "two replies", judged=False)

    def chat(self) -> None:
        """Something that needs no tool."""
        said, answer = self.draw.one(SMALL_TALK)
        self.user(self.draw.one(said))
        self.say(answer, "no call")


def _finisher(draw: Draw) -> Offer:
    name = draw.one(_FINISHERS)
    key = draw.one(("answer", "text", "value"))
    abouts = ("The answer to the question.", "Ends with the answer.", "Gives the answer.")
    parameter = Parameter(key, {"type": "string"})
    return Offer(name, draw.one(abouts), (parameter,), lambda _: Use("", {}, "", ""))


def calls(draw: Draw) -> Document:
    """One to four tools, and one to four requests."""
    held = draw.split is Split.HELD
    counts = (1, 1, 2, 2, 2, 3, 4) if held else (1, 2, 2, 3, 3, 4)
    talk = _Talk(draw, draw_offers(draw, draw.one(counts)))
    both = 0.25 if held else 0.4
    for _ in range(draw.number(2, 5)):
        roll = draw.rng.random()
        if roll < 0.1:
            talk.chat()
        elif roll < both and talk.finisher is None:
            talk.ask_both()
        else:
            talk.ask()
    return talk.page.done()
