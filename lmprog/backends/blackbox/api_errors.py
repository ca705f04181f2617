"""Maps failures of services to errors of lmprog: HTTP statuses, bodies and headers in the form of
OpenAI and similar APIs.

Knows which failures are transient (rate limits, a service that is down) and which are permanent (a
wrong key, an invalid request).
"""

from __future__ import annotations

import datetime
import email.utils
import re
from collections.abc import Mapping, Sequence

from lmprog.backends.blackbox.retry_policy import TransientError
from lmprog.errors import (
    BY_CODE,
    ContextOverflow,
    DeadlineExceeded,
    LmprogError,
    Overloaded,
    RequestRejected,
    RuntimeGone,
    UnknownName,
    from_wire,
)

_LIMIT = re.compile(r"maximum context length (?:is|of) ([0-9,]+)")


class ModelReplaced(RuntimeGone):
    """The server has another model than the one that the program has begun with."""


def failure(status: int, body: object, headers: Mapping[str, str]) -> LmprogError | TransientError:
    """The error for a response other than 200; a `TransientError` if a retry may succeed."""
    about = _about(body)
    code, text = about.get("code"), str(about.get("message") or body or "no reason given")
    message = f"the API refused ({status}): {text}"
    after = retry_after(headers)
    if status == 429 and code == "insufficient_quota":
        return Overloaded(message)
    if status in (429, 503, 529):
        return TransientError(Overloaded(message, retry_after=after), after)
    if status == 412 and code == ModelReplaced.code:
        return ModelReplaced(text)
    if status == 408:
        return TransientError(DeadlineExceeded(message), after)
    if status == 409 or status >= 500:
        return TransientError(RuntimeGone(f"the API failed ({status}): {text}"), after)
    if isinstance(code, str) and code in BY_CODE:  # from a server of lmprog
        return from_wire(code, text, {})
    limit = _LIMIT.search(text)
    if code == "context_length_exceeded" or limit is not None:
        return ContextOverflow(
            message, limit=None if limit is None else int(limit[1].replace(",", ""))
        )
    if status == 401:
        return RequestRejected(f"{message}. Give api_key=, or set it in the environment.")
    if status == 404 and (code == "model_not_found" or "model" in text.lower()):
        return UnknownName(message)
    return RequestRejected(message)


def refuse_hidden(answer: Mapping[str, object]) -> None:
    """Raises what `failure` makes of an error that some services and gateways send in the place of
    an answer, with the status 200. Its code is then often the status that there should have been.
    """
    found = hidden_error(answer)
    if found is None:
        return
    about = _about(found)
    code = str(about.get("code"))
    is_status = code.isdecimal() and 400 <= int(code) < 600
    status = int(code) if is_status else _STATUS_OF_KIND.get(str(about.get("type")), 400)
    raise failure(status, found, {})


def hidden_error(answer: Mapping[str, object]) -> object:
    """The part of an answer, or of a piece of one, that is an error; None if there is none."""
    if answer.get("object") == "error":
        return answer
    choices = answer.get("choices")
    parts = [answer, *(choices if isinstance(choices, Sequence) else ())]
    return next((part for part in parts if isinstance(part, Mapping) and part.get("error")), None)


_STATUS_OF_KIND = {
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "server_error": 500,
    "overloaded_error": 529,
}
"""By what OpenAI's and Anthropic's errors call themselves."""


def unreachable(what: object) -> TransientError:
    """The error for a connection that could not be made."""
    return TransientError(
        RuntimeGone(f"the API cannot be reached: {what or 'the connection was lost'}")
    )


def broken_off(body: object) -> LmprogError:
    """The error for a stream that sent an error event."""
    about = _about(body)
    return RuntimeGone(f"the API broke off its answer: {about.get('message') or body}")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds; None if the header is missing or invalid."""
    millis = headers.get("retry-after-ms")
    given = headers.get("retry-after")
    try:
        if millis is not None:
            return max(float(millis) / 1000.0, 0.0)
        if given is None:
            return None
        return max(float(given), 0.0)
    except ValueError:
        pass
    try:
        date = email.utils.parsedate_to_datetime(given or "")
    except ValueError:
        return None
    now = datetime.datetime.now(datetime.UTC)
    return max((date - now).total_seconds(), 0.0) if date.tzinfo is not None else None


def _about(body: object) -> Mapping[str, object]:
    """The error object, as OpenAI (`{"error": {...}}`) and others (`{"message": ...}`) write it."""
    if not isinstance(body, Mapping):
        return {}
    inner = body.get("error", body)
    if isinstance(inner, str):
        return {"message": inner}
    return inner if isinstance(inner, Mapping) else {}
