"""Planted bugs in the second tier: what is stored and when, what is believed of what comes back."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_TIER = "runtime/tier/"

TIER_MUTANTS = [
    Mutant(
        "what is private is stored",
        "tier",
        _TIER + "second_tier.py",
        "    if min(tokens) < 0:",
        "    if not tokens:",
    ),
    Mutant(
        "a discarded path is kept in the file",
        "tier",
        _TIER + "second_tier.py",
        "            self._store.forget(self.index.pages_below(top), keys)\n",
        "",
    ),
    Mutant(
        "a lost page is believed",
        "tier",
        _TIER + "second_tier.py",
        "end = min(load.end, (first + done.num_good) * size)",
        "end = load.end",
    ),
    Mutant(
        "a path discarded while loaded comes back",
        "tier",
        _TIER + "second_tier.py",
        "if load.node.alive and load.stored.alive and end > load.start:",
        "if load.node.alive and end > load.start:",
    ),
    Mutant(
        "pages of a lost load leak",
        "tier",
        _TIER + "second_tier.py",
        "            self._pages.free(load.pages[done.num_good :])\n",
        "",
    ),
    Mutant(
        "what was used last is stored ahead",
        "tier",
        _TIER + "second_tier.py",
        "        for node in self._tree.oldest_first():",
        "        for node in self._tree.newest_first():",
    ),
    Mutant(
        "everything is stored ahead",
        "tier",
        _TIER + "second_tier.py",
        "            num_pages -= len(node.pages)\n",
        "",
    ),
    Mutant(
        "a page that was refused counts as stored",
        "tier",
        _TIER + "second_tier.py",
        "        node.saved_to = node.end if end == len(tokens) else 0\n",
        "        node.saved_to = node.end\n",
    ),
    Mutant(
        "evictions wait for the store without a bound",
        "tier",
        _TIER + "second_tier.py",
        "        self._wait_left -= self._clock() - began\n",
        "",
    ),
    Mutant(
        "costs do not matter",
        "tier",
        _TIER + "second_tier.py",
        "        if saved >= cost:",
        "        if True:",
    ),
    Mutant(
        "contents are not checked",
        "tier",
        _TIER + "page_store.py",
        "return self._sum(_block_sums(contents)) == found[2]",
        "return True",
    ),
    Mutant(
        "any record serves any key",
        "tier",
        _TIER + "page_store.py",
        "return same_place and other.tokens.startswith(self.tokens)",
        "return same_place",
    ),
    Mutant(
        "a file made by something else is believed",
        "tier",
        _TIER + "disk_store.py",
        "            self.is_new = os.pread(self._file, len(header), 0) != header\n",
        "            self.is_new = os.pread(self._file, 8, 0) != header[:8]\n",
    ),
    Mutant(
        "older contents win after a restart",
        "tier",
        _TIER + "second_tier.py",
        "for one in sorted(known, key=lambda one: one.age):",
        "for one in sorted(known, key=lambda one: -one.age):",
    ),
]
"""In the order of a page's life: stored, loaded, found again by the next runtime."""
