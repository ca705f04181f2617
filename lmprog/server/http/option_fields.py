"""The sampling options as fields of a request's body, and back into `wire.SamplingParams`.

Both ways are made from the table of options, for each dialect with its spellings. `None` in a body
always means that the field was not given. Knows no routes: what these decide by themselves (how
many results, which log-probabilities) is given to `sampling_of` by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args, get_origin

import msgspec
from msgspec import Meta

from lmprog import wire
from lmprog.server.http.http_errors import refused
from lmprog.server.http.limits import INT31, LIMITS, value_type, within

_LEAST_TOP_P = 1e-6
"""The wire has no 0, which means the same: only the likeliest token."""

_INT63 = 2**63 - 1


def _struct(name: str, dialect: wire.Dialect) -> type[msgspec.Struct]:
    fields = [
        (spelling, _field_type(line), None)
        for line in wire.SAMPLING_OPTIONS.values()
        if (spelling := line.spelling(dialect)) is not None
    ]
    return msgspec.defstruct(name, fields, kw_only=True, module=__name__)


def _field_type(line: wire.OptionLine) -> Any:
    """As JSON has it: lists instead of tuples, one text instead of a list of one, an object of
    biases.
    """
    kind = value_type(line)
    inner = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(inner) is not tuple:
        made = Annotated[inner, within(line.name)] if line.name in LIMITS else inner
    elif get_origin(get_args(inner)[0]) is tuple:
        value = Annotated[float, within(f"{line.name}[]")]
        made = Annotated[dict[str, value], within(line.name)]
    else:
        item = get_args(get_args(inner)[0])[0]
        each: Any = Annotated[item, within(f"{line.name}[]")]
        made = Annotated[list[each], within(line.name)]
        if item is str:
            longest = int(LIMITS[f"{line.name}[]"].maximum)
            made = Annotated[str, Meta(max_length=longest)] | made
    return Annotated[made | None, Meta(description=line.option.meaning)]


if TYPE_CHECKING:

    class OptionFields(msgspec.Struct, kw_only=True):
        """The fields of one dialect. The table says which there are; type checkers cannot know."""

        def __getattr__(self, name: str) -> Any: ...

    OpenAIOptions: TypeAlias = OptionFields
    ResponsesOptions: TypeAlias = OptionFields
    AnthropicOptions: TypeAlias = OptionFields
    SGLangOptions: TypeAlias = OptionFields
else:
    OpenAIOptions = _struct("OpenAIOptions", "openai")
    ResponsesOptions = _struct("ResponsesOptions", "responses")
    AnthropicOptions = _struct("AnthropicOptions", "anthropic")
    SGLangOptions = _struct("SGLangOptions", "sglang")

NOTHING = wire.SuggestedSampling()


def sampling_of(
    body: msgspec.Struct,
    dialect: wire.Dialect,
    decided: Mapping[str, Any],
    suggested: wire.SuggestedSampling = NOTHING,
) -> wire.SamplingParams:
    """How to sample: as the route has `decided`, as the body says, as is `suggested` (a beam search
    samples nothing, faithful texts are cut nowhere), or by default. Raises HttpError for what
    ranges do not forbid.
    """
    given = {**dict(_values(body, dialect)), **decided}
    low, high = given.get("min_tokens", 0), given.get("max_tokens")
    if high is not None and low > high:
        names = {name: _spelling(name, dialect) for name in ("min_tokens", "max_tokens")}
        raise refused(
            f"{names['min_tokens']} is {low:,}, more than {names['max_tokens']}, {high:,}.",
            names["min_tokens"],
        )
    wanted = suggested.__struct_fields__ if given.get("beams") is None else ()
    for name in wanted if given.get("faithful", 1) == 1 else wanted[:1]:  # the temperature
        value = getattr(suggested, name)
        if value is not None:
            given.setdefault(name, value)
    return wire.SamplingParams(**given)


def carry(body: msgspec.Struct, dialect: wire.Dialect, chat: msgspec.Struct) -> None:
    """Gives the options of a `body` of another dialect to a chat's body."""
    for line in wire.SAMPLING_OPTIONS.values():
        theirs, ours = line.spelling(dialect), line.spelling("openai")
        if theirs is not None and ours is not None:
            setattr(chat, ours, getattr(body, theirs))


_SPELLED: Mapping[str, tuple[tuple[str, wire.OptionLine], ...]] = {
    dialect: tuple(
        (spelling, line)
        for line in wire.SAMPLING_OPTIONS.values()
        if (spelling := line.spelling(dialect)) is not None
    )
    for dialect in wire.DIALECTS
}
"""The fields of each dialect: asked for by each request."""


_READ = {
    dialect: attrgetter(*[spelling for spelling, _ in lines]) for dialect, lines in _SPELLED.items()
}


def _values(body: msgspec.Struct, dialect: wire.Dialect) -> Iterator[tuple[str, Any]]:
    for (spelling, line), value in zip(_SPELLED[dialect], _READ[dialect](body), strict=True):
        if value is not None:
            yield line.name, _value(line, value, spelling)


def _value(line: wire.OptionLine, value: Any, spelling: str) -> Any:
    """As the wire has it."""
    match value:
        case dict():
            return tuple((_token(key, spelling), bias) for key, bias in value.items())
        case list():
            return tuple(value)
        case str() if isinstance(line.default, tuple):
            return (value,) if value else ()
    match line.name:
        case "seed":  # the wire has no negative ones
            return value & _INT63
        case "top_p":
            return max(_LEAST_TOP_P, value)
        case "top_k":
            return value or -1
    return value


def _token(key: str, spelling: str) -> int:
    """JSON's keys are texts; here they are token ids."""
    if not (key.isascii() and key.isdecimal() and len(key) <= 10 and int(key) <= INT31):
        raise refused(
            f'{spelling} has the key {key[:40]!r}; its keys are token ids, as in {{"42": -100}}.',
            spelling,
            "invalid_value",
        )
    return int(key)


def _spelling(name: str, dialect: wire.Dialect) -> str:
    return wire.SAMPLING_OPTIONS[name].spelling(dialect) or name


def markdown() -> str:
    """The table of options in docs/server-options.md."""
    lines = [
        "| option | chats, completions, programs | responses | messages | `/generate` | what "
        "it does |",
        "|---|---|---|---|---|---|",
    ]
    for line in wire.SAMPLING_OPTIONS.values():
        spelled = [_spelled(line, dialect) for dialect in wire.DIALECTS]
        lines.append(f"| `{line.name}` | {' | '.join(spelled)} | {line.option.meaning} |")
    return "\n".join(lines) + "\n"


def _spelled(line: wire.OptionLine, dialect: wire.Dialect) -> str:
    """The fields that it is said by; empty where the dialect cannot say it."""
    spelling = line.spelling(dialect)
    names = line.option.composed[dialect].split(", ") if spelling is None else [spelling]
    return ", ".join(f"`{name}`" for name in names if name)
