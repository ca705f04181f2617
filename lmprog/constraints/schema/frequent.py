"""What is frequent in a document's schemas, read by the native kernel.

Objects with named members, arrays of one kind of items, short values, references and `anyOf` become
nodes there. Whatever else stands in a document is asked for, and answered by the reader in Python,
which says the same of all (`build.py`). A schema of scalars is a part that many documents share,
whatever its place. Knows the C interface of lmprog_schemas.h; knows no types and no keywords.

Parts of nets that many schemas share (strings, numbers, any JSON at all) depend on their keywords
and on few options, not on the document or the place in it, so each is built once per process: least
recently used first out, bounded by an estimate of bytes; two threads may both build one.
"""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable
from decimal import Decimal
from threading import Lock

from lmprog import wire
from lmprog.constraints.constraint import Check, CompileLimits, CompileTooLong
from lmprog.constraints.expression import ANYTHING
from lmprog.constraints.kernel import INT, LONG, POINTER, free_with, kernel, or_memory
from lmprog.constraints.lower import Lowering
from lmprog.constraints.net import AllBut, JsonText, LeafSource, NetBuilder, NetPart, NewNodes, Node
from lmprog.constraints.schema.expand import APPLICATORS, CLOSING, REFUSED
from lmprog.constraints.schema.keywords import ANNOTATIONS, ASSERTIONS
from lmprog.constraints.schema.layout import SEPARATORS
from lmprog.constraints.schema.schema_document import Json, Located
from lmprog.errors import RequestRejected

_SCALAR = (str, int, Decimal)
_OF_SCALARS = frozenset(["type", "enum"])
_NOT_SHARED = frozenset(["enum", "const", "uniqueItems"])
MAX_BYTES = 32 << 20
_LARGEST_SHARE = 8
"""One part takes at most the eighth of the bytes; larger ones are not kept."""


class SharedParts:
    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._held: OrderedDict[Hashable, NetPart] = OrderedDict()
        self._lock = Lock()
        self.num_bytes = 0
        """Of all parts that are kept, estimated."""

    def get(self, key: Hashable, make: Callable[[], NetPart]) -> NetPart:
        """The part of this name, made where it is not known. What `make` raises is not kept."""
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
                return found
        made = make()
        if made.num_bytes > self._max_bytes // _LARGEST_SHARE:
            return made
        with self._lock:
            found = self._held.setdefault(key, made)
            if found is made:
                self.num_bytes += made.num_bytes
            while self.num_bytes > self._max_bytes:
                self.num_bytes -= self._held.popitem(last=False)[1].num_bytes
        return found

    def __len__(self) -> int:
        return len(self._held)


SHARED_PARTS = SharedParts()
"""Those of this process."""


def name_of_options(spec: wire.JsonSchema, limits: CompileLimits, formats: bool) -> str:
    """What beside a schema its part depends on, as a text, for keys: its hash is computed once."""
    said = [getattr(spec, name) for name in spec.__struct_fields__ if name != "schema"]
    return _name_of_options(*said, formats, limits)


@functools.lru_cache(maxsize=64)
def _name_of_options(*said: object) -> str:
    return repr(said)


def name_of(schema: Located) -> str:
    """A cache key: the path, or the content if nothing in the schema depends on its location."""
    value = schema.value
    if isinstance(value, bool):
        return schema.path
    said = [(keyword, one) for keyword, one in value.items() if keyword not in ANNOTATIONS]
    for keyword, one in said:
        if keyword.startswith("$") or not (
            one is None
            or isinstance(one, _SCALAR)
            or (keyword in _OF_SCALARS and isinstance(one, list) and _are_scalars(one))
        ):
            return schema.path
    return repr(said)  # starts with a bracket, unlike any path


def is_worth_sharing(schema: Located, name: str) -> bool:
    """Whether its name is its content, and more than a list of values: those are made as quickly
    as they are found. An array of unique items is no part: it is told by its place in the net."""
    value = schema.value
    if name[0] != "[" or isinstance(value, bool):
        return False
    return value.keys().isdisjoint(_NOT_SHARED)


def _are_scalars(values: list[Json]) -> bool:
    return all(value is None or isinstance(value, _SCALAR) for value in values)


class PlaceMatters(Exception):
    """A schema is refused that was read without its place: only with that the error can name it."""


class FrequentSchemas:
    """Those of one document, as nodes of one net."""

    def __init__(
        self, reader: NativeReader, options: str, net: NetBuilder, make: Callable[[bytes], NetPart]
    ) -> None:
        """`make`: the part of a schema that is given as its text; what it refuses raises
        PlaceMatters here. `options`: what beside the text the part depends on."""
        self._reader = reader
        self._options = options
        self._net = net
        self._make = make

    @classmethod
    def of(
        cls,
        spec: wire.JsonSchema,
        net: NetBuilder,
        limits: CompileLimits,
        make: Callable[[bytes], NetPart],
    ) -> FrequentSchemas | None:
        """None where the kernel does not read the document, or not as it is to be read."""
        separators = SEPARATORS.get(spec.whitespace)
        is_usual = spec.strict and not spec.any_order and spec.whitespace_pattern is None
        if separators is None or not is_usual:
            return None
        reader = NativeReader.of(spec.schema, *separators)
        options = name_of_options(spec, limits, True)
        return None if reader is None else cls(reader, options, net, make)

    def node(self, path: str, compile_at: Callable[[str], Node]) -> Node | None:
        """The node of the schema at `path`, or None where the kernel does not read it.
        `compile_at`: the node of a schema within it, made by the other reader."""

        def answer(kind: str, said: bytes) -> Node:
            if kind == "p":
                return compile_at(said.decode())
            if kind == "s":
                return Lowering(self._net, json_string=True).lower(ANYTHING)
            return self._net.part(self._part(said))

        return self._reader.node(path, self._net, answer)

    def _part(self, said: bytes) -> NetPart:
        try:
            return SHARED_PARTS.get((said, self._options), lambda: self._make(said))
        except CompileTooLong:
            raise
        except RequestRejected as error:
            raise PlaceMatters from error


# --- the kernel

_MEMORY = -1
_TEXT = 1
_LEAVES_PER_CHECK = 1000
_SAYING = [*ASSERTIONS, *APPLICATORS, *sorted(REFUSED), *sorted(CLOSING)]
"""All keywords that say anything about validity, but those that are our own."""

Answer = Callable[[str, bytes], Node]
"""The node of what is asked for: `p`, a schema by its path; `c`, a schema as JSON text whose place
does not matter; `s`, the content of any JSON string."""


class _CWanted(ctypes.Structure):
    _fields_ = [("texts", POINTER), ("length", LONG)]


class _CNodes(ctypes.Structure):
    _fields_ = [
        *((name, POINTER) for name in ("kind", "num_args", "args")),
        *((name, POINTER) for name in ("leaf_kind", "leaf_size", "texts")),
        *((name, LONG) for name in ("nodes", "all_args", "leaves", "texts_length")),
        ("root", INT),
        ("is_recursive", INT),
    ]


@functools.cache
def _style(comma: bytes, colon: bytes) -> int:
    """Made once for the process."""
    keywords = b"".join(b"%s\0" % one.encode() for one in _SAYING if one[0] != "\0")
    return or_memory(kernel().lmprog_schemas_style_new(keywords, len(keywords), comma, colon))


class NativeReader:
    """The schemas of one document, as nodes of one net."""

    def __init__(self, document: int, text: bytes) -> None:
        """Owns the document, which borrows the text."""
        self._kernel = kernel()
        self._document = document
        self._text = text
        self._wanted, self._nodes = _CWanted(), _CNodes()
        free_with(self, self._kernel.lmprog_schemas_free, document)

    @classmethod
    def of(cls, text: str, comma: bytes, colon: bytes) -> NativeReader | None:
        """None where the document is not read here. `comma` and `colon` are what stands between
        members, and between a name and its value."""
        try:
            encoded = text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            return None
        document = kernel().lmprog_schemas_new(encoded, len(encoded), _style(comma, colon))
        return cls(document, encoded) if document else None

    def node(self, path: str, net: NetBuilder, answer: Answer) -> Node | None:
        """The node of the schema at `path`; None where it is not read here. While `answer` makes a
        node it may ask for others of this document."""
        try:
            return self._node(path, net, answer)
        except ctypes.ArgumentError as error:  # ctypes says so where it meets Python's own limit
            raise RecursionError("schemas nest too deeply") from error

    def _node(self, path: str, net: NetBuilder, answer: Answer) -> Node | None:
        core, document, wanted = self._kernel, self._document, self._wanted
        schema = 0
        if path != "#":
            encoded = path.encode()
            schema = core.lmprog_schemas_find(document, encoded, len(encoded))
            if schema < 0:
                return None
        planned = core.lmprog_schemas_plan(document, schema, ctypes.byref(wanted))
        if planned < 0:
            if planned == _MEMORY:
                raise MemoryError("no memory for the nodes of a schema")
            return None
        net.check()
        for one in ctypes.string_at(wanted.texts, wanted.length).split(b"\0")[:-1]:
            number, _, said = one.partition(b" ")
            made = answer(chr(said[0]), said[1:])
            core.lmprog_schemas_answer(document, int(number), made)
        return self._built(schema, net)

    def _built(self, schema: int, net: NetBuilder) -> Node:
        nodes = self._nodes
        done = self._kernel.lmprog_schemas_build(
            self._document, schema, len(net.kinds), len(net.leaves), ctypes.byref(nodes)
        )
        if done < 0:
            raise MemoryError("no memory for the nodes of a schema")
        net.check()
        if nodes.nodes:
            at = ctypes.string_at
            num_args, args = array("i"), array("i")
            num_args.frombytes(at(nodes.num_args, 4 * nodes.nodes))
            args.frombytes(at(nodes.args, 4 * nodes.all_args))
            kinds, leaves = at(nodes.kind, nodes.nodes), self._leaves(net.check)
            net.adopt(NewNodes(kinds, num_args, args, leaves, bool(nodes.is_recursive)))
        return Node(nodes.root)

    def _leaves(self, check: Check) -> list[LeafSource]:
        nodes = self._nodes
        kinds = ctypes.string_at(nodes.leaf_kind, nodes.leaves)
        sizes = array("i")
        sizes.frombytes(ctypes.string_at(nodes.leaf_size, 4 * nodes.leaves))
        texts = ctypes.string_at(nodes.texts, nodes.texts_length)
        out: list[LeafSource] = []
        at = 0
        for number, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
            if number % _LEAVES_PER_CHECK == 0:
                check()
            if kind == _TEXT:
                out.append(JsonText(texts[at : at + size]))
                at += size
                continue
            names = []
            for _ in range(size):
                end = texts.index(b"\0", at)
                names.append(texts[at:end])
                at = end + 1
            out.append(AllBut(tuple(names)))
        return out
