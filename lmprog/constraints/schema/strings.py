"""String schemas as text sets: lengths, patterns, formats and exclusions. Does not know bytes.

Look-ahead at the very beginning of a pattern is taken apart: `^(?!a)(?=b)c` is `^c`, and `^b`, and
not `^a`, which has fewer states than look-around anywhere else.

`format`s are patterns over the whole string; those that are not enforced are annotations. The exact
ones accept only valid strings, as far as a regular expression of moderate size can tell (hosts,
addresses and URIs: RFC 1123, 3986, 3987, 4291, 5891). Beside other keywords there are narrower
ones, whose automata stay small when they are intersected, and for negation wider ones.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.expression import ANYTHING, Expression, lengths, somewhere, whole
from lmprog.constraints.pattern import parse_pattern, with_looks
from lmprog.constraints.pattern_sets import PatternDialect
from lmprog.constraints.schema.flat import Sourced, StringFacet
from lmprog.constraints.text_set import TextSet, contains
from lmprog.errors import GrammarError, UnsupportedSchema


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


# --- exact formats

# Python's calendar has no year 0: at least one digit is not zero.
_YEAR = r"(\d{3}[1-9]|\d{2}[1-9]\d|\d[1-9]\d{2}|[1-9]\d{3})"
_DATE = (
    rf"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|"
    rf"02-(0[1-9]|1\d|2[0-8]))"
    r"|(\d{2}(0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26]|0[48])00)-02-29)"
)
_FRACTION = r"(\.\d{1,18})?"
_OFFSET = r"(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
# A leap second is the last second of a day in UTC.
_TIME = (
    rf"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d{_FRACTION}{_OFFSET}"
    rf"|23:59:60{_FRACTION}(Z|[+-]00:00))"
)


ATEXT = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
# At most 64 characters: one long part or several shorter ones.
_LOCAL = "|".join(
    rf"{ATEXT}{{1,{longest}}}(\.{ATEXT}{{1,{longest}}}){{{dots}}}"
    for longest, dots in ((64, 0), (31, 1), (20, 2), (15, 3), (12, 4))
)
_QUOTED = r'"([ !#-\[\]-~]|\\["\\]){0,31}"'
_EMAIL = rf"({_LOCAL}|{_QUOTED})@({HOSTNAME}|\[({IPV4}|IPv6:{IPV6})\])"
_WORLD_TEXT = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\u00a1-\ud7ff\ue000-\U0010ffff-]".replace(
    r"\U0010ffff", r"\u{10ffff}"
)
_WORLD_LOCAL = rf"({_WORLD_TEXT}{{1,16}}|\"{_WORLD_TEXT}{{1,14}}\")"
_WORLD_EMAIL = rf"({_EMAIL}|{_WORLD_LOCAL}@({HOSTNAME}|{WORLD_HOST}))"
_ASCII_URIS = Uris(HOSTNAME)
_IRIS = Uris(rf"({HOSTNAME}|{WORLD_HOST})", UCS, PRIVATE)
# A name that is no IPv4 address for any parser: its last label has letters only.
_WEB_HOST = rf"({label(48)}\.){{0,3}}[A-Za-z]{{2,20}}(:\d{{1,4}})?"
_WEB_TAIL = rf"{_ASCII_URIS.path_part}{_ASCII_URIS.tail}"
_VARIABLE = rf"([A-Za-z0-9_]|{PERCENT})(\.?([A-Za-z0-9_]|{PERCENT}))*(:[1-9]\d{{0,3}}|\*)?"
_EXPRESSION = rf"\{{[+#./;?&]?{_VARIABLE}(,{_VARIABLE})*\}}"
_LITERAL = rf"[!#$&-;=?-\[\]_a-z~{UCS}{PRIVATE}]"
_TEMPLATE = rf"({_LITERAL}|{PERCENT}|{_EXPRESSION})*"
# Six digits at most: parsers bound the days of a duration.
_COUNT = r"\d{1,6}"
_TIME_PARTS = rf"T({_COUNT}H({_COUNT}M({_COUNT}S)?)?|{_COUNT}M({_COUNT}S)?|{_COUNT}S)"
_DATE_PARTS = rf"({_COUNT}Y({_COUNT}M({_COUNT}D)?)?|{_COUNT}M({_COUNT}D)?|{_COUNT}D)"
_NETWORK4 = (
    rf"({BYTE}\.0\.0\.0/8|{BYTE}\.{BYTE}\.0\.0/16|{BYTE}\.{BYTE}\.{BYTE}\.0/24|{IPV4}(/32)?)"
)
_NETWORK6 = (
    "("
    + "|".join(rf"([0-9A-Fa-f]{{1,4}}:){{{groups}}}:/{16 * groups}" for groups in (1, 2, 3, 4))
    + rf"|{IPV6}(/128)?)"
)
_PREFIX4, _PREFIX6 = r"(/(3[0-2]|[12]?\d))?", r"(/(12[0-8]|1[01]\d|[1-9]?\d))?"


def _uuid(version: int) -> str:
    """Of one version, in the layout that RFC 9562 says for it."""
    x = "[0-9A-Fa-f]"
    return rf"{x}{{8}}-{x}{{4}}-{version}{x}{{3}}-[89ABab]{x}{{3}}-{x}{{12}}"


_POINTER = r"(/([^~/]|~[01])*)*"


# From few to many: one digit and one that is no less, or numbers of more and more digits.
_BETWEEN = "|".join(f"{low},[{low}-9]" for low in range(10)) + r"|\d,[1-9]\d{1,2}|\d\d,[1-9]\d\d"


def _regex(depth: int) -> str:
    """Regular expressions of ECMA-262 with groups nested so deeply, without look-around."""
    escape = r"\\([dDwWsSfnrtv^$\\.*+?()[\]{}|/]|c[A-Za-z])"
    inside = rf"([A-Za-z0-9 _.,:;@#%&=!'\"<>~`+*?(){{}}|$/]|{escape}|a-z|A-Z|0-9)"
    atoms = [r"[^\\^$.*+?()[\]{}|/\u0000-\u001f]", r"\.", escape, rf"\[\^?{inside}*\]"]
    if depth:
        atoms.append(rf"\((\?:)?{_regex(depth - 1)}\)")
    piece = rf"({'|'.join(atoms)})([*+?]|\{{({_BETWEEN}|\d{{1,3}},?)\}})?"
    way = rf"\^?({piece})*\$?"
    return rf"{way}(\|{way})*"


FORMATS: dict[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}T{_TIME}",
    "duration": rf"P({_COUNT}W|{_DATE_PARTS}({_TIME_PARTS})?|{_TIME_PARTS})",
    "email": _EMAIL,
    "idn-email": _WORLD_EMAIL,
    "hostname": HOSTNAME,
    "idn-hostname": rf"({HOSTNAME}|{WORLD_HOST})",
    "ipv4": IPV4,
    "ipv6": IPV6,
    "uuid": r"[0-9A-Fa-f]{8}-([0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}",
    **{f"uuid{version}": _uuid(version) for version in (1, 3, 4, 5, 6, 7, 8)},
    # names of pydantic, and two for what pydantic has no name for: a time without an offset, and
    # the address of a web page
    "date-time-local": rf"{_DATE}T([01]\d|2[0-3]):[0-5]\d:[0-5]\d{_FRACTION}",
    "http-url": rf"https?://{_WEB_HOST}{_WEB_TAIL}",
    "ipvanyaddress": rf"({IPV4}|{IPV6})",
    "ipv4network": _NETWORK4,
    "ipv6network": _NETWORK6,
    "ipvanynetwork": rf"({_NETWORK4}|{_NETWORK6})",
    "ipv4interface": IPV4 + _PREFIX4,
    "ipv6interface": IPV6 + _PREFIX6,
    "ipvanyinterface": rf"({IPV4}{_PREFIX4}|{IPV6}{_PREFIX6})",
    "base64": r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
    "base64url": r"([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?",
    "uri": _ASCII_URIS.absolute,
    "iri": _IRIS.absolute,
    "uri-reference": _ASCII_URIS.reference,
    "iri-reference": _IRIS.reference,
    "uri-template": _TEMPLATE,
    "regex": _regex(2),
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(0|[1-9]\d*)(#|{_POINTER})",
}


# --- beside other keywords, and negated


def _host(labels: int) -> str:
    return rf"{label(15)}(\.{label(15)}){{0,{labels - 1}}}"


def _uris(host: str, more: str = "", private: str = "") -> Uris:
    return Uris(host, more, private, "*", "*", "*", "", "+", "*", addresses=False)


_SHORT_LOCAL = rf"{ATEXT}{{1,20}}(\.{ATEXT}{{1,20}}){{0,2}}"
_PLAIN, _WORLD = _uris(_host(5)), _uris(rf"({_host(5)}|{WORLD_HOST})", UCS, PRIVATE)
COMPACT: dict[str, str] = {
    "uri": _PLAIN.absolute,
    "uri-reference": _PLAIN.reference,
    "iri": _WORLD.absolute,
    "iri-reference": _WORLD.reference,
    **dict.fromkeys(("hostname", "idn-hostname"), _host(8)),
    **dict.fromkeys(("email", "idn-email"), rf"{_SHORT_LOCAL}@{_host(5)}"),
}
"""Without counts that are large: unbounded paths, hosts and names of short parts."""

_FEWEST = 60
"""Characters of which a URI's parts get a share each; with fewer `COMPACT` is small enough."""
_AUTHORITY = 52
"""Characters of the scheme and the host in a URI of limited length, and what separates them."""


def sized(name: str, most: int) -> str | None:
    """The pattern of a format with at most `most` characters; None where there is none."""
    if most >= _FEWEST and name in ("uri", "iri", "uri-reference", "iri-reference"):
        tail, host = most - _AUTHORITY, _host(2)
        path, query = tail * 6 // 10, tail * 3 // 10
        fragment = tail - path - query - 3
        uris = Uris(
            host,
            path=f"{{0,{path}}}",
            query=f"{{0,{query}}}",
            fragment=f"{{0,{fragment}}}",
            user="",
            first=f"{{1,{_AUTHORITY - 12}}}",
            scheme="{0,7}",
            addresses=False,
            escapes=False,
        )
        return uris.absolute if name in ("uri", "iri") else uris.reference
    if most >= 4 and name in ("hostname", "idn-hostname"):
        return f"{label(min(63, most))}" if most < 32 else _of_labels(most)
    if most >= 8 and name in ("email", "idn-email"):
        local = min(64, most // 2)
        rest = most - local - 1
        return rf"{ATEXT}{{1,{local}}}@" + (label(max(rest, 6)) if rest < 32 else _of_labels(rest))
    return None


def _of_labels(most: int) -> str:
    """Labels of at most 15 characters, in all at most `most`."""
    return _host(min(15, (most + 1) // 16))


_NO_URI = r"[^ \"<>\\^`{|}\u0000-\u001f]*"
_LOOSE_UUID = "[0-9A-Za-z{}:-]*"
LOOSE: dict[str, str] = {
    "date": r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "time": r"[0-9]{2}:[0-9]{2}:[\s\S]*",
    **dict.fromkeys(("date-time", "date-time-local"), r"[0-9]{4}-[0-9]{2}-[0-9]{2}[\s\S]+"),
    "duration": r"[Pp][\s\S]*",
    **dict.fromkeys(("email", "idn-email"), r"[\s\S]*@[\s\S]*"),
    "hostname": "[A-Za-z0-9._-]*",
    "ipv4": "[0-9A-Za-z.]*",
    "ipv6": "[0-9A-Za-z:.%-]*",
    "uuid": _LOOSE_UUID,
    **{f"uuid{version}": _LOOSE_UUID for version in (1, 3, 4, 5, 6, 7, 8)},
    **dict.fromkeys(("uri", "iri", "http-url"), r"[\s\S]*:[\s\S]*"),
    **dict.fromkeys(("uri-reference", "iri-reference"), _NO_URI),
    "uri-template": r"[^ \"<>\\^`|\u0000-\u001f]*",
    "json-pointer": r"(/[\s\S]*)?",
    "relative-json-pointer": r"[0-9][\s\S]*",
    "base64": "[A-Za-z0-9+/=]*",
    "base64url": "[A-Za-z0-9_=-]*",
}
"""For negation: every string of the format, by any reading of its standard, matches."""


class Searched(NamedTuple):
    """The strings that all of `within` match and none of `outside`."""

    within: tuple[Expression, ...]
    outside: tuple[Expression, ...] = ()

    @property
    def texts(self) -> TextSet:
        return TextSet(self.within, self.outside)

    def takes(self, text: str) -> bool:
        return contains(self.texts, text)

    def others(self) -> list[TextSet]:
        """All other strings, as a union."""
        return [
            *(TextSet(outside=(one,)) for one in self.within),
            *(TextSet((one,)) for one in self.outside),
        ]


def text_set(facet: StringFacet, limits: CompileLimits) -> TextSet:
    """The strings that the facet accepts."""
    found = [search_pattern(pattern, limits) for pattern in facet.patterns]
    within = [one for search in found for one in search.within]
    outside = [one for search in found for one in search.outside]
    within += [_format(facet, one.text, limits) for one in facet.formats if one.text in FORMATS]
    outside += [_certainly_not(one, limits) for one in facet.not_formats]
    for pattern in facet.not_patterns:
        search = search_pattern(pattern, limits)
        is_one = len(search.within) == 1 and not search.outside
        outside.append(search.within[0] if is_one else _found(pattern.text, limits))
    return TextSet(tuple(within), tuple(outside), facet.low, facet.high, facet.excluded)


def search_pattern(pattern: Sourced, limits: CompileLimits) -> Searched:
    """The strings that contain a match of a schema's pattern."""
    return _search(pattern.text, pattern.path, limits)


@functools.lru_cache(maxsize=256)
def _search(pattern: str, path: str, limits: CompileLimits) -> Searched:
    keyword = path.rpartition("/")[2]
    rest, looks = without_looks(pattern)
    try:
        wanted = [rest, *(text for is_wanted, text in looks if is_wanted)]
        unwanted = [text for is_wanted, text in looks if not is_wanted]
        return Searched(*(tuple(_found(one, limits) for one in of) for of in (wanted, unwanted)))
    except GrammarError as error:
        raise UnsupportedSchema(
            f"{keyword} at {path}: {error.message}", keyword=keyword, path=path
        ) from error


def _found(pattern: str, limits: CompileLimits) -> Expression:
    return with_looks(somewhere, pattern, limits, PatternDialect.ECMA)


def _certainly_not(one: Sourced, limits: CompileLimits) -> Expression:
    """Every string that may have the format. A format that is not enforced may be any string's."""
    if one.text not in FORMATS:
        return ANYTHING
    if one.text not in LOOSE:
        raise UnsupportedSchema(
            f"format at {one.path}: {one.text!r} cannot be negated", keyword="format", path=one.path
        )
    return _read(LOOSE[one.text], limits)


def _format(facet: StringFacet, name: str, limits: CompileLimits) -> Expression:
    """The strings of a format; fewer of them beside other keywords that would need more states
    than there may be.
    """
    plain = _read(FORMATS[name], limits)
    shortest, longest = lengths(plain)
    fits = facet.high is None or (longest is not None and longest <= facet.high)
    others = facet.patterns + facet.not_patterns + facet.not_formats + facet.formats[1:]
    if name not in COMPACT or (fits and facet.low <= shortest and not others):
        return plain
    if facet.high is not None and facet.low <= shortest and not others:
        pattern = sized(name, facet.high)
        if pattern is not None:
            return _read(pattern, limits)
    return _read(COMPACT[name], limits)


@functools.lru_cache(maxsize=64)
def _read(pattern: str, limits: CompileLimits) -> Expression:
    return whole(parse_pattern(pattern, limits, PatternDialect.ECMA))


# --- look-ahead


def without_looks(pattern: str) -> tuple[str, list[tuple[bool, str]]]:
    """The pattern without them, and each of them as a pattern that has to match, or must not."""
    looks: list[tuple[bool, str]] = []
    if "[]" in pattern or "[^]" in pattern:  # dialects do not agree where such a class ends
        return pattern, looks
    at = 1
    while pattern[:1] == "^" and pattern[at : at + 3] in ("(?=", "(?!"):
        end = _end_of_group(pattern, at)
        if end < 0 or pattern[end : end + 1] in ("*", "+", "?", "{"):
            return pattern, []
        looks.append((pattern[at + 2] == "=", f"^(?:{pattern[at + 3 : end - 1]})"))
        at = end
    rest = pattern[at:]
    if not looks or _has_alternatives(rest):
        return pattern, []
    return f"^{rest.removeprefix('^')}", looks


def _end_of_group(pattern: str, begin: int) -> int:
    """Behind the bracket that closes the group which begins there; -1 where there is none."""
    depth = 0
    for at, char in _outside_of_classes(pattern, begin):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return at + 1
    return -1


def _has_alternatives(pattern: str) -> bool:
    depth = 0
    for _, char in _outside_of_classes(pattern, 0):
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            return True
    return False


def _outside_of_classes(pattern: str, begin: int) -> Iterator[tuple[int, str]]:
    """The characters that mean themselves or a bracket, without what a class or a backslash has."""
    at, in_class = begin, False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        else:
            yield at, char
        at += 1
