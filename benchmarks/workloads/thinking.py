"""Programs that fork to think: tree of thought, skeleton of thought, llm judge, multi-chain
reasoning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import lmprog
from benchmarks.workloads.shape import Lockstep, Peer, Workload, by_row, forced
from benchmarks.workloads.text import Writer


@dataclass(frozen=True, slots=True)
class Tree:
    """A question, and for each depth the text that each of its branches begins with."""

    question: str
    levels: list[list[str]]
    num_tokens: int


@lmprog.function
async def tree_of_thought(s: lmprog.Branch, tree: Tree) -> list[str]:
    found: list[list[str]] = [[] for _ in tree.levels]

    async def grow(branch: lmprog.Branch, depth: int) -> None:
        if depth == len(tree.levels):
            return
        async with branch.fork(len(tree.levels[depth])) as forks:
            forks += tree.levels[depth]
            thoughts = [fork.gen(**forced(tree.num_tokens)) for fork in forks]
            await asyncio.gather(*(grow(fork, depth + 1) for fork in forks))
            found[depth] += [await thought for thought in thoughts]

    s.append(tree.question)
    await grow(s, 0)
    return sorted(text for level in found for text in level)


class TreeOfThought(Workload):
    program = tree_of_thought
    name = "tree of thought"
    about = "depth 4, branch 2: 30 gens of 256 after texts of 26-72, question 60; 32 questions"

    def prepare(self, w: Writer) -> None:
        levels = [w.texts(2, 26, 72) for _ in range(4)]
        self.items = [Tree(w.text(60), levels, w.size(256)) for _ in range(w.number(32))]

    def peer(self, peer: Peer) -> list[str]:
        rows: Lockstep = peer.start([tree.question for tree in self.items])
        found: list[list[str]] = [[] for _ in self.items]
        num_rows = len(self.items)
        for level in self.items[0].levels:
            rows = rows.fork(len(level))
            rows.extend(level * num_rows)
            num_rows *= len(level)
            for index, text in enumerate(rows.generate(self.items[0].num_tokens)):
                found[index * len(self.items) // num_rows].append(text)
        return [text for texts in found for text in sorted(texts)]


class TreeSearch(TreeOfThought):
    name = "agents, tree search"
    about = (
        "depth 3, branch 5: 155 gens of 73 after texts of 60, question 290 (467 in on "
        "average); 8 questions"
    )

    def prepare(self, w: Writer) -> None:
        levels = [w.texts(w.number(5), 60) for _ in range(3)]
        self.items = [Tree(w.text(290), levels, w.size(73)) for _ in range(w.number(8))]


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A topic whose points are named one after the other, each of them worked out by a program of
    its own.
    """

    topic: str
    literals: list[str]
    point_tokens: int
    prompt: str
    before: str
    """Stands between the constant and the point: a generated text may begin inside a word."""
    detail_tokens: int


@lmprog.function
async def work_out(s: lmprog.Branch, prompt: str, point: str, num_tokens: int) -> str:
    s.append(prompt, point)
    return str(await s.gen(**forced(num_tokens)))


@lmprog.function
async def skeleton_of_thought(s: lmprog.Branch, item: Skeleton) -> list[str]:
    s.append(item.topic)
    inner = work_out.using(temperature=0.0, ignore_eos=True)  # on the runtime of this program
    details = []
    for literal in item.literals:
        s.append(literal)
        point = await s.gen(**forced(item.point_tokens))
        details.append(
            asyncio.ensure_future(inner.arun(item.prompt, item.before + point, item.detail_tokens))
        )
    return [(await detail).value for detail in details]


class SkeletonOfThought(Workload):
    program = skeleton_of_thought
    name = "skeleton of thought"
    about = (
        "5 gens of 24 in a row, each starts a program with a constant 370 and a gen of "
        "128; 64 topics"
    )

    def prepare(self, w: Writer) -> None:
        prompt, before, literals = w.text(370), w.text(8), w.texts(5, 6)
        sizes = w.size(24), w.size(128)
        self.items = [
            Skeleton(w.text(60), literals, sizes[0], prompt, before, sizes[1])
            for _ in range(w.number(64))
        ]

    def peer(self, peer: Peer) -> list[str]:
        first = self.items[0]
        rows, steps = peer.start([item.topic for item in self.items]), []
        for literal in first.literals:
            rows.extend([literal] * len(self.items))
            steps.append(rows.generate(first.point_tokens))
        points = [first.before + point for point in by_row(steps)]
        details = peer.start([first.prompt]).fork(len(points))
        details.extend(points)
        return details.generate(first.detail_tokens)


@dataclass(frozen=True, slots=True)
class Branching:
    """A common text, the beginnings of its branches, what comes before the verdict, and how much is
    generated.
    """

    common: str
    beginnings: list[str]
    before: Sequence[str]
    branch_tokens: int
    final_tokens: int


@lmprog.function
async def branch_and_merge(s: lmprog.Branch, item: Branching) -> list[str]:
    s.append(item.common)
    async with s.fork(len(item.beginnings)) as forks:
        forks += item.beginnings
        views = [fork.gen(**forced(item.branch_tokens)) for fork in forks]
        for before, view in zip(item.before, views, strict=True):
            s.append(before, view)
        s.append(item.before[0])
        final = s.gen(**forced(item.final_tokens))
        return [*[await view for view in views], await final]


class _Merging(Workload):
    program = branch_and_merge
    items: list[Branching]
    shared: str

    def peer(self, peer: Peer) -> list[str]:
        first, number = self.items[0], len(self.items)
        rows = peer.start([self.shared]).fork(number) if self.shared else peer.start([""] * number)
        rows.extend([item.common.removeprefix(self.shared) for item in self.items])
        forks = rows.fork(len(first.beginnings))
        forks.extend(first.beginnings * number)
        views = forks.generate(first.branch_tokens)
        size = len(first.beginnings)
        groups = [views[start : start + size] for start in range(0, len(views), size)]
        pasted = [
            "".join(b + view for b, view in zip(first.before, group, strict=True))
            for group in groups
        ]
        rows.extend([text + first.before[0] for text in pasted])
        finals = rows.generate(first.final_tokens)
        return [
            text for group, final in zip(groups, finals, strict=True) for text in [*group, final]
        ]


class Judge(_Merging):
    name = "llm judge"
    about = "system 38 + article 800, fork 6 x (105 + gen 256), join, final gen 64; 25 articles"

    def prepare(self, w: Writer) -> None:
        self.shared, dimensions, before = w.text(38), w.texts(6, 105), w.texts(6, 8)
        sizes = w.size(256), w.size(64)
        number = w.number(25)
        self.items = [
            Branching(self.shared + w.text(800), dimensions, before, *sizes) for _ in range(number)
        ]


class MultiChain(_Merging):
    name = "multi-chain reasoning"
    about = "question 60, fork 5 x gen 256, pasted together, gen 16; 64 questions"

    def prepare(self, w: Writer) -> None:
        self.shared, beginnings, before = "", w.texts(5, 8), w.texts(5, 8)
        sizes = w.size(256), w.size(16)
        self.items = [
            Branching(w.text(60), beginnings, before, *sizes) for _ in range(w.number(64))
        ]
