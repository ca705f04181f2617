"""Everything a program offers before it runs: its trace, its prompts, its cost, and its beginning
computed in advance. The entry point of this package, imported on first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lmprog import wire
from lmprog.lang.branches.branch import Branch
from lmprog.lang.branches.scope import RunSettings
from lmprog.lang.ops.expressions import RoleBeginExpr, RoleEndExpr, gen_op
from lmprog.lang.rehearsal.cost import Explanation, explain_of
from lmprog.lang.rehearsal.double import rehearse
from lmprog.lang.rehearsal.graph import Graph
from lmprog.lang.rehearsal.preview import Preview, preview_of
from lmprog.lang.rehearsal.prompts import PromptReader
from lmprog.lang.runs.executor import Job, backend_of, blocking, open_run


def preview(job: Job, settings: RunSettings) -> Preview:
    """See `Program.preview`."""
    client = backend_of(settings).client
    return preview_of(
        rehearse(job, settings, client.welcome.tools).graph, PromptReader(client, settings.salt)
    )


def explain(job: Job, settings: RunSettings) -> Explanation:
    """See `Program.explain`."""
    client = backend_of(settings).client
    graph = rehearse(job, settings, client.welcome.tools).graph
    return explain_of(graph, PromptReader(client, settings.salt), client.welcome)


def trace(job: Job, settings: RunSettings) -> Graph:
    """See `Program.trace`."""
    return rehearse(job, settings).graph


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


def compute_ahead(graph: Graph, settings: RunSettings) -> wire.Usage:
    """See `Program.cache`. The runtime computes the beginning and generates one token after it;
    blocks. Does nothing where the beginning has no text.
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
