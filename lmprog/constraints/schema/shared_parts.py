"""Parts of nets that many schemas share: strings, numbers, values of enums, any JSON at all.

Such a schema's net depends on its keywords and on few options, not on the document or its place in
it, so it is built once per process. Least recently used first out, bounded by an estimate of bytes;
thread-safe, but two threads may both build a part. Knows neither schemas nor what a part means.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock

from lmprog.constraints.net import NetPart

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
