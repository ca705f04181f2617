"""One JSON Schema document and the resolution of its references.

References stay inside the document (`#/...`, anchors, embedded `$id`s), of which schemas that a
caller gives by their URIs are a part (`wire.JsonSchema.with_others`); nothing is ever fetched.
Knows JSON pointers and URIs; does not know the meaning of keywords.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Hashable, Iterator
from decimal import Decimal
from typing import TypeAlias
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from lmprog.errors import UnsupportedSchema
from lmprog.wire.constraints import read_json, written_json

Json: TypeAlias = bool | int | Decimal | str | list["Json"] | dict[str, "Json"] | None
Schema: TypeAlias = bool | dict[str, Json]

_DATA = frozenset(["const", "enum", "default", "examples"])
_NAMED = frozenset(
    [
        *("properties", "patternProperties", "dependentSchemas", "dependencies"),
        *("definitions", "$defs", "bundled"),
    ]
)
_APPLYING = frozenset(
    [
        *("items", "additionalItems", "prefixItems", "contains", "unevaluatedItems"),
        *("additionalProperties", "unevaluatedProperties", "propertyNames", "contentSchema"),
        *("if", "then", "else", "allOf", "anyOf", "oneOf", "not"),
    ]
)
"""The keywords with schemas by name, and with one or several."""
_MAX_DEPTH = 200


class Located:
    """A schema and its path, which is unique within the document and so serves as a cache key.
    Read-only. `scope`: the URIs of the resources that the way here has entered, the first one
    first, where a `$dynamicRef` may depend on it; a schema has another path in each scope.
    """

    __slots__ = ("base", "path", "scope", "value")

    def __init__(
        self, path: str, base: str, value: Schema, scope: tuple[str, ...] | None = None
    ) -> None:
        self.path = path
        self.base = base
        self.value = value
        self.scope = scope

    def child(self, *steps: str | int) -> Located:
        """The subschema at these keys and indexes. Raises UnsupportedSchema if there is none."""
        value: Json = self.value
        path = self.path
        for step in steps:
            path = f"{path}/{escape(step) if isinstance(step, str) else step}"
            is_inside = isinstance(value, dict) or isinstance(value, list)  # noqa: SIM101  quicker
            value = value[step] if is_inside else None  # type: ignore[index]
        return self.sibling(path, value)

    def sibling(self, path: str, value: Json) -> Located:
        """A derived schema with its own `path` below this one."""
        if isinstance(value, dict):
            name = value.get("$id")
            if not isinstance(name, str):
                return Located(path, self.base, value, self.scope)
            base = _joined(self.base, name, path, "$id")
            return Located(path, base, value, _with_resource(self.scope, base))
        if isinstance(value, bool):
            return Located(path, self.base, value, self.scope)
        raise UnsupportedSchema(
            f"a schema is expected at {path}", keyword=path.rpartition("/")[2], path=path
        )


def _with_resource(scope: tuple[str, ...] | None, base: str) -> tuple[str, ...] | None:
    url = urldefrag(base).url
    return scope if scope is None or url in scope else (*scope, url)


def _joined(base: str, reference: str, path: str, keyword: str) -> str:
    """The URI that `reference` names from `base`. Raises UnsupportedSchema if that is none."""
    try:
        made = urljoin(base, reference)
        urlsplit(made)  # without a base, nothing has looked at it yet
        return made
    except ValueError:  # brackets that hold no address, characters that no host has
        raise UnsupportedSchema(
            f"{keyword} {reference!r} is no URI", keyword=keyword, path=f"{path}/{keyword}"
        ) from None


def escape(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1") if "~" in step or "/" in step else step


class Document:
    """Its text is read when it is first asked for anything."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._resources: dict[str, Located] = {}
        self._anchors: dict[str, Located] = {}
        self._dynamic: dict[str, dict[str, Located]] = {}
        """The schemas with a `$dynamicAnchor` of each name, by the resources that they are in."""
        self._scopes: dict[tuple[str, ...], int] = {}
        """Those that were met, numbered."""
        self._resolved: dict[tuple[str, str, str], Located] = {}
        """By base, reference and keyword."""
        self._has_names = False

    @functools.cached_property
    def root(self) -> Located:
        """Raises UnsupportedSchema if the text is not a schema."""
        text = self._text
        value = json_of(text)
        root = self._resources[""] = Located("#", "", True).sibling("#", value)
        self._has_names = _NAMES.search(text) is not None
        if self._has_names:
            for located in _subschemas(root, 0):
                self._register(located)
            if any(len(resources) > 1 for resources in self._dynamic.values()):
                root = self._within(root, ())
        elif text.count("{") > _MAX_DEPTH and _is_deeper(value, _MAX_DEPTH):
            raise _too_deep("#")
        return root

    def at(self, path: str) -> Located:
        """The schema at a path, as `Located.path` has it; there is one."""
        found = self.root
        value: Json = found.value
        for step in path.split("/")[1:]:
            if isinstance(value, list):
                value = value[int(step)]
            else:
                assert isinstance(value, dict), "there is a schema at the path"
                value = value[step.replace("~1", "/").replace("~0", "~")]
            if self._has_names and isinstance(value, dict):  # its base may be another
                found = found.sibling(path, value)
        return found.sibling(path, value)

    def _register(self, at: Located) -> None:
        assert isinstance(at.value, dict)
        if isinstance(at.value.get("$id"), str):
            self._resources.setdefault(urldefrag(at.base).url, at)
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = at.value.get(keyword)
            if isinstance(name, str):
                self._anchors.setdefault(f"{urldefrag(at.base).url}#{name}", at)
                if keyword == "$dynamicAnchor":
                    resources = self._dynamic.setdefault(name, {})
                    resources.setdefault(urldefrag(at.base).url, at)
        if isinstance(at.value.get("id"), str) and str(at.value["id"]).startswith(
            "#"
        ):  # before draft 6
            self._anchors.setdefault(f"{urldefrag(at.base).url}{at.value['id']}", at)

    def resolve(self, at: Located, reference: Json, keyword: str = "$ref") -> Located:
        """The schema that `$ref` at `at` points to."""
        if not isinstance(reference, str):
            raise UnsupportedSchema(f"{keyword} is not a string", keyword=keyword, path=at.path)
        key = (at.base, reference, keyword)
        known = self._resolved.get(key)
        if known is None:
            known = self._resolved[key] = self._found(at, reference, keyword)
        return known if at.scope is None else self._within(known, at.scope)

    def _within(self, found: Located, scope: tuple[str, ...]) -> Located:
        """A schema that was found from that scope, which has its resource then."""
        of_dynamic = {url for resources in self._dynamic.values() for url in resources}
        kept = tuple(url for url in scope if url in of_dynamic)
        url = urldefrag(found.base).url
        if url in of_dynamic and url not in kept:
            kept = (*kept, url)
        number = self._scopes.setdefault(kept, len(self._scopes))
        prefix = f"#[{number}]" if number else "#"
        return Located(prefix + found.path[1:], found.base, found.value, kept)

    def _found(self, at: Located, reference: str, keyword: str) -> Located:
        url, fragment = urldefrag(
            _joined(at.base, reference, at.path, keyword)
            if not reference.startswith("#")
            else at.base + reference
        )
        resource = self._resources.get(url)
        if resource is None and f"{url}#{fragment}" not in self._anchors:
            raise UnsupportedSchema(
                f"{keyword} {reference!r} points outside of this schema",
                keyword=keyword,
                path=f"{at.path}/{keyword}",
            )
        if resource is not None and (not fragment or fragment.startswith("/")):
            found = self._follow(resource, fragment)
        else:
            found = self._anchors.get(f"{url}#{unquote(fragment)}")
        if found is None:
            raise UnsupportedSchema(
                f"{keyword} {reference!r} points nowhere",
                keyword=keyword,
                path=f"{at.path}/{keyword}",
            )
        return found

    def resolve_dynamic(self, at: Located, reference: Json) -> Located:
        """The schema that `$dynamicRef` at `at` points to: as `$ref`, but that a dynamic anchor is
        the one of the first resource on the way here that has it.
        """
        found = self.resolve(at, reference, "$dynamicRef")
        name = str(reference).partition("#")[2]
        is_dynamic = isinstance(found.value, dict) and found.value.get("$dynamicAnchor") == name
        if at.scope is None or not is_dynamic:
            return found
        resources = self._dynamic[name]
        scope = found.scope or ()
        return self._within(next(resources[url] for url in scope if url in resources), scope)

    def _follow(self, resource: Located, fragment: str) -> Located | None:
        found = resource
        value: Json = resource.value
        path = resource.path
        for raw in fragment.split("/")[1:]:
            step = unquote(raw).replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and step.isdigit() and int(step) < len(value):
                value = value[int(step)]
            elif isinstance(value, dict) and step in value:
                value = value[step]
            else:
                return None
            path = f"{path}/{escape(step)}"
            if self._has_names and isinstance(value, dict):  # its base may be another
                found = found.sibling(path, value)
        return found.sibling(path, value) if found.path != path else found


_NAMES = re.compile(r'\\u0|"\$id"|"\$anchor"|"\$dynamicAnchor"|"id"\s*:\s*"#')
"""Schemas with names of their own; a key may be written with escapes."""


def _is_deeper(value: Json, depth: int) -> bool:
    """Whether objects nest deeper, plain data left aside."""
    if isinstance(value, dict):
        if depth < 0:
            return True
        return any(_is_deeper(one, depth - 1) for key, one in value.items() if key not in _DATA)
    return isinstance(value, list) and any(_is_deeper(one, depth) for one in value)


def _too_deep(path: str) -> UnsupportedSchema:
    return UnsupportedSchema(
        f"the schema nests deeper than {_MAX_DEPTH}", keyword="", path=path[:200]
    )


_OLD_DRAFT = re.compile(r"https?://json-schema\.org/draft-0[3-7]/")
_WITH_ID = re.compile(r"https?://json-schema\.org/draft-0[34]/")
_BESIDE_REFERENCES = frozenset(["$ref", "$schema", "definitions", "$defs", "bundled"])


def in_this_draft(text: str) -> str:
    """A schema's text with what other drafts write otherwise: OpenAPI's `nullable` is a further
    type, beside a `$ref` of draft 7 or older nothing else is said, and draft 4 calls `$id` `id`.
    """
    is_old = _OLD_DRAFT.search(text) is not None and ('"$ref"' in text or '"id"' in text)
    if not (is_old or '"nullable"' in text):
        return text
    try:
        return written_json(_rewritten(read_json(text), ""))
    except (ValueError, RecursionError):
        return text  # it is refused where it is read


def _rewritten(value: Json, draft: str, are_named: bool = False) -> Json:
    """`draft`: the one of the schema around it. `are_named`: the object's names are no keywords."""
    if isinstance(value, list):
        return [_rewritten(one, draft) for one in value]
    if not isinstance(value, dict):
        return value
    if are_named:
        return {name: _rewritten(one, draft) for name, one in value.items()}
    said = value.get("$schema")
    draft = said if isinstance(said, str) else draft
    if _OLD_DRAFT.match(draft):
        value = _of_old_draft(value, draft)
    made = {
        name: one if name in _DATA else _rewritten(one, draft, name in _NAMED)
        for name, one in value.items()
    }
    kind = made.get("type")
    if made.get("nullable") is True and isinstance(kind, str):
        made["type"] = [kind, "null"]
    return made


def _of_old_draft(value: dict[str, Json], draft: str) -> dict[str, Json]:
    if isinstance(value.get("$ref"), str):
        return {name: one for name, one in value.items() if name in _BESIDE_REFERENCES}
    name = value.get("id" if _WITH_ID.match(draft) else "$id")
    if not isinstance(name, str):
        return value
    uri, _, anchor = name.partition("#")
    names: dict[str, Json] = {"$id": uri} if uri else {}
    names |= {"$anchor": anchor} if anchor and not anchor.startswith("/") else {}
    return {**names, **{key: one for key, one in value.items() if key not in ("$id", "id")}}


def json_of(text: str) -> Json:
    """Raises UnsupportedSchema if the text is not JSON."""
    try:
        value: Json = json.loads(text, parse_float=Decimal, parse_constant=_refuse_constant)
    except (ValueError, RecursionError, ArithmeticError) as error:
        raise UnsupportedSchema(f"the schema is not JSON: {error}", keyword="", path="#") from error
    return value


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def _subschemas(at: Located, depth: int, is_schema: bool = True) -> Iterator[Located]:
    """Every schema below; what stands in unknown keywords has no names."""
    if depth > _MAX_DEPTH:
        raise _too_deep(at.path)
    if not isinstance(at.value, dict):
        return
    if is_schema:
        yield at
    for key, value in at.value.items():
        if key.startswith("\0"):  # prefix of the internal keywords
            raise UnsupportedSchema(
                f"a key that starts with U+0000 at {at.path}", keyword=key, path=at.path
            )
        if key in _DATA:
            continue
        path = f"{at.path}/{escape(key)}"
        if is_schema and key in _NAMED and isinstance(value, dict):
            for name, one in value.items():
                yield from _within(at, f"{path}/{escape(name)}", one, depth + 2, True)
        else:
            yield from _within(at, path, value, depth + 1, is_schema and key in _APPLYING)


def _within(at: Located, path: str, value: Json, depth: int, is_schema: bool) -> Iterator[Located]:
    if isinstance(value, dict):
        yield from _subschemas(at.sibling(path, value), depth, is_schema)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _within(at, f"{path}/{i}", item, depth + 1, is_schema)


def same_json(left: Json, right: Json) -> bool:
    """Equality as JSON Schema defines it: 1 equals 1.0, but true does not equal 1."""
    return json_key(left) == json_key(right)


def json_key(value: Json) -> Hashable:
    """The same for values that are equal, and for no others: many are compared by a set."""
    if isinstance(value, bool):
        return bool, value
    if isinstance(value, list):
        return list, *map(json_key, value)
    if isinstance(value, dict):
        return frozenset((name, json_key(one)) for name, one in value.items())
    return value
