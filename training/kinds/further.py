"""Further wordings of the same facts, for training only: the more ways one thing is said, the less
is learned by heart.

They stand in `further.txt`. A block names a kind and a field; its lines begin with `say`, `no`,
`ask` or `who` and hold wordings between bars. None is a wording that is held out (the tests compare
them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from training.draw import Wording
from training.kinds.model import Field, Kind


def _read(text: str) -> Mapping[tuple[str, str], Mapping[str, tuple[str, ...]]]:
    found: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
    block: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        head, _, rest = line.partition(" ")
        if "{" in rest:
            block[head] = tuple(wording.strip() for wording in rest.split("|"))
        else:
            block = found.setdefault((head, rest), {})
    return found


FURTHER = _read(Path(__file__).with_name("further.txt").read_text())


def _more(wording: Wording, added: tuple[str, ...]) -> Wording:
    return Wording(wording.train + added, wording.held)


def _with_more(field: Field, added: Mapping[str, tuple[str, ...]]) -> Field:
    return replace(
        field,
        say=_more(field.say, added.get("say", ())),
        ask=_more(field.ask, added.get("ask", ())),
        who=field.who and _more(field.who, added.get("who", ())),
        say_no=field.say_no and _more(field.say_no, added.get("no", ())),
    )


def further(kind: Kind) -> Kind:
    """The kind with the further wordings of its fields."""
    fields = tuple(
        _with_more(field, FURTHER.get((kind.name, field.key), {})) for field in kind.fields
    )
    return replace(kind, fields=fields)
