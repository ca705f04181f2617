"""What is generated for a type is what pydantic takes, and standard types need no pydantic."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import ipaddress
import json
import uuid
from collections.abc import Callable
from typing import Annotated, Any, Literal

import attrs
import pydantic
import pytest
import typing_extensions
from annotated_types import Ge, Le

import lmprog
from lmprog.errors import UnsupportedSchema
from lmprog.lang.ops.type_schemas import schema_of, value_of
from lmprog.lang.ops.type_values import as_json_data, convert
from lmprog.testing import Scripted

Seconds = datetime.timedelta
CHECKED: list[Any] = [
    decimal.Decimal,
    Annotated[decimal.Decimal, pydantic.Field(max_digits=5, decimal_places=2)],
    Annotated[decimal.Decimal, pydantic.Field(max_digits=4)],
    Annotated[decimal.Decimal, pydantic.Field(decimal_places=1, ge=0, lt=7)],
    Annotated[decimal.Decimal, pydantic.Field(max_digits=3, gt=1, multiple_of=decimal.Decimal("0.5"))],
    datetime.timedelta,
    Annotated[Seconds, pydantic.Field(ge=Seconds(minutes=1), lt=Seconds(hours=1))],
    pydantic.IPvAnyAddress,
    pydantic.IPvAnyNetwork,
    pydantic.IPvAnyInterface,
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
    ipaddress.IPv4Network,
    ipaddress.IPv6Interface,
    set[int],
    frozenset[str],
    Annotated[set[Literal["a", "b", "c"]], pydantic.Field(min_length=2)],
    bytes,
    Annotated[bytes, pydantic.Field(max_length=3)],
    pydantic.Base64Bytes,
    pydantic.UUID4,
    pydantic.NaiveDatetime,
    pydantic.AwareDatetime,
    pydantic.HttpUrl,
    pydantic.PositiveInt,
]  # fmt: skip


@pytest.mark.parametrize("tp", CHECKED, ids=str)
def test_what_is_generated_for_a_field_passes_pydantics_checks(tp: Any) -> None:
    model: Any = pydantic.create_model("Model", field=(tp, ...))
    made = lmprog.constraint(type=model)
    for seed in range(10):
        model.model_validate_json(made.example(seed))


def test_a_valid_value_of_an_exact_type_can_be_generated() -> None:
    class Row(pydantic.BaseModel):
        price: Annotated[decimal.Decimal, pydantic.Field(max_digits=5, decimal_places=2)]
        weight: Annotated[decimal.Decimal, pydantic.Field(max_digits=3)]
        within: Annotated[Seconds, pydantic.Field(le=Seconds(hours=1))]
        where: pydantic.IPvAnyNetwork
        tags: set[str]
        page: pydantic.HttpUrl

    text = (
        '{"price": 123.45, "weight": 1.25, "within": 90, "where": "10.0.0.0/8", '
        '"tags": ["b", "b"], "page": "https://example.org/a?b=c"}'
    )
    made = lmprog.constraint(type=Row)
    assert made.accepts(text)
    assert value_of(Row, text) == Row.model_validate_json(text)
    for wrong in ("1234.5", "1.234", "12345"):
        assert not made.accepts(text.replace("123.45", wrong)), wrong


def test_a_set_that_must_not_be_smaller_than_its_list_is_refused_where_values_are_lists() -> None:
    tp = Annotated[set[tuple[int, int]], pydantic.Field(min_length=2)]
    with pytest.raises(UnsupportedSchema, match="uniqueItems"):
        lmprog.constraint(type=pydantic.create_model("Model", field=(tp, ...)))
    with pytest.raises(UnsupportedSchema, match="uniqueItems"):
        lmprog.constraint(type=tp)


def test_a_set_of_integers_that_must_have_two_has_two_that_differ() -> None:
    made = lmprog.constraint(type=Annotated[set[int], pydantic.Field(min_length=2)])
    assert made.accepts("[1, 2]")
    assert not made.accepts("[1, 1]")
    assert not made.accepts("[1]")


def test_a_set_of_strings_that_must_have_two_has_two_that_differ() -> None:
    tp = Annotated[set[str], pydantic.Field(min_length=2)]
    model = pydantic.create_model("Model", field=(tp, ...))
    for made, around in (
        (lmprog.constraint(type=tp), "{}"),
        (lmprog.constraint(type=model), '{{"field": {}}}'),
    ):
        assert made.accepts(around.format('["a", "b"]'))
        assert not made.accepts(around.format('["a", "a"]'))
        assert not made.accepts(around.format('["a"]'))


DIGITS = "0.12345678901234567890123"
"""More than a float has."""


@dataclasses.dataclass
class Price:
    amount: decimal.Decimal


class Rates(pydantic.BaseModel):
    of: dict[str, decimal.Decimal]
    other: Any = None


DECIMALS: list[tuple[Any, str, Callable[[decimal.Decimal], Any]]] = [
    (dict[str, decimal.Decimal], '{"a": ?}', lambda exact: {"a": exact}),
    (list[decimal.Decimal | None], "[?, null]", lambda exact: [exact, None]),
    (tuple[decimal.Decimal, float], "[?, ?]", lambda exact: (exact, float(exact))),
    (Price, '{"amount": ?}', Price),
    (Rates, '{"of": {"a": ?}}', lambda exact: Rates(of={"a": exact})),
    (list[Rates], '[{"of": {}, "other": ?}]', lambda exact: [Rates(of={}, other=float(exact))]),
    (dict[str, Any], '{"a": [?]}', lambda exact: {"a": [float(exact)]}),
]
STANDARD: list[tuple[Any, str, Any]] = [
    (set[int], "[1, 2, 1]", {1, 2}),
    (frozenset[str], '["a"]', frozenset("a")),
    (set, '[1, "a"]', {1, "a"}),
    (bytes, '"é"', "é".encode()),
    (list[bytes], '["a"]', [b"a"]),
    (ipaddress.IPv4Address, '"127.0.0.1"', ipaddress.IPv4Address("127.0.0.1")),
    (ipaddress.IPv6Address, '"::1"', ipaddress.IPv6Address("::1")),
    (datetime.timedelta, '"P1DT2H"', Seconds(days=1, hours=2)),
    (Annotated[Seconds, Le(Seconds(minutes=2))], "90", Seconds(seconds=90)),
    *(
        (tp, text.replace("?", DIGITS), value(decimal.Decimal(DIGITS)))
        for tp, text, value in DECIMALS
    ),
    (
        Annotated[decimal.Decimal, pydantic.Field(max_digits=3)],
        "1.25",
        decimal.Decimal("1.25"),
    ),
]


NAMES = [f"{tp}-{text}" for tp, text, _ in STANDARD]
"""A set's own text has another order in every process."""


@pytest.mark.parametrize(("tp", "text", "value"), STANDARD, ids=NAMES)
def test_a_standard_type_takes_its_values_and_gives_them_back(
    tp: Any, text: str, value: Any
) -> None:
    assert lmprog.constraint(type=tp).accepts(text)
    found = value_of(tp, text)
    assert (found, type(found)) == (value, type(value))


def test_every_duration_is_read_as_pydantic_reads_it() -> None:
    made = lmprog.constraint(type=datetime.timedelta)
    judge = pydantic.TypeAdapter(datetime.timedelta)
    for seed in range(40):
        text = made.example(seed)
        assert value_of(datetime.timedelta, text) == judge.validate_json(text), text


def test_an_integer_without_a_bound_has_that_of_64_bits() -> None:
    made = lmprog.constraint(type=int)
    for text in (str(2**63 - 1), str(-(2**63)), "0"):
        assert made.accepts(text)
    for text in (str(2**63), str(-(2**63) - 1), "1" * 127):
        assert not made.accepts(text)
    wide = lmprog.constraint(type=Annotated[int, Ge(0), Le(10**30)])
    assert wide.accepts("1" + "0" * 30)
    assert not wide.accepts("-1")
    assert schema_of(Annotated[int, Ge(2**64)]) == {"type": "integer", "minimum": 2**64}


def test_an_integer_field_of_a_model_has_the_same_bound() -> None:
    class Row(pydantic.BaseModel):
        any: int
        positive: Annotated[int, pydantic.Field(gt=0)]

    fields = schema_of(Row)["$defs"]["Row"]["properties"]
    assert (fields["any"]["minimum"], fields["any"]["maximum"]) == (-(2**63), 2**63 - 1)
    assert (fields["positive"].get("minimum"), fields["positive"]["maximum"]) == (None, 2**63 - 1)


def test_a_users_own_schema_keeps_integers_of_any_length() -> None:
    assert lmprog.constraint(schema=json.loads('{"type": "integer"}')).accepts("1" * 127)


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


@attrs.define
class Parcel:
    weight: int
    _label: str = "none"


class Sized(typing_extensions.TypedDict):
    size: int
    note: typing_extensions.NotRequired[str]


@pytest.mark.parametrize(
    ("tp", "text", "value"),
    [
        (Sized, '{"size": 3}', {"size": 3}),
        (Parcel, '{"weight": 3, "label": "x"}', Parcel(3, "x")),
        (Parcel, '{"weight": 3}', Parcel(3)),
        (list[Literal[Size.SMALL, 3]], '["small", 3]', [Size.SMALL, 3]),
        (dict[Size, int], '{"small": 3}', {Size.SMALL: 3}),
        (ipaddress.IPv4Network, '"10.0.0.0/8"', ipaddress.IPv4Network("10.0.0.0/8")),
        (ipaddress.IPv6Network, '"2001:db8::/32"', ipaddress.IPv6Network("2001:db8::/32")),
        (ipaddress.IPv4Interface, '"10.0.0.1/8"', ipaddress.IPv4Interface("10.0.0.1/8")),
    ],
    ids=str,
)
def test_types_of_libraries_are_generated_and_read(tp: Any, text: str, value: object) -> None:
    made = lmprog.constraint(type=tp)
    assert made.accepts(text)
    assert value_of(tp, text) == value
    for seed in range(10):
        value_of(tp, made.example(seed))


def test_a_literal_of_members_of_an_enum_gives_members() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> Size:
        s.append("Which?")
        return s.gen(Literal[Size.LARGE]).value

    with Scripted(["large"]) as scripted:
        assert program.run(backend=scripted).value is Size.LARGE


@pytest.mark.parametrize("tp", [dict[Literal["a", "b"], int], dict[Size, int]], ids=str)
def test_a_dict_with_few_keys_has_each_of_them_once(tp: Any) -> None:
    first, second = schema_of(tp)["properties"]
    made = lmprog.constraint(type=tp)
    assert made.accepts(f'{{"{first}": 1, "{second}": 2}}')
    assert made.accepts(f'{{"{second}": 2}}')
    assert not made.accepts(f'{{"{first}": 1, "{first}": 2}}')
    assert not made.accepts('{"other": 1}')


def test_a_dict_with_few_keys_in_a_model_has_each_of_them_once() -> None:
    class Votes(pydantic.BaseModel):
        by: dict[Literal["a", "b"], int]

    made = lmprog.constraint(type=Votes)
    assert made.accepts('{"by": {"a": 1, "b": 2}}')
    assert not made.accepts('{"by": {"a": 1, "a": 2}}')


@pytest.mark.parametrize(
    ("tp", "value"),
    [
        (Parcel, Parcel(3, "x")),
        (dict[Size, list[datetime.date]], {Size.LARGE: [datetime.date(2024, 2, 29)]}),
        (datetime.timedelta, datetime.timedelta(days=-3, microseconds=7)),
        (datetime.timedelta, datetime.timedelta(hours=30)),
        (tuple[uuid.UUID, bytes], (uuid.UUID(int=7), "ü".encode())),
        (decimal.Decimal, decimal.Decimal("0.10")),
    ],
    ids=str,
)
def test_a_value_as_json_data_is_read_as_that_value(tp: Any, value: object) -> None:
    assert convert(tp, json.loads(json.dumps(as_json_data(value)))) == value
