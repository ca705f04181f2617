"""A snapshot as plain JSON, for those who only draw it: the page and `lmprog top`. Knows messages; draws nothing."""

from __future__ import annotations

from typing import Any

from lmprog.wire.replies import LaneSeen, NodeSeen, Snapshot


def as_json(seen: Snapshot, with_text: bool = False) -> dict[str, Any]:
    """Nodes as short lists in the order of the message's fields, since there may be hundreds of them."""
    return {
        "clock": seen.clock,
        "figures": {name: value for name, value in seen.figures.items() if name != "pid"},
        "nodes": [_node(node, with_text) for node in seen.nodes],
        "nodesLeftOut": seen.nodes_left_out,
        "pagesLeftOut": seen.pages_left_out,
        "running": [_lane(lane, seen) for lane in seen.running],
        "runningLeftOut": seen.running_left_out,
        "waiting": [_lane(lane, seen) for lane in seen.waiting],
        "waitingLeftOut": seen.waiting_left_out,
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


def _lane(lane: LaneSeen, seen: Snapshot) -> dict[str, Any]:
    return {
        "program": lane.program,
        "branch": lane.branch,
        "call": lane.call,
        "index": lane.index,
        "kind": lane.kind,
        "phase": lane.phase,
        "prompt": lane.prompt,
        "tokens": lane.num_tokens,
        "computed": lane.computed,
        "cached": lane.cached,
        "generated": lane.generated,
        "forced": lane.forced,
        "maxTokens": lane.max_tokens,
        "passes": lane.passes,
        "age": round(lane.age, 2),
        "priority": lane.priority,
        "preemptions": lane.preemptions,
        "node": seen.nodes[lane.node].number if lane.node >= 0 else None,
    }
