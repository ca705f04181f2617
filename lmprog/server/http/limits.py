"""Every limit of a request in one table, from which validation, documentation and the tests of
borders are made.

The limits of sampling options come from the table of these options. Other fields get their range by
`Annotated[str, within("name")]`. What depends on the model (vocabulary, context) is checked by the
runtime. Knows no bodies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from msgspec import Meta

from lmprog import wire

INT31 = 2**31 - 1
COUNTED = ("characters", "items")
"""Units that are lengths and not values."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Both ends belong to the range. `unit`: of a value, or what is counted."""

    minimum: float
    maximum: float
    unit: str
    note: str = ""

    def words(self) -> str:
        """For a message: `a number from 0 to 2`."""
        low, high = number(self.minimum), number(self.maximum)
        if self.unit in COUNTED:
            return f"{low} to {high} {self.unit}"
        return f"from {low} to {high}"


def _of_option(line: wire.OptionLine) -> Iterator[tuple[str, Limit]]:
    """The limits of a sampling option in requests: of its value, or of its items and each item."""
    kind = value_type(line)
    arguments = get_args(get_args(kind)[0]) if get_origin(kind) is Annotated else ()
    if arguments and line.option.requests is None:
        item = arguments[0]
        if get_origin(item) is tuple:
            item = get_args(item)[1]
        yield line.name, _limit(_meta(kind), "items")
        unit = "characters" if get_args(item)[0] is str else "token id"
        if get_args(item)[0] is float:
            unit = "number"
        yield f"{line.name}[]", _limit(_meta(item), unit, line.option.note)
    elif get_origin(kind) is Annotated:
        meta = line.option.requests or _meta(kind)
        yield line.name, _limit(meta, line.option.unit, line.option.note)


def _limit(meta: Meta, unit: str, note: str = "") -> Limit:
    if unit in COUNTED:
        return Limit(meta.min_length or 0, meta.max_length or 0, unit, note)
    assert meta.ge is not None
    assert meta.le is not None
    return Limit(meta.ge, meta.le, unit, note)


def value_type(line: wire.OptionLine) -> Any:
    """The type of an option's values, without the None of those that may be left open."""
    kind = line.type
    if get_origin(kind) in (Union, UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))
    return kind


def _meta(kind: Any) -> Meta:
    return next(note for note in get_args(kind)[1:] if isinstance(note, Meta))


LIMITS: Mapping[str, Limit] = {
    **dict(limit for line in wire.SAMPLING_OPTIONS.values() for limit in _of_option(line)),
    "logprobs": Limit(0, 20, "tokens", "of /v1/completions; a boolean in chats"),
    "top_logprobs": Limit(0, 20, "tokens"),
    "entries": Limit(
        0,
        250_000,
        "log-probabilities",
        "of one answer: tokens of prompts and results, times one and the likely tokens at each",
    ),
    "best_of": Limit(1, 128, "results"),
    "beam_width": Limit(1, 128, "texts", "of use_beam_search; best_of or n, if it is not given"),
    "length_penalty": Limit(-10, 10, "number", "of use_beam_search"),
    "thinking_token_budget": Limit(0, INT31, "tokens"),
    "max_completion_tokens": Limit(1, INT31, "tokens", "with the prompt at most the context"),
    "priority": Limit(-100, 100, "integer", "higher goes first"),
    "messages": Limit(1, 4096, "items"),
    "prompt": Limit(1, 1024, "items", "texts, each with its own results"),
    "truncate_prompt_tokens": Limit(
        1, INT31, "tokens", "of chats and completions; the last ones stay"
    ),
    "prompt[]": Limit(0, INT31, "token id", "below the model's vocabulary"),
    "tools": Limit(0, 128, "items"),
    "name": Limit(1, 128, "characters", "of a tool or a schema"),
    "description": Limit(0, 65_536, "characters", "of a tool"),
    "regex": Limit(1, 4096, "characters"),
    "grammar": Limit(
        1, 65_536, "characters", "`ebnf`, `guided_grammar`, `structured_outputs.grammar`"
    ),
    "whitespace_pattern": Limit(
        0, 1024, "characters", "`guided_whitespace_pattern`, in `structured_outputs`"
    ),
    "schema": Limit(2, 262_144, "characters", "as JSON text; also the parameters of a tool"),
    "choice": Limit(1, 1024, "items"),
    "choice[]": Limit(1, 4096, "characters"),
    "choices": Limit(1, 393_216, "characters", "all texts of one `choice` constraint together"),
    "model": Limit(0, 256, "characters"),
    "cache_salt": Limit(1, 128, "characters"),
    "fingerprint": Limit(1, 128, "characters", "of a model"),
    "ops": Limit(1, 4096, "items", "of a program"),
    "branches": Limit(1, 1024, "branches", "of a program"),
    "into": Limit(1, 256, "items", "children of one fork"),
    "pieces": Limit(0, 1024, "items", "of one append"),
    "nesting": Limit(0, 64, "levels", "of arrays and objects in a body"),
}


OPTION_OF_SPELLING: Mapping[str, str] = {
    spelling: line.name
    for line in wire.SAMPLING_OPTIONS.values()
    for spelling in line.option.renamed.values()
}
"""The option of each field that a dialect spells in its own way."""


def within(name: str) -> Meta:
    """The range of a field, for its type: of its value, or of its length."""
    limit = LIMITS[name]
    if limit.unit in COUNTED:
        return Meta(min_length=int(limit.minimum), max_length=int(limit.maximum))
    return Meta(ge=limit.minimum, le=limit.maximum)


def markdown() -> str:
    """The table of docs/server-options.md."""
    lines = ["| field | least | most | unit | remark |", "|---|---:|---:|---|---|"]
    for name, limit in LIMITS.items():
        lines.append(
            f"| `{name}` | {number(limit.minimum)} | {number(limit.maximum)} | {limit.unit} "
            f"| {limit.note} |"
        )
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """With separators, and without a fraction that says nothing."""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
