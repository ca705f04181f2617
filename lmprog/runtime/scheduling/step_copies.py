"""Slots of the step being planned that get the contents of others: copies and mirrors.

Within a step there may be nothing to copy yet, because another row of the same step computes these
slots. Then that row writes its keys and values to the second place as well (a *mirror*). Knows
which row writes which pages; knows no sequence and no tree.
"""

from __future__ import annotations

from lmprog.runtime.scheduling.plan import Copy, Mirror


class StepCopies:
    """Of one step after the other."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._copies: list[Copy] = []
        self._mirrors: list[Mirror] = []
        self._writers: dict[int, tuple[int, int, int]] = {}
        """Page written in this step -> (row, position of the page's first slot, first position that
        the row computes).
        """
        self._origins: dict[int, Copy | Mirror] = {}
        """Slot copied to in this step -> how it gets its contents."""

    def begin(self) -> None:
        """Another step is planned."""
        self._copies, self._mirrors = [], []
        self._writers.clear()
        self._origins.clear()

    def finish(self) -> tuple[tuple[Copy, ...], tuple[Mirror, ...]]:
        """The copies and mirrors of the step."""
        return tuple(self._copies), tuple(self._mirrors)

    def write(self, page: int, row: int, begin: int, first: int) -> None:
        """Row `row`, which computes positions from `first` on, writes `page`, whose first slot is
        that of position `begin`.
        """
        self._writers[page] = (row, begin, first)

    def share_slot(self, page: int, offset: int, target: int) -> None:
        """Slot `target` gets the contents that slot `offset` of `page` has after this step."""
        origin: Copy | Mirror | None = None
        writer = self._writers.get(page)
        if writer is not None:
            row, begin, first = writer
            if begin + offset >= first:
                origin = Mirror(row, begin + offset - first, target)
        if origin is None:
            source = page * self._page_size + offset
            known = self._origins.get(source)
            if isinstance(known, Mirror):
                origin = Mirror(known.row, known.offset, target)
            else:
                origin = Copy(known.source if known is not None else source, target)
        if isinstance(origin, Mirror):
            self._mirrors.append(origin)
        else:
            self._copies.append(origin)
        self._origins[target] = origin
