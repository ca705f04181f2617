"""Whether a place in an answer is quoted: a call that stands there is shown, not made.

Quoted is what stands in a block of code, between quotation marks or backticks, in quoted or
indented lines, in a comment, and in a tag that is open: a thought's, a mail's, that of another form
of calls. What is not closed goes on; only single quotes and short backticks, which also stand
alone, end with their paragraph. Knows texts; knows no forms.
"""

from __future__ import annotations

import re

_CLOSING = {
    '"': '"', "'": "'", "“": "”", "„": "“”", "‘": "’", "«": "»", "»": "«", "‹": "›",
    "「": "」", "『": "』", '"""': '"""', "'''": "'''", "<!--": "-->", "<![CDATA[": "]]>",
}  # fmt: skip
"""What ends each quotation: a text, or one of several characters."""
_STANDS_ALONE = frozenset("'‘`")
"""Ends with its paragraph."""
_VOID = frozenset(
    ["area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"]
)
"""Tags that nothing closes."""
_THOUGHTS = frozenset(["think", "thinking", "thought", "reasoning", "seed:think"])
_NOT_OPENING = r"(?!\d0s\b|tis\b|twas\b|em\b|til\b|cause\b)"  # the '90s, 'tis
_PART = re.compile(
    r"""\n[^\S\n]*(?=\n) | \n | `+ | ~{3,} | \\. | "{3} | '{3} | <!-- | --> | <!\[CDATA\[ | \]\]>
      | \[/?(?:quote|code|think)\b[^\]\n]*\] | ◁/?think▷ | <[/|｜]*[^\W\d][^<>]*>
      | ["“”„«»‹›「」『』'‘’]""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_ALONE = re.compile(_NOT_OPENING)
_NAME = re.compile(r"[^\s=>]+")
_MARGIN = re.compile(r"[ >*+-]*(?:\d+[.)][ ]+)?")
"""What may stand before a fence on its line."""
_QUOTED_LINE = re.compile(r"[^\S\n]{0,3}>|[ ]{4}|[ ]{0,3}\t")
_LONGEST_MARGIN = 64
_MOST_ALONE = 16
"""Marks that stand alone in one paragraph, of which it is known."""


class QuotedPlaces:
    """An answer, read up to some place. `thought`: the tag that the prompt has left open."""

    def __init__(self, thought: str = "") -> None:
        self._tags: list[str] = [_closing_name(thought)] if thought else []
        """What closes each tag that is open."""
        self._quote = ""
        """What opened the quotation that is open, of whatever kind."""
        self._since: list[str] = []
        """What was read since it was opened, where it may turn out to stand alone."""
        self._before = ("", "")
        """The line and the last character before that."""
        self._fence = ""
        """The backticks or tildes that opened a block of code."""
        self._is_closed_anywhere = False
        """Whether the block may also end within a line: it began in one, or this is still that."""
        self._line = ""
        """The beginning of the line."""
        self._last = "\n"
        """The last character."""

    def read(self, text: str) -> bool:
        """More of the answer, up to where something that counts begins; whether it is quoted."""
        at = 0
        for found in _PART.finditer(text):
            self._see(text[at : found.start()])
            at = found.end()
            self._take(found[0], text[at : at + 16])
            self._see(found[0])
        self._see(text[at:])
        is_open = bool(self._tags or self._quote or self._fence)
        return is_open or _QUOTED_LINE.match(self._line) is not None

    @property
    def is_thought(self) -> bool:
        """Whether a thought is open."""
        return any(tag.strip("/") in _THOUGHTS for tag in self._tags)

    def _see(self, text: str) -> None:
        if not text:
            return
        if self._may_stand_alone:
            self._since.append(text)
        line = text[text.rfind("\n") + 1 :]
        self._line = line if "\n" in text else self._line + line
        self._line = self._line[:_LONGEST_MARGIN]
        self._last = text[-1]

    def _take(self, part: str, after: str) -> None:
        if self._fence:
            self._inside_fence(part, after)
        elif self._quote:
            self._inside_quote(part, after)
        elif part[0] == "`" or part[0] == "~":
            self._ticks(part)
        elif part[0] == "\\" or part.isspace():
            pass
        elif part in _CLOSING:
            self._open(part, after)
        elif part[0] in "<[◁":
            self._tag(part)

    def _inside_fence(self, part: str, after: str) -> None:
        if part[0] == "\n":
            self._is_closed_anywhere &= not self._is_at_margin_of(self._fence)
        elif part.startswith(self._fence):
            ends_line = not after.partition("\n")[0].strip() and "\n" in after
            if self._is_closed_anywhere or (ends_line and self._is_at_margin()):
                self._fence = ""

    def _is_at_margin(self) -> bool:
        return _MARGIN.fullmatch(self._line) is not None

    def _is_at_margin_of(self, fence: str) -> bool:
        """Whether the line that ends here is the one that opened the block at its margin."""
        margin, found, _ = self._line.partition(fence)
        return bool(found) and _MARGIN.fullmatch(margin) is not None

    def _inside_quote(self, part: str, after: str) -> None:
        quote = self._quote
        if part[0] == "\n":
            if after.startswith("\n") and self._may_stand_alone:
                self._read_again()
        elif quote[0] == "`":
            self._quote = "" if part == quote else quote
        elif part[0] == "\\":
            pass
        elif len(_CLOSING[quote]) > 2:
            self._quote = "" if part == _CLOSING[quote] else quote
        elif part[0] in _CLOSING[quote]:
            within_word = part in "'’" and after[:1].isalnum()
            self._quote = quote if within_word else ""

    @property
    def _may_stand_alone(self) -> bool:
        return self._quote[:1] in _STANDS_ALONE and 0 < len(self._quote) < 3

    def _read_again(self) -> None:
        """At the end of a paragraph: a quotation mark that was not closed in it did not open a
        quotation, so the text behind it counts as not quoted.
        """
        for _ in range(_MOST_ALONE):
            text = "".join(self._since[1:])  # the first is the mark itself
            self._quote, self._since = "", []
            self._line, self._last = self._before
            self.read(text)
            if not self._may_stand_alone:
                return
        self._quote, self._since = "", []

    def _begin(self, quote: str) -> None:
        self._quote, self._since = quote, []
        self._before = ((self._line + quote)[:_LONGEST_MARGIN], quote[-1])

    def _ticks(self, part: str) -> None:
        if len(part) < 3:
            self._begin(part)
        else:
            self._fence, self._is_closed_anywhere = part, True

    def _open(self, part: str, after: str) -> None:
        if part == '"' and self._last.isdigit():
            return  # inches
        if part in "'‘" and (_is_in_word(self._last) or _ALONE.match(after) is None):
            return  # an apostrophe
        self._begin(part)

    def _tag(self, part: str) -> None:
        closed = _closed_name(part)
        if closed is not None:
            if closed in self._tags:
                del self._tags[_last_index(self._tags, closed) :]
        elif not part.endswith("/>") and _bare_name(part) not in _VOID:
            self._tags.append(_closing_name(part))


_THOUGHT_TAG = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z]{3,20}\]|◁/?\w{1,20}▷")
_BORDER = re.compile(r"^/|(?:^|_)(?:start|begin|end)(?:_of)?(?=_|$)")


def thought_tags(text: str) -> tuple[str, str] | None:
    """The first tag in a text that opens a thought, and the one that closes it; either may be the
    other's counterpart. None where there is neither.
    """
    tags: dict[bool, str] = {}
    for found in _THOUGHT_TAG.finditer(text):
        name = found[0].strip("<>[]◁▷|｜").lower()
        if _BORDER.sub("", name).strip("_|｜") in _THOUGHTS:
            is_closing = name.startswith("/") or "end" in name.split("_")
            tags.setdefault(is_closing, found[0])
    if not tags:
        return None
    closing = tags.get(True) or _counterpart(tags[False])
    return tags.get(False) or _counterpart(closing), closing


def _counterpart(tag: str) -> str:
    """The tag that closes one that opens, and the other way round."""
    for opens, closes in (("START", "END"), ("begin", "end"), ("start", "end")):
        for one, other in ((opens, closes), (closes, opens)):
            if one in tag:
                return tag.replace(one, other)
    return tag.replace("/", "", 1) if "/" in tag else f"{tag[0]}/{tag[1:]}"


def _is_in_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def _last_index(items: list[str], item: str) -> int:
    return len(items) - 1 - items[::-1].index(item)


def _bare_name(tag: str) -> str:
    found = _NAME.search(tag.strip("<>[]◁▷/|｜ ").lower())
    return "" if found is None else found[0]


def _closing_name(tag: str) -> str:
    """Under what name a tag is closed: `<think>`, `<|section_begin|>`, `<|START_ACTION|>`."""
    return re.sub("begin|start", "end", _bare_name(tag))


def _closed_name(tag: str) -> str | None:
    """The name that a tag closes; None for one that opens."""
    name = _bare_name(tag)
    is_closing = tag[1:].lstrip("|｜").startswith("/") or (tag[1] in "|｜" and "end" in name)
    return name if is_closing else None
