r"""The parts of a pattern that match one character: literals, escapes and `[classes]`.

Knows the escapes of Python's `re` and of ECMA-262. Does not know groups, quantifiers or anchors.
"""

from __future__ import annotations

import enum
import functools
import re
import unicodedata

from lmprog.constraints import charset
from lmprog.constraints.charset import CharSet
from lmprog.errors import GrammarError

_CONTROL = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_HEX_LENGTH = {"x": 2, "u": 4, "U": 8}
_HEX = frozenset("0123456789abcdefABCDEF")


_CATEGORIES = {
    "Letter": "L",
    "Lowercase_Letter": "Ll",
    "Uppercase_Letter": "Lu",
    "Mark": "M",
    "Number": "N",
    "Decimal_Number": "Nd",
    "Punctuation": "P",
    "Symbol": "S",
    "Separator": "Z",
    "Other": "C",
}
_CATEGORY = re.compile(r"L[ultmo]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?|C[cfon]?")


_CLASS = re.compile(r"\[\^?\]?[^\]\\]*(?:\\.[^\]\\]*)*\]", re.DOTALL)
"""Where a class ends, if it is well-formed."""
_LONGEST_KNOWN = 200


class NotRegular(GrammarError):
    """What is well-formed, and depends on text ahead, behind, or on how another part matched."""


class PatternDialect(enum.Enum):
    PYTHON = "Python"
    ECMA = "ECMA-262"


class SetReader:
    """Reads one-character parts of a pattern. Stateless: methods take and return positions."""

    def __init__(self, pattern: str, dialect: PatternDialect) -> None:
        self._text = pattern
        self._dialect = dialect

    def dot(self, dot_all: bool) -> CharSet:
        if dot_all:
            return charset.ALL
        return charset.complement(
            charset.of_text("\n" if self._dialect is PatternDialect.PYTHON else "\n\r\u2028\u2029")
        )

    def read(self, begin: int, ignore_case: bool, ascii_only: bool) -> tuple[CharSet, int]:
        """The set that starts at `begin`, and the position after it."""
        char = self._text[begin]
        if char == "[":
            return self._known_class(begin, ignore_case, ascii_only)
        if char == "\\":
            ranges, end = self._escape(begin, False, ascii_only)
        else:
            ranges, end = _one_character(char), begin + 1
            if not ignore_case:
                return ranges, end
        if ignore_case:
            one = ranges[0][0] if len(ranges) == 1 and ranges[0][0] == ranges[0][1] else None
            source = self._text[begin:end] if one is None else re.escape(chr(one))
            ranges = charset.folded(charset.charset(ranges), source, ascii_only)
        return charset.charset(ranges), end

    def word(self, ascii_only: bool) -> CharSet:
        """The characters between which `\\b` finds no edge."""
        is_ascii = ascii_only or self._dialect is PatternDialect.ECMA
        return charset.ASCII_WORD if is_ascii else charset.python_class("w")

    def _error(self, message: str, position: int) -> GrammarError:
        return GrammarError(f"{message} at position {position} of the pattern", position=position)

    def _known_class(self, begin: int, ignore_case: bool, ascii_only: bool) -> tuple[CharSet, int]:
        """A class, or the set of one that is written alike."""
        written = _CLASS.match(self._text, begin)
        if written is not None and len(written[0]) <= _LONGEST_KNOWN:
            found = _set_of_class(written[0], self._dialect, ignore_case, ascii_only)
            if found is not None:
                return found, written.end()
        return self.read_class(begin, ignore_case, ascii_only)

    def read_class(self, begin: int, ignore_case: bool, ascii_only: bool) -> tuple[CharSet, int]:
        at = begin + 1
        negated = self._text.startswith("^", at)
        at += negated
        first = at
        if self._dialect is PatternDialect.ECMA and self._text.startswith("]", at):
            raise self._error("an empty class is not supported", begin)
        parts: list[CharSet] = []
        while True:
            if at >= len(self._text):
                raise self._error("unterminated character set", begin)
            if self._text[at] == "]" and at > first:
                break
            part, at = self._class_item(at, negated, ascii_only)
            parts.append(part)
        members = charset.union(*parts)
        if ignore_case:
            members = charset.folded(members, f"[{self._text[first : at + 1]}", ascii_only)
        return (charset.complement(members) if negated else members), at + 1

    def _class_item(self, at: int, negated: bool, ascii_only: bool) -> tuple[CharSet, int]:
        """One character, escape or range of a class."""
        low, end = self._class_atom(at, negated, ascii_only)
        if not (self._text.startswith("-", end) and self._text[end + 1 : end + 2] not in ("]", "")):
            return low, end
        high, last = self._class_atom(end + 1, negated, ascii_only)
        for one in (low, high):
            if len(one) != 1 or one[0][0] != one[0][1]:
                raise self._error("bad character range", at)
        if high[0][0] < low[0][0]:
            raise self._error("bad character range", at)
        return ((low[0][0], high[0][0]),), last

    def _class_atom(self, at: int, negated: bool, ascii_only: bool) -> tuple[CharSet, int]:
        if at >= len(self._text):
            raise self._error("unterminated character set", at)
        if self._text[at] == "\\":
            return self._escape(at, True, ascii_only, negated)
        return ((ord(self._text[at]), ord(self._text[at])),), at + 1

    def _escape(
        self, at: int, in_class: bool, ascii_only: bool, negated: bool = False
    ) -> tuple[CharSet, int]:
        """The set of the escape at `at`; `negated` if it is inside a negated class."""
        char = self._text[at + 1 : at + 2]
        if not char:
            raise self._error("bad escape (end of pattern)", at)
        if char in "dswDSW":
            return self._letter_class(char, ascii_only, negated), at + 2
        if (
            char in _CONTROL
            and (char != "b" or in_class)
            and (char != "a" or self._dialect is PatternDialect.PYTHON)
        ):
            return self._single(_CONTROL[char], at + 2)
        if char in "bB":
            raise NotRegular(
                f"a word boundary is not supported at position {at} of the pattern", position=at
            )
        if char in _HEX_LENGTH and (char != "U" or self._dialect is PatternDialect.PYTHON):
            return self._hexadecimal(at, char)
        if char.isdigit() and char.isascii():
            return self._number(at, in_class)
        if char == "N" and self._dialect is PatternDialect.PYTHON:
            return self._named(at)
        if char in "pP" and self._dialect is PatternDialect.ECMA:
            return self._property(at, char)
        if (
            char == "c"
            and self._dialect is PatternDialect.ECMA
            and self._text[at + 2 : at + 3].isalpha()
        ):
            return self._single(ord(self._text[at + 2]) % 32, at + 3)
        if char.isascii() and char.isalpha():
            raise self._error(f"bad or unsupported escape \\{char}", at)
        return self._single(ord(char), at + 2)

    @staticmethod
    def _single(code: int, end: int) -> tuple[CharSet, int]:
        return ((code, code),), end

    def _letter_class(self, char: str, ascii_only: bool, negated: bool) -> CharSet:
        r"""`\d`, `\s`, `\w` and their complements.

        In ECMA mode, the smaller of the two dialects' sets where it adds characters, the larger one
        where it removes them.
        """
        lower = char.lower()
        takes_away = (char != lower) != negated
        if self._dialect is PatternDialect.ECMA:
            members = _ecma_class(lower, takes_away)
        elif ascii_only:
            members = {"d": charset.ASCII_DIGIT, "s": charset.ASCII_SPACE, "w": charset.ASCII_WORD}[
                lower
            ]
        else:
            members = charset.python_class(lower)
        return members if char == lower else charset.complement(members)

    def _hexadecimal(self, at: int, char: str) -> tuple[CharSet, int]:
        begin, length = at + 2, _HEX_LENGTH[char]
        if (
            self._dialect is PatternDialect.ECMA
            and char == "u"
            and self._text.startswith("{", begin)
        ):
            end = self._text.find("}", begin)
            digits, begin, length = self._text[begin + 1 : end], begin + 1, end - begin - 1
        else:
            digits = self._text[begin : begin + length]
        if (
            not digits
            or len(digits) < length
            or not _HEX.issuperset(digits)
            or int(digits, 16) > charset.MAX_CODE
        ):
            raise self._error(f"bad escape \\{char}", at)
        return self._single(int(digits, 16), begin + length + (self._text[begin - 1] == "{"))

    def _number(self, at: int, in_class: bool) -> tuple[CharSet, int]:
        """Octal escapes; any other number is a back-reference."""
        digits = re.compile(r"[0-7]{1,3}").match(self._text, at + 1)
        octal = digits.group() if digits else ""
        if self._dialect is PatternDialect.ECMA:
            if octal == "0" and not self._text[at + 2 : at + 3].isdigit():
                return self._single(0, at + 2)
            raise self._error("a back-reference or octal escape is not supported", at)
        if octal.startswith("0"):
            octal = octal[:3]
        elif len(octal) < 3 and not (in_class and octal):
            raise NotRegular(
                f"a back-reference is not regular and not supported at position {at} of the "
                "pattern",
                position=at,
            )
        code = int(octal, 8)
        if code > 0o377:
            raise self._error("an octal escape outside of 0-0o377", at)
        return self._single(code, at + 1 + len(octal))

    def _property(self, at: int, char: str) -> tuple[CharSet, int]:
        """`\\p{Lu}` and similar: general categories, by short name or common long name."""
        end = self._text.find("}", at)
        name = self._text[at + 3 : end].removeprefix("General_Category=").removeprefix("gc=")
        prefix = _CATEGORIES.get(name, name)
        if not self._text.startswith("{", at + 2) or end < 0 or not _CATEGORY.fullmatch(prefix):
            raise self._error(f"an unknown or unsupported property \\{char}{{{name}}}", at)
        members = charset.general_category(prefix)
        return (members if char == "p" else charset.complement(members)), end + 1

    def _named(self, at: int) -> tuple[CharSet, int]:
        end = self._text.find("}", at)
        name = self._text[at + 3 : end]
        if not self._text.startswith("{", at + 2) or end < 0:
            raise self._error("missing character name", at)
        try:
            return self._single(ord(unicodedata.lookup(name)), end + 1)
        except (KeyError, TypeError) as error:
            raise self._error(f"undefined character name {name!r}", at) from error


@functools.cache
def _ecma_class(letter: str, larger: bool) -> CharSet:
    small = {"d": charset.ASCII_DIGIT, "w": charset.ASCII_WORD, "s": charset.ECMA_SPACE}[letter]
    python = charset.python_class(letter)
    return charset.union(small, python) if larger else charset.intersect(small, python)


@functools.lru_cache(maxsize=1024)
def _one_character(char: str) -> CharSet:
    return charset.of_text(char)


@functools.lru_cache(maxsize=1024)
def _set_of_class(
    text: str, dialect: PatternDialect, ignore_case: bool, ascii_only: bool
) -> CharSet | None:
    """None for what is refused: the error tells a place in the whole pattern."""
    try:
        found, end = SetReader(text, dialect).read_class(0, ignore_case, ascii_only)
    except GrammarError:
        return None
    return found if end == len(text) else None
