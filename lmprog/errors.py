"""The exception tree: everything that lmprog raises for a user's mistake or a runtime's failure.

::

    LmprogError
    ├── RequestRejected            the request itself is wrong; sending it again cannot help
    │   ├── InvalidParameter       a value outside its range     (name, value, allowed)
    │   ├── ContextOverflow        more tokens than can be held  (prompt, max_tokens, limit)
    │   ├── GrammarError           a pattern or grammar that is wrong or too large (position)
    │   ├── UnsupportedSchema      a keyword that cannot be enforced exactly  (keyword, path)
    │   ├── UnsatisfiableConstraint  nothing at all would match
    │   ├── UnknownName            a variable, role, model or option that does not exist
    │   └── NotSupported           this model or backend cannot do that
    ├── ModelError                 the checkpoint cannot be loaded, or it produced no usable numbers
    ├── ProtocolError              the other side speaks another version, or broke the protocol
    ├── Overloaded                 try again later                              (retry_after)
    ├── RuntimeGone                the runtime process died or cannot be reached
    │   └── RuntimeRestarted       it died and is back; what had been generated is in `partial`
    ├── Cancelled                  the caller, or a sibling's failure, ended the call
    ├── DeadlineExceeded           the time ran out
    ├── TokenBudgetExceeded        the tokens of `max_total_tokens` are used up
    ├── StepLimitExceeded          the model still calls tools after so many steps    (steps)
    ├── ProgramError               a program was used wrongly (a closed branch, say)
    ├── Paused                     the program waits for an answer from outside  (question)
    ├── CheckpointMismatch         a resumed program, or its backend, does not do what it had done
    └── ValidationFailed           the model's text does not parse as the requested type (text)
        └── IncompleteValue        the token limit ended a typed value early            (text)

Each class knows its own numbers as attributes, and how it travels: `code` names it on the wire and
`details()` gives the attributes; `from_wire` builds the same exception on the other side. This
module knows nothing of messages, sockets or models.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import ClassVar, Self

Detail = str | int | float | bool | None


class LmprogError(Exception):
    """Base of every error of lmprog. `str(error)` is a whole sentence: what was sent, the limit,
    what to do.
    """

    code: ClassVar[str] = "error"
    fields: ClassVar[tuple[str, ...]] = ()
    calls: tuple[str, ...] = ()
    """Which calls of a run have failed with it, by their keys in a checkpoint. Does not travel."""

    def __init__(self, message: str, **details: Detail) -> None:
        super().__init__(message)
        unknown = set(details) - set(self.fields)
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {sorted(unknown)}")
        self.message = message
        for name in self.fields:
            setattr(self, name, details.get(name))

    def details(self) -> dict[str, Detail]:
        """The attributes that travel with the message, by name."""
        return {name: getattr(self, name) for name in self.fields}

    def without_frames(self) -> Self:
        """The same without the frames in which it, and what led to it, was raised: whoever keeps
        it would keep all that was at hand there.
        """
        error: BaseException | None = self
        while error is not None:
            error.__traceback__ = None
            error = error.__cause__ or error.__context__
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return (from_wire, (self.code, self.message, self.details()))


class RequestRejected(LmprogError):
    code = "rejected"


class InvalidParameter(RequestRejected):
    code = "invalid_parameter"
    fields = ("name", "value", "allowed")
    name: str | None
    value: Detail
    allowed: str | None


def not_allowed(name: str, value: object, allowed: str, why: str = "") -> InvalidParameter:
    """The error for a value that `name` cannot have; `why` follows what is allowed."""
    because = f" ({why})" if why else ""
    message = f"{name}={value!r} is not allowed; give {allowed}{because}"
    shown: Detail = value if isinstance(value, str | int | float | bool | None) else repr(value)
    return InvalidParameter(message, name=name, value=shown, allowed=allowed)


def check_text(text: str) -> None:
    """Raises `InvalidParameter` for text that no file and no request can have."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameter(
            f"{text[error.start]!r} at place {error.start} of {text[:40]!r} is half of a character "
            "(a lone surrogate); decode what you read with errors='replace', or join both halves: "
            "text.encode('utf-16', 'surrogatepass').decode('utf-16')",
            name="text",
            allowed="text without lone surrogates",
        ) from None


def hint(name: str, valid: Iterable[str]) -> str:
    """What follows the complaint about an unknown name: the nearest valid one, or all of them."""
    known = sorted(valid)
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; valid: {', '.join(known)}"


class ContextOverflow(RequestRejected):
    code = "context_overflow"
    fields = ("prompt", "max_tokens", "limit")
    prompt: int | None
    max_tokens: int | None
    limit: int | None


class GrammarError(RequestRejected):
    code = "grammar"
    fields = ("position",)
    position: int | None


class UnsupportedSchema(RequestRejected):
    code = "unsupported_schema"
    fields = ("keyword", "path")
    keyword: str | None
    path: str | None


class UnsatisfiableConstraint(RequestRejected):
    code = "unsatisfiable"


class UnknownName(RequestRejected):
    code = "unknown_name"
    fields = ("name",)
    name: str | None

    @classmethod
    def of_model(cls, asked: str, served: Iterable[str]) -> UnknownName:
        """No model is served under the name that was asked for."""
        names = ", ".join(repr(one) for one in served if one) or "one without a name"
        return cls(f"there is no model {asked!r} here; served: {names}", name=asked)


class NotSupported(RequestRejected):
    code = "not_supported"


class ModelError(LmprogError):
    code = "model"


class ProtocolError(LmprogError):
    code = "protocol"


class Overloaded(LmprogError):
    code = "overloaded"
    fields = ("retry_after",)
    retry_after: float | None


class RuntimeGone(LmprogError):
    code = "runtime_gone"

    @classmethod
    def of_another_model(cls) -> RuntimeGone:
        """Nobody is left who could go on with a program."""
        return cls(
            "The model was replaced, and this program had begun with another; begin it anew."
        )


class RuntimeRestarted(RuntimeGone):
    code = "runtime_restarted"
    fields = ("partial",)
    partial: str | None


class Cancelled(LmprogError):
    code = "cancelled"


class DeadlineExceeded(LmprogError):
    code = "deadline"


class TokenBudgetExceeded(LmprogError):
    code = "token_budget"


class StepLimitExceeded(LmprogError):
    code = "step_limit"
    fields = ("steps",)
    steps: int | None


class ProgramError(LmprogError):
    code = "program"


class Paused(LmprogError):
    code = "paused"
    fields = ("question",)
    question: str
    write: Callable[[Path], None] | None = None
    """Writes the run's checkpoint; None where the error came from elsewhere."""

    def checkpoint(self, path: str | Path) -> None:
        """Writes the run to a file, from which `lmprog.resume(path, answer=...)` goes on."""
        if self.write is None:
            raise ProgramError("this error is of no run here, so there is nothing to be written")
        self.write(Path(path))


class CheckpointMismatch(LmprogError):
    code = "checkpoint"


class ValidationFailed(LmprogError):
    code = "validation"
    fields = ("text",)
    text: str | None


class IncompleteValue(ValidationFailed):
    code = "incomplete"


def _tree(root: type[LmprogError]) -> dict[str, type[LmprogError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


BY_CODE: Mapping[str, type[LmprogError]] = _tree(LmprogError)


def from_wire(code: str, message: str, details: Mapping[str, Detail]) -> LmprogError:
    """The exception that `code` names. An unknown code (a newer runtime) becomes the base class,
    not a failure.
    """
    kind = BY_CODE.get(code, LmprogError)
    return kind(message, **{name: value for name, value in details.items() if name in kind.fields})
