"""A draft model: a small model of the same vocabulary, which writes what a large one may say next;
or a layer of the large one itself, which predicts further tokens.

It is an engine like any other, with pages of its own. Of each sequence it keeps the keys and values
of what it has read, and reads what is new when it is asked again; a long prompt is read a part at a
time, and until that is done nothing is drafted. Where pages are short, sequences that were drafted
long ago give theirs up. A new sequence takes over the pages of one that has ended and begins alike,
so that a branch that goes on is not read again.

Knows configurations, sequences, pages and batches; what a draft is worth is the scheduler's matter,
and whether the vocabularies are the same, tokenizers tell.
"""

from __future__ import annotations

from array import array
from collections.abc import Container
from collections.abc import Sequence as Drafts
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lmprog.config import RuntimeConfig
from lmprog.config_check import check_options
from lmprog.errors import InvalidParameter
from lmprog.runtime.engine.engine import SelectedEngine, select_engine
from lmprog.runtime.engine.model.resolution import OWN_LAYER, cannot_predict
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.scheduling.batch import build_batch
from lmprog.runtime.scheduling.drafting import GrowingDraft
from lmprog.runtime.scheduling.plan import Plan, Row
from lmprog.runtime.scheduling.sequence import Sequence, SequenceState

MOST_READ = 256
"""Tokens that are read in one step before drafts begin, over all sequences."""
MOST_ENDED = 64
"""Sequences that have ended, and are kept for those that go on from them."""


@dataclass(eq=False, slots=True)
class _ReadText:
    """What was read of a sequence: tokens that have keys and values, and their pages."""

    tokens: array[int] = field(default_factory=lambda: array("i"))
    pages: array[int] = field(default_factory=lambda: array("i"))


class EngineDraftModel:
    """Drafts with `engine`, whose logits `sampler` reads. All pages of the engine are its own."""

    def __init__(self, engine: Any, sampler: Any, page_size: int, vocab_size: int) -> None:
        """`vocab_size` is the large model's."""
        self._engine = engine
        self._sampler = sampler
        self._page_size = page_size
        self._vocab_size = min(vocab_size, engine.vocab_size)
        self._free = array("i", range(engine.num_pages))
        self._read: dict[Sequence, _ReadText] = {}
        """By sequence, the one that was drafted longest ago first."""
        self._kept: frozenset[Sequence] = frozenset()
        """Those that are being drafted: they give nothing up."""

    @property
    def num_pages(self) -> int:
        return int(self._engine.num_pages)

    @property
    def num_free_pages(self) -> int:
        return len(self._free)

    def extend(self, drafts: Drafts[GrowingDraft]) -> None:
        """Writes on each draft until it is over; on none whose text it has not read yet."""
        self._kept = frozenset(draft.sequence for draft in drafts)
        going = self._begun(drafts)
        while going:
            rows = [row for draft in going if (row := self._row(draft)) is not None]
            going = [draft for draft in going if not draft.is_over]
            self._step(rows, going)
            going = [draft for draft in going if not draft.is_over]

    def _step(self, rows: list[Row], drafts: list[GrowingDraft]) -> None:
        """Computes rows, of which those of `drafts` give logits, in that order."""
        if not rows:
            return
        logits = self._engine.forward(build_batch(Plan(tuple(rows)), self._page_size))
        for row in rows:
            self._read[row.sequence].tokens.extend(row.tokens)
        _write(drafts, self._sampler, logits, self._vocab_size)

    def _begun(self, drafts: Drafts[GrowingDraft]) -> list[GrowingDraft]:
        """Those whose text can be read whole in this step. Of others a part is read now."""
        self._forget_ended()
        left, going, parts = MOST_READ, list[GrowingDraft](), list[Row]()
        for draft in drafts:
            read = self._text_of(draft.sequence)
            known = draft.sequence.tokens
            del read.tokens[min(_common(read.tokens, known), len(known) - 1) :]
            new = np.frombuffer(known, np.int32)[len(read.tokens) :]
            is_readable = len(known) < self._engine.context_len and new.max() < self._vocab_size
            if draft.is_over or not is_readable or not left:
                draft.is_over = True
            elif len(new) <= left:
                left -= len(new)
                going.append(draft)
            else:
                end = len(read.tokens) + left
                part = self._row_to(draft.sequence, known, end, has_logits=False)
                parts += [] if part is None else [part]
                draft.is_over, left = True, 0
        self._step(parts, [])
        return going

    def _text_of(self, sequence: Sequence) -> _ReadText:
        """What was read of the sequence: nothing, or what one that has ended began with alike."""
        read = self._read.pop(sequence, None)
        if read is None:
            ended = [one for one in self._read if one.state is SequenceState.ENDED]
            alike = {one: _common(self._read[one].tokens, sequence.tokens) for one in ended}
            best = max(alike, key=alike.__getitem__, default=None)
            is_found = best is not None and alike[best] >= self._page_size
            read = self._read.pop(best) if is_found and best is not None else _ReadText()
        self._read[sequence] = read
        return read

    def _row(self, draft: GrowingDraft) -> Row | None:
        """What it has not read of the draft, with the logits after it; None, and the draft is over,
        where there is no place for it.
        """
        end = len(draft.tokens)
        row = None
        if end < self._engine.context_len:
            row = self._row_to(draft.sequence, draft.tokens, end, has_logits=True)
        draft.is_over = row is None
        return row

    def _row_to(
        self, sequence: Sequence, tokens: array[int], end: int, *, has_logits: bool
    ) -> Row | None:
        read = self._read[sequence]
        needed = -(-end // self._page_size) - len(read.pages)
        if needed > len(self._free) and not self._freed(needed):
            return None
        if needed > 0:
            read.pages.extend(self._free[-needed:])
            del self._free[-needed:]
        start = len(read.tokens)
        return Row(sequence, tokens[start:end], start, end, read.pages, end - has_logits)

    def _freed(self, num_pages: int) -> bool:
        """Whether others, the longest unused ones first, have given so many pages up."""
        for other in [one for one in self._read if one not in self._kept]:
            if len(self._free) >= num_pages:
                break
            self._give_up(other)
        return len(self._free) >= num_pages

    def _forget_ended(self) -> None:
        ended = [one for one in self._read if one.state is SequenceState.ENDED]
        for one in ended[: max(0, len(ended) - MOST_ENDED)]:
            self._give_up(one)

    def _give_up(self, sequence: Sequence) -> None:
        self._free.extend(self._read.pop(sequence).pages)

    def check(self) -> None:
        """Raises AssertionError unless each page is free or one sequence's."""
        held = [page for read in self._read.values() for page in read.pages]
        assert sorted([*held, *self._free]) == list(range(self.num_pages)), "a page is lost"
        for read in self._read.values():
            assert len(read.tokens) <= len(read.pages) * self._page_size, "no place for a token"


def _write(drafts: Drafts[GrowingDraft], sampler: Any, logits: Any, vocab_size: int) -> None:
    """The next token of each draft, whose logits are in that order."""
    asked = [(draft, draft.request(index)) for index, draft in enumerate(drafts)]
    picks = tuple(request for _, request in asked if request is not None)
    results = iter(sampler.sample(logits, picks, ()).samples)
    for draft, request in asked:
        sampled = None if request is None else next(results)
        if sampled is None or sampled.token >= vocab_size:
            draft.is_over = True
        else:
            draft.take(sampled.token)


class PredictedDrafts:
    """Drafts with the layer of `engine` that predicts further tokens.

    Steps have that layer keep keys and values of all tokens, in the pages of all layers, and what
    it goes on from, in the slots of recurrent states: so the tree, forks and a second tier have
    them as they have all others. A draft is written where its row's pages end at the latest: what
    it keeps there, the step writes again. It goes on from the state of a row of one token.
    """

    num_pages = num_free_pages = 0

    def __init__(
        self, engine: NativeEngine, sampler: Any, page_size: int, copied: Container[int]
    ) -> None:
        """`copied`: slots that the step which is planned copies to."""
        self._engine = engine
        self._sampler = sampler
        self._page_size = page_size
        self._copied = copied

    def extend(self, drafts: Drafts[GrowingDraft]) -> None:
        """Writes on each draft until it is over; on none whose state, or part of whose last page,
        is not there yet.
        """
        slots = [self._slot_before(draft.row) for draft in drafts]
        for draft, slot in zip(drafts, slots, strict=True):
            draft.is_over = draft.is_over or slot is None
        going = [draft for draft in drafts if not draft.is_over]
        known = [slot for draft, slot in zip(drafts, slots, strict=True) if not draft.is_over]
        sources = np.array(known, np.int32) if going else None
        given = np.empty((len(going), self._engine.hidden), np.float32)
        while going:
            ends = [len(draft.tokens) for draft in going]
            rows = [
                Row(draft.sequence, draft.tokens[-1:], end - 1, end, draft.row.pages, end - 1)
                for draft, end in zip(going, ends, strict=True)
            ]
            batch = build_batch(Plan(tuple(rows)), self._page_size)
            logits = self._engine.predict(batch, sources, given)
            _write(going, self._sampler, logits, self._engine.vocab_size)
            kept = [
                at
                for at, (draft, end) in enumerate(zip(going, ends, strict=True))
                if not draft.is_over
                and len(draft.tokens) == end + 1  # forced tokens, too, it cannot go on from
                and end < len(draft.row.pages) * self._page_size
            ]
            going, given, sources = [going[at] for at in kept], given[kept], None

    def _slot_before(self, row: Row) -> int | None:
        """Where the state before the row's one token is; None: it has several, or begins from what
        others left.
        """
        own = row.sequence.recurrent
        if own is None or not own.at == row.start == row.end - 1:
            return None
        return None if row.pages[-1] * self._page_size in self._copied else own.slot


def _common(one: array[int], other: array[int]) -> int:
    """How many of their first tokens are the same."""
    count = min(len(one), len(other))
    if not count:
        return 0
    differs = np.frombuffer(one, np.int32)[:count] != np.frombuffer(other, np.int32)[:count]
    return int(differs.argmax()) if differs.any() else count


# --- loading --------------------------------------------------------------------------------------

SHARE = 8
"""Of `kv_memory_mb`, a draft model has the part of one in so many."""


def without_draft_memory(config: RuntimeConfig) -> RuntimeConfig:
    """What is left for the model itself. Raises InvalidParameter where a draft model is asked for
    that cannot be.
    """
    check_options(config)
    if config.draft_model in (None, OWN_LAYER) or config.kv_memory_mb is None:
        return config
    return replace(config, kv_memory_mb=config.kv_memory_mb - _megabytes(config.kv_memory_mb))


def load_draft_engine(config: RuntimeConfig, target: SelectedEngine) -> SelectedEngine | None:
    """The engine of the draft model of `config`, which drafts for `target`; None where it asks for
    none.
    """
    if config.draft_model in (None, OWN_LAYER):
        return None
    if target.device != "cpu":
        raise InvalidParameter(
            f"draft_model = {config.draft_model!r} is not possible beside {target.device}: it is "
            "computed on the processor only",
            name="draft_model",
            value=config.draft_model,
        )
    memory = config.kv_memory_mb
    own: dict[str, Any] = {
        "model": config.draft_model,
        "draft_model": None,
        "device": "cpu",
        "context_len": None,
        "lora": (),
        "kv_memory_mb": None if memory is None else _megabytes(memory),
    }
    made = select_engine(replace(config, **own))
    if getattr(made.engine, "states", None) is not None:
        raise InvalidParameter(
            f"draft_model = {config.draft_model!r} is not possible: it has recurrent layers, whose "
            "states do not go back behind a wrong guess",
            name="draft_model",
            value=config.draft_model,
        )
    return made


def own_drafts(
    config: RuntimeConfig, target: SelectedEngine, copied: Container[int]
) -> PredictedDrafts | None:
    """What a layer of `target` itself drafts; None where that is not asked for."""
    if config.draft_model != OWN_LAYER:
        return None
    if not isinstance(target.engine, NativeEngine):
        raise cannot_predict(f"it is computed on the processor, not on {target.device}")
    return PredictedDrafts(target.engine, target.sampler, config.scheduler.page_size, copied)


def _megabytes(kv_memory_mb: int) -> int:
    return max(1, kv_memory_mb // SHARE)
