"""Public prefixes: files named by the operator, as the tokens with which prompts of theirs begin.

A file is a text, for plain prompts; or, where its name ends in `.json`, the first messages of chats
as a list of objects with `role` and `content`. The prefix is what all prompts that go on from there
have in common: a last token that may differ with the next letter is not part of it.

Knows files, the template and the tokenizer; does not know how prefixes are shared.
"""

from __future__ import annotations

import itertools
import json
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path

from lmprog.errors import InvalidParameter, LmprogError
from lmprog.runtime.programs.branch import RuntimeBranch
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.runtime.text.tokenizer import Tokenizer

_NEXT = ("A", "the", " a", "\n", "\n\n", "1", ".", "é", "日", "<", "-", "_", "'")
"""Beginnings of what may follow, as different as possible."""


def public_prefix(
    path: Path, tokenizer: Tokenizer, template: Callable[[], ChatTemplate]
) -> array[int]:
    """The tokens of one file. Raises InvalidParameter for one that cannot be read or used."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(path, f"it cannot be read: {error}") from error
    if path.suffix != ".json":
        return _common(_tokens(tokenizer, text + more) for more in _NEXT)
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(path, f"it is not valid JSON: {error}") from None
    if not (
        isinstance(messages, list) and messages and all(isinstance(one, dict) for one in messages)
    ):
        raise _wrong(path, "it is not a list of messages.")
    try:
        written = [
            template().render([*messages, {"role": "user", "content": more.strip() or "x"}])
            for more in _NEXT
        ]
    except LmprogError as error:
        raise _wrong(path, error.message) from error
    return _common(_tokens(tokenizer, one) for one in written)


def _tokens(tokenizer: Tokenizer, text: str) -> array[int]:
    """As those of a prompt."""
    branch = RuntimeBranch(0)
    branch.append(text)
    return branch.tokens_with(tokenizer)


def _common(texts: Iterable[array[int]]) -> array[int]:
    """The longest common prefix."""
    columns = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False))
    return array("i", [column[0] for column in columns])


def _wrong(path: Path, why: str) -> InvalidParameter:
    return InvalidParameter(
        f"The public prefix {path} cannot be used: {why}",
        name="public_prefix",
        value=str(path),
        allowed="a text, or messages in a .json file",
    )
