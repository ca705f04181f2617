"""Whether a checkpoint has exactly the weights that its config asks for, and what to say if not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lmprog.errors import ModelError

_SHOWN = 8
"""Names in an error message; more are counted."""

Sizes = Mapping[str, tuple[int, ...]]


def check_weights(
    location: Path, there: Sizes, wanted: Sizes, unread_types: Sequence[str] = ()
) -> None:
    """Raises ModelError unless exactly `wanted` is there; one error tells all that is wrong."""
    wrong = []
    if missing := sorted(wanted.keys() - there.keys()):
        wrong.append(f"missing weights: {listed(missing)}")
    if surplus := sorted(there.keys() - wanted.keys()):
        wrong.append(f"weights that the config does not explain: {listed(surplus)}")
    sizes = [
        f"{name} is {list(there[name])} instead of {list(wanted[name])}"
        for name in sorted(there.keys() & wanted.keys())
        if there[name] != wanted[name]
    ]
    if sizes:
        wrong.append(f"wrong sizes: {listed(sizes)}")
    if unread_types:
        wrong.append(f"types other than F32, BF16 and F16: {listed(unread_types)}")
    if wrong:
        raise ModelError(
            f"the weights of {location} do not fit its config.json; " + "; ".join(wrong)
        )


def says_more(name: str, tied_head: bool) -> bool:
    """Whether a decoder needs the weight: some tools save the tied head a second time, older ones
    what follows from the config.
    """
    is_tied = tied_head and name == "lm_head.weight"
    return not is_tied and not name.endswith("rotary_emb.inv_freq")


def listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
