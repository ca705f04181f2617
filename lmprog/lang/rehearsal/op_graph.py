"""A program's ops as a graph: branches, calls, forks and joins, shown as text.

Built from the ops that a rehearsal posted. Knows the wire's ops; runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from lmprog import wire
from lmprog.lang.branches.pending_call import Site

_SHOWN = 72  # maximum characters of a text in the output


@dataclass(frozen=True, slots=True)
class Planned:
    """A call of the program. `label` is its name, or its kind and number; labels are unique."""

    label: str
    op: wire.Generate | wire.Select
    site: Site | None = None

    @property
    def mark(self) -> str:
        """The marker shown in place of the result."""
        return f"⟨{self.label}⟩"

    def __str__(self) -> str:
        op = self.op
        if isinstance(op, wire.Select):
            options = " | ".join(op.choices[:5]) + (" | ..." if len(op.choices) > 5 else "")
            details = [options, op.method]
        else:
            most = op.sampling.max_tokens
            details = [f"at most {most} tokens" if most is not None else "up to the context's end"]
            details += [f"n={op.sampling.n}"] if op.sampling.n > 1 else []
            beams = op.sampling.beams
            details += [f"{beams.width} beams"] if beams is not None else []
            details += [type(op.constraint).__name__] if op.constraint is not None else []
        kind = "select" if isinstance(op, wire.Select) else "gen"
        where = f"  [line {self.site.line}]" if self.site is not None else ""
        return f"{self.label} = {kind}({', '.join(details)}){where}"


@dataclass(frozen=True, slots=True)
class Join:
    """The end of branches whose texts go back to the branch that forked them."""

    children: tuple[int, ...]


GraphOp: TypeAlias = wire.Append | wire.Generate | wire.Select | wire.Fork | Join


@dataclass(frozen=True, slots=True)
class OpGraph:
    """All ops of one rehearsed run, in the order in which they were posted."""

    name: str
    ops: tuple[wire.Op, ...]
    calls: Mapping[int, Planned]
    roots: list[int] = field(init=False, default_factory=list)
    parents: dict[int, int] = field(init=False, default_factory=dict)
    steps: dict[int, list[GraphOp]] = field(init=False, default_factory=dict)
    """The steps of each branch, in order."""

    numbers: dict[int, int] = field(init=False, default_factory=dict)
    """The number of each branch, counted from 1 in order of creation."""
    order: list[tuple[int, int]] = field(init=False, default_factory=list)
    """(branch, index of the step), in the order in which they were posted."""

    def __post_init__(self) -> None:
        closed: set[int] = set()
        for op in self.ops:
            if isinstance(op, wire.Open):
                self.roots.append(op.branch)
                self._begin(op.branch)
            elif isinstance(op, wire.Append | wire.Generate | wire.Select | wire.Fork):
                self._add(op.branch, op)
                for child in op.children if isinstance(op, wire.Fork) else ():
                    self._begin(child)
                    self.parents[child] = op.branch
            elif isinstance(op, wire.Close):
                closed.add(op.branch)
                if closed.isdisjoint(self.above(op.branch)):
                    self._join(op.branch)

    def _add(self, branch: int, step: GraphOp) -> None:
        self.order.append((branch, len(self.steps[branch])))
        self.steps[branch].append(step)

    def _join(self, child: int) -> None:
        """Adds the end of a child to a join of its parent, together with its siblings, if the
        parent goes on.
        """
        parent = self.parents.get(child)
        if parent is None:
            return
        last = self.steps[parent][-1]
        if isinstance(last, Join):
            self.steps[parent][-1] = Join((*last.children, child))
            at = (parent, len(self.steps[parent]) - 1)
            if self.order[-1] != at:  # the join comes after all steps of its children
                self.order.remove(at)
                self.order.append(at)
        else:
            self._add(parent, Join((child,)))

    def above(self, branch: int) -> list[int]:
        """The branch's ancestors, nearest first."""
        found: list[int] = []
        while branch in self.parents:
            branch = self.parents[branch]
            found.append(branch)
        return found

    def _begin(self, branch: int) -> None:
        self.steps[branch] = []
        self.numbers[branch] = len(self.steps)

    # --- as text

    def __str__(self) -> str:
        forks = sum(isinstance(op, wire.Fork) for op in self.ops)
        head = f"{self.name}: {len(self.calls)} calls, {len(self.steps)} branches, {forks} forks"
        return "\n".join([head, *(line for root in self.roots for line in self._lines(root, ""))])

    def _lines(self, branch: int, indent: str) -> Iterator[str]:
        yield f"{indent}branch {self.numbers[branch]}"
        indent += "  "
        for step in self.steps[branch]:
            yield indent + self.describe(step)
            if isinstance(step, wire.Fork):
                for child in step.children:
                    yield from self._lines(child, indent + "  ")

    def describe(self, step: GraphOp) -> str:
        """One line that describes a step."""
        if isinstance(step, wire.Append):
            return "text " + " ".join(self._piece(piece) for piece in step.pieces)
        if isinstance(step, wire.Fork):
            return "fork into " + ", ".join(
                f"branch {self.numbers[child]}" for child in step.children
            )
        if isinstance(step, Join):
            return "join " + ", ".join(f"branch {self.numbers[child]}" for child in step.children)
        return str(self.calls[step.call])

    def _piece(self, piece: wire.Piece) -> str:
        if isinstance(piece, wire.TextPiece):
            text = piece.text if len(piece.text) <= _SHOWN else piece.text[: _SHOWN - 3] + "..."
            return repr(text)
        if isinstance(piece, wire.Ref):
            return self.calls[piece.call].mark
        if isinstance(piece, wire.Gained):
            return f"(all that branch {self.numbers[piece.branch]} gained)"
        if isinstance(piece, wire.TokensPiece):
            return f"({len(piece.ids)} tokens)"
        if isinstance(piece, wire.RoleBegin | wire.RoleEnd):
            return f"<{piece.role}>" if isinstance(piece, wire.RoleBegin) else f"</{piece.role}>"
        return f"({type(piece).__name__.lower()})"  # the frontend posts no other pieces
