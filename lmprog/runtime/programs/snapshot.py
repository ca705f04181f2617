"""Snapshots of the runtime between two steps, as one bounded wire message: tree, batch, queue.

Shown by `lmprog top` and the server's page. Taking one changes nothing and does not count as a use
of the tree. Its cost is bounded by what it shows (`radix.picture`), since the loop waits meanwhile.
Names of salts may be derived from keys, so only a keyed hash of them leaves this module; text of
prompts leaves it only on request.

Knows sequences, nodes and calls; decides nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from itertools import islice

from lmprog import wire
from lmprog.radix import Node, TreeView, pages_of, path, view_tree
from lmprog.runtime.programs.active_call import ActiveCall
from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.namespaces import Namespaces
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup, SequenceState
from lmprog.runtime.text.tokenizer import Tokenizer

MAX_SEQUENCES = 256
"""Shown of those that run, and of those that wait."""
TEXT_TOKENS = 16
TEXT_CHARS = 96


class SnapshotBuilder:
    """Takes snapshots of one runtime."""

    def __init__(
        self,
        scheduler: Scheduler,
        tokenizer: Tokenizer,
        namespaces: Namespaces,
        calls: Mapping[SequenceGroup, ActiveCall],
        key: bytes,
    ) -> None:
        """`calls`: the call of each group in the scheduler. `key` is for the hashes of salts:
        without it nobody can check a guessed name.
        """
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._namespaces = namespaces
        self._calls = calls
        self._key = key
        self._texts: dict[tuple[int, int], str] = {}
        """First words of the nodes of the last snapshot with text, by number and length, which
        determine them.
        """

    def take(self, op: wire.Inspect, now: float, figures: dict[str, float]) -> wire.Snapshot:
        """The answer to `op` at this moment of the runtime's clock."""
        scheduler = self._scheduler
        picture = view_tree(scheduler.tree, op.max_nodes)
        place = {id(node): index for index, node in enumerate(picture.nodes)}
        running = list(islice(scheduler.running, MAX_SEQUENCES))
        waiting = list(islice(scheduler.waiting, MAX_SEQUENCES))
        return wire.Snapshot(
            call=op.call,
            clock=now,
            figures=figures,
            nodes=self._nodes(picture, now, op.with_text),
            nodes_left_out=picture.nodes_left_out,
            pages_left_out=picture.pages_left_out,
            running=self._sequences(running, now, place),
            running_left_out=len(scheduler.running) - len(running),
            waiting=self._sequences(waiting, now, place),
            waiting_left_out=len(scheduler.waiting) - len(waiting),
        )

    def _nodes(self, picture: TreeView, now: float, with_text: bool) -> tuple[wire.NodeSeen, ...]:
        shown = [0] * len(picture.nodes)
        for parent in picture.parents:
            if parent >= 0:
                shown[parent] += 1
        texts = [self._text(node) for node in picture.nodes] if with_text else []
        self._texts = {
            (node.number, node.end - node.begin): text
            for node, text in zip(picture.nodes, texts, strict=bool(texts))
        }
        salts = {salt: self._name(salt) for salt in {node.salt for node in picture.nodes}}
        return tuple(
            wire.NodeSeen(
                number=node.number,
                parent=picture.parents[index],
                begin=node.begin,
                num_tokens=node.end - node.begin,
                num_pages=pages_of(node),
                age=0.0 if node.locks else max(0.0, now - node.used),
                locks=node.locks,
                pins=node.pins,
                children_left_out=len(node.children) - shown[index],
                salt=salts[node.salt],
                text=texts[index] if with_text else "",
            )
            for index, node in enumerate(picture.nodes)
        )

    def _sequences(
        self, sequences: Iterable[Sequence], now: float, place: dict[int, int]
    ) -> tuple[wire.SequenceSeen, ...]:
        return tuple(self._sequence(sequence, now, place) for sequence in sequences)

    def _sequence(self, sequence: Sequence, now: float, place: dict[int, int]) -> wire.SequenceSeen:
        group, task = sequence.group, sequence.task
        call = self._calls[group]
        waits = sequence.state is SequenceState.WAITING
        gen = task if isinstance(task, Generation) else None
        return wire.SequenceSeen(
            program=call.branch.program,
            branch=call.branch.id,
            call=call.id,
            index=group.sequences.index(sequence),
            kind="select" if gen is None else "gen",
            phase="waiting" if waits else "prefill" if sequence.remaining > 1 else "decode",
            prompt=group.prompt_len,
            num_tokens=len(sequence.tokens),
            computed=sequence.matched if waits else sequence.computed,
            cached=group.cached,
            generated=gen.generated if gen else 0,
            forced=gen.forced if gen else 0,
            max_tokens=gen.settings.max_tokens if gen else 0,
            passes=self._scheduler.step - sequence.arrival,
            age=max(0.0, now - group.timing.submitted),
            priority=group.priority,
            preemptions=group.preemptions,
            node=_nearest(sequence.node, place),
        )

    def _text(self, node: Node) -> str:
        known = self._texts.get((node.number, node.end - node.begin))
        if known is not None:
            return known
        tokens = [self._namespaces.token(key) for key in node.tokens[:TEXT_TOKENS]]
        text = self._tokenizer.decode(tokens, skip_special=False)
        is_whole = node.end - node.begin <= TEXT_TOKENS and len(text) <= TEXT_CHARS
        return text if is_whole else text[:TEXT_CHARS] + "…"

    def _name(self, salt: str) -> str:
        return (
            hashlib.blake2b(salt.encode(), key=self._key, digest_size=4).hexdigest() if salt else ""
        )


def _nearest(node: Node | None, place: dict[int, int]) -> int:
    """The place of `node` in the snapshot, or of its nearest ancestor shown; -1 for none."""
    above = path(node) if node is not None else iter(())
    return next((place[id(one)] for one in above if id(one) in place), -1)
