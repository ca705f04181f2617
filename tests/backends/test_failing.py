"""What services say when they fail, as they write it: times to wait, bodies of several shapes."""

from __future__ import annotations

import datetime
import email.utils

import pytest

from lmprog.backends.blackbox.api_errors import failure, retry_after
from lmprog.backends.blackbox.retry_policy import RetryPolicy, TransientError
from lmprog.backends.blackbox.stop_strings import Stop, first_stop
from lmprog.errors import (
    ContextOverflow,
    GrammarError,
    InvalidParameter,
    Overloaded,
    RequestRejected,
    RuntimeGone,
)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    ],
)
def test_the_time_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def test_the_time_to_wait_may_be_a_date() -> None:
    date = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    found = retry_after({"retry-after": email.utils.format_datetime(date)})
    assert found is not None
    assert 3000 < found <= 3600


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, {"error": {"message": "no", "code": "grammar"}}, GrammarError),
        (400, {"error": "no"}, RequestRejected),
        (400, {"message": "no", "code": "context_length_exceeded"}, ContextOverflow),
        (422, {"detail": "no"}, RequestRejected),
        (403, "<html>no</html>", RequestRejected),
        (429, {"error": {"message": "no", "code": "insufficient_quota"}}, Overloaded),
    ],
)
def test_lasting_failures_of_any_shape(status: int, body: object, kind: type[Exception]) -> None:
    found = failure(status, body, {})
    assert type(found) is kind
    assert "no" in str(found)


@pytest.mark.parametrize(
    ("status", "kind"), [(429, Overloaded), (529, Overloaded), (500, RuntimeGone)]
)
def test_passing_failures_know_what_they_are_in_the_end(status: int, kind: type[Exception]) -> None:
    found = failure(status, None, {"retry-after": "2"})
    assert isinstance(found, TransientError)
    assert type(found.error) is kind
    assert found.after == 2.0


def test_waits_grow_are_never_the_same_and_have_an_end() -> None:
    patience = RetryPolicy(first_wait=1.0, longest_wait=4.0)
    waits = [[patience._wait(tries, None) for _ in range(50)] for tries in range(6)]
    assert all(0.5 <= wait <= 1.0 for wait in waits[0])
    assert all(2.0 <= wait <= 4.0 for wait in waits[2] + waits[5])
    assert len(set(waits[0])) > 1
    assert all(2.0 <= patience._wait(0, 2.0) <= 2.3 for _ in range(50))


@pytest.mark.parametrize("options", [{"timeout": 0.0}, {"retries": -1}])
def test_patience_that_makes_no_sense_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidParameter, match="not allowed"):
        RetryPolicy(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "stops", "found"),
    [
        ("abc", [], None),
        ("abc", ["x"], None),
        ("a.b\nc", ["\n", "."], Stop(1, 2)),
        ("aab", ["ab", "b"], Stop(1, 3)),  # both end together: the longer one
        ("abcd", ["abcd", "bc"], Stop(1, 3)),  # the one that is complete first
    ],
)
def test_the_first_stop_is_the_one_that_is_complete_first(
    text: str, stops: list[str], found: Stop | None
) -> None:
    assert first_stop(text, stops) == found
