"""Which result each mark in a string stands for, and what becomes of marks in values.

A mark that is appended to a branch becomes a reference. Where a run returns strings with marks they
are replaced by the results. A mark that is neither appended nor returned has leaked (into a file,
say), and `warn_of_leaks` finds it.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import secrets
import warnings
from dataclasses import dataclass
from typing import Any

from lmprog.errors import ProgramError
from lmprog.lang.branches.pending_call import PendingCall, RunContext, Site, here


class PendingTextWarning(UserWarning):
    """Text was made from a result that was pending, and did not come back to the program's run."""


_numbers = itertools.count(1)
_marked: dict[int, tuple[PendingCall, Site]] = {}
"""By number, until the run of the result has ended."""


def mark_for(call: PendingCall) -> Mark:
    """A new mark for the text of `call`."""
    number = next(_numbers)
    _marked[number] = (call, here())
    call.run.marks[number] = False
    return Mark(number)


def call_of(mark: Mark, run: RunContext) -> PendingCall:
    """The result that a mark stands for, now that it has found its place in `run`."""
    found = _marked.get(mark.number)
    if found is None or not (found[0].run.family is run.family or found[0].done()):
        raise ProgramError(
            "this text refers to a pending result of another run; await that result first"
        )
    found[0].run.marks[mark.number] = True
    return found[0]


def resolved(value: Any, run: RunContext) -> Any:
    """`value` with the marks in its strings replaced by the results, which are done: inside lists,
    tuples, sets, dicts, dataclasses and pydantic models, too.
    """
    return _resolved(value, run, {})


def _resolved(value: Any, run: RunContext, seen: dict[int, Any]) -> Any:
    if isinstance(value, str):
        return _text(value, run) if type(value) is str else value
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = value
    if isinstance(value, dict):
        items = [(_resolved(k, run, seen), _resolved(v, run, seen)) for k, v in value.items()]
        if any(
            k is not a or v is not b for (k, v), (a, b) in zip(items, value.items(), strict=True)
        ):
            value.clear()
            value.update(items)
    elif isinstance(value, list):
        value[:] = [_resolved(item, run, seen) for item in value]
    elif isinstance(value, tuple | set | frozenset):
        parts = [_resolved(item, run, seen) for item in value]
        if any(part is not item for part, item in zip(parts, value, strict=True)):
            made = type(value)
            return made(*parts) if hasattr(value, "_fields") else made(parts)
    elif dataclasses.is_dataclass(value) or hasattr(type(value), "model_fields"):
        for name, inner in list(vars(value).items()) if hasattr(value, "__dict__") else ():
            now = _resolved(inner, run, seen)
            if now is not inner:
                object.__setattr__(value, name, now)
    return value


def _text(text: str, run: RunContext) -> str:
    pieces = split(text)
    if len(pieces) == 1 and isinstance(pieces[0], str):
        return text
    return "".join(
        piece if isinstance(piece, str) else _result(call_of(piece, run)) for piece in pieces
    )


def _result(call: PendingCall) -> str:
    """What the program gets in a mark's place."""
    return "" if call.refused() and call.was_read else call.text


def text_of(call: PendingCall) -> str:
    """What a result left in its branch; waits. A call that was refused, and whose refusal was
    read, left nothing.
    """
    return "" if call.refused() and call.was_read else call.own_text()


def warn_of_leaks(run: RunContext) -> None:
    """Warns, at the program's line, of each mark that has found no place."""
    sites = [_marked[number][1] for number, is_placed in run.marks.items() if not is_placed]
    for site in dict.fromkeys(sites):
        message = (
            "a result was formatted into text before it was read, and that text was neither "
            "appended to a branch nor returned; wherever it went, it has a mark in the result's "
            "place: await the result (or read its .value) before formatting it"
        )
        warnings.warn_explicit(message, PendingTextWarning, site.file, site.line)


def forget_marks(run: RunContext) -> None:
    """The run has ended: its marks mean nothing any more."""
    for number in run.marks:
        del _marked[number]
    run.marks.clear()


SECRET = secrets.token_hex(8)
"""In every mark, and in no text from outside."""
# The secret stands at both ends, so that a mark which lost one of them is still noticed.
_MARK = re.compile(rf"⟦{SECRET} pending generation (\d+) {SECRET}⟧")


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a string where a result belongs; `marks` knows which."""

    number: int

    def __str__(self) -> str:
        return f"⟦{SECRET} pending generation {self.number} {SECRET}⟧"


def split(text: str) -> list[str | Mark]:
    """`text` in pieces, empty ones left out. Raises `ProgramError` where a mark is damaged."""
    if SECRET not in text.lower():
        return [text] if text else []
    pieces: list[str | Mark] = []
    end = 0
    for found in _MARK.finditer(text):
        pieces += [text[end : found.start()], Mark(int(found[1]))]
        end = found.end()
    pieces.append(text[end:])
    if any(isinstance(piece, str) and SECRET in piece.lower() for piece in pieces):
        raise ProgramError(
            "this text was made from a generation that is not done yet, and then cut or changed; "
            "await the generation (or read its .value) before working on its text"
        )
    return [piece for piece in pieces if piece != ""]
