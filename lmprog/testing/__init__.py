"""Doubles for testing programs without a model: backends with answers written in advance.

Programs run on them unchanged. `Scripted(["Paris", "yes"])` stands for a runtime: it answers the
calls in the order in which they are made, or each from its prompt (`Scripted(lambda prompt: ...)`).
`StrictOpenAI` and `StrictAnthropic` stand for these services: servers on this machine that refuse
what the real ones document to refuse, with their statuses and messages. All check that an answer is
one that could be given (an option of the select, a match of the regex, a value of the schema, no
longer than `max_tokens`), and, on exit, that none is left over.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

from lmprog import wire
from lmprog.backends.client import Client
from lmprog.backends.textual import TextAnswer, TextRuntime
from lmprog.errors import LmprogError, ProgramError
from lmprog.testing.services import Calls, ServiceDouble, ServiceFailure
from lmprog.testing.strict_services import StrictAnthropic, StrictOpenAI

if TYPE_CHECKING:
    from lmprog.constrained import Constrained

__all__ = [
    "Calls",
    "Hold",
    "Scripted",
    "ScriptedRequest",
    "Scripting",
    "ServiceDouble",
    "ServiceFailure",
    "StrictAnthropic",
    "StrictOpenAI",
]


class Hold:
    """In place of an answer: keeps the call open until the test releases it or the program cancels
    it.
    """


Scripting: TypeAlias = str | Sequence[str] | LmprogError | Hold
"""A text; several texts for a generation with `n`; an error that the call fails with; or `Hold()`.
"""


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    """A call as the double received it."""

    prompt: str
    op: wire.Generate | wire.Select


class Scripted:
    """A backend over a script. A context manager: a normal exit checks that the script was used
    up.

    An answer that a call's constraint or `max_tokens` rules out fails the call; with `strict=False`
    any text is taken.
    """

    def __init__(
        self,
        answers: Iterable[Scripting] | Callable[[str], Scripting] = (),
        *,
        strict: bool = True,
    ) -> None:
        self.asked: list[ScriptedRequest] = []
        self._function = answers if callable(answers) else None
        self._script: list[Scripting] = [] if callable(answers) else list(answers)
        self._strict = strict
        self._lock = threading.Lock()
        self.runtime = TextRuntime(self, "scripted")
        self._client = Client(self.runtime)

    @property
    def client(self) -> Client:
        return self._client

    @property
    def frames(self) -> list[tuple[wire.Op, ...]]:
        """Every frame of ops that was sent."""
        return self.runtime.frames

    @property
    def prompts(self) -> list[str]:
        """The text before each call."""
        return [asked.prompt for asked in self.asked]

    def answer(
        self, prompt: str, op: wire.Generate | wire.Select
    ) -> TextAnswer | LmprogError | None:
        """Called by the runtime: the next answer of the script."""
        with self._lock:
            self.asked.append(ScriptedRequest(prompt, op))
            if self._function is not None:
                given = self._function(prompt)
            elif self._script:
                given = self._script.pop(0)
            else:
                return ProgramError(
                    f"the script has no more answers, and was asked to go on from {prompt[-200:]!r}"
                )
        return None if isinstance(given, Hold) else _checked(given, op, self._strict)

    def release(self, given: Scripting) -> None:
        """Answers the oldest held call. Raises `ProgramError` if none is held."""
        held = self.runtime.held()
        if not held:
            raise ProgramError("no call is held")
        op = next(asked.op for asked in self.asked if asked.op.call == held[0])
        if isinstance(given, Hold):
            raise ProgramError("release needs an answer")
        self.runtime.release(held[0], _checked(given, op, self._strict))

    def check(self) -> None:
        """Raises `ProgramError` if answers are left over."""
        if self._script:
            raise ProgramError(
                f"{len(self._script)} answers of the script are left, the first is "
                f"{self._script[0]!r}"
            )

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if error is None:
            self.check()


def _checked(
    given: str | Sequence[str] | LmprogError, op: wire.Generate | wire.Select, strict: bool
) -> TextAnswer | LmprogError:
    """The answer, or the error that says why the real runtime could not have given it."""
    if isinstance(given, LmprogError):
        return given
    texts = (given,) if isinstance(given, str) else tuple(given)
    if isinstance(op, wire.Select):
        if len(texts) != 1 or texts[0] not in op.choices:
            return ProgramError(
                f"the script answers {given!r}, but the options are {', '.join(op.choices)}"
            )
        return TextAnswer(
            scores=tuple(-0.1 if choice == texts[0] else -3.0 for choice in op.choices)
        )
    if len(texts) != op.sampling.n:
        return ProgramError(
            f"the script gives {len(texts)} texts, but n={op.sampling.n} were asked for"
        )
    for text in texts if strict else ():
        try:
            reason = _refusal(text, op)
        except LmprogError as error:  # the runtime would refuse this constraint, too
            return error
        if reason:
            return ProgramError(
                f"the script answers {text!r}, {reason} (Scripted(..., strict=False) takes any "
                "text)"
            )
    return TextAnswer(texts=texts)


def _refusal(text: str, op: wire.Generate) -> str:
    """Why no model could have answered so; empty where one could."""
    constraint, most = op.constraint, op.sampling.max_tokens
    if constraint is not None and not _allows(constraint, text):
        choices, pattern = constraint.as_choices(), constraint.as_pattern()
        schema = constraint.as_schema()
        if choices is not None:
            return f"but the choices are {', '.join(choices)}"
        if pattern is not None:
            return f"which does not match {pattern}"
        if schema is not None:
            return f"which is no value of the schema {schema.schema}"
        return "which the call's constraint does not allow"
    num_words = len(text.split())  # a token is at most one word
    if most is not None and num_words > most:
        return f"which is at least {num_words} tokens, but max_tokens is {most}"
    return ""


@functools.lru_cache(maxsize=1024)
def _compiled(constraint: wire.Constraint) -> Constrained:
    from lmprog.constrained import Constrained  # most tests have no need of it

    return Constrained(constraint)


def _allows(constraint: wire.Constraint, text: str) -> bool:
    """Whether it is a text of the constraint; of JSON also one that says the same."""
    choices = constraint.as_choices()
    if choices is not None:
        return text in choices
    return _compiled(constraint).accepts(text) or (
        (free := constraint.freely_laid_out()) != constraint and _compiled(free).accepts(text)
    )
