"""Where white space is written in generated JSON, for each of the four styles.

Knows bytes and nesting depths, no schemas.
"""

from __future__ import annotations

from lmprog.constraints.net import EMPTY, NetBuilder, Node
from lmprog.wire import Whitespace

_MAX_BLANKS = 24
_BLANKS = ((9, 9), (32, 32))


class Layout:
    """Nodes for the punctuation of arrays and objects. Outermost brackets: depth 0."""

    def __init__(self, net: NetBuilder, whitespace: Whitespace) -> None:
        self._net = net
        self._whitespace = whitespace
        # At most one line break and a bounded run of spaces: with unbounded white space, models can
        # generate nothing else until the token limit.
        line_break = net.optional(net.text(b"\n"))
        blanks = net.repeat(net.byte_strings(((_BLANKS,),)), 0, _MAX_BLANKS)
        self._any = net.seq([line_break, blanks]) if whitespace == "flexible" else EMPTY
        separators = {
            "fixed": (b", ", b": "),
            "compact": (b",", b":"),
            "indented": (b",", b": "),
            "flexible": (b",", b":"),
        }
        self._comma, colon = separators[whitespace]
        self.colon = net.seq([self._any, net.text(colon), self._any])

    @property
    def depends_on_depth(self) -> bool:
        return self._whitespace == "indented"

    def open(self, bracket: bytes, depth: int) -> Node:
        return self._net.seq([self._net.text(bracket + self._line(depth + 1)), self._any])

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
