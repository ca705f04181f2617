"""What builders of objects are made with: declared members, callbacks of the schema compiler.

Knows no builder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.net import NetBuilder, Node
from lmprog.constraints.schema.schema_document import Located
from lmprog.constraints.text_set import TextSet


class Entry(NamedTuple):
    name: str
    value: Node
    required: bool


@dataclass(frozen=True, slots=True)
class ObjectParts:
    """The schema compiler's callbacks for building parts of an object."""

    net: NetBuilder
    limits: CompileLimits
    any_order: bool
    comma: Node
    colon: Node
    named: Callable[[bytes], Node]
    """The name of a member, in quotes, and its colon."""
    compile_schemas: Callable[[Sequence[Located]], Node]
    name_sets: Callable[[Sequence[Located]], list[TextSet]]
    """The sets of strings whose union a list of schemas takes."""
    lower_names: Callable[[TextSet], Node]
    """A set of strings as they are written, quotes included."""
