"""Hosts, addresses and URIs as patterns, in the sizes that formats need. Knows their grammar (RFC
1123, 3986, 3987, 4291, 5891) as far as a regular expression of moderate size can tell it.
"""

from __future__ import annotations

from dataclasses import dataclass


def label(longest: int) -> str:
    """A DNS label. Hyphens at positions 3 and 4 are reserved for encodings (`xn--`)."""
    end, inside = "[A-Za-z0-9]", "[A-Za-z0-9-]"
    third = f"{end}({inside}{{0,{longest - 4}}}{end})?"
    hyphen = f"-{end}({inside}{{0,{longest - 5}}}{end})?"
    return f"{end}({end}|{inside}({third}|{hyphen}))?"


# Letters that no combining mark and no rule about neighbours concerns, in lower case: those that
# IDNA 2008 takes anywhere. Eleven of them are less than 63 characters when encoded.
_LETTER = r"[a-z0-9\u00df-\u00f6\u00f8-\u00ff\u0192\u03ac-\u03ce\u0430-\u045f"
_LETTER += r"\u3041-\u3094\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3]"
_WORLD_LABEL = rf"{_LETTER}{{1,11}}"
WORLD_HOST = rf"{_WORLD_LABEL}(\.{_WORLD_LABEL}){{0,3}}"
# At most 253 characters: a few long labels or many shorter ones.
HOSTNAME = "|".join(
    rf"{label(longest)}(\.{label(longest)}){{{low},{high}}}"
    for longest, low, high in ((63, 0, 2), (31, 3, 6), (15, 7, 14))
)
HOSTNAME = f"({HOSTNAME})"
BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
IPV4 = rf"{BYTE}(\.{BYTE}){{3}}"
_GROUP = r"[0-9A-Fa-f]{1,4}"
IPV6 = (
    rf"(({_GROUP}:){{7}}({_GROUP}|:)|({_GROUP}:){{6}}(:{_GROUP}|:)|"
    rf"({_GROUP}:){{5}}((:{_GROUP}){{1,2}}|:)"
    rf"|({_GROUP}:){{4}}((:{_GROUP}){{1,3}}|:)|({_GROUP}:){{3}}((:{_GROUP}){{1,4}}|:)"
    rf"|({_GROUP}:){{2}}((:{_GROUP}){{1,5}}|:)|{_GROUP}:((:{_GROUP}){{1,6}}|:)|"
    rf":((:{_GROUP}){{1,7}}|:)"
    rf"|({_GROUP}:){{6}}{IPV4}|::({_GROUP}:){{0,5}}{IPV4}|"
    + "|".join(rf"({_GROUP}:){{{n}}}:({_GROUP}:){{0,{5 - n}}}{IPV4}" for n in range(1, 6))
    + ")"
)
PERCENT = r"%[0-9A-Fa-f]{2}"
_SIMPLE = "A-Za-z0-9._~!$&'()*+,;="
UCS = r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\u{10000}-\u{1fffd}\u{20000}-\u{2fffd}"
PRIVATE = r"\ue000-\uf8ff\u{f0000}-\u{ffffd}\u{100000}-\u{10fffd}"
_ADDRESS = rf"\[({IPV6}|[Vv][0-9A-Fa-f]\.[{_SIMPLE}:-]{{1,16}})\]"


@dataclass(frozen=True, slots=True)
class Uris:
    """The parts of URIs, or of IRIs: `more` are the characters beyond ASCII that these have,
    `private` those of queries alone. `path`, `query`, `fragment`, `user`: how long these may be,
    together at most 2,083 characters, as browsers and pydantic have it; "*" for unbounded.
    `addresses`: whether a host may be an address in brackets; `escapes`: whether characters may
    be written with a percent sign.
    """

    host: str
    more: str = ""
    private: str = ""
    path: str = "{0,200}"
    query: str = "{0,250}"
    fragment: str = "{0,60}"
    user: str = "{0,63}"
    first: str = "{1,100}"
    scheme: str = "{0,15}"
    addresses: bool = True
    escapes: bool = True

    def _char(self, others: str) -> str:
        char = rf"[{_SIMPLE}{others}{self.more}-]"
        return rf"({char}|{PERCENT})" if self.escapes else char

    @property
    def _authority(self) -> str:
        user = rf"({self._char(':')}{self.user}@)?" if self.user else ""
        host = rf"({self.host}|{_ADDRESS})" if self.addresses else f"({self.host})"
        return rf"//{user}{host}(:\d{{1,5}})?"

    @property
    def path_part(self) -> str:
        return rf"(/{self._char(':@/')}{self.path})?"

    @property
    def tail(self) -> str:
        query = self._char(f":@/?{self.private}")
        return rf"(\?{query}{self.query})?(#{self._char(':@/?')}{self.fragment})?"

    @property
    def absolute(self) -> str:
        without = rf"/?{self._char(':@')}{self.first}"
        scheme = rf"[A-Za-z][A-Za-z0-9+.-]{self.scheme}"
        return rf"{scheme}:({self._authority}{self.path_part}|{without}{self.path_part}){self.tail}"

    @property
    def reference(self) -> str:
        """A URI, or what is relative to one: with a host, from the root, or from here. Without a
        host it does not begin with two slashes.
        """
        rooted = rf"/({self._char(':@')}{self.first}{self.path_part})?"
        here = rf"({self._char('@')}{self.first}{self.path_part})?"
        return rf"({self.absolute}|({self._authority}{self.path_part}|{rooted}|{here}){self.tail})"
