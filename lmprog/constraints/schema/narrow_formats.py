"""Formats beside other keywords: narrower patterns, whose automata stay small when they are
intersected, and wider ones for negation. Knows patterns; builds nothing.
"""

from __future__ import annotations

from lmprog.constraints.schema.formats import ATEXT
from lmprog.constraints.schema.uris import PRIVATE, UCS, WORLD_HOST, Uris, label


def _host(labels: int) -> str:
    return rf"{label(15)}(\.{label(15)}){{0,{labels - 1}}}"


def _uris(host: str, more: str = "", private: str = "") -> Uris:
    return Uris(host, more, private, "*", "*", "*", "", "+", "*", addresses=False)


_LOCAL = rf"{ATEXT}{{1,20}}(\.{ATEXT}{{1,20}}){{0,2}}"
_PLAIN, _WORLD = _uris(_host(5)), _uris(rf"({_host(5)}|{WORLD_HOST})", UCS, PRIVATE)
COMPACT: dict[str, str] = {
    "uri": _PLAIN.absolute,
    "uri-reference": _PLAIN.reference,
    "iri": _WORLD.absolute,
    "iri-reference": _WORLD.reference,
    **dict.fromkeys(("hostname", "idn-hostname"), _host(8)),
    **dict.fromkeys(("email", "idn-email"), rf"{_LOCAL}@{_host(5)}"),
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
