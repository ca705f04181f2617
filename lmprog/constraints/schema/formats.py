"""The enforced `format`s, as patterns over the whole string; all others are annotations.

Each pattern accepts only valid strings of its format, as far as a regular expression of moderate
size can tell.
"""

from __future__ import annotations

from lmprog.constraints.schema.uris import (
    BYTE,
    HOSTNAME,
    IPV4,
    IPV6,
    PERCENT,
    PRIVATE,
    UCS,
    WORLD_HOST,
    Uris,
    label,
)

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
_NETWORK6 = rf"{IPV6}(/128)?"
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
