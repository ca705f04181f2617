"""What is frequent in a document's schemas, read by the kernel; the answers that it asks for.

A schema of scalars is a part that many documents share, whatever its place; one that the kernel
does not read is made by a callback of the other reader. Knows no keywords.
"""

from __future__ import annotations

from collections.abc import Callable

from lmprog import wire
from lmprog.constraints.constraint import CompileLimits, CompileTooLong
from lmprog.constraints.expression import ANYTHING
from lmprog.constraints.lower import Lowering
from lmprog.constraints.net import NetBuilder, NetPart, Node
from lmprog.constraints.schema.layout import SEPARATORS
from lmprog.constraints.schema.native_reader import NativeReader
from lmprog.constraints.schema.shared_parts import SHARED_PARTS, name_of_options
from lmprog.errors import RequestRejected


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
