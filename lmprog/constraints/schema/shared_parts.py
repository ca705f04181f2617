"""Parts of nets that many schemas share: strings, numbers, any JSON at all.

Such a schema's net depends on its keywords and on few options, not on the document or its place in
it, so it is built once per process. Least recently used first out, bounded by an estimate of bytes;
thread-safe, but two threads may both build a part. Knows which schemas say the same everywhere;
does not know what they mean.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from decimal import Decimal
from threading import Lock

from lmprog import wire
from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.net import NetPart
from lmprog.constraints.schema.keywords import ANNOTATIONS
from lmprog.constraints.schema.schema_document import Json, Located

_SCALAR = (str, int, Decimal)
_OF_SCALARS = frozenset(["type", "enum"])
_NOT_SHARED = frozenset(["enum", "const", "uniqueItems"])
MAX_BYTES = 32 << 20
_LARGEST_SHARE = 8
"""One part takes at most the eighth of the bytes; larger ones are not kept."""


class SharedParts:
    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._held: OrderedDict[Hashable, NetPart] = OrderedDict()
        self._lock = Lock()
        self.num_bytes = 0
        """Of all parts that are kept, estimated."""

    def get(self, key: Hashable, make: Callable[[], NetPart]) -> NetPart:
        """The part of this name, made where it is not known. What `make` raises is not kept."""
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
                return found
        made = make()
        if made.num_bytes > self._max_bytes // _LARGEST_SHARE:
            return made
        with self._lock:
            found = self._held.setdefault(key, made)
            if found is made:
                self.num_bytes += made.num_bytes
            while self.num_bytes > self._max_bytes:
                self.num_bytes -= self._held.popitem(last=False)[1].num_bytes
        return found

    def __len__(self) -> int:
        return len(self._held)


SHARED_PARTS = SharedParts()
"""Those of this process."""


def name_of_options(spec: wire.JsonSchema, limits: CompileLimits, formats: bool) -> str:
    """What beside a schema its part depends on, as a text, for keys: its hash is computed once."""
    said = [getattr(spec, name) for name in spec.__struct_fields__ if name != "schema"]
    return _name_of_options(*said, formats, limits)


@functools.lru_cache(maxsize=64)
def _name_of_options(*said: object) -> str:
    return repr(said)


def name_of(schema: Located) -> str:
    """A cache key: the path, or the content if nothing in the schema depends on its location."""
    value = schema.value
    if isinstance(value, bool):
        return schema.path
    said = [(keyword, one) for keyword, one in value.items() if keyword not in ANNOTATIONS]
    for keyword, one in said:
        if keyword.startswith("$") or not (
            one is None
            or isinstance(one, _SCALAR)
            or (keyword in _OF_SCALARS and isinstance(one, list) and _are_scalars(one))
        ):
            return schema.path
    return repr(said)  # starts with a bracket, unlike any path


def is_worth_sharing(schema: Located, name: str) -> bool:
    """Whether its name is its content, and more than a list of values: those are made as quickly
    as they are found. An array of unique items is no part: it is told by its place in the net."""
    value = schema.value
    if name[0] != "[" or isinstance(value, bool):
        return False
    return value.keys().isdisjoint(_NOT_SHARED)


def _are_scalars(values: list[Json]) -> bool:
    return all(value is None or isinstance(value, _SCALAR) for value in values)
