"""Draws an automaton as SVG: texts run from left to right, accepting states have a double circle.

Chains of states without a choice are drawn as one edge labelled with the whole text. A state is
placed one column after its first predecessor; back edges are curved below. Knows states, moves and
labels; knows no patterns and no tokens.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

_COLUMN, _ROW, _RADIUS, _MARGIN = 150.0, 76.0, 11.0, 60.0  # pixels
_CHARS = 20  # characters of a label that fit


@dataclass(frozen=True, slots=True)
class AutomatonEdge:
    """An edge for any of the bytes of its label, or for the whole text of it."""

    source: int
    target: int
    label: str


def merged(
    moves: Mapping[int, Mapping[int, str]], finals: Collection[int], start: int
) -> list[AutomatonEdge]:
    """`moves`: state -> next state -> label. States with one edge in and one out are merged into an
    edge.
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
    """Column and row of each reachable state, breadth first; a state's first successor shares its
    row.
    """
    after: dict[int, list[int]] = {}
    for edge in edges:
        after.setdefault(edge.source, []).append(edge.target)
    places, taken, queue = {start: (0, 0)}, {(0, 0)}, [start]
    for state in queue:  # appended to while iterated
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
    """The SVG document. States without known moves are drawn dashed: they were not explored."""
    edges = merged(moves, finals, start)
    places = columns(edges, start)
    where = {state: (_MARGIN + x * _COLUMN, _MARGIN + y * _ROW) for state, (x, y) in places.items()}
    width = max(x for x, _ in where.values()) + _MARGIN
    height = max(y for _, y in where.values()) + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" '
        f'height="{height:.0f}" font-family="monospace" font-size="11">',
        '<defs><marker id="to" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto">'
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
    """`bend`: the number of edges already drawn between the same two states."""
    (x, y), (to_x, to_y) = where[edge.source], where[edge.target]
    begin, end, anchor = x + _RADIUS, to_x - _RADIUS, "middle"
    if edge.source == edge.target:  # a loop above the state
        high = y - 36 - 14 * bend
        path = (
            f"M{x - 6:.0f} {y - 9:.0f}C{x - 22:.0f} {high:.0f} {x + 22:.0f} {high:.0f} "
            f"{x + 6:.0f} {y - 9:.0f}"
        )
        middle, line = x, high + 4
    elif to_x > x:
        up = 36 * bend
        path = (
            f"M{begin:.0f} {y:.0f}C{x + 60:.0f} {y - up:.0f} {to_x - 60:.0f} "
            f"{to_y - up:.0f} {end:.0f} {to_y:.0f}"
        )
        middle, line = (x + to_x) / 2, (y + to_y) / 2 - 5 - 0.75 * up
    elif to_x == x:  # in the same column, curved to the right
        bow = x + 40 + 20 * bend
        path = (
            f"M{begin:.0f} {y:.0f}C{bow:.0f} {y:.0f} {bow:.0f} {to_y:.0f} "
            f"{to_x + _RADIUS:.0f} {to_y:.0f}"
        )
        middle, line, anchor = bow - 6, (y + to_y) / 2 + 4, "start"
    else:
        low = max(y, to_y) + 34 + 16 * bend
        path = (
            f"M{x:.0f} {y + _RADIUS:.0f}C{x:.0f} {low:.0f} {to_x:.0f} {low:.0f} {to_x:.0f} "
            f"{to_y + _RADIUS:.0f}"
        )
        middle, line = (x + to_x) / 2, low - 2
    label = edge.label if len(edge.label) <= _CHARS else edge.label[: _CHARS - 1] + "…"
    return (
        f'<g><title>{html.escape(edge.label)}</title><path d="{path}" fill="none" '
        f'stroke="#555" marker-end="url(#to)"/>'
        f'<text x="{middle:.0f}" y="{line:.0f}" text-anchor="{anchor}" stroke="#fff" '
        f'stroke-width="3" '
        f'paint-order="stroke">{html.escape(label)}</text></g>'
    )
