"""Values of standard types as pydantic writes them: the type's constraint takes the text, and reading
it gives that value back.
"""

from __future__ import annotations

import datetime
import decimal
import ipaddress
import json
import uuid
from functools import cache
from typing import Annotated, Any

import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lmprog
from lmprog.lang.ops.type_schemas import value_of

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
INT64 = st.integers(-(2**63), 2**63 - 1)
Cents = Annotated[decimal.Decimal, pydantic.Field(max_digits=6, decimal_places=2)]
# Narrower than pydantic: durations are whole seconds, without a sign, and leave out no unit between
# two (pydantic writes P1Y1D and PT7H1S, RFC 3339 does not), and times have a zone.
SECONDS = st.integers(0, 3599).map(lambda number: datetime.timedelta(seconds=number)) | st.builds(
    lambda days, hours, minutes, seconds: datetime.timedelta(
        days=days, hours=hours, minutes=minutes, seconds=seconds
    ),
    *(st.integers(0, 364), st.integers(0, 23), st.integers(1, 59), st.integers(0, 59)),
)
UTC = st.just(datetime.UTC)
ROUND_TRIPS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, INT64),
    (float, st.floats(allow_nan=False, allow_infinity=False, width=32)),
    (bytes, TEXT.map(str.encode)),
    (set[int], st.sets(INT64, max_size=4)),
    (frozenset[str], st.frozensets(TEXT, max_size=4)),
    (Annotated[set[str], pydantic.Field(min_length=2)], st.sets(TEXT, min_size=2, max_size=5)),
    (dict[str, list[bool | None]], st.dictionaries(TEXT, st.lists(st.booleans() | st.none()))),
    (datetime.timedelta, SECONDS),
    (datetime.date, st.dates()),
    (datetime.time, st.times(timezones=UTC)),
    (datetime.datetime, st.datetimes(timezones=UTC)),
    (uuid.UUID, st.uuids()),
    (ipaddress.IPv4Address, st.ip_addresses(v=4)),
    (ipaddress.IPv6Address, st.ip_addresses(v=6)),
    (decimal.Decimal, st.decimals(-(10**12), 10**12, places=6)),
    (Cents, st.decimals(-9999, 9999, places=2)),
]


@cache
def made_for(number: int) -> tuple[Any, Any]:
    tp = ROUND_TRIPS[number][0]
    return lmprog.constraint(type=tp), pydantic.TypeAdapter(tp)


@pytest.mark.parametrize("number", range(len(ROUND_TRIPS)), ids=[str(tp) for tp, _ in ROUND_TRIPS])
def test_what_pydantic_writes_is_taken_and_read_as_the_same_value(number: int) -> None:
    tp, values = ROUND_TRIPS[number]

    @given(values)
    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    def check(value: Any) -> None:
        constraint, adapter = made_for(number)
        written = json.loads(adapter.dump_json(value))
        text = json.dumps(written, ensure_ascii=False)
        if isinstance(value, decimal.Decimal):  # here a number, which pydantic reads too
            text = format(value, "f")
        assert constraint.accepts(text), text
        assert value_of(tp, text) == value

    check()
