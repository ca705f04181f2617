"""The graph that `program.trace(...)` gives: a program's ops, as text and as a picture."""

from __future__ import annotations

from dataclasses import dataclass

from lmprog.lang.rehearsal.drawing import drawing_of
from lmprog.lang.rehearsal.graph_svg import to_svg
from lmprog.lang.rehearsal.op_graph import OpGraph


@dataclass(frozen=True, slots=True)
class Graph(OpGraph):
    """All ops of one rehearsed run. `print` shows it, and a notebook draws it."""

    def to_dot(self) -> str:
        """The graph in Graphviz's language: `dot -Tsvg`. Dashed edges are results that go into
        later text.
        """
        return drawing_of(self).to_dot()

    def to_svg(self) -> str:
        """The graph as a picture, which needs no Graphviz; a notebook shows it by itself."""
        return to_svg(drawing_of(self))

    def _repr_svg_(self) -> str:
        return self.to_svg()
