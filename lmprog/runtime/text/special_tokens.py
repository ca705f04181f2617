"""Special tokens in texts: those that users write into chat messages stay plain text; those that
mark the gaps that a model fills are found.

A template mixes its own text with that of messages, and may trim, cut and compare messages. So the
conversation is rendered twice: once as it is, and once with the characters that special tokens
begin or end with replaced, in everything that came with the request, by unused ones. A special
token in both renders is the template's own. Where both have the same special tokens nothing was
forged, and the first render is used. Otherwise the second is, with the characters restored and
marked as quoted, so that no special token contains them.

Tags that the template looks for (`</think>`, `<tool_response>`) and that are not special tokens are
kept. What a template writes in plain letters (Llama 2's `[INST]`, say) can still be forged: no
tokenizer can tell it apart.

Knows strings and the names of tokens; knows no Jinja.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from lmprog.errors import NotSupported
from lmprog.runtime.text.quoting import Span, names_pattern
from lmprog.runtime.text.tokenizer import Tokenizer

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"
Write: TypeAlias = "Callable[[Callable[[JsonValue], JsonValue]], str]"
"""Renders a conversation after applying the given function to each of its values."""

_TAG = re.compile(r"</?[A-Za-z_][\w.-]*>|\[/?[A-Z_]+\]")
_PRIVATE = range(0xE000, 0xF900)
"""Private-use characters: those that neither request nor template contain are replacements."""
_STRUCTURAL = "_\"'`{}\\"

_INFILLS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
)
"""Before the beginning, before the end, and where the model goes on."""


class Passage(NamedTuple):
    """A text and its quoted spans, in which no special token is read."""

    text: str
    quoted: tuple[Span, ...] = ()


class SpecialTokenGuard:
    """Knows the names of a model's special tokens."""

    def __init__(self, names: Iterable[str], check: Callable[[str], None] = lambda _: None) -> None:
        """`check` raises for a text that is too long."""
        self._check = check
        self._names = [*dict.fromkeys(filter(None, names))]
        self._pattern = names_pattern(self._names)
        self._signs = {
            sign for name in self._names for sign in (name[0], name[-1]) if _is_sign(sign)
        }
        self._words = [name for name in self._names if not {name[0], name[-1]} & self._signs]

    def holds(self, text: str) -> bool:
        """Whether `text` spells a special token."""
        return self._pattern is not None and self._pattern.search(text) is not None

    def written(self, write: Write, values: Sequence[JsonValue], source: str) -> Passage:
        """The render by `write` of a conversation of `values`, by a template of this `source`.

        Raises what `write` and the check raise, and NotSupported where the template refuses the
        replacement of a forged token.
        """
        try:
            return self._written(write, values, source)
        except RecursionError:
            raise NotSupported("the conversation is nested too deeply.") from None

    def _written(self, write: Write, values: Sequence[JsonValue], source: str) -> Passage:
        text = write(_same)
        self._check(text)
        strings = [string for value in values for string in _strings(value)]
        disguise = self._disguise(source)
        if self._pattern is None or disguise is None or not any(map(disguise.search, strings)):
            return Passage(text)
        marks = self._marks([source, text, *strings])
        try:
            other = write(
                lambda value: _mapped(value, lambda string: _disguised(string, disguise, marks))
            )
        except NotSupported:
            if any(map(self.holds, strings)):
                raise
            return Passage(text)
        own, kept = (
            [(found[0], found.start()) for found in self._pattern.finditer(one)]
            for one in (text, other)
        )
        if len(text) == len(other):
            forged = own != kept
        else:
            forged = [name for name, _ in own] != [name for name, _ in kept] or any(
                map(self.holds, strings)
            )
        return _revealed(other, marks) if forged else Passage(text)

    def _disguise(self, source: str) -> re.Pattern[str] | None:
        """Matches what is kept (as group 1), names of letters, and signs. None where nothing can be
        forged.
        """
        tags = [
            tag
            for tag in dict.fromkeys(_TAG.findall(source))
            if not any(tag in name or name in tag for name in self._names)
        ]
        spared = names_pattern(tags)
        found = names_pattern([*self._words, *self._signs])
        if found is None:
            return None
        return (
            re.compile(f"({spared.pattern})|{found.pattern}")
            if spared
            else re.compile(f"(?!)()|{found.pattern}")
        )

    def _marks(self, used: Sequence[str]) -> dict[str, str]:
        """The replacement of each character."""
        taken = set().union(*map(set, used))
        escaped = {
            found.lower() for text in used for found in re.findall(r"\\u[0-9a-fA-F]{4}", text)
        }
        free = (
            chr(code)
            for code in _PRIVATE
            if chr(code) not in taken and f"\\u{code:04x}" not in escaped
        )
        signs = sorted(self._signs | {name[0] for name in self._words})
        marks = dict(zip(signs, free, strict=False))
        if len(marks) < len(signs):
            raise NotSupported(
                "the conversation contains too many private-use characters (U+E000 to U+F8FF)."
            )
        return marks


UNGUARDED = SpecialTokenGuard(())
"""For models without special tokens."""


def _is_sign(character: str) -> bool:
    """Whether it is in no name of a field or tool, in no JSON syntax, and never trimmed."""
    return not (character.isalnum() or character.isspace() or character in _STRUCTURAL)


def _same(value: JsonValue) -> JsonValue:
    return value


def _mapped(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(one, change) for one in value]
    if isinstance(value, dict):
        return {change(name): _mapped(one, change) for name, one in value.items()}
    return value


def _strings(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
    elif isinstance(value, dict):
        for name, one in value.items():
            yield name
            yield from _strings(one)


def _disguised(text: str, disguise: re.Pattern[str], marks: dict[str, str]) -> str:
    return disguise.sub(
        lambda found: found[0] if found[1] else marks[found[0][0]] + found[0][1:], text
    )


def _revealed(text: str, marks: dict[str, str]) -> Passage:
    """The text with the replaced characters restored and quoted; JSON may have escaped them."""
    signs = {mark: sign for sign, mark in marks.items()}
    signs |= {f"\\u{ord(mark):04x}": sign for sign, mark in marks.items()}
    parts: list[str] = []
    quoted: list[Span] = []
    length = last = 0
    for found in re.finditer("|".join(map(re.escape, signs)), text):
        parts += [text[last : found.start()], signs[found[0]]]
        length += found.start() - last + 1
        begin = quoted.pop()[0] if quoted and quoted[-1][1] == length - 1 else length - 1
        quoted.append((begin, length))
        last = found.end()
    return Passage("".join([*parts, text[last:]]), tuple(quoted))


def infill_texts(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The three texts, each of which is one token; () where the model has none of those known."""
    for texts in _INFILLS:
        if all(len(tokenizer.encode(text, start=False)) == 1 for text in texts):
            return texts
    return ()
