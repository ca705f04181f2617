"""A tool to be named in each document, and the slots of its arguments with what may stand in
them. Knows no tool and no document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from training.draw import Draw, Wording
from training.tasks import variety
from training.tasks.tool_offer import JsonValue, Offer, Parameter, Use
from training.words import DAYS, FOODS, SINGULARS


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter to be named: its possible names, its schema, and how its value is drawn."""

    keys: tuple[str, ...]
    draw: Callable[[Draw], JsonValue]
    options: tuple[str, ...] = ()

    def named(self, draw: Draw) -> Parameter:
        if self.options:
            return Parameter(self.keys[0], {"enum": list(self.options)})
        kind = type(self.draw(draw))
        return Parameter(
            variety.argument_name(draw, draw.one(self.keys)),
            {"type": "integer" if kind is int else "string"},
        )


@dataclass(frozen=True, slots=True)
class Service:
    """A tool to be named. In requests and replies `{0}`, `{1}` are the arguments, `{r}` the result."""

    names: tuple[str, ...]
    abouts: tuple[str, ...]
    slots: tuple[Slot, ...]
    requests: Wording
    replies: tuple[str, ...]
    result: Callable[[Draw, list[JsonValue]], str] = lambda draw, values: "done"

    def offer(self, draw: Draw) -> Offer:
        """It, under names of this document."""
        parameters = tuple(slot.named(draw) for slot in self.slots)
        reply = self.replies[0]

        def use(draw: Draw) -> Use:
            values = [slot.draw(draw) for slot in self.slots]
            result = self.result(draw, values)
            arguments = {p.key: value for p, value in zip(parameters, values, strict=True)}
            request = variety.request(draw, draw.template(self.requests).format(*values))
            return Use(request, arguments, result, reply.format(*values, r=result))

        return Offer(
            variety.tool_name(draw, draw.one(self.names)), draw.one(self.abouts), parameters, use
        )


def choice_of(*values: str) -> Slot:
    return Slot((values[0],), lambda draw: draw.one(values[1:]), values[1:])


def number(keys: str, low: int, high: int) -> Slot:
    return Slot(tuple(keys.split()), lambda draw: draw.number(low, high))


def text(keys: str, make: Callable[[Draw], str]) -> Slot:
    return Slot(tuple(keys.split()), make)


def computed(operator: Callable[[int, int], int]) -> Callable[[Draw, list[JsonValue]], str]:
    return lambda draw, values: str(operator(int(values[0]), int(values[1])))


def note(draw: Draw) -> str:
    return draw.one(
        (
            f"I come on {draw.one(DAYS)}.",
            f"The {draw.one(SINGULARS)} is in the {draw.listed(('kitchen', 'hall', 'garden'))}.",
            f"Bring {draw.listed(FOODS)}.",
            f"{draw.person()} has the {draw.one(SINGULARS)}.",
            f"We meet in {draw.town()}.",
            f"The code is {draw.number(100, 9999)}.",
        )
    )


def errand(draw: Draw) -> str:
    return draw.one(
        (
            f"call {draw.person()}",
            f"buy {draw.listed(FOODS)}",
            f"go to {draw.town()}",
            f"clean the {draw.one(SINGULARS)}",
            f"bring {draw.person()} the {draw.one(SINGULARS)}",
        )
    )
