"""Best-of-n generation: `best_of` for both forms of the language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from lmprog import wire
from lmprog.errors import not_allowed
from lmprog.lang.ops.expressions import GenOp, GenOptions, gen_op, leading

Judge = wire.Judge
By: TypeAlias = "Literal['logprob'] | Judge"
"""What is best: what is likeliest, or what a judge finds best."""


def best_options(k: int, by: By, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a `gen` that keeps the best of `k`. Raises `InvalidParameter`."""
    if by != "logprob" and not isinstance(by, Judge):
        allowed = "'logprob', or lmprog.Judge(question)"
        raise not_allowed("by", by, allowed)
    return {"keep": "best", **options, "n": k, "judge": by if isinstance(by, Judge) else None}


def best_of(k: int, *what: Any, by: By = "logprob", **options: Any) -> GenOp[Any]:
    """The best of `k` generations; all other arguments as in `gen`. See `Branch.best_of`."""
    name, max_tokens = leading(what, options)
    return gen_op(name, max_tokens, best_options(k, by, options))


EarlyStopping: TypeAlias = Literal["never"] | bool
_SAMPLES_NOTHING: Mapping[str, Any] = {
    name: line.asks_for_nothing[0]
    for name, line in wire.SAMPLING_OPTIONS.items()
    if line.option.role == "draw"
}
"""Whatever the branch samples by otherwise."""


class BeamOptions(GenOptions, total=False):
    """The keywords of `beam` besides its width, a name or type and `max_tokens`: those of `gen`,
    and what `wire.Beams` has.

    `length_penalty`: the power of a text's number of tokens by which the sum of their
    log-probabilities is divided. `early_stopping`: whether the search ends with the `width`-th
    complete text; "never": only when no text can become better. `score`: what the complete texts
    are compared by in the end, "logprob" or a `Judge`.
    """

    length_penalty: float
    early_stopping: EarlyStopping
    score: By


def beam_options(width: int, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a `gen` that searches by beams. Raises `InvalidParameter`."""
    penalty = options.pop("length_penalty", 1.0)
    early, score = options.pop("early_stopping", False), options.pop("score", "logprob")
    _check("width", width, isinstance(width, int) and 1 <= width <= 128, "1 <= x <= 128")
    is_number = isinstance(penalty, int | float) and -10 <= penalty <= 10
    _check("length_penalty", penalty, is_number, "-10 <= x <= 10")
    is_known = isinstance(early, bool) or early == "never"
    _check("early_stopping", early, is_known, "True, False or 'never'")
    is_known = score == "logprob" or isinstance(score, Judge)
    _check("score", score, is_known, "'logprob', or lmprog.Judge(question)")
    given = {**_SAMPLES_NOTHING, **options, "beams": wire.Beams(width, float(penalty), early)}
    return given if score == "logprob" else {**given, "n": width, "keep": "best", "judge": score}


def _check(name: str, value: object, is_allowed: bool, allowed: str) -> None:
    if not is_allowed:
        raise not_allowed(name, value, allowed)


def beam(width: int, *what: Any, **options: Any) -> GenOp[Any]:
    """The likeliest text, found by beam search; all other arguments as in `gen`. See
    `Branch.beam`.
    """
    name, max_tokens = leading(what, options)
    return gen_op(name, max_tokens, beam_options(width, options))
