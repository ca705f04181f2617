"""What a runtime tells of itself between two steps: figures by name, and snapshots of tree, batch
and queue as one bounded wire message.

Shown by `lmprog top` and the server's page. Changes nothing and does not count as a use of the
tree. What a snapshot costs is bounded by what it shows (`radix.tree_view`), since the loop waits
meanwhile. Names of salts may be derived from keys, so only a keyed hash of them leaves this module;
text of prompts leaves it only on request.

Knows sequences, nodes and calls; decides nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, zip_longest

from lmprog import wire
from lmprog.radix import Node, TreeView, end_of_rest, pages_of, path, view_tree
from lmprog.runtime.programs.call_constraints import CallConstraints
from lmprog.runtime.programs.clients import ActiveCall, GenerateRun, SelectRun, payer_of
from lmprog.runtime.scheduling.active_programs import Pins, ProgramPlace
from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.namespaces import Namespaces
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Client, Sequence, SequenceGroup, SequenceState
from lmprog.runtime.text.tokenizer import Tokenizer
from lmprog.transport import ClientId

MAX_SEQUENCES = 256
"""Shown of those that run, and of those that wait."""
MAX_SESSIONS = 64
"""Shown of those that pause."""
MAX_BRANCHES = 32
"""Looked at of each of them."""
FIRST_WORDS = 16
"""Tokens of a text that is remembered from one snapshot to the next."""
TEXT_CHARS = 96
"""Of those."""
MAX_TEXT_TOKENS = 32_768
"""Decoded for one snapshot beyond first words: more would hold up the loop."""


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
        self._room = 0
        """Tokens that may still be decoded for the snapshot that is taken."""
        self._texts: dict[tuple[int, int], str] = {}
        """First words of the nodes of the last snapshot with text, by number and length, which
        determine them.
        """

    def costs(self, constraints: CallConstraints | None) -> dict[str, dict[str, float]]:
        """What each has cost and waited for, in seconds, and the bytes of what is kept for it."""
        found = self._scheduler.shares.figures()
        kinds = {} if constraints is None else constraints.bytes_held()
        for kind, by_name in kinds.items():
            for name, count in by_name.items():
                figures = found.setdefault(name if name in found else "", {})
                figures[f"bytes_{kind}"] = figures.get(f"bytes_{kind}", 0.0) + count
        return found

    def take(
        self, client: ClientId, op: wire.Inspect, now: float, figures: dict[str, float]
    ) -> wire.Snapshot:
        """The answer to `op` of `client` at this moment of the runtime's clock."""
        scheduler = self._scheduler
        picture = view_tree(scheduler.tree, op.max_nodes, op.below)
        self._room = MAX_TEXT_TOKENS
        place = {id(node): index for index, node in enumerate(picture.nodes)}
        running = list(islice(scheduler.running, MAX_SEQUENCES))
        waiting = list(islice(scheduler.waiting, MAX_SEQUENCES))
        paused, pins = scheduler.programs.paused, scheduler.pins
        num_paused = sum(number in pins for own in paused.values() for number in own)
        shown = list(islice(_in_turn(paused, pins), MAX_SESSIONS))
        return wire.Snapshot(
            call=op.call,
            clock=now,
            figures=figures,
            nodes=self._nodes(picture, now, op),
            nodes_left_out=picture.nodes_left_out,
            pages_left_out=picture.pages_left_out,
            running=self._sequences(running, client, op, now, place),
            running_left_out=len(scheduler.running) - len(running),
            waiting=self._sequences(waiting, client, op, now, place),
            waiting_left_out=len(scheduler.waiting) - len(waiting),
            sessions=tuple(self._session(place, client, op) for place in shown),
            sessions_left_out=num_paused - len(shown),
        )

    def _session(self, place: ProgramPlace, client: ClientId, op: wire.Inspect) -> wire.SessionSeen:
        scheduler = self._scheduler
        waited = max(0.0, scheduler.clock() - place.paused_at)
        last = scheduler.sessions.last_of(place.number)
        tool = "" if last is None else last.kind.tool
        pins = list(islice(scheduler.pins.of(place.number), MAX_BRANCHES))
        longest = max(pins, key=lambda pin: pin.end, default=None)
        assert isinstance(place.client, tuple), "as `payer_of` makes it"
        kept_at = None if longest is None else longest.node.kept_at
        return wire.SessionSeen(
            program=place.number,
            account=place.client[1],
            is_own=place.client == payer_of(client, ""),
            turn=0 if last is None else last.turn,
            in_tool=bool(tool),
            tool=tool if op.with_text else "",
            waited=waited,
            expected=scheduler.programs.pause_of(place) - waited,
            branches=len(pins),
            tokens=0 if longest is None else longest.end,
            in_memory=0 if longest is None else end_of_rest(longest.node),
            stored=0 if kept_at is None else end_of_rest(kept_at),
        )

    def _nodes(self, picture: TreeView, now: float, op: wire.Inspect) -> tuple[wire.NodeSeen, ...]:
        shown = [0] * len(picture.nodes)
        for parent in picture.parents:
            if parent >= 0:
                shown[parent] += 1
        texts = self._node_texts(picture.nodes, op.text_tokens) if op.with_text else []
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
                text=texts[index] if op.with_text else "",
            )
            for index, node in enumerate(picture.nodes)
        )

    def _sequences(
        self,
        sequences: Iterable[Sequence],
        client: ClientId,
        op: wire.Inspect,
        now: float,
        place: dict[int, int],
    ) -> tuple[wire.SequenceSeen, ...]:
        return tuple(self._sequence(sequence, client, op, now, place) for sequence in sequences)

    def _sequence(
        self,
        sequence: Sequence,
        client: ClientId,
        op: wire.Inspect,
        now: float,
        place: dict[int, int],
    ) -> wire.SequenceSeen:
        call = self._calls[sequence.group]
        is_own = call.client == client
        wants_text = is_own and call.id in op.texts_of
        text, prompt_chars = self._end_of(sequence, op.text_tokens) if wants_text else ("", 0)
        group, task = sequence.group, sequence.task
        if not isinstance(call.run, GenerateRun | SelectRun | None):
            task = call.run.task_of(sequence)
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
            is_own=is_own,
            text=text,
            prompt_chars=prompt_chars,
        )

    def _end_of(self, sequence: Sequence, most: int) -> tuple[str, int]:
        """The text of the last tokens, and how many of its characters are the prompt's."""
        tokens = sequence.tokens
        begin = max(0, len(tokens) - min(most, self._room))
        prompt = max(begin, min(sequence.group.prompt_len, len(tokens)))
        self._room -= len(tokens) - begin
        before = self._tokenizer.decode(tokens[begin:prompt], skip_special=False)
        whole = self._tokenizer.decode(tokens[begin:], skip_special=False)
        # A character may be spelled by tokens of both.
        return whole, len(before) if whole.startswith(before) else max(0, len(before) - 1)

    def _node_texts(self, nodes: list[Node], most: int) -> list[str]:
        if most > FIRST_WORDS:
            return [self._long_text(node, most) for node in nodes]
        texts = [self._first_words(node) for node in nodes]
        self._texts = {
            (node.number, node.end - node.begin): text
            for node, text in zip(nodes, texts, strict=True)
        }
        return texts

    def _first_words(self, node: Node) -> str:
        known = self._texts.get((node.number, node.end - node.begin))
        if known is not None:
            return known
        text = self._decoded(node, FIRST_WORDS)
        is_whole = node.end - node.begin <= FIRST_WORDS and len(text) <= TEXT_CHARS
        return text if is_whole else text[:TEXT_CHARS] + "…"

    def _long_text(self, node: Node, most: int) -> str:
        count = node.end - node.begin
        taken = min(count, most, max(self._room, FIRST_WORDS))
        self._room -= taken
        return self._decoded(node, taken) + ("…" if taken < count else "")

    def _decoded(self, node: Node, count: int) -> str:
        tokens = [self._namespaces.token(key) for key in node.tokens[:count]]
        return self._tokenizer.decode(tokens, skip_special=False)

    def _name(self, salt: str) -> str:
        return (
            hashlib.blake2b(salt.encode(), key=self._key, digest_size=4).hexdigest() if salt else ""
        )


def _in_turn(
    paused: Mapping[Client, Mapping[int, ProgramPlace]], pins: Pins
) -> Iterator[ProgramPlace]:
    """The longest waiting one of each client, then the second one of each, and so on; without those
    that are over.
    """
    alive = ((place for number, place in own.items() if number in pins) for own in paused.values())
    return (place for row in zip_longest(*alive) for place in row if place is not None)


def _nearest(node: Node | None, place: dict[int, int]) -> int:
    """The place of `node` in the snapshot, or of its nearest ancestor shown; -1 for none."""
    above = path(node) if node is not None else iter(())
    return next((place[id(one)] for one in above if id(one) in place), -1)


def runtime_figures(scheduler: Scheduler) -> dict[str, float]:
    """What `stats` counts, and tree, pages and queue right now."""
    tree, pages = scheduler.tree, scheduler.pages
    tier = scheduler.tier
    num_preempted = sum(1 for sequence in scheduler.waiting if sequence.admission_order)
    kept = {} if tier is None else {f"tier_{name}": value for name, value in tier.figures().items()}
    drafts = None if scheduler.drafting is None else scheduler.drafting.model
    if drafts is not None:
        kept |= {"draft_pages": drafts.num_pages, "draft_pages_free": drafts.num_free_pages}
    return {
        **scheduler.stats.figures(),
        **kept,
        "running": float(len(scheduler.running)),
        "waiting": float(len(scheduler.waiting)),
        "preempted_waiting": float(num_preempted),
        "suspended": float(len(scheduler.suspended)),
        "pages": float(pages.num_pages),
        "pages_free": float(pages.num_free),
        "pages_cached": float(tree.num_cached),
        "pages_evictable": float(tree.num_evictable),
        "pages_pinned": float(tree.num_pinned),
        "tree_nodes": float(tree.num_nodes),
        "page_size": float(scheduler.config.page_size),
        "step_seconds": scheduler.costs.fixed,
        "token_seconds": scheduler.costs.per_token,
        "pid": float(os.getpid()),
    }
