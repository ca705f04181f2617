"""Builds the schemas of a document into one net.

Alternatives are built per type. Every conjunction of schemas is built once, keyed by the paths of
its parts; one that recurs while it is being built is recursive and refers to itself through a hole.
What most schemas say (a reference and nothing else, an object with properties) is read without the
machinery of alternatives, and means what `expand.py` says. Knows how the parts fit together; the
other modules know JSON's types.

Whether a schema accepts one given value, for `enum` and `const` beside other keywords, is read from
values and flat schemas; it builds no nodes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction

from lmprog import wire
from lmprog.constraints.constraint import CompileLimits, CompileTooLong
from lmprog.constraints.expression import ANYTHING, seq
from lmprog.constraints.expression import text as expression_of
from lmprog.constraints.finish import finish
from lmprog.constraints.lower import Lowering
from lmprog.constraints.net import EVERY_BYTE, FAIL, NetBuilder, NetPart, Node
from lmprog.constraints.schema.arrays import ArrayBuilder, ComparedItems, ItemParts
from lmprog.constraints.schema.expand import APPLICATORS, CLOSING, Expander, sorted_keywords, weakly
from lmprog.constraints.schema.flat import (
    ArrayFacet,
    Flat,
    NumberFacet,
    ObjectFacet,
    Properties,
    StringFacet,
    type_of,
    without_values,
)
from lmprog.constraints.schema.frequent import (
    SHARED_PARTS,
    FrequentSchemas,
    is_worth_sharing,
    name_of,
    name_of_options,
)
from lmprog.constraints.schema.keywords import ANNOTATIONS, properties_of, required_of
from lmprog.constraints.schema.layout import Layout, literal, white_space
from lmprog.constraints.schema.numbers import number_node
from lmprog.constraints.schema.objects import ObjectBuilder, ObjectParts
from lmprog.constraints.schema.schema_document import Document, Json, Located, json_key, same_json
from lmprog.constraints.schema.strings import search_pattern, text_set
from lmprog.constraints.text_set import TextSet, contains, lower_text_set
from lmprog.errors import GrammarError, RequestRejected, UnsatisfiableConstraint, UnsupportedSchema

_MAX_DEPTH = 120
_MAX_INDENT = 40
_Key = tuple[int, tuple[str, ...]]
"""Of a conjunction: the depth, if that matters, and the names of its parts."""
_ROOT: _Key = (0, ("#",))


class SchemaBuilder:
    """Builds the schemas of one document into one net."""

    def __init__(
        self,
        document: Document,
        spec: wire.JsonSchema,
        net: NetBuilder,
        limits: CompileLimits,
        formats: bool = True,
        shares: bool = True,
        frequent: FrequentSchemas | None = None,
    ) -> None:
        """`shares`: whether parts that many documents have may be those of others. `frequent` reads
        what it can of this document."""
        self._document = document
        self._spec = spec
        self._net = net
        self._limits = limits
        self._formats = formats
        self._shares = shares
        self._frequent = frequent
        self._options = name_of_options(spec, limits, formats)
        self._strict = spec.strict
        exact = Expander(document, weakly(self._are_disjoint), net.check)
        self._expander = exact if spec.strict else exact.lenient(net.leave_out)
        pattern = spec.whitespace_pattern
        everywhere = None if pattern is None else white_space(pattern, net, limits)
        # Exactly even so: how many items match `contains` must not be underrated.
        self._checker = InstanceChecker(exact.expand, limits, formats)
        self._layout = Layout(net, spec.whitespace, everywhere)
        self._in_string = Lowering(net, json_string=True)
        self._plain = Lowering(net, json_string=False)
        self._quote = net.text(b'"')
        self._built: dict[_Key, Node] = {}
        self._open: dict[_Key, Node | None] = {}
        self._compared: dict[tuple[str, str], bool] = {}

    def compile_at(self, path: str) -> Node:
        """The node of the schema at a path of the document."""
        return self.compile([self._document.at(path)], 0)

    def open_root(self) -> None:
        """Says that the document's root is being made, by whoever asks for parts of it."""
        self._open[_ROOT] = None

    def close_root(self, node: Node) -> None:
        """That is done."""
        self._close(_ROOT, node)

    def compile(self, schemas: Sequence[Located], depth: int) -> Node:
        """The node of all values that every one of `schemas` accepts; text in brackets is at
        `depth` + 1.
        """
        schemas = [referred(schema, self._document) for schema in schemas]
        if len(schemas) > 1:
            schemas = list({schema.path: schema for schema in schemas}.values())
        schemas = [schema for schema in schemas if schema.value is not True]
        named = [name_of(schema) for schema in schemas]
        names = tuple(named) if len(named) == 1 else tuple(sorted(named))
        key = (depth if self._layout.depends_on_depth else 0, names)
        found = self._built.get(key)
        if found is not None:
            return found
        if key in self._open:
            hole = self._open[key]
            if hole is None:
                hole = self._open[key] = self._net.hole()
            return hole
        if len(self._open) > _MAX_DEPTH or (self._layout.depends_on_depth and depth > _MAX_INDENT):
            path = schemas[-1].path if schemas else "#"
            raise UnsupportedSchema(
                f"schemas nest too deeply at {path[:200]}", keyword="$ref", path=path
            )
        if self._strict and self._shares and all(map(is_worth_sharing, schemas, named)):
            shared = (key, self._options)
            made = SHARED_PARTS.get(shared, lambda: self._part(schemas, depth))
            node = self._built[key] = self._net.part(made)
            return node
        self._open[key] = None
        node = self._if_possible(lambda: self._conjunction(schemas, depth))
        self._close(key, node)
        return node

    def _close(self, key: _Key, node: Node) -> None:
        hole = self._open.pop(key)
        if hole is not None:
            self._net.fill(hole, node)
        self._built[key] = node

    def _conjunction(self, schemas: Sequence[Located], depth: int) -> Node:
        if len(schemas) == 1:
            if self._frequent is not None:
                node = self._frequent.node(schemas[0].path, self.compile_at)
                if node is not None:
                    return node
            plain = plain_object(schemas[0])
            if plain is not None:
                return self._object(plain, depth)
        flats = self._expander.expand(schemas)
        if self._strict:
            return self._net.alt(self._flat(flat, depth) for flat in flats)
        return self._net.alt(
            self._if_possible(functools.partial(self._flat, flat, depth)) for flat in flats
        )

    def _if_possible(self, make: Callable[[], Node]) -> Node:
        """The node; where what it stands for is not supported, and that is allowed, no text."""
        try:
            return make()
        except UnsupportedSchema as why:
            if self._strict:
                raise
            self._net.leave_out(why)
            return FAIL

    def _part(self, schemas: Sequence[Located], depth: int) -> NetPart:
        """The same as a net of its own."""
        net = NetBuilder(self._limits, self._net.check)
        other = SchemaBuilder(self._document, self._spec, net, self._limits, self._formats, False)
        return net.sealed(other.compile(schemas, depth))

    def _flat(self, flat: Flat, depth: int) -> Node:
        if flat.values is not None:
            return self._net.alt(
                self._if_possible(functools.partial(self._value, flat, value, depth))
                for value in flat.values
            )
        if flat.not_values:
            return self._net.alt(self._flat(one, depth) for one in without_values(flat))
        types = flat.types
        ways = [self._net.text(b"null")] if "null" in types else []
        if "boolean" in types:
            ways += [self._net.text(b"true"), self._net.text(b"false")]
        if "number" in types:
            ways.append(number_node(flat.number, flat.path, self._plain, self._net))
        if "string" in types:
            ways.append(self._string(flat))
        if "array" in types:
            ways.append(self._array(flat, depth))
        if "object" in types:
            ways.append(self._object(flat, depth))
        return self._net.alt(ways)

    def _value(self, flat: Flat, value: Json, depth: int) -> Node:
        """One value of `enum` or `const`, if the rest of the conjunction accepts it."""
        if type_of(value) not in flat.types:
            return FAIL
        text = literal(value, self._layout, self._net, depth)
        if flat.unconstrained_but_types and not flat.not_values:
            return text
        return text if self._checker.takes(flat._replace(values=None), value) else FAIL

    def _string(self, flat: Flat) -> Node:
        facet = flat.string if self._formats else flat.string._replace(formats=(), not_formats=())
        return self._lower_string(text_set(facet, self._limits), flat)

    def _lower_string(self, texts: TextSet, flat: Flat) -> Node:
        try:
            inside = lower_text_set(texts, self._net, self._in_string)
        except CompileTooLong:
            raise
        except GrammarError as error:
            path = f"{flat.path}/pattern"
            raise UnsupportedSchema(
                f"strings at {flat.path}: {error.message}", keyword="pattern", path=path
            ) from error
        return self._net.seq([self._quote, inside, self._quote])

    def plain_strings(self, end: str) -> Node:
        """The strings of the document's root, as they are; see `wire.PlainStrings`."""
        borders = [size for size in range(len(end)) if end.endswith(end[:size])]
        cut = [expression_of(end[: len(end) - size]) for size in borders if end]
        unfit = tuple(
            seq([ANYTHING, one, ANYTHING] if one is cut[0] else [ANYTHING, one]) for one in cut
        )
        inside = Lowering(self._net, json_string=False, is_string=True)
        ways: list[Node] = []
        left = list(self._expander.expand([referred(self._document.root, self._document)]))
        while left:
            flat = left.pop()
            if flat.values is not None:
                texts = [value for value in flat.values if isinstance(value, str)]
                rest = flat._replace(values=None)
                others = TextSet(outside=unfit)
                ways += [
                    self._net.text(text.encode())
                    for text in texts
                    if "string" in flat.types
                    and self._checker.takes(rest, text)
                    and contains(others, text)
                ]
            elif flat.not_values:
                left += without_values(flat)
            elif "string" in flat.types:
                facet = text_set(flat.string, self._limits).and_also(TextSet(outside=unfit))
                ways.append(lower_text_set(facet, self._net, inside))
        return self._net.alt(ways)

    def _array(self, flat: Flat, depth: int) -> Node:
        facet, layout = flat.array, self._layout
        builder = ArrayBuilder(
            self._net, facet, layout.comma(depth), lambda schemas: self.compile(schemas, depth + 1)
        )
        if facet.repeats or (facet.unique and (facet.high is None or facet.high > 1)):
            return self._comparing(facet, depth).node(builder.schemas(0))
        content, may_be_empty = builder.content()
        return self._bracketed(b"[]", content, may_be_empty, depth)

    def _comparing(self, facet: ArrayFacet, depth: int) -> ComparedItems:
        return ComparedItems(
            facet,
            ItemParts(
                net=self._net,
                layout=self._layout,
                depth=depth,
                strict=self._strict,
                expand=self._expander.expand,
                value=lambda flat, value: self._value(flat, value, depth + 1),
                flat=lambda one: self._if_possible(lambda: self._flat(one, depth + 1)),
                string=self._plain_string,
            ),
        )

    def _plain_string(self, flat: Flat, net: NetBuilder) -> Node:
        """A string in one spelling, in any net."""
        facet = flat.string if self._formats else flat.string._replace(formats=(), not_formats=())
        inside = lower_text_set(text_set(facet, self._limits), net, Lowering(net, True, True))
        return net.seq([net.text(b'"'), inside, net.text(b'"')])

    def _bracketed(self, brackets: bytes, content: Node, may_be_empty: bool, depth: int) -> Node:
        ways = [self._layout.enclosed(brackets, depth, content)]
        return self._net.alt([*ways, *([self._layout.empty(brackets)] if may_be_empty else [])])

    def _object(self, flat: Flat, depth: int) -> Node:
        any_order = self._spec.any_order
        try:
            return self._members(flat, depth, any_order)
        except UnsupportedSchema as why:
            if self._strict or not any_order:
                raise
            self._net.leave_out(why)
            return self._members(flat, depth, False)

    def _members(self, flat: Flat, depth: int, any_order: bool) -> Node:
        parts = ObjectParts(
            net=self._net,
            limits=self._limits,
            any_order=any_order,
            comma=self._layout.comma(depth),
            colon=self._layout.colon,
            named=self._layout.named,
            compile_schemas=lambda schemas: self.compile(schemas, depth + 1),
            name_sets=self._name_sets,
            lower_names=lambda texts: self._lower_string(texts, flat),
        )
        content, may_be_empty = ObjectBuilder(flat.object, parts).content()
        return self._bracketed(b"{}", content, may_be_empty, depth)

    def _name_sets(self, schemas: Sequence[Located]) -> list[TextSet]:
        """The strings that `propertyNames` allows, as a union of text sets."""
        out = []
        for flat in self._expander.expand(schemas):
            if "string" not in flat.types:
                continue
            excluded = tuple(value for value in flat.not_values if isinstance(value, str))
            facet = flat.string.join(StringFacet(excluded=excluded))
            texts = text_set(
                facet if self._formats else facet._replace(formats=(), not_formats=()), self._limits
            )
            if flat.values is None:
                out.append(texts)
            else:
                out += [
                    texts.and_also(TextSet((expression_of(value),)))
                    for value in flat.values
                    if isinstance(value, str)
                ]
        return out

    def _are_disjoint(self, left: Located, right: Located) -> bool:
        """Whether no value is valid for both: builds their conjunction and tests whether it is
        empty.

        Formats count as annotations here: strings that differ only in their format are valid for
        both.
        """
        key = (left.path, right.path)
        found = self._compared.get(key)
        if found is None:
            net = NetBuilder(self._limits, self._net.check)
            other = SchemaBuilder(
                self._document, wire.JsonSchema("", "compact"), net, self._limits, formats=False
            )
            other._compared = self._compared
            self._compared[key] = False  # met again while undecided: assume not disjoint
            try:
                finish(net, other.compile([left, right], 0), EVERY_BYTE)
                found = False
            except UnsatisfiableConstraint:
                found = True
            except CompileTooLong:
                raise
            except RequestRejected:
                found = False
            self._compared[key] = found
        return found


# --- what most schemas say

_OBJECT = frozenset(["object"])
_OF_OBJECTS = frozenset(["type", "properties", "required", "additionalProperties"])
_MAX_REFERENCES = 8
"""References to references that are followed at once."""


@functools.lru_cache(maxsize=4096)
def _is_reference(*keywords: str) -> bool:
    """Whether a schema with these keywords says nothing but what its `$ref` does."""
    return "$ref" in keywords and all(one == "$ref" or one in ANNOTATIONS for one in keywords)


def referred(at: Located, document: Document) -> Located:
    """What a schema refers to that is a reference and nothing else, so that it is built once. A
    reference to nowhere stays: that is said, or left out, where it is expanded.
    """
    for _ in range(_MAX_REFERENCES):
        value = at.value
        if isinstance(value, bool) or "$ref" not in value or not _is_reference(*value):
            break
        try:
            at = document.resolve(at, value["$ref"])
        except UnsupportedSchema:
            break
    return at


@functools.lru_cache(maxsize=4096)
def _is_plain(*keywords: str) -> bool:
    refused, asserted = sorted_keywords(*keywords)
    known = _OF_OBJECTS.issuperset(asserted) and CLOSING.isdisjoint(keywords)
    return refused is None and known and APPLICATORS.keys().isdisjoint(keywords)


def plain_object(at: Located) -> Flat | None:
    """The one alternative of an object with properties, further ones and required ones; None where
    the schema says anything else.
    """
    schema = at.value
    if isinstance(schema, bool) or schema.get("type") != "object" or not _is_plain(*schema):
        return None
    facet = properties_of(None, at)
    if "required" in schema:
        facet = facet._replace(required=required_of(schema["required"], at).required)
    return Flat(types=_OBJECT, object=facet, path=at.path)


_MAX_EXPONENT = 4000
"""Of ten, in numbers that are compared; those of greater ones are never taken."""


class InstanceChecker:
    """Checks values against the schemas of one document. `expand`: the alternatives of a
    conjunction of schemas. `formats` False: they are annotations.
    """

    def __init__(
        self,
        expand: Callable[[Sequence[Located]], list[Flat]],
        limits: CompileLimits,
        formats: bool,
    ) -> None:
        self._expand = expand
        self._limits = limits
        self._formats = formats

    def takes(self, flat: Flat, value: Json) -> bool:
        kind = type_of(value)
        if kind not in flat.types or any(same_json(value, other) for other in flat.not_values):
            return False
        if flat.values is not None and not any(same_json(value, one) for one in flat.values):
            return False
        if isinstance(value, str):
            facet = (
                flat.string if self._formats else flat.string._replace(formats=(), not_formats=())
            )
            return contains(text_set(facet, self._limits), value)
        if isinstance(value, list):
            return self._array(flat.array, value)
        if isinstance(value, dict):
            return self._object(flat.object, value)
        if isinstance(value, bool) or value is None:
            return True
        return _number(flat.number, Decimal(value))

    def _fits(self, schemas: Sequence[Located], value: Json) -> bool:
        return any(self.takes(flat, value) for flat in self._expand(schemas))

    def _array(self, facet: ArrayFacet, items: list[Json]) -> bool:
        if len(items) < facet.low or (facet.high is not None and len(items) > facet.high):
            return False
        if facet.unique or facet.repeats:
            repeats = len(set(map(json_key, items))) < len(items)
            if (facet.unique and repeats) or (facet.repeats and not repeats):
                return False
        for at, item in enumerate(items):
            told = [one.prefix[at] if at < len(one.prefix) else one.rest for one in facet.items]
            if not self._fits([schema for schema in told if schema is not None], item):
                return False
        for wanted in facet.contains:
            if not wanted.asserts:
                continue
            count = sum(self._fits([wanted.schema], item) for item in items[wanted.begin :])
            if count < wanted.low or (wanted.high is not None and count > wanted.high):
                return False
        return True

    def _object(self, facet: ObjectFacet, members: dict[str, Json]) -> bool:
        if len(members) < facet.low or (facet.high is not None and len(members) > facet.high):
            return False
        if not members.keys() >= set(facet.required):
            return False
        for name, item in members.items():
            if facet.names and not self._fits(facet.names, name):
                return False
            told = [one for group in facet.properties for one in self._of(group, name)]
            if not self._fits(told, item):
                return False
        for fault in facet.faults:
            there = [(members[name], one) for name, one in fault.members if name in members]
            if members.keys() >= dict(fault.absent).keys() and not any(
                self._fits([one], item) for item, one in there
            ):
                return False
        return all(
            any(
                self._fits([witness.name], name) and self._fits([witness.value], item)
                for name, item in members.items()
            )
            for witness in facet.witnesses
        )

    def _of(self, group: Properties, name: str) -> list[Located]:
        """What one schema says of the property `name`."""
        found = [located for named, located in group.named if named == name]
        found += [
            located
            for pattern, located in group.patterns
            if search_pattern(pattern, self._limits).takes(name)
        ]
        return found or ([group.additional] if group.additional is not None else [])


def _number(facet: NumberFacet, value: Decimal) -> bool:
    if value and abs(value.adjusted()) > _MAX_EXPONENT:
        return False
    is_whole = value == value.to_integral_value()
    if (facet.integer and not is_whole) or (facet.fractional and is_whole):
        return False
    low, high = facet.low, facet.high
    if low and (value < low.value or (low.exclusive and value == low.value)):
        return False
    if high and (value > high.value or (high.exclusive and value == high.value)):
        return False
    exact = Fraction(value)
    return all(not exact % Fraction(one) for one in facet.multiples) and all(
        exact % Fraction(one) for one in facet.not_multiples
    )
