"""A program's graph as nodes and edges, and in Graphviz's DOT language. Knows graphs; the layout is
in `graph`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lmprog import wire
from lmprog.lang.rehearsal.op_graph import GraphOp, Join, OpGraph

_SHAPES = {wire.Append: "box", wire.Fork: "triangle", Join: "invtriangle"}


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One step of one branch."""

    branch: int
    step: GraphOp


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """An edge from a node to a later one, by index. `is_use`: a result is used in a later text."""

    source: int
    target: int
    is_use: bool = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """All nodes in the order in which they were posted, and the edges between them; each edge
    points forward.
    """

    graph: OpGraph
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]

    def to_dot(self) -> str:
        """Input for `dot -Tsvg`. Dashed edges are results used in later text."""
        lines = [f"digraph {_quoted(self.graph.name)} {{"]
        for number, node in enumerate(self.nodes):
            shape = _SHAPES.get(type(node.step), "ellipse")
            lines.append(
                f"  n{number} [shape={shape}, label={_quoted(self.graph.describe(node.step))}];"
            )
        lines += [
            f"  n{edge.source} -> n{edge.target}{' [style=dashed]' * edge.is_use};"
            for edge in self.edges
        ]
        return "\n".join([*lines, "}"])


def drawing_of(graph: OpGraph) -> Drawing:
    nodes: list[GraphNode] = []
    edges: list[GraphEdge] = []
    last: dict[int, int] = {}  # branch -> its latest node
    made_by: dict[int, int] = {}  # call -> its node
    for branch, index in graph.order:
        step, number = graph.steps[branch][index], len(nodes)
        nodes.append(GraphNode(branch, step))
        if branch in last:
            edges.append(GraphEdge(last[branch], number))
        last[branch] = number
        if isinstance(step, wire.Fork):
            last.update(dict.fromkeys(step.children, number))
        elif isinstance(step, Join):
            edges += [GraphEdge(last[child], number) for child in step.children]
        elif isinstance(step, wire.Append):
            edges += [
                GraphEdge(source, number, is_use=True)
                for source in _sources(graph, step, made_by, last)
            ]
        else:
            made_by[step.call] = number
    return Drawing(graph, tuple(nodes), tuple(edges))


def _sources(
    graph: OpGraph, step: wire.Append, made_by: Mapping[int, int], last: Mapping[int, int]
) -> list[int]:
    """The nodes whose results a text contains: by reference, or written by the program."""
    found: list[int] = []
    for piece in step.pieces:
        if isinstance(piece, wire.Ref):
            found.append(made_by[piece.call])
        elif isinstance(piece, wire.Gained):
            found.append(last[piece.branch])
        elif isinstance(piece, wire.TextPiece):
            found += [
                node for call, node in made_by.items() if graph.calls[call].mark in piece.text
            ]
    return list(dict.fromkeys(found))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
