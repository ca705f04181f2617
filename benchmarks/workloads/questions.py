"""Many short questions behind long common prompts: mmlu, hellaswag, dspy rag, in-batch prefixes."""

from __future__ import annotations

from dataclasses import dataclass

import lmprog
from benchmarks.workloads.shape import Peer, Workload, forced
from benchmarks.workloads.text import Writer
from lmprog.backends import Backend


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt in two parts, of which others share the first, and how much is generated."""

    shared: str
    own: str
    num_tokens: int


@lmprog.function
async def answer(s: lmprog.Branch, question: Question) -> list[str]:
    s.append(question.shared, question.own)
    return [await s.gen(**forced(question.num_tokens))]


class _Grouped(Workload):
    """Questions in groups, each with a shared prompt of its own."""

    program = answer
    groups: list[list[Question]]

    def run(self, backend: Backend) -> list[str]:
        self.items = [question for group in self.groups for question in group]
        return super().run(backend)

    def peer(self, peer: Peer) -> list[str]:
        found = []
        for group in self.groups:
            rows = peer.start([group[0].shared]).fork(len(group))
            rows.extend([question.own for question in group])
            found += rows.generate(group[0].num_tokens)
        return found


class Mmlu(_Grouped):
    name = "mmlu"
    about = "10 subjects of 300-1,536 common tokens, 130 questions of 60-180 each, output 1"

    def prepare(self, w: Writer) -> None:
        headers = w.texts(w.number(10), 300, 1000)
        number = w.number(130)
        self.groups = [
            [Question(header, w.text(60, 180), 1) for _ in range(number)] for header in headers
        ]


class InBatch(_Grouped):
    name = "in-batch prefixes"
    about = "10 prefixes of 1,024 x 32 suffixes of 128, output 1, all at once"

    def prepare(self, w: Writer) -> None:
        prefixes = w.texts(w.number(10), 1024)
        number = w.number(32, least=4)
        self.groups = [
            [Question(prefix, w.text(128), 1) for _ in range(number)] for prefix in prefixes
        ]


class Rag(_Grouped):
    name = "dspy rag"
    about = (
        "constant demonstrations 1,500, retrieved passages 100 and question 20, output "
        "40; 150 questions"
    )

    def prepare(self, w: Writer) -> None:
        demonstrations, size = w.text(1500), w.size(40)
        passages = w.texts(w.number(60), 100)
        owns = [
            passages[w.between(0, len(passages) - 1)] + w.text(20) for _ in range(w.number(150))
        ]
        self.groups = [[Question(demonstrations, own, size) for own in owns]]


@dataclass(frozen=True, slots=True)
class Ending:
    """A context, and the options that may come after it."""

    shots: str
    context: str
    options: list[str]


@lmprog.function
async def choose(s: lmprog.Branch, item: Ending) -> list[str]:
    s.append(item.shots, item.context)
    return [str(await s.select(item.options))]


class Hellaswag(Workload):
    program = choose
    name = "hellaswag"
    about = "shots 1,900 + context 30-70, select over 4 completion of 10-35; 200 questions"

    def prepare(self, w: Writer) -> None:
        self.shots = w.text(1900)
        self.items = [
            Ending(self.shots, w.text(30, 70), w.texts(4, 10, 35)) for _ in range(w.number(200))
        ]

    def peer(self, peer: Peer) -> list[str]:
        rows = peer.start([self.shots]).fork(len(self.items))
        rows.extend([item.context for item in self.items])
        return rows.select([item.options for item in self.items])
