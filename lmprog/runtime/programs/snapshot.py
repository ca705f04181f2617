"""What the runtime looks like between two steps, as one bounded value of the wire: tree, batch,
line.

For people who watch: `lmprog top` and the server's page. It changes nothing and counts as no use of
the tree. Its cost is bounded by what it shows (`radix.picture`), for the loop stands still
meanwhile. Names of salts may be derived from keys, so only a keyed hash of them leaves this module;
text of prompts leaves it only where it is asked for.

Knows sequences, nodes and calls; decides nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import islice

from lmprog import wire
from lmprog.radix import Node, Picture, pages_of, path, picture_of
from lmprog.runtime.programs.active_call import ActiveCall
from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.namespaces import Namespaces
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence, SequenceState
from lmprog.runtime.text.tokenizer import Tokenizer

MOST_SEQUENCES = 256
"""Sequences told of those that run, and of those that wait."""
TEXT_TOKENS = 16
TEXT_CHARS = 96


class SnapshotBuilder:
    """Takes pictures of one runtime. `key` is for the hashes of salts: whoever does not have it
    cannot guess names.
    """

    def __init__(
        self, scheduler: Scheduler, tokenizer: Tokenizer, namespaces: Namespaces, key: bytes
    ) -> None:
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._namespaces = namespaces
        self._key = key
        self._texts: dict[tuple[int, int], str] = {}
        """First words of the nodes of the last picture with text, by number and length, which
        determine them.
        """

    def look(self, op: wire.Inspect, now: float, figures: dict[str, float]) -> wire.Snapshot:
        """The answer to `op` at this moment of the runtime's clock."""
        scheduler = self._scheduler
        seen = picture_of(scheduler.tree, op.max_nodes)
        place = {id(node): index for index, node in enumerate(seen.nodes)}
        running = list(islice(scheduler.running, MOST_SEQUENCES))
        waiting = list(islice(scheduler.line, MOST_SEQUENCES))
        return wire.Snapshot(
            call=op.call,
            clock=now,
            figures=figures,
            nodes=self._nodes(seen, now, op.with_text),
            nodes_left_out=seen.nodes_left_out,
            pages_left_out=seen.pages_left_out,
            running=self._sequences(running, now, place),
            running_left_out=len(scheduler.running) - len(running),
            waiting=self._sequences(waiting, now, place),
            waiting_left_out=len(scheduler.line) - len(waiting),
        )

    def _nodes(self, seen: Picture, now: float, with_text: bool) -> tuple[wire.NodeSeen, ...]:
        shown = [0] * len(seen.nodes)
        for parent in seen.parents:
            if parent >= 0:
                shown[parent] += 1
        texts = [self._text(node) for node in seen.nodes] if with_text else []
        self._texts = {
            (node.number, node.end - node.begin): text
            for node, text in zip(seen.nodes, texts, strict=bool(texts))
        }
        salts = {salt: self._name(salt) for salt in {node.salt for node in seen.nodes}}
        return tuple(
            wire.NodeSeen(
                number=node.number,
                parent=seen.parents[index],
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
            for index, node in enumerate(seen.nodes)
        )

    def _sequences(
        self, sequences: Iterable[Sequence], now: float, place: dict[int, int]
    ) -> tuple[wire.SequenceSeen, ...]:
        return tuple(self._sequence(sequence, now, place) for sequence in sequences)

    def _sequence(self, sequence: Sequence, now: float, place: dict[int, int]) -> wire.SequenceSeen:
        call, task = sequence.call, sequence.task
        active = call.key
        assert isinstance(active, ActiveCall)
        waits = sequence.state is SequenceState.WAITING
        gen = task if isinstance(task, Generation) else None
        return wire.SequenceSeen(
            program=active.branch.program,
            branch=active.branch.id,
            call=active.id,
            index=call.sequences.index(sequence),
            kind="select" if gen is None else "gen",
            phase="waiting" if waits else "prefill" if sequence.remaining > 1 else "decode",
            prompt=call.prompt_len,
            num_tokens=len(sequence.tokens),
            computed=sequence.matched if waits else sequence.computed,
            cached=call.cached,
            generated=gen.generated if gen else 0,
            forced=gen.forced if gen else 0,
            max_tokens=gen.settings.max_tokens if gen else 0,
            passes=self._scheduler.step - sequence.arrival,
            age=max(0.0, now - call.timing.submitted),
            priority=call.priority,
            preemptions=call.preemptions,
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
    """Where `node` is shown, or the first of its ancestors that is."""
    above = path(node) if node is not None else iter(())
    return next((place[id(one)] for one in above if id(one) in place), -1)
