"""Invariants of running and waiting sequences, for tests and idle moments."""

from __future__ import annotations

from collections.abc import Iterable

from lmprog.runtime.scheduling.sequence import Sequence, SequenceState
from lmprog.runtime.scheduling.waiting_queue import WaitingQueue


def check_sequences(
    running: Iterable[Sequence], waiting: WaitingQueue, held: set[int], page_size: int
) -> None:
    """`held` are the pages of the tree. Raises AssertionError."""
    for sequence in running:
        assert sequence.state is SequenceState.RUNNING, "an admitted sequence runs"
        assert sequence not in waiting, "an admitted sequence does not wait"
        whole = min(sequence.shared, sequence.computed // page_size)
        assert all(page in held for page in sequence.pages[:whole]), "shared pages are in the tree"
        if sequence.node is not None:
            assert sequence.node.salt == sequence.namespace.root, "salts never share a page"
        room = len(sequence.pages) * page_size
        assert room >= sequence.computed, "computed tokens have pages"
    for sequence in waiting:
        assert sequence.state is SequenceState.WAITING, "a queued sequence waits"
        assert sequence.node is None, "a waiting sequence locks nothing"
        assert not sequence.pages, "a waiting sequence has no pages"
