"""The runtime's counters and the state of its scheduler, by name. Changes nothing."""

from __future__ import annotations

import os

from lmprog.runtime.scheduling.scheduler import Scheduler


def runtime_figures(scheduler: Scheduler) -> dict[str, float]:
    """What `stats` counts, and tree, pages and queue right now."""
    tree, pages = scheduler.tree, scheduler.pages
    tier = scheduler.tier
    num_preempted = sum(1 for sequence in scheduler.waiting if sequence.admission_order)
    kept = {} if tier is None else {f"tier_{name}": value for name, value in tier.figures().items()}
    drafts = scheduler.drafting.model
    if drafts is not None:
        kept |= {"draft_pages": drafts.num_pages, "draft_pages_free": drafts.num_free_pages}
    return {
        **scheduler.stats.figures(),
        **kept,
        "running": float(len(scheduler.running)),
        "waiting": float(len(scheduler.waiting)),
        "preempted_waiting": float(num_preempted),
        "pages": float(pages.num_pages),
        "pages_free": float(pages.num_free),
        "pages_cached": float(tree.num_cached),
        "pages_evictable": float(tree.num_evictable),
        "pages_pinned": float(tree.num_pinned),
        "tree_nodes": float(tree.num_nodes),
        "page_size": float(scheduler.config.page_size),
        "pid": float(os.getpid()),
    }
