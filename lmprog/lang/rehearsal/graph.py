"""The graph that `program.trace(...)` returns: a program's ops, as text and as a picture."""

from __future__ import annotations

from dataclasses import dataclass

from lmprog.lang.rehearsal.drawing import drawing_of
from lmprog.lang.rehearsal.graph_svg import to_svg
from lmprog.lang.rehearsal.op_graph import OpGraph


@dataclass(frozen=True, slots=True)
class Graph(OpGraph):
    """All ops of one rehearsed run. `print` shows it, and notebooks draw it."""

    def to_dot(self) -> str:
        """The graph in Graphviz's DOT language, for `dot -Tsvg`. Dashed edges are results used in
        later text.
        """
        return drawing_of(self).to_dot()

    def to_svg(self) -> str:
        """The graph as SVG, without Graphviz; notebooks show it automatically."""
        return to_svg(drawing_of(self))

    def _repr_svg_(self) -> str:
        return self.to_svg()
