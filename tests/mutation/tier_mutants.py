"""Planted bugs in the second tier: what is stored and when, what is believed of what comes back."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_TIER = "runtime/tier/"

TIER_MUTANTS = [
    Mutant(
        "what is private is stored",
        "tier",
        _TIER + "stored_states.py",
        "    if tokens and min(tokens) < 0:",
        "    if not tokens:",
    ),
    Mutant(
        "a discarded path is kept in the file",
        "tier",
        _TIER + "second_tier.py",
        "            self._store.forget(handles, keys)\n            self.index",
        "            self.index",
    ),
    Mutant(
        "a lost page is believed",
        "tier",
        _TIER + "second_tier.py",
        "end = min(load.end, (first + num_good) * size) if load.pages else load.end",
        "end = load.end",
    ),
    Mutant(
        "a path discarded while loaded comes back",
        "tier",
        _TIER + "second_tier.py",
        "is_there = load.node.alive and load.stored.alive",
        "is_there = load.node.alive",
    ),
    Mutant(
        "pages of a lost load leak",
        "tier",
        _TIER + "second_tier.py",
        "            self._pages.free(load.pages[num_good:])\n",
        "",
    ),
    Mutant(
        "a part of a page that is gone is believed to be there",
        "tier",
        _TIER + "second_tier.py",
        "                self._parts.forget(page_keys(root, tokens, size)[-1:])\n",
        "                page_keys(root, tokens, size)\n",
    ),
    Mutant(
        "a part of a page outlives its path",
        "tier",
        _TIER + "second_tier.py",
        "                keys = self._parts.with_parts(keys)\n",
        "                self._parts.with_parts(keys)\n",
    ),
    Mutant(
        "a part is taken for that of another path",
        "tier",
        _TIER + "tier_questions.py",
        "            if one.parent == key.parent and key.tokens",
        "            if key.tokens",
    ),
    Mutant(
        "what was used last is stored ahead",
        "tier",
        _TIER + "storing.py",
        "        for node in self._tree.oldest_first():",
        "        for node in self._tree.newest_first():",
    ),
    Mutant(
        "everything is stored ahead",
        "tier",
        _TIER + "storing.py",
        "            num_pages -= len(node.pages)\n",
        "",
    ),
    Mutant(
        "a page that was refused counts as stored",
        "tier",
        _TIER + "storing.py",
        "        node.saved_to = 0 if num_left else node.end\n",
        "        node.saved_to = node.end\n",
    ),
    Mutant(
        "evictions wait for the store without a bound",
        "tier",
        _TIER + "storing.py",
        "        self._wait_left -= self._clock() - began\n",
        "",
    ),
    Mutant(
        "costs do not matter",
        "tier",
        _TIER + "storing.py",
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
        "        return other.tokens == self.tokens or (",
        "        return True or (",
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
        _TIER + "stored_states.py",
        "for one in sorted(known, key=lambda one: one.age):",
        "for one in sorted(known, key=lambda one: -one.age):",
    ),
]
"""In the order of a page's life: stored, loaded, found again by the next runtime."""
