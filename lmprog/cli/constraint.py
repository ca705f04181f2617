"""`lmprog constraint explain`: what a pattern or a schema matches, as text or as a diagram."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from lmprog.constrained import Constrained, constraint
from lmprog.errors import InvalidParameter

_MOST_STATES = 2000
_PLAIN_NAME = re.compile(r"[\w./:~ -]+")


def run(given: argparse.Namespace) -> int:
    """Prints the explanation; raises RequestRejected for what cannot be compiled."""
    found = _constraint(given.what)
    if given.dot or given.svg:
        print(found.dot() if given.dot else found.svg(), end="")
        return 0
    states = found.states(_MOST_STATES)
    count = (
        f"{len(states):,}"
        if len(states) < _MOST_STATES
        else f"more than {_MOST_STATES:,} (made as they are met)"
    )
    print(f"engine        {found.engine}")
    print(f"states        {count}")
    print(f"forced share  {found.forced_share():.0%} of the bytes of 20 examples")
    print(f"example       {found.example(given.seed)}")
    return 0


def _constraint(what: str) -> Constrained:
    """A .json file, or text that begins like a JSON object, is a schema; anything else is a regex.
    A name that ends in .json and contains no regex syntax is treated as a file even if it does not
    exist.
    """
    if what.endswith(".json") and (_PLAIN_NAME.fullmatch(what) or Path(what).exists()):
        return constraint(schema=_schema_of(Path(what)))
    return constraint(schema=what) if what.lstrip().startswith("{") else constraint(regex=what)


def _schema_of(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except OSError as error:
        raise InvalidParameter(
            f"the schema's file {str(file)!r} cannot be read: {error.strerror} (a regex may "
            "end in [.]json)",
            name="what",
            value=str(file),
            allowed="a file that can be read",
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidParameter(
            f"the schema's file {str(file)!r} is not UTF-8 text: {error.reason} at byte "
            f"{error.start}",
            name="what",
            value=str(file),
            allowed="UTF-8 text",
        ) from error
