"""The enforced `format`s, as patterns over the whole string; all others are annotations.

Each pattern accepts only valid strings of its format, as far as a regular expression of moderate
size can tell.
"""

from __future__ import annotations

# Python's calendar has no year 0: at least one digit is not zero.
_YEAR = r"(\d{3}[1-9]|\d{2}[1-9]\d|\d[1-9]\d{2}|[1-9]\d{3})"
_DATE = (
    rf"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|"
    rf"02-(0[1-9]|1\d|2[0-8]))"
    r"|(\d{2}(0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26]|0[48])00)-02-29)"
)
_FRACTION = r"(\.\d{1,9})?"
_OFFSET = r"(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
# A leap second is the last second of a day in UTC.
_TIME = (
    rf"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d{_FRACTION}{_OFFSET}"
    rf"|23:59:60{_FRACTION}(Z|[+-]00:00))"
)


def _label(longest: int) -> str:
    """A DNS label. Hyphens at positions 3 and 4 are reserved for encodings (`xn--`)."""
    end, inside = "[A-Za-z0-9]", "[A-Za-z0-9-]"
    third = f"{end}({inside}{{0,{longest - 4}}}{end})?"
    hyphen = f"-{end}({inside}{{0,{longest - 5}}}{end})?"
    return f"{end}({end}|{inside}({third}|{hyphen}))?"


# At most 253 characters: a few long labels or many shorter ones.
_HOSTNAME = "|".join(
    rf"{_label(longest)}(\.{_label(longest)}){{{low},{high}}}"
    for longest, low, high in ((63, 0, 2), (31, 3, 6), (15, 7, 14))
)
_HOSTNAME = f"({_HOSTNAME})"
_ATEXT = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
# At most 64 characters: one long part or several shorter ones.
_LOCAL = "|".join(
    rf"{_ATEXT}{{1,{longest}}}(\.{_ATEXT}{{1,{longest}}}){{{dots}}}"
    for longest, dots in ((64, 0), (31, 1), (20, 2), (15, 3), (12, 4))
)
_QUOTED = r'"([ !#-\[\]-~]|\\["\\]){0,31}"'
_BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}"
_GROUP = r"[0-9A-Fa-f]{1,4}"
_IPV6 = (
    rf"(({_GROUP}:){{7}}({_GROUP}|:)|({_GROUP}:){{6}}(:{_GROUP}|:)|"
    rf"({_GROUP}:){{5}}((:{_GROUP}){{1,2}}|:)"
    rf"|({_GROUP}:){{4}}((:{_GROUP}){{1,3}}|:)|({_GROUP}:){{3}}((:{_GROUP}){{1,4}}|:)"
    rf"|({_GROUP}:){{2}}((:{_GROUP}){{1,5}}|:)|{_GROUP}:((:{_GROUP}){{1,6}}|:)|"
    rf":((:{_GROUP}){{1,7}}|:)"
    rf"|({_GROUP}:){{6}}{_IPV4}|::({_GROUP}:){{0,5}}{_IPV4})"
)
_EMAIL = rf"({_LOCAL}|{_QUOTED})@({_HOSTNAME}|\[({_IPV4}|IPv6:{_IPV6})\])"
_PERCENT = r"%[0-9A-Fa-f]{2}"
_PCHAR = rf"([A-Za-z0-9._~!$&'()*+,;=:@-]|{_PERCENT})"
# A URI has at most 2,083 characters, as browsers and pydantic have it.
_USER = rf"([A-Za-z0-9._~!$&'()*+,;=:-]|{_PERCENT}){{0,63}}@"
_AUTHORITY = rf"({_USER})?({_HOSTNAME}|\[{_IPV6}\])(:\d{{1,5}})?"
_TAIL = rf"(\?({_PCHAR}|[/?]){{0,250}})?(#({_PCHAR}|[/?]){{0,60}})?"
_PATH = rf"(/({_PCHAR}|/){{0,200}})?"
_FIRST = rf"([A-Za-z0-9._~!$&'()*+,;=@-]|{_PERCENT})"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]{{0,15}}:(//{_AUTHORITY}{_PATH}|/?{_PCHAR}{{1,100}}{_PATH}){_TAIL}"
# A name that is no IPv4 address for any parser: its last label has letters only.
_WEB_HOST = rf"({_label(48)}\.){{0,3}}[A-Za-z]{{2,20}}(:\d{{1,4}})?"
_RELATIVE = rf"(//{_AUTHORITY}{_PATH}|/?{_FIRST}{{0,100}}{_PATH}){_TAIL}"
# Six digits at most: parsers bound the days of a duration.
_COUNT = r"\d{1,6}"
_TIME_PARTS = rf"T({_COUNT}H({_COUNT}M({_COUNT}S)?)?|{_COUNT}M({_COUNT}S)?|{_COUNT}S)"
_DATE_PARTS = rf"({_COUNT}Y({_COUNT}M({_COUNT}D)?)?|{_COUNT}M({_COUNT}D)?|{_COUNT}D)"
_NETWORK4 = (
    rf"({_BYTE}\.0\.0\.0/8|{_BYTE}\.{_BYTE}\.0\.0/16|{_BYTE}\.{_BYTE}\.{_BYTE}\.0/24|{_IPV4}(/32)?)"
)
_NETWORK6 = rf"{_IPV6}(/128)?"
_PREFIX4, _PREFIX6 = r"(/(3[0-2]|[12]?\d))?", r"(/(12[0-8]|1[01]\d|[1-9]?\d))?"


def _uuid(version: int) -> str:
    """Of one version, in the layout that RFC 9562 says for it."""
    x = "[0-9A-Fa-f]"
    return rf"{x}{{8}}-{x}{{4}}-{version}{x}{{3}}-[89ABab]{x}{{3}}-{x}{{12}}"


_POINTER = r"(/([^~/]|~[01])*)*"

FORMATS: dict[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}T{_TIME}",
    "duration": rf"P({_COUNT}W|{_DATE_PARTS}({_TIME_PARTS})?|{_TIME_PARTS})",
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "hostname": _HOSTNAME,
    "idn-hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": r"[0-9A-Fa-f]{8}-([0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}",
    **{f"uuid{version}": _uuid(version) for version in (1, 3, 4, 5, 6, 7, 8)},
    # names of pydantic, and two for what pydantic has no name for: a time without an offset, and
    # the address of a web page
    "date-time-local": rf"{_DATE}T([01]\d|2[0-3]):[0-5]\d:[0-5]\d{_FRACTION}",
    "http-url": rf"https?://{_WEB_HOST}{_PATH}{_TAIL}",
    "ipvanyaddress": rf"({_IPV4}|{_IPV6})",
    "ipv4network": _NETWORK4,
    "ipv6network": _NETWORK6,
    "ipvanynetwork": rf"({_NETWORK4}|{_NETWORK6})",
    "ipv4interface": _IPV4 + _PREFIX4,
    "ipv6interface": _IPV6 + _PREFIX6,
    "ipvanyinterface": rf"({_IPV4}{_PREFIX4}|{_IPV6}{_PREFIX6})",
    "base64": r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
    "base64url": r"([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?",
    "uri": _URI,
    "iri": _URI,
    "uri-reference": rf"({_URI}|{_RELATIVE})",
    "iri-reference": rf"({_URI}|{_RELATIVE})",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(0|[1-9]\d*)(#|{_POINTER})",
}
