"""Planted bugs in drafts: what is tried, what of it is believed, and whether it pays."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_SCHEDULING = "runtime/scheduling/"

DRAFT_MUTANTS = [
    Mutant(
        "a draft model goes on from what was not accepted",
        "scheduling",
        "runtime/engine/draft_model.py",
        "            del read.tokens[min(_common(read.tokens, known), len(known) - 1) :]\n",
        "            del read.tokens[len(known) - 1 :]\n",
    ),
    Mutant(
        "a draft model's pages are given to two sequences",
        "scheduling",
        "runtime/engine/draft_model.py",
        "            del self._free[-needed:]\n",
        "",
    ),
    Mutant(
        "wrong drafts count as computed",
        "scheduling",
        _SCHEDULING + "drafting.py",
        "            sequence.computed -= num_wrong\n",
        "",
    ),
    Mutant(
        "pages of wrong drafts leak",
        "scheduling",
        _SCHEDULING + "page_tables.py",
        "        self._pages.free(sequence.pages[end:])\n        del",
        "        del",
    ),
    Mutant(
        "drafts take more than a step may have",
        "scheduling",
        _SCHEDULING + "drafting.py",
        "                budget -= len(drafted.tokens)\n",
        "",
    ),
    Mutant(
        "drafts in pages of the tree",
        "scheduling",
        _SCHEDULING + "drafting.py",
        "            and sequence.shared * self._memory.config.page_size <= row.start\n",
        "",
    ),
    Mutant(
        "what follows a wrong draft is believed",
        "scheduling",
        _SCHEDULING + "logits_requests.py",
        "        if progress.ended or sequence.tokens[begin + first_of_piece :] != piece:",
        "        if progress.ended:",
    ),
    Mutant(
        "drafts run past a stop",
        "scheduling",
        _SCHEDULING + "drafting.py",
        "    count = bisect_right(ends, most)\n",
        "    count = len(ends)\n",
    ),
    Mutant(
        "drafts do not see what is banned after them",
        "scheduling",
        _SCHEDULING + "logits_requests.py",
        "        tokens.extend(drafted.tokens[end : end + length])\n",
        "",
    ),
    Mutant(
        "drafts that are wrong are tried for ever",
        "scheduling",
        _SCHEDULING + "draft_worth.py",
        "(1.0 - (1.0 - self.value) * kept**num_right) * kept**num_wrong",
        "1.0 - (1.0 - self.value) * kept**num_right",
    ),
    Mutant(
        "what a draft costs does not matter",
        "scheduling",
        _SCHEDULING + "draft_worth.py",
        "most = int(log(least / gain) / log(chance)) if gain > least else 0",
        "most = count",
    ),
    Mutant(
        "rows that gain nothing do not matter",
        "scheduling",
        _SCHEDULING + "draft_worth.py",
        "        return UNEVEN + (1.0 - UNEVEN) * self._of(kind).evenness",
        "        return 1.0",
    ),
    Mutant(
        "a trial may lose any time",
        "scheduling",
        _SCHEDULING + "draft_worth.py",
        "        return max(1, int(credit / ratio)) if ratio * MOST > credit else MOST",
        "        return MOST",
    ),
]
"""In the order of a step: what is drafted, sampled, accepted, and learned."""
