"""The tools that a document offers: services, tools that know a field, notes to read, made-up
ones.

Knows what a call returns; how it is written is `calls.py`'s part.
"""

from __future__ import annotations

from training.draw import Draw, Split, is_held
from training.kinds import KINDS, PERSON
from training.kinds.model import FieldType, Value, shown
from training.passage import sentences
from training.tasks import variety
from training.tasks.services import SERVICES
from training.tasks.tool_offer import JsonValue, Offer, Parameter, Use
from training.words import SINGULARS

_VERBS = [
    "polish",
    "clean",
    "paint",
    "move",
    "check",
    "open",
    "close",
    "lock",
    "count",
    "test",
    "fold",
    "mend",
    "wash",
    "pack",
    "weigh",
    "label",
    "rent",
    "sell",
    "clear",
    "hide",
    "lift",
    "shake",
    "turn",
    "warm",
    "cool",
    "fill",
    "print",
    "scan",
]
_KEYS = ["name", "code", "colour", "size", "place", "label", "number", "kind", "owner"]


def _invented(draw: Draw) -> Offer:
    """A tool whose name says all: a verb and a thing, one or two values."""
    pairs = ((verb, draw.one(SINGULARS)) for verb in iter(lambda: draw.one(_VERBS), None))
    verb, thing = next(
        (v, t) for v, t in pairs if is_held(f"{v} {t}") == (draw.split is Split.HELD)
    )
    keys = draw.some(_KEYS, draw.one((1, 1, 2)))
    parameters = tuple(
        Parameter(key, {"type": "integer" if key == "number" else "string"}) for key in keys
    )
    link = draw.one(("with", "of", "with the"))

    def use(draw: Draw) -> Use:
        values: list[JsonValue] = [
            draw.number(1, 999) if key == "number" else draw.word() for key in keys
        ]
        told = " and ".join(f"{key} {value}" for key, value in zip(keys, values, strict=True))
        request = f"{verb.capitalize()} the {thing} {link} {told}."
        if draw.chance(0.3):
            request = f"Please {request[0].lower()}{request[1:]}"
        request = variety.request(draw, request)
        return Use(request, dict(zip(keys, values, strict=True)), "done", "Done.")

    abouts = (f"{verb.capitalize()} the {thing}.", f"Can {verb} a {thing}.", "")
    return Offer(f"{verb}_{thing}", draw.one(abouts), parameters, use)


def _field(draw: Draw) -> Offer:
    """A tool that knows one field of the things of a kind: `get_age(name)`."""
    kind = draw.one((PERSON, draw.one(KINDS)))
    field = draw.one([f for f in kind.fields if f.type in (FieldType.STRING, FieldType.INTEGER)])
    key = draw.one(field.keys)
    name = draw.one(("get_{0}", "{0}_of", "find_{0}", "get_{0}_of")).format(key)
    parameter = draw.one(kind.name_keys)

    def use(draw: Draw) -> Use:
        thing, value = kind.draw_name(draw), field.draw(draw)
        return Use(field.question(draw, thing), {parameter: thing}, shown(value), shown(value))

    told = key.replace("_", " ")
    abouts = (f"The {told} of a {kind.name}.", f"Finds the {told}.", "")
    return Offer(
        variety.tool_name(draw, name),
        draw.one(abouts),
        (Parameter(parameter, {"type": "string"}),),
        use,
    )


def _notes(draw: Draw) -> Offer:
    """A tool that tells what is known of a person; the answer is to be read from that."""
    key = draw.one(("name", "person", "who"))
    name = draw.one(("look_up", "lookup", "find_person", "facts_of", "read_notes", "who_is"))
    abouts = (
        "What the notes say of a person.",
        "Facts about a person.",
        "Looks up a person.",
        "Tells what is known of somebody.",
    )

    def use(draw: Draw) -> Use:
        fields = [
            f
            for f in PERSON.fields
            if f.type in (FieldType.STRING, FieldType.INTEGER, FieldType.ENUM)
        ]
        field = draw.one(fields)
        record = PERSON.record(draw, draw.number(1, 4))
        value: Value | None = record.values.get(field.key)
        answer = "unknown" if value is None else shown(value)
        if value is None and draw.chance(0.8):
            return use(draw)
        told = " ".join(sentences(draw, record))
        return Use(field.question(draw, record.name), {key: record.name}, told, answer)

    return Offer(
        variety.tool_name(draw, name), draw.one(abouts), (Parameter(key, {"type": "string"}),), use
    )


def draw_offers(draw: Draw, count: int) -> list[Offer]:
    """Different tools; no two that could serve one request."""
    found: list[Offer] = []
    has_notes = has_field = False
    services = draw.some(SERVICES, count)
    while len(found) < count:
        roll = draw.rng.random()
        if roll < 0.2 and not has_notes and not has_field:
            found.append(_notes(draw))
            has_notes = True
        elif roll < 0.4 and not has_notes and not has_field:
            found.append(_field(draw))
            has_field = True
        elif roll < 0.55:
            found.append(_invented(draw))
        else:
            found.append(services.pop().offer(draw))
    return found if len({offer.name for offer in found}) == count else draw_offers(draw, count)
