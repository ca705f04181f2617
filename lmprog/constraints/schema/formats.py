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
_USER = rf"([A-Za-z0-9._~!$&'()*+,;=:-]|{_PERCENT})*@"
_AUTHORITY = rf"({_USER})?({_HOSTNAME}|\[{_IPV6}\])(:\d{{1,5}})?"
_TAIL = rf"(\?({_PCHAR}|[/?])*)?(#({_PCHAR}|[/?])*)?"
_PATH = rf"(/{_PCHAR}*)*"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*:(//{_AUTHORITY}{_PATH}|/?{_PCHAR}+{_PATH}){_TAIL}"
_RELATIVE = rf"(//{_AUTHORITY}{_PATH}|/?([A-Za-z0-9._~!$&'()*+,;=@-]|{_PERCENT})*{_PATH}){_TAIL}"
_TIME_PARTS = r"T(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S)"
_POINTER = r"(/([^~/]|~[01])*)*"

FORMATS: dict[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}T{_TIME}",
    "duration": rf"P(\d+W|(\d+Y(\d+M(\d+D)?)?|\d+M(\d+D)?|\d+D)({_TIME_PARTS})?|{_TIME_PARTS})",
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "hostname": _HOSTNAME,
    "idn-hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": r"[0-9A-Fa-f]{8}-([0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}",
    "uri": _URI,
    "iri": _URI,
    "uri-reference": rf"({_URI}|{_RELATIVE})",
    "iri-reference": rf"({_URI}|{_RELATIVE})",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(0|[1-9]\d*)(#|{_POINTER})",
}
