"""Snapshots as plain JSON, for the server's page and `lmprog top`."""

from __future__ import annotations

from typing import Any

from lmprog.wire.replies import NodeSeen, SequenceSeen, SessionSeen, Snapshot


def as_json(seen: Snapshot, with_text: bool = False) -> dict[str, Any]:
    """Nodes are lists in the order of the message's fields, since there may be hundreds of them."""
    return {
        "clock": seen.clock,
        "figures": {name: value for name, value in seen.figures.items() if name != "pid"},
        "nodes": [_node(node, with_text) for node in seen.nodes],
        "nodesLeftOut": seen.nodes_left_out,
        "pagesLeftOut": seen.pages_left_out,
        "running": [_sequence(sequence, seen) for sequence in seen.running],
        "runningLeftOut": seen.running_left_out,
        "waiting": [_sequence(sequence, seen) for sequence in seen.waiting],
        "waitingLeftOut": seen.waiting_left_out,
    }


def session_json(seen: SessionSeen) -> dict[str, Any]:
    """`pages`: where what it goes on from is."""
    if seen.in_memory >= seen.tokens:
        pages = "in memory"
    else:
        pages = "on disk" if seen.stored >= seen.tokens else "evicted"
    return {
        "program": seen.program,
        "turn": seen.turn,
        "state": "in a tool" if seen.in_tool else "paused",
        "tool": seen.tool,
        "waited": round(seen.waited, 1),
        "expected": round(seen.expected, 1),
        "branches": seen.branches,
        "tokens": seen.tokens,
        "inMemory": min(seen.in_memory, seen.tokens),
        "stored": min(seen.stored, seen.tokens),
        "pages": pages,
    }


def _node(node: NodeSeen, with_text: bool) -> list[Any]:
    return [
        node.number,
        node.parent,
        node.begin,
        node.num_tokens,
        node.num_pages,
        round(node.age, 1),
        node.locks,
        node.pins,
        node.children_left_out,
        node.salt,
        node.text if with_text else "",
    ]


def _sequence(sequence: SequenceSeen, seen: Snapshot) -> dict[str, Any]:
    return {
        "program": sequence.program,
        "branch": sequence.branch,
        "call": sequence.call,
        "index": sequence.index,
        "kind": sequence.kind,
        "phase": sequence.phase,
        "prompt": sequence.prompt,
        "tokens": sequence.num_tokens,
        "computed": sequence.computed,
        "cached": sequence.cached,
        "generated": sequence.generated,
        "forced": sequence.forced,
        "maxTokens": sequence.max_tokens,
        "passes": sequence.passes,
        "age": round(sequence.age, 2),
        "priority": sequence.priority,
        "preemptions": sequence.preemptions,
        "node": seen.nodes[sequence.node].number if sequence.node >= 0 else None,
        "own": sequence.is_own,
    }
