"""An automaton as a picture of its own (SVG): texts run from left to right, a double circle is
where one may end.

Stretches without any choice are drawn as one edge with their whole text. A state stands one column
behind the first of those that lead to it; ways back bend below. Knows states, moves and labels;
knows no patterns and no tokens.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

_COLUMN, _ROW, _RADIUS, _MARGIN = 150.0, 76.0, 11.0, 60.0  # pixels
_CHARS = 20  # of a label that there is room for


@dataclass(frozen=True, slots=True)
class AutomatonEdge:
    """From one state to another by any of the bytes of its label, or by the whole text of it."""

    source: int
    target: int
    label: str


def merged(
    moves: Mapping[int, Mapping[int, str]], finals: Collection[int], start: int
) -> list[AutomatonEdge]:
    """`moves`: state -> state after -> label. States with one way in and one way out become part of
    an edge.
    """
    entries = Counter(after for steps in moves.values() for after in steps)
    passed = {
        state
        for state, steps in moves.items()
        if len(steps) == 1
        and entries[state] == 1
        and state != start
        and state not in finals
        and state not in steps
    }
    edges: list[AutomatonEdge] = []
    for state, steps in moves.items():
        if state in passed:
            continue
        for after, label in steps.items():
            at, text, last, seen = after, label, label, {state}
            while at in passed and at not in seen:
                seen.add(at)
                ((at, more),) = moves[at].items()
                text += more if len(last) == len(more) == 1 else f" {more}"
                last = more
            edges.append(AutomatonEdge(state, at, text))
    return edges


def columns(edges: Sequence[AutomatonEdge], start: int) -> dict[int, tuple[int, int]]:
    """Column and row of each state within reach, breadth first; the first of a state's followers
    stays on its row.
    """
    after: dict[int, list[int]] = {}
    for edge in edges:
        after.setdefault(edge.source, []).append(edge.target)
    places, taken, queue = {start: (0, 0)}, {(0, 0)}, [start]
    for state in queue:  # grows while it is read
        column, row = places[state]
        for target in after.get(state, ()):
            if target in places:
                continue
            place = (column + 1, row)
            while place in taken:
                place = (column + 1, place[1] + 1)
            places[target] = place
            taken.add(place)
            queue.append(target)
    return places


def to_svg(moves: Mapping[int, Mapping[int, str]], finals: Collection[int], start: int) -> str:
    """The picture. States whose moves are not given are drawn dashed: there is more behind them."""
    edges = merged(moves, finals, start)
    places = columns(edges, start)
    where = {state: (_MARGIN + x * _COLUMN, _MARGIN + y * _ROW) for state, (x, y) in places.items()}
    width = max(x for x, _ in where.values()) + _MARGIN
    height = max(y for _, y in where.values()) + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="monospace" font-size="11">',
        '<defs><marker id="to" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>',
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    drawn: Counter[tuple[int, int]] = Counter()
    for edge in edges:
        parts.append(_edge(edge, drawn[edge.source, edge.target], where))
        drawn[edge.source, edge.target] += 1
    for state, (x, y) in where.items():
        dash = "" if state in moves else ' stroke-dasharray="3 3"'
        fill = "#cfe2ff" if state == start else "#f4f4f4"
        parts.append(
            f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{_RADIUS}" fill="{fill}" stroke="#333"{dash}/>'
        )
        if state in finals:
            parts.append(
                f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{_RADIUS - 4}" fill="none" stroke="#333"/>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _edge(edge: AutomatonEdge, bend: int, where: Mapping[int, tuple[float, float]]) -> str:
    """`bend`: how many edges between the same two states are drawn already."""
    (x, y), (to_x, to_y) = where[edge.source], where[edge.target]
    begin, end, anchor = x + _RADIUS, to_x - _RADIUS, "middle"
    if edge.source == edge.target:  # round and back, above
        high = y - 36 - 14 * bend
        path = f"M{x - 6:.0f} {y - 9:.0f}C{x - 22:.0f} {high:.0f} {x + 22:.0f} {high:.0f} {x + 6:.0f} {y - 9:.0f}"
        middle, line = x, high + 4
    elif to_x > x:
        up = 36 * bend
        path = f"M{begin:.0f} {y:.0f}C{x + 60:.0f} {y - up:.0f} {to_x - 60:.0f} {to_y - up:.0f} {end:.0f} {to_y:.0f}"
        middle, line = (x + to_x) / 2, (y + to_y) / 2 - 5 - 0.75 * up
    elif to_x == x:  # in the same column, bowed to the right
        bow = x + 40 + 20 * bend
        path = f"M{begin:.0f} {y:.0f}C{bow:.0f} {y:.0f} {bow:.0f} {to_y:.0f} {to_x + _RADIUS:.0f} {to_y:.0f}"
        middle, line, anchor = bow - 6, (y + to_y) / 2 + 4, "start"
    else:
        low = max(y, to_y) + 34 + 16 * bend
        path = f"M{x:.0f} {y + _RADIUS:.0f}C{x:.0f} {low:.0f} {to_x:.0f} {low:.0f} {to_x:.0f} {to_y + _RADIUS:.0f}"
        middle, line = (x + to_x) / 2, low - 2
    label = edge.label if len(edge.label) <= _CHARS else edge.label[: _CHARS - 1] + "…"
    return (
        f'<g><title>{html.escape(edge.label)}</title><path d="{path}" fill="none" stroke="#555" marker-end="url(#to)"/>'
        f'<text x="{middle:.0f}" y="{line:.0f}" text-anchor="{anchor}" stroke="#fff" stroke-width="3" '
        f'paint-order="stroke">{html.escape(label)}</text></g>'
    )
