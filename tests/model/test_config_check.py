"""The table of options (`lmprog.config`), and what is refused by it."""

from __future__ import annotations

from dataclasses import Field, fields, replace
from typing import Any

import pytest

from lmprog.config import EngineKind, OptionRules, RuntimeConfig, SchedulerConfig
from lmprog.config_check import check_options
from lmprog.errors import InvalidParameter

FIELDS = [*fields(RuntimeConfig), *fields(SchedulerConfig)]
SCHEDULING = {field.name for field in fields(SchedulerConfig)}
RULES: dict[str, OptionRules] = {
    field.name: field.metadata["rules"] for field in FIELDS if "rules" in field.metadata
}
SOME: dict[str, Any] = {
    "engine": "torch",
    "quantize": "int8",
    "device_memory_fraction": 0.5,
    "kv_pool": "virtual",
    "tp_ranks": "torchrun",
    "lora": ("x=folder",),
    "kv_host_mb": 16,
    "kv_disk_mb": 16,
    "kv_disk_folder": "folder",
    "kv_store": "machine",
    "kv_events": "tcp://127.0.0.1:5557",
    "kv_events_replay": "tcp://127.0.0.1:5558",
    "kv_events_topic": "kv",
    "kv_events_open": True,
    "kv_events_connect": True,
    "draft_model": "nano",
}
"""A value of each option that has rules besides a range."""
LACKS = [(name, lack, kind) for name in RULES for lack in RULES[name].lacks for kind in lack.kinds]
NEEDS = [(name, need) for name in RULES for need in RULES[name].needs]


def configured(**options: Any) -> RuntimeConfig:
    inner = {name: value for name, value in options.items() if name in SCHEDULING}
    outer = {name: value for name, value in options.items() if name not in SCHEDULING}
    return RuntimeConfig(**outer, scheduler=SchedulerConfig(**inner))


def refused(config: RuntimeConfig, kind: EngineKind | None = None) -> InvalidParameter:
    with pytest.raises(InvalidParameter) as caught:
        check_options(config, kind)
    return caught.value


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_option_says_what_it_is(field: Field[Any]) -> None:
    if field.name not in ("model", "scheduler"):
        assert RULES[field.name].help


@pytest.mark.parametrize(("name", "lack", "kind"), LACKS)
def test_what_an_engine_does_not_have_is_refused_by_name(
    name: str, lack: Any, kind: EngineKind
) -> None:
    value = SOME[name] if lack.values is None else lack.values[0]
    config = configured(**{name: value}, tp=2 if kind == "ranks" else 1)
    error = refused(config, None if kind == "ranks" else kind)
    assert error.name == name
    assert error.allowed == lack.allowed
    others = {"processor", "device", "native pages", "torch pages", "device pages"}
    if kind != "ranks":
        lacking = {one for other, rule, one in LACKS if other == name}
        for other in others - lacking:
            check_options(config, other)  # type: ignore[arg-type]
    if lack.unless is not None:
        check_options(replace(config, **dict([lack.unless])), kind)


@pytest.mark.parametrize(("name", "need"), NEEDS)
def test_an_option_that_would_do_nothing_is_refused_by_name(name: str, need: Any) -> None:
    assert need.option in RULES
    assert refused(configured(**{name: SOME[name], need.option: need.without})).name == name


@pytest.mark.parametrize("name", RULES)
def test_a_number_beyond_its_range_is_refused_with_what_is_allowed(name: str) -> None:
    rules = RULES[name]
    for bound, wrong in ((rules.least, -1), (rules.above, 0), (rules.most, 1)):
        if bound is not None:
            error = refused(configured(**{name: bound + wrong}))
            assert (error.name, error.value) == (name, bound + wrong)
            assert error.allowed
            assert f"{bound}" in error.allowed


@pytest.mark.parametrize(
    "name", ["attention", "engine", "dtype", "kv_dtype", "kv_pool", "quantize", "policy"]
)
def test_a_name_that_an_option_does_not_know_is_refused_with_those_it_does(name: str) -> None:
    error = refused(configured(**{name: "unheard-of"}))
    assert error.name == name
    assert error.allowed
    assert "unheard-of" not in error.allowed


def test_what_nobody_chose_is_never_refused() -> None:
    for kind in ("processor", "device", "native pages", "torch pages", "device pages"):
        check_options(RuntimeConfig(), kind)  # type: ignore[arg-type]
        check_options(RuntimeConfig(tp=2), kind)  # type: ignore[arg-type]
