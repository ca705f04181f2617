"""Everything a program offers before it runs: its trace, its prompts, its cost, and its beginning
computed in advance. The entry point of this package, imported on first use.
"""

from __future__ import annotations

from lmprog import wire
from lmprog.lang.branches.scope import RunSettings
from lmprog.lang.rehearsal.ahead import compute_beginning
from lmprog.lang.rehearsal.cost import Explanation, explain_of
from lmprog.lang.rehearsal.double import rehearse
from lmprog.lang.rehearsal.graph import Graph
from lmprog.lang.rehearsal.preview import Preview, preview_of
from lmprog.lang.rehearsal.prompts import PromptReader
from lmprog.lang.runs.executor import Job, backend_of


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


def compute_ahead(graph: Graph, settings: RunSettings) -> wire.Usage:
    """See `Program.cache`."""
    return compute_beginning(graph, settings)
