"""Planted bugs in recurrent states: which are found, shared, evicted, taken back, and when."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_TREE, _SEQUENCES = "radix/snapshots.py", "runtime/scheduling/recurrent.py"
_TABLES = "runtime/scheduling/page_tables.py"
_TIER, _STORED = "runtime/tier/second_tier.py", "runtime/tier/stored_states.py"
_STORING = "runtime/tier/storing.py"
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
        "sorted({*regular, own.fork, last})",
        "sorted({*regular, own.fork})",
    ),
    Mutant(
        "no snapshot is left where the tree's tokens ended",
        "states",
        _SEQUENCES,
        "sorted({*regular, own.fork, last})",
        "sorted({*regular, last})",
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
    # --- the second tier
    Mutant(
        "a state that is not computed yet is stored",
        "stored states",
        _STORED,
        "if one.is_ready and not one.position % size]",
        "if not one.position % size]",
    ),
    Mutant(
        "pages behind the last state are stored",
        "stored states",
        _STORING,
        "            del tokens[end:], pages[-(-end // size) :]\n        framed",
        "        framed",
    ),
    Mutant(
        "a state is stored by its pages alone",
        "stored states",
        _STORING,
        "        states.enter(held, one.position, handles, one)\n",
        "        self._handles.free(handles)\n",
    ),
    Mutant(
        "a state that is evicted alone is lost",
        "stored states",
        _STORING,
        "            states.pool.on_evict = self._state_evicted\n",
        "            pass\n",
    ),
    Mutant(
        "a state of which a part is missing is used",
        "stored states",
        _TIER,
        "is_whole = done.num_good == self._num_asked(load)",
        "is_whole = done.num_good >= len(load.pages)",
    ),
    Mutant(
        "a path is loaded beyond its last state",
        "stored states",
        _TIER,
        "            end, num_parts = states.last(stored), states.num_parts\n",
        "            num_parts = states.num_parts\n",
    ),
    Mutant(
        "a state is loaded into the slot of another",
        "stored states",
        _TIER,
        "            targets = pages + states.pages(state.slot)\n",
        "            targets = pages + states.pages(0)\n",
    ),
    Mutant(
        "a load that has ended keeps its slot",
        "stored states",
        _STORED,
        "        if not state.is_taken:\n",
        "        if False:\n",
    ),
    Mutant(
        "the slot of a load is free while it is written",
        "stored states",
        _STORED,
        "        state.is_taken = True\n",
        "        pass\n",
    ),
    Mutant(
        "a lost state is believed again",
        "stored states",
        _TIER,
        "                self._store.forget(handles, self._states.keys(names, load.end))\n",
        "                pass\n",
    ),
    Mutant(
        "needless states are kept as long as others",
        "stored states",
        _STORED,
        "            self._stored.passed(before)\n",
        "            pass\n",
    ),
    Mutant(
        "handles of dropped states leak",
        "stored states",
        _STORED,
        "                self._handles.free(self.of.pop(number))\n",
        "                self.of.pop(number)\n",
    ),
    Mutant(
        "states that lack a part are found after a restart",
        "stored states",
        _STORED,
        "if key.part != states.num_parts or any(part not in newest for part in parts):",
        "if key.part != states.num_parts:",
    ),
    Mutant(
        "a state serves what is a part of its tokens",
        "stored states",
        "runtime/tier/page_store.py",
        "            not 0 < self.part < FRAME and other.tokens",
        "            other.tokens",
    ),
    Mutant(
        "parts of a state have one name",
        "stored states",
        "runtime/tier/page_store.py",
        'what += b"state" + self.part.to_bytes(4, "little")',
        'what += b"state"',
    ),
    Mutant(
        "blocks that nobody can go on from are told",
        "stored states",
        "runtime/kv_events/kv_publisher.py",
        "return self._blocks[node][: self._num_told(node, self._reach.get(node, 0))]",
        "return self._blocks[node]",
    ),
]
