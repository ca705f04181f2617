"""Calls of tools in answers: the ids of calls, and which part of an answer is a call.

The form of calls is the model's own (`lmprog.calls`). Knows texts; knows no requests and no
constraints.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from lmprog import wire
from lmprog.calls.call_stream import CallStream
from lmprog.calls.harmony import HarmonyStream, ThoughtText
from lmprog.calls.reading import Parameters, ParsedCall, arguments_in

Choice: TypeAlias = Literal["none", "auto", "required", "named"]
AnswerPart: TypeAlias = str | ParsedCall | ThoughtText
"""Text for the user, a whole call, or text that was thought."""
_SHORT_ID = re.compile("[A-Za-z0-9]{9}")


def call_id(is_short: bool = False) -> str:
    """A new one; `is_short`: nine letters and digits, the only ones that some templates accept."""
    return secrets.token_hex(5)[:9] if is_short else f"call_{secrets.token_hex(12)}"


def shortened(id_: str) -> str:
    """Nine letters and digits for any id, always the same."""
    return id_ if _SHORT_ID.fullmatch(id_) else hashlib.sha256(id_.encode()).hexdigest()[:9]


class AnswerReader:
    """Reads calls out of an answer that comes in pieces: gives contents to pass on, and calls when
    they are whole, with ids that differ.
    """

    def __init__(
        self, calls: CallStream | HarmonyStream | None, one_at_most: bool, is_short: bool
    ) -> None:
        """`calls` None: all text is content."""
        self._calls = calls
        self._one_at_most = one_at_most
        self._is_short = is_short
        self._ids: set[str] = set()

    def feed(self, text: str, tags: Sequence[int] = ()) -> list[AnswerPart]:
        """What is certain now. `tags`: where in `text` special tokens begin."""
        if self._calls is None:
            return [text] if text else []
        return self._kept(self._calls.feed(text, tags))

    def finish(self, output: wire.Output | None = None) -> list[AnswerPart]:
        """The text has ended, as `output` says: what is held is a call, or it is content after
        all.
        """
        return [] if self._calls is None else self._kept(self._calls.finish(output))

    def _kept(self, parts: Sequence[AnswerPart]) -> list[AnswerPart]:
        kept: list[AnswerPart] = []
        for part in parts:
            if isinstance(part, ParsedCall):
                if self._ids and self._one_at_most:
                    continue
                part = self._named(part)
            kept.append(part)
        return kept

    def _named(self, call: ParsedCall) -> ParsedCall:
        """With an id of its own: the model's, where it wrote a new one."""
        id_ = call.id if call.id and call.id not in self._ids else call_id(self._is_short)
        self._ids.add(id_)
        return replace(call, id=id_)


class NamedReader:
    """The same where the text is the arguments of one tool."""

    def __init__(self, form: wire.CallForm, name: str, tools: Parameters, id_: str) -> None:
        self._form = form
        self._name = name
        self._tools = tools
        self._id = id_
        self._held = ""

    def feed(self, text: str, tags: Sequence[int] = ()) -> list[AnswerPart]:
        self._held += text
        return []

    def finish(self, output: wire.Output | None = None) -> list[AnswerPart]:
        arguments = arguments_in(self._form, self._held, self._tools[self._name])
        return [ParsedCall(self._name, arguments, self._id)]
