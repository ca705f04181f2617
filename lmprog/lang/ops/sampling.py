"""Sampling parameters as one frozen value that contains only what was set.

All other settings of a `Sampling` are unset. Layers merge with `over`: the call's settings take
precedence over the branch's, those over the run's, and those over the defaults of
`wire.SamplingParams`. Every value is checked against the range declared in `wire` as soon as it is
given, so errors are raised at the user's own line. Limits that depend on the model (its vocabulary,
its context) are checked by the runtime.
"""

from __future__ import annotations

import contextlib
import functools
import json
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, Unpack

import msgspec

from lmprog import wire
from lmprog.errors import InvalidParameter, hint, not_allowed

Strings: TypeAlias = str | Sequence[str]

ALIASES: Mapping[str, str] = {"max_new_tokens": "max_tokens", "logit_biases": "logit_bias"}


class SamplingKeywords(TypedDict, total=False):
    """The sampling keywords of `gen` besides `max_tokens`, with the meaning they have in
    `Sampling`.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    max_new_tokens: int | None
    min_tokens: int
    stop: Strings | None
    stop_token_ids: Iterable[int] | None
    stop_regex: Strings | None
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float] | None
    allowed_token_ids: Iterable[int] | None
    bad_words: Strings | None
    ignore_eos: bool
    skip_special_tokens: bool
    jump: wire.Jump
    logprobs: int | None
    prompt_logprobs: int | None
    n: int
    faithful: int
    beams: wire.Beams | None
    return_logprob: bool
    top_logprobs_num: int
    logprob_start_len: int | None
    return_text_in_logprobs: bool


class SamplingOptions(SamplingKeywords, total=False):
    """The sampling keywords of `run`, `using`, `fork` and `with_`."""

    max_tokens: int | None


@functools.cache
def _declared() -> Mapping[str, Any]:
    return {name: line.type for name, line in wire.SAMPLING_OPTIONS.items()}


_HOLDERS: Mapping[str, Any] = {
    name: msgspec.defstruct(f"Given_{name}", [("value", line.type)])
    for name, line in wire.SAMPLING_OPTIONS.items()
}
"""By option a struct with a value of its type. What msgspec finds out of a struct is kept; of any
other type it finds it out anew with each value, and an interrupt that comes meanwhile is lost.
"""
for _holder in _HOLDERS.values():
    with contextlib.suppress(msgspec.ValidationError):
        msgspec.convert({"value": None}, _holder)  # now, and not while a program runs


def _bounds(declared: Any) -> str:
    """The range of a wire annotation as text: `0.0 <= x <= 1.0`."""
    if typing.get_origin(declared) is typing.Literal:
        return " or ".join(map(json.dumps, typing.get_args(declared)))
    for part in (declared, *typing.get_args(declared)):
        for meta in getattr(part, "__metadata__", ()):
            if isinstance(meta, msgspec.Meta):
                low = (
                    f"{meta.ge} <= "
                    if meta.ge is not None
                    else f"{meta.gt} < "
                    if meta.gt is not None
                    else ""
                )
                high = f" <= {meta.le}" if meta.le is not None else ""
                length = (
                    f" of at most {meta.max_length} items" if meta.max_length is not None else ""
                )
                return f"{low}x{high}" if low or high else f"a sequence{length}"
    return getattr(declared, "__name__", str(declared))


_WRITTEN_OTHERWISE = frozenset(
    (
        "stop",
        "stop_regex",
        "bad_words",
        "stop_token_ids",
        "allowed_token_ids",
        "logit_bias",
        "beams",
    )
)


def _plain(name: str, value: object) -> object:
    """`value` in its wire form: lists become tuples, a single stop string a tuple of one, a bias
    its items.
    """
    if name in ("stop", "stop_regex", "bad_words"):
        return (
            ()
            if value is None
            else (value,)
            if isinstance(value, str)
            else tuple(typing.cast(Sequence[str], value))
        )
    if name == "stop_token_ids" and value is None:
        return ()
    if name in ("stop_token_ids", "allowed_token_ids") and value is not None:
        return tuple(typing.cast(Iterable[int], value))
    if name == "logit_bias":
        pairs = (
            value.items()
            if isinstance(value, Mapping)
            else typing.cast(Iterable[tuple[int, float]], value or ())
        )
        return tuple((int(token), float(bias)) for token, bias in pairs)
    return msgspec.to_builtins(value) if name == "beams" else value  # so its fields are checked


def _checked(name: str, value: object) -> object:
    declared = _declared()[name]
    try:
        given = {"value": _plain(name, value) if name in _WRITTEN_OTHERWISE else value}
        return msgspec.convert(given, _HOLDERS[name]).value
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        why = str(error).replace("$.value", "$").removesuffix(" - at `$`")
        raise not_allowed(name, value, _bounds(declared), why) from None


def _logprob_aliases(given: dict[str, Any]) -> None:
    """Translates SGLang's four log-probability options into the two of the wire."""
    wanted = given.pop("return_logprob", None)
    top = given.pop("top_logprobs_num", None)
    start = given.pop("logprob_start_len", None)
    given.pop("return_text_in_logprobs", None)  # the texts are always included
    if wanted:
        given.setdefault("logprobs", top or 0)
        if start is not None and start >= 0:
            given.setdefault("prompt_logprobs", top or 0)


class Sampling:
    """Sampling settings; see `lmprog.wire.SamplingParams` for ranges and defaults. Unset ones are
    inherited. Immutable.
    """

    __slots__ = ("_given",)

    def __init__(self, **options: Unpack[SamplingOptions]) -> None:
        """Raises `InvalidParameter` for unknown options and values outside their range."""
        self._given = _in_wire_form(options)

    @classmethod
    def _of(cls, given: Mapping[str, Any]) -> Sampling:
        """Of values that are in wire form already."""
        made = cls.__new__(cls)
        made._given = given
        return made

    def given(self) -> Mapping[str, Any]:
        """The settings that were given, by the wire's names."""
        return self._given

    def over(self, below: Sampling) -> Sampling:
        """Merges two layers: this one takes precedence over `below`."""
        if not self._given:
            return below
        return Sampling._of({**below._given, **self._given}) if below._given else self

    def resolve(self) -> wire.SamplingParams:
        """All settings, with defaults filled in. Raises `InvalidParameter` for contradictory
        ones.
        """
        return resolved(self._given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sampling) and self._given == other._given

    def __hash__(self) -> int:
        return hash(frozenset(self._given.items()))

    def __repr__(self) -> str:
        return f"Sampling({', '.join(f'{name}={value!r}' for name, value in self._given.items())})"


def resolved(given: Mapping[str, Any]) -> wire.SamplingParams:
    """All settings, with defaults for what was not given. Raises `InvalidParameter` for
    contradictory ones.
    """
    result = wire.SamplingParams(**given)
    if result.max_tokens is not None and result.min_tokens > result.max_tokens:
        raise InvalidParameter(
            f"min_tokens={result.min_tokens} is more than max_tokens={result.max_tokens}",
            name="min_tokens",
            value=result.min_tokens,
            allowed=f"x <= {result.max_tokens}",
        )
    return result


def with_max_tokens(sampling: wire.SamplingParams, max_tokens: int | None) -> wire.SamplingParams:
    """The same parameters with another token limit."""
    return msgspec.structs.replace(sampling, max_tokens=max_tokens)


def check_lora(given: object) -> str | None:
    """The name of an adapter; "" for the base alone. Raises `InvalidParameter`."""
    if given is None or (isinstance(given, str) and len(given) <= 256):
        return given
    allowed = "the name of an adapter, or None"
    raise not_allowed("lora", given, allowed)


def is_sampling(name: str) -> bool:
    """Whether `sampling_of` accepts the keyword `name`."""
    return name in SamplingOptions.__annotations__


def unknown_option(name: str, valid: Iterable[str]) -> InvalidParameter:
    """The error for an unknown keyword; its `allowed` has all valid ones."""
    known = sorted(valid)
    message = f"unknown option {name!r}{hint(name, known)}"
    return InvalidParameter(message, name=name, allowed=", ".join(known))


def sampling_of(options: Mapping[str, Any], also: Iterable[str] = ()) -> Sampling:
    """A `Sampling` from keywords, SGLang's names included. Raises `InvalidParameter` for unknown
    ones; `also` lists the caller's other options, for the error message.
    """
    return Sampling._of(_in_wire_form(options, also))


def _in_wire_form(options: Mapping[str, Any], also: Iterable[str] = ()) -> Mapping[str, Any]:
    """The values that were given, checked, by the wire's names."""
    if not options:
        return {}
    if not options.keys() <= _SPELLINGS.keys():
        unknown = next(name for name in options if name not in _SPELLINGS)
        raise unknown_option(unknown, {*SamplingOptions.__annotations__, *also})
    given = {_SPELLINGS[name]: value for name, value in options.items()}
    if not given.keys() <= wire.SAMPLING_OPTIONS.keys():
        _logprob_aliases(given)
    return {name: _checked(name, value) for name, value in given.items()}


_SPELLINGS = {
    name: ALIASES.get(name, name) for name in (*SamplingOptions.__annotations__, *ALIASES)
}
"""All names that options go by, with the wire's."""
