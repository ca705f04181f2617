"""Planted bugs in recurrent states: which are found, shared, evicted, taken back, and when."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_TREE, _SEQUENCES = "radix/snapshots.py", "runtime/scheduling/recurrent.py"
_TABLES = "runtime/scheduling/page_tables.py"
_LAYERS = "runtime/engine/torch_engine/recurrent_layers.py"

STATE_MUTANTS = [
    # --- match
    Mutant(
        "the first snapshot of a node is found in place of the last",
        "states",
        _TREE,
        "for found in reversed(self._of.get(walk, ())):",
        "for found in self._of.get(walk, ()):",
    ),
    Mutant(
        "a snapshot behind the position is found",
        "states",
        _TREE,
        "if found.position <= length:",
        "if found.position <= length + 1:",
    ),
    Mutant(
        "a prefix is used without its state",
        "states",
        _SEQUENCES,
        "if writer is not None and self._leave(",
        "if match.length or self._leave(",
    ),
    # --- fork
    Mutant(
        "a fork advances the snapshot that it shares",
        "states",
        _SEQUENCES,
        "slots.append((source, target))",
        "slots.append((source, source if source >= 0 else target))",
    ),
    Mutant(
        "rows of one step do not share what it computes",
        "states",
        _SEQUENCES,
        "if writer is not None and self._leave(",
        "if False and self._leave(",
    ),
    Mutant(
        "a split leaves the snapshot at its cut below",
        "states",
        _TREE,
        "if one.position <= upper.end]",
        "if one.position < upper.end]",
    ),
    Mutant(
        "no snapshot is left before the last token of a prompt",
        "states",
        _SEQUENCES,
        "sorted({*regular, own.fork, sequence.logits_from})",
        "sorted({*regular, own.fork})",
    ),
    Mutant(
        "no snapshot is left where the tree's tokens ended",
        "states",
        _SEQUENCES,
        "sorted({*regular, own.fork, sequence.logits_from})",
        "sorted({*regular, sequence.logits_from})",
    ),
    # --- rollback
    Mutant(
        "a state behind dropped tokens is kept",
        "states",
        _SEQUENCES,
        "if node is not None and own.at == sequence.computed:",
        "if node is not None and own.at >= sequence.computed:",
    ),
    Mutant(
        "a failed step leaves its snapshots",
        "states",
        _SEQUENCES,
        "            self.snapshots.drop(one)\n",
        "            pass\n",
    ),
    Mutant(
        "a wrong draft keeps its state",
        "states",
        _SEQUENCES,
        "                ends[own] = known\n                sequence.computed = min",
        "                sequence.computed = min",
    ),
    Mutant(
        "what was right of a draft is not computed again",
        "states",
        _SEQUENCES,
        "                sequence.computed = min(sequence.computed, known)\n",
        "",
    ),
    # --- eviction
    Mutant(
        "a snapshot is evicted though it is held",
        "states",
        _TREE,
        "            if one.locks:\n                continue\n",
        "",
    ),
    Mutant(
        "the snapshot at which a live branch stands is evicted first",
        "states",
        _TREE,
        "if not one.node.pins_here or len(spared) == MOST_SPARED:",
        "if True:",
    ),
    Mutant(
        "a use of a snapshot does not count",
        "states",
        _TREE,
        "        snapshot.num_uses += 1\n",
        "        return\n",
    ),
    Mutant(
        "a snapshot that one went on from is kept as long as an end",
        "states",
        _TREE,
        "if snapshot.is_kept and snapshot.num_uses == 1:",
        "if False:",
    ),
    Mutant(
        "what several have in common is evicted like an end",
        "states",
        _TREE,
        "        if snapshot.num_uses == 1:\n",
        "        if True:\n",
    ),
    Mutant(
        "what is left on the way evicts ends",
        "states",
        _TREE,
        "if victim is None and kind is not Left.ON_THE_WAY:",
        "if victim is None:",
    ),
    Mutant(
        "pages behind the last snapshot go no sooner than others",
        "states",
        _TREE,
        "if len(node.pages) > kept:",
        "if False:",
    ),
    Mutant(
        "pages that a snapshot needs go first",
        "states",
        _TREE,
        "kept = -(-beside[-1].position // page_size) - node.begin // page_size",
        "kept = beside[0].position // page_size - node.begin // page_size",
    ),
    Mutant(
        "snapshots stay when a node is shortened",
        "states",
        _TREE,
        "if one.position > node.end:",
        "if one.position > node.end + 1:",
    ),
    Mutant(
        "pages that were computed again are kept twice",
        "states",
        _TABLES,
        "                self._followed[sequence] = sequence.num_resets  # the tree's pages are enough\n",
        "                pass\n",
    ),
    # --- the engine
    Mutant(
        "the state before the first token is whatever is in the pool",
        "states",
        _LAYERS,
        "found[key][slots < 0] = 0",
        "pass",
    ),
    Mutant(
        "a row of one token does not wait for the row that leaves its state",
        "states",
        _LAYERS,
        " and sources[row] not in written:",
        ":",
    ),
    Mutant(
        "a snapshot is left a token late",
        "states",
        _LAYERS,
        "after.setdefault(begin + count, [])",
        "after.setdefault(min(end, begin + count + 1), [])",
    ),
]
