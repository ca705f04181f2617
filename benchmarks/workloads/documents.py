"""JSON out of documents: chained constrained generations, and one generation under a regex with
fixed keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import lmprog
from benchmarks.workloads.shape import Peer, Workload, by_row
from benchmarks.workloads.text import Writer

FIELDS = [
    ('\n{"name": "', "[A-Z][a-z]{11,15}"),
    ('",\n "number": "', "[0-9]{8}"),
    ('",\n "date": "', "[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    ('",\n "kind": "', "(invoice|complaint|other)"),
    ('",\n "summary": "', "[a-z]{4,8}( [a-z]{4,8}){5}"),
]
MOST = 64  # tokens of a field; enough for any match in bytes


@dataclass(frozen=True, slots=True)
class Document:
    text: str


@lmprog.function
async def decode_json(s: lmprog.Branch, document: Document) -> list[str]:
    s.append(document.text)
    values = []
    for literal, pattern in FIELDS:
        s.append(literal)
        values.append(s.gen(regex=pattern, max_tokens=MOST, ignore_eos=False))
    return [await value for value in values]


class JsonDecode(Workload):
    program = decode_json
    name = "json decode"
    about = "document of 1,000-3,000 + 5 chained regex gens with literals between; 20 documents"

    def prepare(self, w: Writer) -> None:
        self.items = [Document(w.text(1000, 3000)) for _ in range(w.number(20))]

    def peer(self, peer: Peer) -> list[str]:
        rows, steps = peer.start([item.text for item in self.items]), []
        for literal, pattern in FIELDS:
            rows.extend([literal] * len(self.items))
            steps.append(rows.match(pattern, MOST))
        return by_row(steps)


KEY_NAMES = "name house blood occupation status wand_wood wand_core length patronus born in pet"
KEYS = KEY_NAMES.split()
PATTERN = r"\{\n" + r",\n".join(f'  "{key}": "[a-z]{{4,8}}"' for key in KEYS) + r"\n\}"


@lmprog.function
async def jump_forward(s: lmprog.Branch, name: str) -> list[str]:
    s.append(name)
    return [await s.gen(regex=PATTERN, max_tokens=512, ignore_eos=False)]


class JsonJumpForward(Workload):
    program = jump_forward
    name = "json jump-forward"
    about = "a name of 5 tokens + one gen under a 12-field regex; 50 names"

    def prepare(self, w: Writer) -> None:
        self.items = [w.text(20) for _ in range(w.number(50))]

    def peer(self, peer: Peer) -> list[str]:
        return peer.start(self.items).match(PATTERN, 512)
