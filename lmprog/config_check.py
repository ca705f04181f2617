"""Holds a configuration to the table of options (`config`): choices, ranges, what an option needs,
and what the engine that is to compute does not have.

The one place where that is refused. Knows the table; knows no engine, no model and no machine.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from lmprog.config import EngineKind, OptionRules, RuntimeConfig, SchedulerConfig
from lmprog.errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class _Given:
    """An option of a configuration."""

    name: str
    value: Any
    default: object
    rules: OptionRules


def check_options(config: RuntimeConfig, kind: EngineKind | None = None) -> None:
    """Raises InvalidParameter for the first option that is none of its choices or out of its range,
    needs another one, or is not had by engines of that `kind`. None: it is not known yet.
    """
    kinds = {kind, "ranks" if config.tp > 1 else None}
    values = {one.name: one.value for one in _options(config)}
    for one in _options(config):
        if one.value == one.default:
            continue
        _check_choice(one)
        _check_range(one)
        for need in one.rules.needs:
            if values[need.option] == need.without:
                raise _refused(one, need.says)
        for lack in one.rules.lacks:
            has_it = lack.unless is not None and values[lack.unless[0]] == lack.unless[1]
            is_meant = lack.values is None or one.value in lack.values
            if is_meant and not has_it and not kinds.isdisjoint(lack.kinds):
                raise _refused(one, lack.says, lack.allowed)


def _options(config: RuntimeConfig) -> Iterator[_Given]:
    for of in (config, config.scheduler):
        for field in fields(of):
            if rules := field.metadata.get("rules"):
                yield _Given(field.name, getattr(of, field.name), field.default, rules)


def _check_choice(given: _Given) -> None:
    choices = _choices().get(given.name)
    if choices and given.value is not None and given.value not in choices:
        allowed = ", ".join(choices)
        raise _refused(given, f"{{it}} is not possible; there are {allowed}", allowed)


@functools.cache
def _choices() -> Mapping[str, tuple[str, ...]]:
    """The values of each option that has a few only."""
    found: dict[str, tuple[str, ...]] = {}
    for of in (RuntimeConfig, SchedulerConfig):
        for name, hint in typing.get_type_hints(of).items():
            for kind in (hint, *typing.get_args(hint)):
                if typing.get_origin(kind) is typing.Literal:
                    found[name] = typing.get_args(kind)
    return found


def _check_range(given: _Given) -> None:
    value, rules, unit = given.value, given.rules, ""
    if isinstance(value, str):
        value, unit = len(value), " characters"
    if not isinstance(value, int | float):
        return
    parts = {
        f"at least {rules.least}": rules.least is None or value >= rules.least,
        f"more than {rules.above}": rules.above is None or value > rules.above,
        f"at most {rules.most}{unit}": rules.most is None or value <= rules.most,
    }
    if not all(parts.values()):
        allowed = " and ".join(part for part in parts if " None" not in part)
        raise _refused(given, f"{{it}} is not possible: it must be {allowed}", allowed)


def _refused(given: _Given, says: str, allowed: str | None = None) -> InvalidParameter:
    value = given.value[0] if isinstance(given.value, tuple) else given.value
    said = says.format(name=given.name, it=f"{given.name} = {value!r}")
    return InvalidParameter(said, name=given.name, value=value, allowed=allowed)
