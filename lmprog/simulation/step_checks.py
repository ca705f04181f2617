"""The invariants of what a step has most likely touched: the sequences that run, their paths, and
the number of pages.

Costs little, so that it can follow every step. `Scheduler.check` looks at everything: also at nodes
that nobody runs on, waiting sequences, the order of eviction, and which pages leaked.
"""

from __future__ import annotations

from array import array

from lmprog.radix import Node
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence, SequenceState


def check_running(scheduler: Scheduler) -> None:
    """Raises AssertionError."""
    page_size, tables, pages = scheduler.config.page_size, scheduler.tables, scheduler.pages
    private: list[int] = []
    seen: set[Node] = set()
    for sequence in scheduler.running:
        assert sequence.state is SequenceState.RUNNING, "an admitted sequence runs"
        assert len(sequence.pages) * page_size >= sequence.computed, "computed tokens have pages"
        private.extend(tables.private_pages(sequence))
        _check_path(scheduler, sequence, seen)
    loading = scheduler.tier.pages_held() if scheduler.tier is not None else []
    num_private = len(private) + len(loading)
    assert len({*private, *loading}) == num_private, "a page has two owners"
    num_known = pages.num_free + scheduler.tree.num_cached + num_private
    assert num_known == pages.num_pages, f"{num_known} of {pages.num_pages} pages have an owner"


def _check_path(scheduler: Scheduler, sequence: Sequence, seen: set[Node]) -> None:
    """`seen` are nodes that were checked already."""
    node = sequence.node
    if node is None:
        assert not sequence.shared, "shared pages are in the tree"
        return
    assert node.locks_here > 0, "a sequence locks what it stands on"
    assert node.salt == sequence.namespace.root, "salts never share a page"
    if not node.alive:
        return
    path: list[Node] = []
    while node is not None:
        path.append(node)
        if node not in seen:
            seen.add(node)
            scheduler.tree.check_node(node)
        node = node.parent
    whole = min(sequence.shared, sequence.computed // scheduler.config.page_size)
    shared = array("i", [page for node in reversed(path) for page in node.pages][:whole])
    assert shared == sequence.pages[:whole], "shared pages are those of the path"
