"""Pending results inside of strings: `f"Grade this: {draft}"` keeps pointing at a generation that
still runs.

A result that was not read gives a *mark* when it is formatted. A mark that is appended to a branch
becomes a reference, so that the runtime fills the text in and nobody waits. Where a run returns
strings with marks they are replaced by the results. A mark that is neither appended nor returned
has leaked (into a file, say), and `warn_of_leaks` finds it.

All characters of marks are of a range for private use that each process chooses for itself, so that
any one of them betrays that a mark was cut or changed: that is an error, never silently text. A
digest keeps a changed mark from standing for another result, and text from outside from being one.
"""

from __future__ import annotations

import dataclasses
import hashlib
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
_has_made_marks = False
"""Whether this process has made a mark; without one, texts are not searched for marks."""
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


def read(value: Any) -> Any:
    """`value` with pending results that are done replaced by what came of them, inside lists,
    tuples and dicts, too.
    """
    if isinstance(value, PendingCall) and value.done() and value.failure() is None:
        return value.outcome()
    kind = type(value)
    if kind is dict:
        items = {key: read(item) for key, item in value.items()}
        return items if any(items[key] is not value[key] for key in items) else value
    if kind is list or kind is tuple:
        parts = [read(item) for item in value]
        is_same = all(part is item for part, item in zip(parts, value, strict=True))
        return value if is_same else kind(parts)
    return value


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


_BASE = 0x100000 + 32 * secrets.randbelow(2047)
"""The first of 32 characters for private use: of sixteen digits, a beginning, a middle, an end."""
_DIGITS, (_BEGIN, _MIDDLE, _END) = (
    "".join(map(chr, range(_BASE, _BASE + 16))),
    (chr(_BASE + 16 + at) for at in range(3)),
)
_KEY = secrets.token_bytes(16)
_TO_DIGITS = str.maketrans("0123456789abcdef", _DIGITS)
_FROM_DIGITS = str.maketrans(_DIGITS, "0123456789abcdef")
_OURS = re.compile(f"[{chr(_BASE)}-{chr(_BASE + 31)}]")
_MARK = re.compile(f"{_BEGIN}([{_DIGITS}]+){_MIDDLE}([{_DIGITS}]{{16}}){_END}")


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a string where a result belongs."""

    number: int

    def __str__(self) -> str:
        global _has_made_marks
        _has_made_marks = True
        told = f"{self.number:x}".translate(_TO_DIGITS)
        return _BEGIN + told + _MIDDLE + _digest(self.number).translate(_TO_DIGITS) + _END


def _digest(number: int) -> str:
    return hashlib.blake2b(b"%d" % number, digest_size=8, key=_KEY).hexdigest()


def _escapes() -> tuple[str, ...]:
    """What our characters become where text is escaped, without the last digit: in JSON, in
    Python's literals of texts and of bytes, in URLs, in XML.
    """
    found: list[str] = []
    for first in (_BASE, _BASE + 16):
        character = chr(first)
        pair = character.encode("utf-16-be").hex()
        found += [f"\\u{pair[:4]}", f"\\u{pair[4:7]}", f"\\u{first:08x}"[:-1]]
        octets = character.encode().hex(" ").split()
        found += [mark + mark.join(octets)[:-1] for mark in ("%", "\\x")]
        found.append(f"&#x{first:x}"[:-1])
    return (*found, *(f"&#{_BASE + at}" for at in range(32)))


_ESCAPES = _escapes()


def may_have_marks(text: str) -> bool:
    """Whether a mark, or what is left of one, is in the text."""
    if not _has_made_marks:
        return False
    if not text.isascii() and _OURS.search(text):
        return True
    if "\\" in text or "%" in text or "&#" in text:
        lower = text.lower()
        return any(escape in lower for escape in _ESCAPES)
    return False


def split(text: str) -> list[str | Mark]:
    """`text` in pieces, empty ones left out. Raises `ProgramError` where a mark is damaged."""
    if not may_have_marks(text):
        return [text] if text else []
    pieces: list[str | Mark] = []
    end = 0
    for found in _MARK.finditer(text):
        number = int(found[1].translate(_FROM_DIGITS), 16)
        if found[2].translate(_FROM_DIGITS) == _digest(number):
            pieces += [text[end : found.start()], Mark(number)]
            end = found.end()
    pieces.append(text[end:])
    if any(isinstance(piece, str) and may_have_marks(piece) for piece in pieces):
        raise ProgramError(
            "this text was made from a generation that is not done yet, and then cut or changed; "
            "await the generation (or read its .value) before working on its text"
        )
    return [piece for piece in pieces if piece != ""]
