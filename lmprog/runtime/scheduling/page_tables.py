"""Page tables: which pages each sequence reads and writes, and what it has locked in the tree.

A sequence's page table lists the tree's pages of its shared prefix, then private pages. A page of
the tree is written only by the row that computes it, in the step in which it enters the tree. A
sequence that must continue inside a partly filled page of the tree takes the page back when no
other sequence uses it; otherwise it copies the used slots to a page of its own. Where another row
of the same step computes these slots there is nothing to copy yet: that row writes its keys and
values to the second place as well (a *mirror*).

Steps planned ahead take pages of a sequence's own. What they hold of a prompt enters the tree when
the next step is planned with everything known.

The log-probabilities that a prompt was told are kept beside the tree (`ScoredPrompts`), since keys
and values do not have them.

Knows the tree, the allocator and sequences; decides nothing about who runs.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from lmprog.config import SchedulerConfig
from lmprog.radix import Match, Node, PageAllocator, RadixTree
from lmprog.runtime.scheduling.generation import Generation, ScoredToken
from lmprog.runtime.scheduling.plan import Row, StepCopies
from lmprog.runtime.scheduling.sequence import Sequence

if TYPE_CHECKING:
    from lmprog.runtime.scheduling.recurrent import RecurrentStates
    from lmprog.runtime.scheduling.window_pages import Windows
    from lmprog.runtime.tier.second_tier import SecondTier


BLOCK = 16
"""Tokens of a block. The first of a text has no log-probability, so that block has one less."""
MOST_SCORES = 65_536
"""Kept at most: log-probabilities, those of alternatives included (some 100 bytes each)."""

_Key = tuple[int | tuple[str, int], bytes]
"""The number of the block before (of the first: the namespace's root, and how many alternatives
were asked for), and the tokens."""


class _Block(NamedTuple):
    number: int
    scores: tuple[ScoredToken, ...]


class ScoredPrompts:
    """Blocks of scored tokens, by what stands before them.

    Where the log-probabilities of a prompt are asked for, the logits at all of its positions are
    needed, and cached keys and values have none. So what was found is kept here, in blocks of
    tokens, and the next prompt with the same beginning is computed from where it differs: the
    examples that all questions of an evaluation share, say.

    A block is found by its tokens and the block before it, exactly, and within its cache
    namespace. Those that were not used for longest go first.
    """

    def __init__(self, most: int = MOST_SCORES) -> None:
        self._most = most
        self._blocks: OrderedDict[_Key, _Block] = OrderedDict()
        """Those used longest ago first; each stands behind all that follow it in texts, so that
        none is left whose beginning is gone."""
        self._numbers = count(1)
        self.num_scores = 0
        """What is kept, alternatives included."""

    def extend(self, sequence: Sequence) -> None:
        """Adds what is known to the log-probabilities of the sequence's prompt. None of its rows
        may be under way."""
        task = sequence.task
        if not isinstance(task, Generation) or not task.wants_prompt or not self._blocks:
            return
        position = _first_scored(task) + len(task.prompt_logprobs)
        keys, parent = _keys(sequence, task, task.settings.prompt_len)
        for begin in range(0, len(keys) - BLOCK + 1, BLOCK):
            block = self._blocks.get((parent, keys[begin : begin + BLOCK].tobytes()))
            if block is None:
                return
            parent = block.number
            if begin + BLOCK > position:
                task.prompt_logprobs += block.scores[position - max(begin, 1) :]
                position = begin + BLOCK

    def keep(self, sequence: Sequence) -> None:
        """The sequence ends: keeps what was found of its prompt, where all before it is kept too.
        Nothing where what it computed was discarded."""
        task = sequence.task
        if not isinstance(task, Generation) or not task.wants_prompt or not sequence.computed:
            return
        first = _first_scored(task)
        keys, parent = _keys(sequence, task, first + len(task.prompt_logprobs))
        used: list[_Key] = []
        for begin in range(0, len(keys) - BLOCK + 1, BLOCK):
            key = (parent, keys[begin : begin + BLOCK].tobytes())
            block = self._blocks.get(key)
            if block is None:
                if max(begin, 1) < first:
                    break
                scores = task.prompt_logprobs[max(begin, 1) - first : begin + BLOCK - first]
                block = self._blocks[key] = _Block(next(self._numbers), tuple(scores))
                self.num_scores += sum(1 + len(one.top) for one in scores)
            parent = block.number
            used.append(key)
        for key in reversed(used):
            self._blocks.move_to_end(key)
        while self.num_scores > self._most:
            _, gone = self._blocks.popitem(last=False)
            self.num_scores -= sum(1 + len(one.top) for one in gone.scores)

    def clear(self) -> None:
        """Keeps nothing."""
        self._blocks.clear()
        self.num_scores = 0


def _first_scored(task: Generation) -> int:
    """The position of the first log-probability: the very first token has none."""
    return max(task.settings.sampling.prompt_logprobs_start, 1)


def _keys(
    sequence: Sequence, task: Generation, end: int
) -> tuple[array[int], int | tuple[str, int]]:
    """The keys of the prompt's tokens up to `end`, and what stands for the text before them."""
    space = sequence.namespace
    top = task.settings.sampling.prompt_logprobs or 0
    return space.keys(sequence.tokens[: min(end, task.settings.prompt_len)]), (space.root, top)


class PageTables:
    """Attaches sequences to the tree, extends and releases them; collects a step's copies and
    mirrors.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        tree: RadixTree,
        pages: PageAllocator,
        tier: SecondTier | None = None,
        states: RecurrentStates | None = None,
        windows: Windows | None = None,
    ) -> None:
        """`states`: those of a model with recurrent layers; `windows`: of one with frames."""
        self._page_size = config.page_size
        self._share = config.share
        self._tree = tree
        self._pages = pages
        self._tier = tier
        self.states = states
        self.windows = windows
        self.scored = ScoredPrompts()
        self.copies = StepCopies(config.page_size)
        if tier is not None:
            tier.storing.source = self.copies.source
            tier.storing.frame_source = self.copies.frame_source
            tier.storing.is_written = self.copies.is_written
        if windows is not None:
            self.copies.frames = windows.pages.frames
        self._inserted: set[Sequence] = set()
        """Sequences whose rows of this step have been inserted into the tree."""
        self._followed: dict[Sequence, int] = {}
        """Sequences that have prompt in pages of their own, from steps planned ahead -> how often
        they had given their pages up."""

    # --- the step being planned -------------------------------------------------------------------

    def begin(self) -> None:
        """Start a new plan. What came back from the second tier is in the tree from now on, and
        whole pages of prompts that steps planned ahead have computed.
        """
        if self._tier is not None:
            self._tier.collect()
        for sequence, resets in self._followed.items():
            if sequence.num_resets == resets:
                self._enter(sequence)
        self._followed.clear()
        if self.states is not None:
            self.states.begin()
        if self.windows is not None:
            self.windows.pages.settle()
        self.copies.begin()
        self._inserted.clear()

    # --- one sequence -----------------------------------------------------------------------------

    def cached_prefix(self, sequence: Sequence) -> int:
        """Length of the sequence's prefix that is in the tree now."""
        if not self._share:
            return 0
        match = self.match(sequence)
        if self.windows is not None:
            return self.windows.usable(match).length
        return match.length if self.states is None else self.states.usable(match, None).length

    @staticmethod
    def prefix(sequence: Sequence) -> tuple[array[int], str, int]:
        """Where its prefix is looked for: keys, root, and how far it need not be computed."""
        keys = sequence.keys(len(sequence.tokens))
        return keys, sequence.namespace.root, sequence.logits_from

    def attach(self, sequence: Sequence) -> bool:
        """Locks the longest cached prefix of the sequence, if that is longer than what it has.
        False: there is no room for its recurrent state, and the caller must `detach` it.

        The last page of the prefix may be partly filled: `extend` copies it before it is written.
        """
        if self._share:
            self._attach(sequence)
        return self.states is None or self.states.own(sequence)

    def _attach(self, sequence: Sequence) -> None:
        match = self.match(sequence)
        if self.states is not None:
            match = self.states.usable(match, self.copies.writer(match))
        known = match.length
        if self.windows is not None:
            match = self.windows.usable(match)
        if match.length <= sequence.computed:
            if known > sequence.computed and self.windows is not None:
                self.windows.computes_again(sequence, known)
            return
        node = self._tree.lock(match.node, match.length)
        self._free(sequence)
        sequence.node = node
        sequence.pages = array("i", match.pages)
        if match.partial is not None:
            sequence.pages.append(match.partial)
        sequence.shared = len(sequence.pages)
        sequence.computed = match.length
        if self.states is not None:
            self.states.begin_from(sequence, node, match.length)
        if self.windows is not None:
            self.windows.begin_from(sequence, match.partial is not None)
            if known > match.length:
                self.windows.computes_again(sequence, known)

    def pages_for(self, sequence: Sequence, end: int) -> int:
        """Upper bound on the free pages that `extend` up to position `end` takes."""
        needed = -(-end // self._page_size) - len(sequence.pages) + self._shares_part(sequence)
        return needed if self.windows is None else self._pages.cost(needed)

    def pages_to_grow(
        self, num_tokens: float, running: Iterable[Sequence] = (), num_paused: int = 0
    ) -> float:
        """The free pages that so many tokens take that those that run will add, and so many texts
        that pause; where these are none, at least.
        """
        num_pages = num_tokens / self._page_size
        if self.windows is None:
            return num_pages
        return self.windows.cost_of_growth(num_pages, running, num_paused)

    def tokens_in(self, num_pages: float) -> float:
        """The tokens of long texts that give so many free pages when they go."""
        one = 1.0 if self.windows is None else self.windows.cost_of_growth(1.0)
        return num_pages * self._page_size / one

    def extend(self, sequence: Sequence, count: int, row_index: int) -> Row:
        """The row that computes the sequence's next `count` tokens. `pages_for` pages must be free.

        Tokens that were known when the sequence was queued enter the tree at once.
        """
        start, end = sequence.computed, sequence.computed + count
        if self._shares_part(sequence):
            self._own_last_page(sequence)
        missing = -(-end // self._page_size) - len(sequence.pages)
        if missing > 0:
            taken = self._pages.allocate(missing)
            assert taken is not None, "the scheduler frees pages first"
            sequence.pages.extend(taken)
        if self._share and end <= sequence.num_tokens_at_enqueue:
            self._insert(sequence, start, end, row_index)
            if self.states is not None:
                self.states.leave_all(sequence, start, end, row_index)
        return Row(
            sequence,
            sequence.tokens[start:end],
            start,
            end,
            sequence.pages[:],
            max(start, min(sequence.logits_from, end)),
        )

    def next_slot(self, sequence: Sequence) -> Row | None:
        """The row that computes the only token left of the sequence, whose logits are wanted.

        None where `extend` must make it: the slot is in no page of the sequence's own, or the token
        enters the tree."""
        start, pages, size = sequence.computed, sequence.pages, self._page_size
        end = start + 1
        if not (sequence.shared * size <= start < len(pages) * size) or (
            end <= sequence.num_tokens_at_enqueue and self._share
        ):
            return None
        return Row(sequence, sequence.tokens[start:end], start, end, pages[:], start)

    def pages_after(self, row: Row, count: int) -> int:
        """The free pages that `lengthen` takes for `count` more tokens."""
        return max(0, -(-(row.end + count) // self._page_size) - len(row.sequence.pages))

    def may_draft(self, row: Row) -> bool:
        """Whether there is room for a recurrent state behind drafted tokens of `row`."""
        return self.states is None or self.states.may_draft(row)

    def lengthen(self, row: Row, drafted: array[int]) -> Row:
        """`row` with drafted tokens after its own, in pages of the sequence's own. `pages_after`
        pages must be free.
        """
        sequence = row.sequence
        taken = self._pages.allocate(self.pages_after(row, len(drafted)))
        assert taken is not None, "drafts take only pages that are free"
        sequence.pages.extend(taken)
        tokens, end = row.tokens + drafted, row.end + len(drafted)
        return row._replace(tokens=tokens, end=end, pages=sequence.pages[:])

    def may_follow(self, row: Row) -> bool:
        """Whether the row after `row`, which may not be computed yet, can be in pages of the
        sequence's own. The page that both would be in is taken back from the tree for it.
        """
        sequence, end = row[0], row[3]
        beyond = sequence.shared * self._page_size - end
        if beyond <= 0:
            return True
        return beyond < self._page_size and self._take_tail(sequence, end)

    def is_known_beyond(self, row: Row) -> bool:
        """Whether the tree has more of the sequence's prompt than `row` computes."""
        sequence, end = row[0], row[3]
        return end < sequence.num_tokens_at_enqueue and self.cached_prefix(sequence) > end

    def follow(self, row: Row, tokens: array[int], num_pages: int) -> Row:
        """The row after `row`, which may not be computed yet, in pages of the sequence's own;
        `num_pages` of them (`pages_after`) are new, and must be free. What it has of the prompt
        enters the tree with the next plan that begins when all is known.
        """
        sequence, end = row[0], row[3]
        if num_pages:
            taken = self._pages.allocate(num_pages)
            assert taken is not None, "the pages were counted before"
            sequence.pages.extend(taken)
        last = end + len(tokens)
        if end < sequence.num_tokens_at_enqueue and self._share:
            self._followed[sequence] = sequence.num_resets
        wanted = sequence.task.logits_after(end, len(sequence.tokens))
        return Row(sequence, tokens, end, last, sequence.pages[:], min(wanted, last))

    def give_back(self, sequence: Sequence) -> None:
        """Frees the pages behind the known tokens, which drafts needed that were wrong."""
        end = max(-(-len(sequence.tokens) // self._page_size), sequence.shared)
        self._pages.free(sequence.pages[end:])
        del sequence.pages[end:]

    def release(self, sequence: Sequence, *, pin: bool) -> Node | None:
        """The sequence ends or is preempted: what it computed enters the tree, other pages are
        freed.

        Returns the node where it ends, pinned, when `pin` and something was computed.
        """
        node: Node | None = None
        if self.is_discarded(
            sequence
        ):  # its pages belong to the discarded nodes and are freed with them
            sequence.computed = 0
        if self._share and not sequence.task.is_plain:
            self.scored.keep(sequence)
        if sequence.computed and self._share:
            size = -(-sequence.computed // self._page_size)
            keys = sequence.keys(sequence.computed)
            inserted = self._tree.insert(keys, sequence.pages[:size], sequence.namespace.root)
            kept = inserted.first_taken
            node = inserted.node
            self._tree.lock(node)
            if self.windows is not None:
                path = self._tree.match(keys, sequence.namespace.root)
                self.windows.release(sequence, kept, path)
            self._pages.free(sequence.pages[sequence.shared : max(kept, sequence.shared)])
            self._pages.free(sequence.pages[max(size, sequence.shared) :])
            if sequence.node is not None:
                self._tree.unlock(sequence.node)
            if self.states is not None:
                self.states.release(sequence, node)
            if pin:
                self._tree.pin(node)
            self._tree.unlock(node)
            if pin:
                self._tree.ended(node, sequence.group.prompt_len)
        else:
            self._free(sequence)
        self._reset(sequence)
        return node if pin else None

    def detach(self, sequence: Sequence) -> None:
        """Undoes `attach` of a sequence that has computed nothing itself."""
        self._free(sequence)
        self._reset(sequence)

    def settle(self) -> None:
        """The step's rows are computed: what they inserted into the tree is there."""
        self._inserted.clear()
        if self.copies.origins:
            self.copies.begin()
        if self.states is not None:
            self.states.settle()

    def discard_row(self, row: Row) -> None:
        """The step failed: removes what this row inserted into the tree; resets the sequence."""
        self.copies.begin()
        self.take_back(row)
        row.sequence.computed = 0

    def take_back(self, row: Row) -> None:
        """Removes what this row, which is not computed, inserted into the tree."""
        if row.sequence in self._inserted:
            self._discard(row.sequence, row.start)
        if self.states is not None:
            self.states.undo()

    def discard_path(self, sequence: Sequence) -> None:
        """The sequence's logits were not finite: removes its whole path from the tree, because the
        first bad position is not known (a chunk gives no logits). Resets the sequence."""
        self._discard(sequence, 0)
        if self.states or self.windows:  # also of what was computed again, beside the tree's
            keys, root, _ = self.prefix(sequence)
            self._tree.discard(self._tree.match(keys, root).node, 0)
        if self._tier is not None:
            self._tier.discard(*self.prefix(sequence)[:2])
        sequence.computed = 0

    def _discard(self, sequence: Sequence, start: int) -> None:
        if sequence.node is not None:
            self._tree.discard(sequence.node, start)

    def is_discarded(self, sequence: Sequence) -> bool:
        """The sequence's prefix was computed by another sequence's row that failed."""
        if self.states is not None and self.states.is_discarded(sequence):
            return True
        return sequence.node is not None and not sequence.node.alive

    def pages_loading(self) -> list[int]:
        """The pages into which the second tier loads; its invariants are checked as well."""
        if self._tier is None:
            return []
        self._tier.check()
        return self._tier.pages_held()

    def has_lost_part(self, sequence: Sequence) -> bool:
        """Whether the page of the tree that its next row copies the first part of has lost its
        frame while room was made: the tree may have another page there than when it was found.
        """
        if self.windows is None or not self._shares_part(sequence):
            return False
        assert sequence.node is not None
        page = self._tree.partial_page(sequence.node, sequence.computed)
        return page is None or not self.windows.frame_of(page)

    def private_pages(self, sequence: Sequence) -> array[int]:
        """The pages that only this sequence uses."""
        return sequence.pages[sequence.shared :]

    # --- inside -----------------------------------------------------------------------------------

    def _shares_part(self, sequence: Sequence) -> bool:
        """Whether the next token's slot is in a page of the tree."""
        return sequence.computed < sequence.shared * self._page_size

    def _own_last_page(self, sequence: Sequence) -> None:
        """Makes the partly filled last page private: taken back from the tree, or copied."""
        if self._take_tail(sequence, sequence.computed):
            return
        sequence.shared -= 1
        page = sequence.pages.pop()
        assert sequence.node is not None
        # Looked up again: an eviction may have moved these slots to another page since the
        # sequence was attached.
        source = self._tree.partial_page(sequence.node, sequence.computed)
        assert source is not None
        frame = 0
        if self.windows is not None:
            frame = self.windows.frame_of(source)  # it may go now
            self.windows.copies_part(sequence, page)
        taken = self._pages.allocate(1)
        assert taken is not None, "the scheduler frees pages first"
        sequence.pages.append(taken[0])
        self.copies.share_slots(source, sequence.computed % self._page_size, taken[0], frame)

    def _take_tail(self, sequence: Sequence, end: int) -> bool:
        """Takes the partly filled page in which position `end` is back from the tree, if nobody
        else may need it.
        """
        assert sequence.shared == len(sequence.pages), "only the last page can be partly filled"
        assert sequence.node is not None
        if self.states is not None or self.windows is not None:
            return False  # a snapshot or stretch ends there, and would go with the tokens
        tail = self._tree.take_tail(sequence.node, end)
        if tail is None:
            return False
        sequence.shared -= 1
        sequence.node = tail.node
        sequence.pages[-1] = tail.page
        return True

    def _insert(self, sequence: Sequence, start: int, end: int, row_index: int) -> None:
        """Inserts what a row computes of known tokens, so that later rows of the step share it.
        Where the tree has some of it (the row computes it again for its logits, or its state)
        nothing is inserted."""
        keys = sequence.keys(end)
        match = self._tree.match(keys, sequence.namespace.root)
        if match.length > start:
            if self.states is not None or self.windows is not None:
                self._followed[sequence] = sequence.num_resets  # the tree's pages are enough
            return
        self._share_pages(sequence, keys, match)
        for index in range(start // self._page_size, len(sequence.pages)):
            page = sequence.pages[index]
            self.copies.write(page, row_index, index * self._page_size, start)
        self._inserted.add(sequence)

    def _enter(self, sequence: Sequence) -> None:
        """Whole pages of the prompt that are computed enter the tree."""
        known = min(sequence.computed, sequence.num_tokens_at_enqueue)
        end = known - known % self._page_size
        if end <= sequence.shared * self._page_size or self.is_discarded(sequence):
            return
        keys = sequence.keys(end)
        self._share_pages(sequence, keys, self._tree.match(keys, sequence.namespace.root))

    def _share_pages(self, sequence: Sequence, keys: array[int], match: Match) -> None:
        """The sequence's pages of `keys`, of which the tree has what `match` says, become the
        tree's.
        """
        num_pages = -(-len(keys) // self._page_size)
        inserted = self._tree.insert(keys, sequence.pages[:num_pages], sequence.namespace.root)
        first = inserted.first_taken
        assert first >= sequence.shared, (
            "what the sequence shares stays in the tree while it is locked"
        )
        if self.windows is not None:
            self.windows.replace(sequence, first, match.pages)
        # Private pages whose tokens another sequence has inserted meanwhile: one copy is enough.
        self._pages.free(sequence.pages[sequence.shared : first])
        sequence.pages[sequence.shared : first] = array("i", match.pages[sequence.shared : first])
        node = self._tree.lock(inserted.node, len(keys))  # the tree may have more behind them
        if sequence.node is not None:
            self._tree.unlock(sequence.node)
        sequence.node = node
        sequence.shared = num_pages

    def match(self, sequence: Sequence) -> Match:
        """Its prefix that is in the tree now. Counts as a use."""
        if not sequence.task.is_plain:
            self.scored.extend(sequence)  # then less of its prefix has to be computed
        return self._tree.match(*self.prefix(sequence))

    def _free(self, sequence: Sequence) -> None:
        """Frees the sequence's private pages and its lock."""
        if self.windows is not None:
            self.windows.leave(sequence)
        self._pages.free(sequence.pages[sequence.shared :])
        if sequence.node is not None:
            self._tree.unlock(sequence.node)

    def _reset(self, sequence: Sequence) -> None:
        if self.states is not None:
            self.states.release(sequence)
        sequence.node = None
        sequence.pages = array("i")
        sequence.shared = sequence.computed = 0
        sequence.num_resets += 1
