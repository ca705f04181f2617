"""Errors in OpenAI's form: one shape for every response that is not 2xx.

`Problem` is the value, `HttpError` raises one, `problem_of` words our own exceptions. Knows
statuses and the tree of `lmprog.errors`; knows no routes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from lmprog import errors

CLIENT_GONE = 499
"""Logged for a request whose client disconnected; it is not sent."""
RETRY_SECONDS = 1.0
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "service_unavailable",
    504: "timeout_error",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """`param` names the request's field, `code` is for programs; `retry_after` in seconds."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    type: str | None = None
    retry_after: float | None = None
    headers: Mapping[str, str] | None = None

    def body(self) -> bytes:
        """`{"error": {...}}`."""
        kind = (
            self.type
            or _TYPES.get(self.status)
            or ("invalid_request_error" if self.status < 500 else "server_error")
        )
        code = self.code or HTTPStatus(self.status).phrase.lower().replace(" ", "_")
        error = {
            "message": _sound(self.message),
            "type": kind,
            "param": self.param and _sound(self.param),
            "code": code,
        }
        return msgspec.json.encode({"error": error})


def _sound(text: str) -> str:
    """Messages may quote what a client sent, which may hold halves of surrogate pairs."""
    return text.encode("utf-8", "backslashreplace").decode()


class HttpError(HTTPException):
    """Ends a request with a problem; in an application of others FastAPI answers it in its way."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.status, problem.message, dict(problem.headers or {}))
        self.problem = problem

    def __str__(self) -> str:
        return self.problem.message


class ClientGone(Exception):
    """The client has disconnected; its work is to be cancelled."""


def refused(
    message: str, param: str | None = None, code: str | None = None, status: int = 400
) -> HttpError:
    """The error of a request that cannot be served as it is."""
    return HttpError(Problem(status, message, param, code))


def response_of(problem: Problem) -> Response:
    """The whole answer."""
    headers = dict(problem.headers or {})
    if problem.status in (429, 503):
        seconds = RETRY_SECONDS if problem.retry_after is None else problem.retry_after
        headers["retry-after"] = str(max(1, round(seconds)))
    return Response(problem.body(), problem.status, headers, media_type="application/json")


_STATUS: tuple[tuple[type[errors.LmprogError], int], ...] = (  # the first that fits
    (errors.RequestRejected, 400),
    (errors.ProgramError, 400),
    (errors.Overloaded, 429),
    (errors.RuntimeGone, 503),
    (errors.Cancelled, 503),
    (errors.DeadlineExceeded, 504),
)


def problem_of(error: errors.LmprogError, names: Mapping[str, str] | None = None) -> Problem:
    """`names` translates the runtime's names of fields into those of the request (`prompt` into
    `messages`, say).
    """
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    param: str | None = None
    code = error.code
    if isinstance(error, errors.InvalidParameter | errors.UnknownName):
        param = error.name
    elif isinstance(error, errors.ContextOverflow):
        param, code = "prompt", "context_length_exceeded"
    elif isinstance(
        error, errors.GrammarError | errors.UnsupportedSchema | errors.UnsatisfiableConstraint
    ):
        param = "constraint"
    message = error.message[:1].upper() + error.message[1:]
    if param is not None:
        theirs = (names or {}).get(param, param)
        if error.message.startswith(
            f"{param} "
        ):  # a field begins the sentence: as the client spelled it
            message = theirs + error.message[len(param) :]
        param = theirs
    if names is not None and isinstance(
        error, errors.ContextOverflow | errors.UnsatisfiableConstraint
    ):
        message = re.sub(r"\bmax_tokens\b", names.get("max_tokens", "max_tokens"), message)
    kind = "model_error" if isinstance(error, errors.ModelError) else None
    retry_after = error.retry_after if isinstance(error, errors.Overloaded) else None
    return Problem(status, message, param, code, kind, retry_after)
