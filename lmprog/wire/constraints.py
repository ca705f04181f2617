"""The kinds of constraints: what a text can be constrained to, and what others may take it as.

Who needs to know of a constraint whether it lists texts, is a regular expression, a schema or a
grammar asks `as_choices`, `as_pattern`, `as_schema` or `as_grammar`, never for its class: so a new
kind is known to foreign services, to checks of texts and to the client's types as far as it answers
these. How kinds are compiled is in `constraints.compiling`. Knows no branches and no calls.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Self, TypeAlias
from urllib.parse import urljoin, urlsplit

import msgspec
from msgspec import Meta

from lmprog.wire.message import Message, Whitespace


class ConstraintKind(Message, frozen=True, cache_hash=True):
    """A kind that is none of these, which only lmprog's runtime can enforce."""

    is_whole: ClassVar[bool] = False
    """Whether it says the whole text, so that it cannot be a part of another constraint."""

    def as_choices(self) -> tuple[str, ...] | None:
        """All texts that it takes, in order, where they are listed."""
        return None

    def as_pattern(self) -> str | None:
        """The same as a regular expression."""
        return None

    def as_schema(self) -> JsonSchema | None:
        """The same as a JSON schema, where the text is JSON."""
        return None

    def as_grammar(self) -> str | None:
        """The same as a context-free grammar."""
        return None

    def compared(self, text: str) -> str:
        """What a text has in common with others that say the same; votes are counted by it."""
        return text.strip()

    @property
    def is_portable(self) -> bool:
        """Whether it is any of these: the services that confine texts know nothing else."""
        views = (self.as_choices, self.as_pattern, self.as_schema, self.as_grammar)
        return any(view() is not None for view in views)

    def freely_laid_out(self) -> Self:
        """With any white space and any order of properties in JSON."""
        return self

    def without(self, text: str | None) -> Self:
        """The same but for a text that was written and refused, where it lists others."""
        return self


class Regex(ConstraintKind, frozen=True):
    pattern: Annotated[str, Meta(max_length=65_536)]

    def as_pattern(self) -> str:
        return self.pattern


def _number(text: str) -> float | int:
    value = float(text)
    return int(value) if value.is_integer() else value


class JsonSchema(ConstraintKind, frozen=True):
    """`schema` is JSON text, so that the order of its properties is kept. `whitespace_pattern`: a
    regular expression of what stands wherever JSON may have white space, instead of `whitespace`.
    `strict` false: what of the schema cannot be enforced exactly is left out, so that fewer valid
    instances are written and never an invalid one; the answer says what.
    """

    schema: Annotated[str, Meta(max_length=1_048_576)]
    whitespace: Whitespace = "fixed"
    any_order: bool = False
    whitespace_pattern: Annotated[str, Meta(max_length=1024)] | None = None
    strict: bool = True

    def as_schema(self) -> JsonSchema:
        return self

    def compared(self, text: str) -> str:
        """As the same value: white space, escapes, the order of properties and 2.0 for 2 do not
        count.
        """
        try:
            value = json.loads(text, parse_float=_number)
        except (ValueError, RecursionError):
            return text.strip()  # it is cut, say
        return json.dumps(value, sort_keys=True)

    def freely_laid_out(self) -> JsonSchema:
        return JsonSchema(self.schema, "flexible", True, None, self.strict)

    def with_schema(self, schema: str) -> JsonSchema:
        return self if schema == self.schema else msgspec.structs.replace(self, schema=schema)

    def with_others(self, schemas: Mapping[str, object]) -> JsonSchema:
        """With further schemas, by their URIs, to which references may point: one document that
        has them in it, as JSON Schema bundles resources. Raises ValueError where one is no schema.
        """
        if not schemas:
            return self
        root = read_json(self.schema)
        if not isinstance(root, dict):
            return self
        places = ("$defs", "definitions", "bundled")
        place = next(name for name in places if name not in root or name == "bundled")
        bundled = {**root, place: dict(_resources(schemas, root.get("$schema", _DRAFT)))}
        return self.with_schema(written_json(bundled))

    @property
    def has_layout(self) -> bool:
        """Whether it says how JSON is laid out."""
        return self != JsonSchema(self.schema, strict=self.strict)


_MARK = secrets.token_hex(16)
"""No schema has a text that begins with it."""
_MARKED = re.compile(f'"{_MARK}([^"]*)"')


def read_json(text: str) -> Any:
    """Numbers with a fraction or an exponent are kept as they are written, for `written_json`."""
    return json.loads(text, parse_float=lambda number: _MARK + number)


def written_json(value: object) -> str:
    return _MARKED.sub(r"\1", json.dumps(value))


_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def _resources(schemas: Mapping[str, object], draft: object) -> Iterator[tuple[str, object]]:
    """Each under its URI; one that calls itself otherwise goes by both names. `draft`: of those
    that say none. What is a reference itself stands in another schema, as drafts differ in what
    may stand beside a reference.
    """
    for uri, given in schemas.items():
        if not urlsplit(uri).scheme:
            raise ValueError(f"{uri!r} is no absolute URI")
        schema = read_json(given) if isinstance(given, str) else given
        if isinstance(schema, bool):
            yield uri, {"$id": uri} if schema else {"$id": uri, "not": {}}
            continue
        if not isinstance(schema, Mapping):
            raise ValueError(f"the schema of {uri!r} is neither an object nor a boolean")
        own = schema.get("$id", uri)
        name = (urljoin(uri, own) if isinstance(own, str) else uri).rstrip("#")
        alone = {"$schema": _DRAFT, "$id": name}
        if name != uri.rstrip("#"):
            yield uri, {**alone, "$id": uri, "allOf": [{"$ref": name}]}
        if "$ref" in schema:
            parts = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
            rest = {key: one for key, one in schema.items() if key not in {*parts, "$id"}}
            yield name, {**alone, **parts, "allOf": [{"$schema": draft, **rest}]}
        else:
            yield name, {"$schema": draft, **schema, "$id": name}


class Choices(ConstraintKind, frozen=True):
    texts: Annotated[tuple[str, ...], Meta(min_length=1, max_length=65_536)]

    def as_choices(self) -> tuple[str, ...]:
        return self.texts

    def as_pattern(self) -> str:
        return f"({'|'.join(map(re.escape, self.texts))})"

    def without(self, text: str | None) -> Self:
        rest = tuple(one for one in self.texts if one != text)
        return msgspec.structs.replace(self, texts=rest) if rest else self


class Grammar(ConstraintKind, frozen=True):
    """A context-free grammar as text (Lark or GBNF)."""

    is_whole = True

    text: Annotated[str, Meta(max_length=1_048_576)]

    def as_grammar(self) -> str:
        return self.text


class InOrder(ConstraintKind, frozen=True):
    """One after the other."""

    parts: Annotated[tuple[Constraint, ...], Meta(max_length=65_536)]

    def freely_laid_out(self) -> InOrder:
        return InOrder(tuple(part.freely_laid_out() for part in self.parts))


class AnyOf(ConstraintKind, frozen=True):
    options: Annotated[tuple[Constraint, ...], Meta(min_length=1, max_length=65_536)]

    def freely_laid_out(self) -> AnyOf:
        return AnyOf(tuple(option.freely_laid_out() for option in self.options))


class Repeated(ConstraintKind, frozen=True):
    """`item` at least `low` and at most `high` times; None means unbounded."""

    item: Constraint
    low: Annotated[int, Meta(ge=0, le=1_000_000)]
    high: Annotated[int, Meta(ge=0, le=1_000_000)] | None


class FreeText(ConstraintKind, frozen=True):
    """Any text in which none of `avoided` occurs. With `end`: up to and with it, where it, and all
    of `avoided`, occur nowhere before.
    """

    avoided: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=1024)], ...], Meta(max_length=1024)
    ] = ()
    end: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None


class PlainStrings(ConstraintKind, frozen=True):
    """The strings that a JSON schema takes, as they are: without quotes and escapes. None has
    `end` in it, or ends so that this begins earlier when it follows.
    """

    schema: Annotated[str, Meta(max_length=1_048_576)]
    end: Annotated[str, Meta(max_length=1024)]


class Preferred(ConstraintKind, frozen=True):
    """`wanted`, or, where that cannot be enforced, `otherwise`; the answer says why."""

    is_whole = True

    wanted: Constraint
    otherwise: Constraint


class Continued(ConstraintKind, frozen=True):
    """What is left of a text of `whole` behind `begun`; all of it, where none begins so."""

    is_whole = True

    whole: Constraint
    begun: Annotated[str, Meta(max_length=1_048_576)]


Constraint: TypeAlias = (
    Regex
    | JsonSchema
    | Choices
    | Grammar
    | InOrder
    | AnyOf
    | Repeated
    | FreeText
    | PlainStrings
    | Preferred
    | Continued
)


def compared(text: str, constraint: Constraint | None) -> str:
    """What a text has in common with others of its constraint that say the same."""
    return text.strip() if constraint is None else constraint.compared(text)


def exact_json(text: str) -> Any:
    """JSON whose fractions keep their digits."""
    return json.loads(text, parse_float=Decimal)


def exact_text(value: Any) -> str:
    """The text that `exact_json` reads as `value`."""
    made = json.dumps(value, ensure_ascii=False, default=lambda number: f"\0{number}\0")
    return re.sub(r'"\\u0000([-+.0-9E]+)\\u0000"', r"\1", made)
