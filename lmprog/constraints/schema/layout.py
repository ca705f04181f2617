"""How generated JSON is laid out: where white space is written, in four styles or by a pattern for
every place, and constants of a schema. Knows bytes, nesting depths and patterns of white space;
validates nothing.
"""

from __future__ import annotations

import json
from decimal import Decimal

from lmprog.constraints import charset
from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.expression import Chars, Repeat, whole
from lmprog.constraints.lower import UTF8, Lowering, class_leaf
from lmprog.constraints.net import EMPTY, FAIL, NetBuilder, Node
from lmprog.constraints.pattern import parse_pattern
from lmprog.constraints.schema.schema_document import Json
from lmprog.constraints.text_set import TextSet, lower_text_set
from lmprog.errors import GrammarError, UnsatisfiableConstraint
from lmprog.wire import Whitespace

_MAX_BLANKS = 24
_MAX_BY_PATTERN = 32
"""Characters that a pattern of white space may have in one place."""
_BLANKS = ((9, 9), (32, 32))
SEPARATORS: dict[Whitespace, tuple[bytes, bytes]] = {
    "fixed": (b", ", b": "),
    "compact": (b",", b":"),
}
"""Between members, and between a name and its value, where there is no other white space."""


class Layout:
    """Nodes for the punctuation of arrays and objects. Outermost brackets: depth 0."""

    def __init__(
        self, net: NetBuilder, whitespace: Whitespace, everywhere: Node | None = None
    ) -> None:
        """`everywhere`: the white space of every place, where a pattern says it."""
        self._net = net
        self._whitespace = whitespace = whitespace if everywhere is None else "flexible"
        self.depends_on_depth = whitespace == "indented"
        self._any = EMPTY
        if everywhere is not None:
            self._any = everywhere
        elif whitespace == "flexible":
            # At most one line break and a bounded run of spaces: with unbounded white space, models
            # can generate nothing else until the token limit.
            line_break = net.optional(net.text(b"\n"))
            blanks = net.repeat(net.same_leaf(class_leaf(_BLANKS, UTF8)), 0, _MAX_BLANKS)
            self._any = net.seq([line_break, blanks])
        separators = {
            **SEPARATORS,
            "indented": (b",", b": "),
            "flexible": (b",", b":"),
        }
        self._comma, self._colon = separators[whitespace]
        self.colon = net.seq([self._any, net.text(self._colon), self._any])

    def named(self, name: bytes) -> Node:
        """The name of a member and its colon, as one text where nothing may stand between."""
        if self._any == EMPTY:
            return self._net.text(name + self._colon)
        return self._net.seq([self._net.text(name), self.colon])

    def open(self, bracket: bytes, depth: int) -> Node:
        return self._net.seq([self._net.text(bracket + self._line(depth + 1)), self._any])

    def behind_open(self, depth: int) -> Node:
        """What stands between an opening bracket and the content."""
        return self._net.seq([self._net.text(self._line(depth + 1)), self._any])

    def comma(self, depth: int) -> Node:
        return self._net.seq(
            [self._any, self._net.text(self._comma + self._line(depth + 1)), self._any]
        )

    def close(self, bracket: bytes, depth: int) -> Node:
        return self._net.seq([self._any, self._net.text(self._line(depth) + bracket)])

    def empty(self, brackets: bytes) -> Node:
        return self._net.seq(
            [self._net.text(brackets[:1]), self._any, self._net.text(brackets[1:])]
        )

    def enclosed(self, brackets: bytes, depth: int, content: Node) -> Node:
        """`content`, which is not empty, in brackets."""
        return self._net.seq(
            [self.open(brackets[:1], depth), content, self.close(brackets[1:], depth)]
        )

    def _line(self, depth: int) -> bytes:
        return b"\n" + b"  " * depth if self._whitespace == "indented" else b""


def white_space(pattern: str, net: NetBuilder, limits: CompileLimits) -> Node:
    """The texts of JSON's white space that match the whole `pattern`, none of them longer than the
    bound that lets every generation end. Raises GrammarError, or UnsatisfiableConstraint.
    """
    try:
        expression = whole(parse_pattern(pattern, limits))
        blanks = Repeat(Chars(charset.charset([(9, 10), (13, 13), (32, 32)])), 0, None)
        texts = TextSet((expression, blanks), high=_MAX_BY_PATTERN)
        node = lower_text_set(texts, net, Lowering(net, json_string=False))
    except GrammarError as error:
        raise GrammarError(
            f"whitespace_pattern: {error.message}", position=error.position
        ) from error
    if node == FAIL:
        raise UnsatisfiableConstraint(f"no white space of JSON matches the pattern {pattern!r}")
    return node


# --- constants


def literal(value: Json, layout: Layout, net: NetBuilder, depth: int) -> Node:
    """The value as text. Object members keep their order; strings use no needless escapes."""
    if isinstance(value, Decimal):
        return net.text(str(value).encode())
    if isinstance(value, list):
        items = [literal(item, layout, net, depth + 1) for item in value]
        return (
            layout.enclosed(b"[]", depth, _joined(items, layout, net, depth))
            if items
            else layout.empty(b"[]")
        )
    if isinstance(value, dict):
        members = [
            net.seq(
                [literal(name, layout, net, 0), layout.colon, literal(item, layout, net, depth + 1)]
            )
            for name, item in value.items()
        ]
        return (
            layout.enclosed(b"{}", depth, _joined(members, layout, net, depth))
            if members
            else layout.empty(b"{}")
        )
    if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
        return net.text(json.dumps(value).encode())
    return net.text(json.dumps(value, ensure_ascii=False).encode())


def _joined(items: list[Node], layout: Layout, net: NetBuilder, depth: int) -> Node:
    out = [items[0]]
    for item in items[1:]:
        out += [layout.comma(depth), item]
    return net.seq(out)
