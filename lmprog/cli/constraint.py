"""`lmprog constraint explain`: what a pattern or a schema means, as text or as a drawing."""

from __future__ import annotations

import argparse
from pathlib import Path

from lmprog.constrained import Constrained, constraint

_MOST_STATES = 2000


def run(given: argparse.Namespace) -> int:
    """Prints; raises RequestRejected for what cannot be compiled."""
    found = _constraint(given.what)
    if given.dot:
        print(found.dot(), end="")
        return 0
    states = found.states(_MOST_STATES)
    count = f"{len(states):,}" if len(states) < _MOST_STATES else f"more than {_MOST_STATES:,} (made as they are met)"
    print(f"engine        {found.engine}")
    print(f"states        {count}")
    print(f"forced share  {found.forced_share():.0%} of the bytes of 20 examples")
    print(f"example       {found.example(given.seed)}")
    return 0


def _constraint(what: str) -> Constrained:
    """A file's name that ends in .json, or text that begins like a JSON object, is a schema; all else is a regex."""
    if what.endswith(".json") and Path(what).is_file():
        return constraint(schema=Path(what).read_text("utf-8"))
    return constraint(schema=what) if what.lstrip().startswith("{") else constraint(regex=what)
