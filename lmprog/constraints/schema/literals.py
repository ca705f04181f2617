"""Constants of a schema as generated JSON. Knows the layout; validates nothing."""

from __future__ import annotations

import json
from decimal import Decimal

from lmprog.constraints.net import NetBuilder, Node
from lmprog.constraints.schema.layout import Layout
from lmprog.constraints.schema.schema_document import Json


def literal(value: Json, layout: Layout, net: NetBuilder, depth: int) -> Node:
    """The value as text. Object members keep their order; strings use no needless escapes."""
    if isinstance(value, Decimal):
        return net.text(str(value).encode())
    if isinstance(value, list):
        items = [literal(item, layout, net, depth + 1) for item in value]
        return (
            layout.enclosed(b"[]", depth, _joined(items, layout, net, depth))
            if items
            else layout.empty(b"[]")
        )
    if isinstance(value, dict):
        members = [
            net.seq(
                [literal(name, layout, net, 0), layout.colon, literal(item, layout, net, depth + 1)]
            )
            for name, item in value.items()
        ]
        return (
            layout.enclosed(b"{}", depth, _joined(members, layout, net, depth))
            if members
            else layout.empty(b"{}")
        )
    if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
        return net.text(json.dumps(value).encode())
    return net.text(json.dumps(value, ensure_ascii=False).encode())


def _joined(items: list[Node], layout: Layout, net: NetBuilder, depth: int) -> Node:
    out = [items[0]]
    for item in items[1:]:
        out += [layout.comma(depth), item]
    return net.seq(out)
