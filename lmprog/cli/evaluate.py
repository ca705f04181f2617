"""`lmprog evaluate FILE.py::PROGRAM --rows FILE --metric NAME`: how good a program is, also
compared with another; for a pipeline, with an exit code.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from lmprog.cli.run import backend_for, find, load
from lmprog.errors import InvalidParameter, UnknownName
from lmprog.evaluation.comparing import Comparison, compare
from lmprog.evaluation.evaluating import evaluate
from lmprog.evaluation.rows import Metric


def run(given: argparse.Namespace) -> int:
    """0; 1 where the score is below `--at-least`, or the program is worse than the other, beyond
    noise.
    """
    if given.against is not None and given.save is not None:
        raise InvalidParameter("--save is of one program; leave it out, or --against.", name="save")
    program, metric = find(given.program), _metric(given.metric)
    other = None if given.against is None else find(given.against)
    settings: dict[str, Any] = {"temperature": given.temperature, "seed": given.seed}
    settings = {name: value for name, value in settings.items() if value is not None}
    own = {} if given.tuned is None else {"tuned": given.tuned}
    how: dict[str, Any] = {
        "checkpoint": given.checkpoint,
        "concurrency": given.concurrency,
        "progress": sys.stderr.isatty(),
    }
    with backend_for(given) as backend:
        made = program.using(backend=backend, **settings, **own)
        if other is None:
            found = evaluate(made, given.rows, metric, **how)
            if given.save is not None:
                found.save(given.save)
        else:
            against = other.using(backend=backend, **settings)
            found = compare(made, against, given.rows, metric, **how)
    print(found)
    if given.html is not None:
        found.to_html(given.html)
    if isinstance(found, Comparison):
        is_worse = found.difference < 0 and not found.is_noise
        return int(is_worse or _is_below(found.a.score, given.at_least))
    return int(_is_below(found.score, given.at_least))


def _is_below(score: float, least: float | None) -> bool:
    if least is None or score >= least:
        return False
    print(f"lmprog: the score {score:.3f} is below {least:g}", file=sys.stderr)
    return True


def _metric(where: str) -> Metric:
    """The name of a column, unless it names a file."""
    file, separator, name = where.rpartition("::")
    if not separator:
        return where
    module = load(Path(file))
    found: Metric | None = getattr(module, name, None)
    if found is None:
        raise UnknownName(f"{file} has no {name!r}.", name=name)
    return found
