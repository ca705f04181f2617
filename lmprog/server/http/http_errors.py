"""Errors as the clients of each dialect read them: the shape of every response that is not 2xx, and
of the last event of a stream that fails.

`Problem` is the value, `HttpError` raises one, `problem_of` words our own exceptions. The form
follows from the path alone, since requests are also refused before they have a route: Anthropic's
below `/v1/messages`, Ollama's below `/api`, OpenAI's everywhere else. Knows statuses and the tree
of `lmprog.errors`; knows no routes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

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
_ANTHROPICS_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_ANTHROPICS_PATH = re.compile(r"/v1/messages(?:/|\Z)")
OLLAMAS_PATH = "/api/"
_NAMED_EVENTS = re.compile(r"/v1/(?:messages|programs)\Z")
"""Where every event of a stream has a name, the last one too."""


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

    def error(self) -> dict[str, str | None]:
        """OpenAI's error: the value of the field of this name."""
        return {
            "message": _sound(self.message),
            "type": self.type or _kind(_TYPES, self.status, "server_error"),
            "param": self.param and _sound(self.param),
            "code": self.code or HTTPStatus(self.status).phrase.lower().replace(" ", "_"),
        }

    def body(self) -> bytes:
        """OpenAI's form: `{"error": {...}}`."""
        return msgspec.json.encode({"error": self.error()})

    def ollamas_body(self) -> bytes:
        """Ollama's form: the sentence is the error."""
        known = self.error()
        said = {"error": known["message"], "code": known["code"], "param": known["param"]}
        return msgspec.json.encode(said)

    def anthropics_body(self, request_id: str | None) -> bytes:
        """Anthropic's form. What else we know of the failure stands in `details`, as its clients
        have it (`error_code`).
        """
        known = self.error()
        error = {
            "type": _kind(_ANTHROPICS_TYPES, self.status, "api_error"),
            "message": known["message"],
            "details": {"error_code": known["code"], "param": known["param"]},
        }
        return msgspec.json.encode({"type": "error", "error": error, "request_id": request_id})


def _kind(known: Mapping[int, str], status: int, fault: str) -> str:
    return known.get(status) or ("invalid_request_error" if status < 500 else fault)


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


def speaks_anthropic(path: str) -> bool:
    """Whether Anthropic's clients ask for this path."""
    return "/messages" in path and _ANTHROPICS_PATH.search(path) is not None


def body_of(problem: Problem, scope: Scope) -> bytes:
    """The JSON of a failed request, in the form of its path."""
    if scope["path"].startswith(OLLAMAS_PATH):
        return problem.ollamas_body()
    if not speaks_anthropic(scope["path"]):
        return problem.body()
    return problem.anthropics_body(scope.get("state", {}).get("request_id"))


def event_name_of(scope: Scope) -> str | None:
    """The name of the event that says how a stream of this request failed; None: it has none."""
    return "error" if _NAMED_EVENTS.search(scope["path"]) else None


def response_of(problem: Problem, scope: Scope) -> Response:
    """The whole answer to the request of `scope`."""
    headers = dict(problem.headers or {})
    if problem.status in (429, 503):
        seconds = RETRY_SECONDS if problem.retry_after is None else problem.retry_after
        headers["retry-after"] = str(max(1, round(seconds)))
    body = body_of(problem, scope)
    return Response(body, problem.status, headers, media_type="application/json")


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
