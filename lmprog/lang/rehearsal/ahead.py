"""Computes the common beginning of all runs of a program in advance. Knows traces; caching is the
runtime's task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lmprog import wire
from lmprog.lang.branches.branch import Branch
from lmprog.lang.branches.scope import RunSettings
from lmprog.lang.ops.expressions import RoleBeginExpr, RoleEndExpr, gen_op
from lmprog.lang.rehearsal.graph import Graph
from lmprog.lang.runs.executor import Job, blocking, open_run

UNKNOWN = "⟨"  # first character of the marker of an omitted argument or of a result


def beginning(graph: Graph) -> Iterator[str | RoleBeginExpr | RoleEndExpr]:
    """The texts and roles of the first branch up to the first thing that differs between runs."""
    for step in graph.steps[graph.roots[0]] if graph.roots else ():
        if not isinstance(step, wire.Append):
            return
        for piece in step.pieces:
            if isinstance(piece, wire.RoleBegin):
                yield RoleBeginExpr(piece.role)
            elif isinstance(piece, wire.RoleEnd):
                yield RoleEndExpr(piece.role)
            elif isinstance(piece, wire.TextPiece):
                known, mark, _ = piece.text.partition(UNKNOWN)
                yield known
                if mark:
                    return
            else:
                return


def compute_beginning(graph: Graph, settings: RunSettings) -> wire.Usage:
    """Lets the runtime compute the beginning, by generating one token after it; blocks. Does
    nothing if it has no text.
    """
    contents = [content for content in beginning(graph) if content != ""]

    def program(s: Branch) -> None:
        if any(isinstance(content, str) for content in contents):
            s.append(*contents)
            s.append(gen_op(None, 1, {"temperature": 0.0, "ignore_eos": True}))

    run = open_run(replace(settings, cache=None))  # a kept answer would compute nothing
    blocking(Job(program, (), {}), run)
    run.value  # noqa: B018  (raises)
    return run.usage
