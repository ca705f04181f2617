"""Finishes a net: its arrays, natively where there is a compiler, else by the plain twin."""

from __future__ import annotations

from lmprog.constraints.costs import plain_net
from lmprog.constraints.leaves import UNREACHABLE
from lmprog.constraints.native_net import native_net
from lmprog.constraints.net import NetBuilder, Node
from lmprog.constraints.net_arrays import Alphabet, Net
from lmprog.errors import UnsatisfiableConstraint


def finish(net: NetBuilder, root: Node, alphabet: Alphabet) -> Net:
    """Trims and flattens the net. Raises UnsatisfiableConstraint if it matches nothing."""
    assert not net.holes, "a hole was never filled"
    made = native_net(net, root, alphabet) or plain_net(net, root, alphabet)
    if made.node_cost[made.root] >= UNREACHABLE:
        raise UnsatisfiableConstraint("nothing at all would match this constraint")
    return made
