"""The graph that `program.trace(...)` returns: a program's ops as text, as nodes and edges, in
Graphviz's DOT language and as a picture.
"""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lmprog import wire
from lmprog.lang.rehearsal.op_graph import GraphOp, Join, OpGraph


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


_WIDTH, _GAP_X, _GAP_Y = 248.0, 28.0, 22.0  # of a box, between columns, between rows; in pixels
_LINE, _PAD, _MARGIN, _TITLE = 16.0, 7.0, 20.0, 34.0
_CHARS, _LINES = 32, 4  # that a box has room for
_SMALL = 74.0  # width of a fork or a join
_COLORS = {
    "text": "#f4f4f4",
    "gen": "#cfe2ff",
    "select": "#fff2cc",
    "fork": "#e2e2e2",
    "join": "#e2e2e2",
}
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]"
)  # what XML may not contain


@dataclass(frozen=True, slots=True)
class Words:
    """The text in a box: a title in bold, the source location, and the other lines."""

    kind: str
    head: str = ""
    where: str = ""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Box:
    """The position of a node. `x` is its center, `y` its top."""

    words: Words
    x: float
    y: float
    row: int

    @property
    def is_small(self) -> bool:
        return self.words.kind in ("fork", "join")

    @property
    def width(self) -> float:
        return _SMALL if self.is_small else _WIDTH

    @property
    def height(self) -> float:
        return _height(self.words.head, self.words.lines)

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def boxes_of(drawing: Drawing) -> list[Box]:
    """The boxes of all nodes, in order; they do not overlap."""
    rows = [0] * len(drawing.nodes)
    for edge in sorted(drawing.edges, key=lambda edge: edge.target):
        rows[edge.target] = max(rows[edge.target], rows[edge.source] + 1)
    written = [_written(drawing.graph, node) for node in drawing.nodes]
    heights = [0.0] * (max(rows, default=-1) + 1)
    for row, words in zip(rows, written, strict=True):
        heights[row] = max(heights[row], _height(words.head, words.lines))
    tops = [_TITLE + _MARGIN]
    for height in heights:
        tops.append(tops[-1] + height + _GAP_Y)
    columns = _Columns(drawing.graph).middles
    return [
        Box(words, _MARGIN + _WIDTH / 2 + columns[node.branch] * (_WIDTH + _GAP_X), tops[row], row)
        for row, node, words in zip(rows, drawing.nodes, written, strict=True)
    ]


class _Columns:
    """The column of each branch; half columns are possible."""

    def __init__(self, graph: OpGraph) -> None:
        self._graph = graph
        self.middles: dict[int, float] = {}
        left = 0.0
        for root in graph.roots:
            self._place(root, left)
            left += self._width(root)

    def _forks(self, branch: int) -> tuple[list[tuple[wire.Fork, float]], bool]:
        """The branch's forks, each with the number of columns that earlier ones still occupy; and
        whether the branch continues beside any of them.
        """
        steps = self._graph.steps[branch]
        found: list[tuple[wire.Fork, float]] = []
        running: list[tuple[float, float]] = []  # last step, width
        beside = False
        for index, step in enumerate(steps):
            if isinstance(step, wire.Fork):
                running = [(end, width) for end, width in running if end > index]
                found.append((step, sum(width for _, width in running)))
                end = max(self._joined(branch, child) for child in step.children)
                running.append((end, sum(map(self._width, step.children))))
                beside = beside or index + 1 < min(end, len(steps))
        return found, beside

    def _joined(self, branch: int, child: int) -> float:
        """The step of the branch after which the child and all its descendants are complete, if
        there is one.
        """
        forks = [step for step in self._graph.steps[child] if isinstance(step, wire.Fork)]
        if any(
            self._joined(child, grandchild) == math.inf
            for fork in forks
            for grandchild in fork.children
        ):
            return math.inf
        steps = enumerate(self._graph.steps[branch])
        return next(
            (at for at, step in steps if isinstance(step, Join) and child in step.children),
            math.inf,
        )

    def _width(self, branch: int) -> float:
        forks, beside = self._forks(branch)
        return max(
            [
                1.0,
                *(beside + before + sum(map(self._width, fork.children)) for fork, before in forks),
            ]
        )

    def _place(self, branch: int, left: float) -> None:
        width = self._width(branch)
        forks, beside = self._forks(branch)
        self.middles[branch] = left if beside else left + (width - 1) / 2
        for fork, before in forks:
            widths = [self._width(child) for child in fork.children]
            at = left + 1 + before if beside else left + (width - sum(widths)) / 2
            for child, size in zip(fork.children, widths, strict=True):
                self._place(child, at)
                at += size


def _height(head: str, lines: Sequence[str]) -> float:
    return 2 * _PAD + _LINE * (bool(head) + len(lines))


def _written(graph: OpGraph, node: GraphNode) -> Words:
    step = node.step
    if isinstance(step, wire.Fork):
        return Words("fork", f"fork {len(step.children)}")
    if isinstance(step, Join):
        return Words("join", f"join {len(step.children)}")
    if isinstance(step, wire.Append):
        return Words("text", lines=_wrapped(graph.describe(step).removeprefix("text ")))
    kind = "select" if isinstance(step, wire.Select) else "gen"
    planned = graph.calls[step.call]
    where = "" if planned.site is None else f"line {planned.site.line}"
    description = (
        graph.describe(step).removeprefix(f"{planned.label} = ").removesuffix(f"  [{where}]")
    )
    return Words(kind, _cut(planned.label, _CHARS - len(where) - 2), where, _wrapped(description))


def _wrapped(text: str) -> tuple[str, ...]:
    lines = textwrap.wrap(text, _CHARS, drop_whitespace=False) or [""]
    return tuple(
        lines
        if len(lines) <= _LINES
        else [*lines[: _LINES - 1], _cut(lines[_LINES - 1] + "…", _CHARS)]
    )


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 1] + "…"


def to_svg(drawing: Drawing) -> str:
    """The SVG document, complete and without external references."""
    boxes, title = boxes_of(drawing), str(drawing.graph).partition("\n")[0]
    width = (
        max([_MARGIN + 9.0 * len(title), *(box.x + box.width / 2 + _MARGIN for box in boxes)])
        + _MARGIN
    )
    height = max([box.y + box.height for box in boxes], default=_TITLE) + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="monospace" font-size="12" '
        'fill="#222">',
        '<defs><marker id="lmprog-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" '
        'orient="auto"><path d="M0 0 8 4 0 8z" fill="#666"/></marker></defs>',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{_MARGIN:.0f}" y="{_TITLE - 8:.0f}" font-size="14" '
        f'font-weight="bold">{_escaped(title)}</text>',
        *(
            _line(boxes[edge.source], boxes[edge.target], is_use=edge.is_use)
            for edge in drawing.edges
            if not _only_waits(drawing, edge)
        ),
        *(
            line
            for box, node in zip(boxes, drawing.nodes, strict=True)
            for line in _box(box, drawing.graph.describe(node.step))
        ),
        "</svg>",
    ]
    return "\n".join(parts)


def _only_waits(drawing: Drawing, edge: GraphEdge) -> bool:
    """Whether the edge goes from a fork to its own join: the children's edges show that path
    already.
    """
    source, target = drawing.nodes[edge.source], drawing.nodes[edge.target]
    return (
        source.branch == target.branch
        and isinstance(source.step, wire.Fork)
        and isinstance(target.step, Join)
    )


def _line(source: Box, target: Box, *, is_use: bool) -> str:
    x1, y1, x2, y2 = source.x, source.y + source.height, target.x, target.y
    if is_use:  # beside the edge that shows the order
        x1, x2 = x1 + 24, x2 + 24
    style = ' stroke="#b36b00" stroke-dasharray="5 4"' if is_use else ' stroke="#666"'
    if is_use and abs(x1 - x2) < 1 and target.row > source.row + 1:  # around the boxes between them
        x1, x2, y1, y2 = (
            source.x + source.width / 2,
            target.x + target.width / 2,
            source.middle,
            target.middle,
        )
        path = (
            f"M{x1:.0f} {y1:.0f}C{x1 + 34:.0f} {y1:.0f} {x2 + 34:.0f} {y2:.0f} "
            f"{x2 + 1:.0f} {y2:.0f}"
        )
    elif abs(x1 - x2) < 1:
        path = f"M{x1:.0f} {y1:.0f}V{y2:.0f}"
    else:
        bend = min(_GAP_Y, (y2 - y1) / 2) + 12
        path = (
            f"M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} "
            f"{x2:.0f} {y2:.0f}"
        )
    return (
        f'<path d="{path}" fill="none"{style} stroke-width="1.3" marker-end="url(#lmprog-arrow)"/>'
    )


def _box(box: Box, tip: str) -> Iterator[str]:
    words, left = box.words, box.x - box.width / 2
    yield f"<g><title>{_escaped(tip)}</title>"
    yield (
        f'<rect x="{left:.1f}" y="{box.y:.1f}" width="{box.width:.0f}" height="{box.height:.0f}" '
        f'rx="{12 if box.is_small else 5}" fill="{_COLORS[words.kind]}" stroke="#999"/>'
    )
    baseline = box.y + _PAD + 12
    if words.head:
        place = f'x="{box.x:.1f}" text-anchor="middle"' if box.is_small else f'x="{left + 8:.1f}"'
        yield f'<text {place} y="{baseline:.1f}" font-weight="bold">{_escaped(words.head)}</text>'
    if words.where:
        right = left + box.width - 8
        yield (
            f'<text x="{right:.1f}" y="{baseline:.1f}" text-anchor="end" '
            f'fill="#777">{_escaped(words.where)}</text>'
        )
    for line in words.lines:
        baseline += _LINE if line is not words.lines[0] or words.head else 0
        yield (
            f'<text x="{left + 8:.1f}" y="{baseline:.1f}" '
            f'xml:space="preserve">{_escaped(line)}</text>'
        )
    yield "</g>"


def _escaped(text: str) -> str:
    return html.escape(_UNSEEN.sub("\ufffd", text))
