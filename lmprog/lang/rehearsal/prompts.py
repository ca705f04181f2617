"""The prompts of a rehearsed run, rendered and counted by the runtime, with markers for generated
text.

The run's texts and roles are sent to the runtime, with each result as its marker, and read back
before every call. So roles are rendered by the checkpoint's chat template. Literal text between two
results is counted separately, as the runtime tokenizes it. Nothing is generated or scored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from lmprog import wire
from lmprog.backends.client import Client, ClientCall
from lmprog.errors import LmprogError, ProtocolError
from lmprog.lang.rehearsal.graph import Graph
from lmprog.lang.rehearsal.op_graph import Join, Planned

Atom: TypeAlias = str | Planned
"""Literal text, or a result whose text is not known yet."""


@dataclass(frozen=True)
class RehearsedPrompt:
    """The text before a call. `branch` counts from 1."""

    planned: Planned
    branch: int
    atoms: tuple[Atom, ...]
    text: str

    @property
    def literals(self) -> list[tuple[str, bool]]:
        """Its literal texts; True for one at the beginning of the branch, where the tokenizer may
        add tokens.
        """
        return [
            (atom, index == 0) for index, atom in enumerate(self.atoms) if isinstance(atom, str)
        ]

    @cached_property
    def results(self) -> list[Planned]:
        return [atom for atom in self.atoms if isinstance(atom, Planned)]


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of all calls, in order; and for each branch, by number, its whole text and the
    part inherited from its fork.
    """

    calls: tuple[RehearsedPrompt, ...]
    texts: Mapping[int, str]
    inherited: Mapping[int, str]


class PromptReader:
    """Lets a runtime render text and count tokens; closes the branches that it opened."""

    def __init__(self, client: Client, salt: str = "") -> None:
        self._client = client
        self._salt = salt

    @property
    def knows_tokens(self) -> bool:
        """Whether the backend counts with the model's tokenizer; a test double and a black-box API
        have none, and estimate.
        """
        return self._client.welcome.vocab_size > 0

    def write(self, graph: Graph) -> Prompts:
        """The prompts of all calls; blocks."""
        client = self._client
        ids: dict[int, int] = {}  # branch of the rehearsal -> its copy here
        before: dict[int, ClientCall] = {}
        forked: dict[int, ClientCall] = {}
        ends: dict[int, ClientCall] = {}
        with client.together():
            for root in graph.roots:
                ids[root] = client.number()
                client.post(wire.Open(ids[root], self._salt))
            for branch, index in graph.order:
                step = graph.steps[branch][index]
                if isinstance(step, wire.Append):
                    client.post(
                        wire.Append(
                            ids[branch], tuple(_shown(piece, graph, ids) for piece in step.pieces)
                        )
                    )
                elif isinstance(step, wire.Fork):
                    ids.update({child: client.number() for child in step.children})
                    forked.update(dict.fromkeys(step.children, self._read(ids[branch])))
                    client.post(
                        wire.Fork(ids[branch], tuple(ids[child] for child in step.children))
                    )
                elif not isinstance(step, Join):
                    before[step.call] = self._read(ids[branch])
                    client.post(
                        wire.Append(ids[branch], (wire.TextPiece(graph.calls[step.call].mark),))
                    )
            for branch, copy in ids.items():
                ends[branch] = self._read(copy)
        client.flush()  # now: on an event loop this thread blocks before the turn ends
        try:
            inherited = {graph.numbers[branch]: _text(call).text for branch, call in forked.items()}
            texts = {graph.numbers[branch]: _text(call).text for branch, call in ends.items()}
            return Prompts(tuple(_prompts(graph, before)), texts, inherited)
        finally:
            self._close(ids.values())

    def count(self, texts: Iterable[tuple[str, bool]]) -> dict[tuple[str, bool], int]:
        """Token counts of each text on its own; with True, at the beginning of a branch, including
        the tokens that are added there.
        """
        wanted = dict.fromkeys(texts)
        branches = {key: self._client.number() for key in wanted}
        empty = self._client.number()
        with self._client.together():
            self._client.post(wire.Open(empty, self._salt))
            for (text, _), branch in branches.items():
                self._client.post(wire.Open(branch, self._salt))
                self._client.post(wire.Append(branch, (wire.TextPiece(text),)))
            base = self._read(empty)
            asked = {key: self._read(branch) for key, branch in branches.items()}
        self._client.flush()
        try:
            prefix = _text(base).num_tokens
            return {
                key: _text(call).num_tokens - (0 if key[1] else prefix)
                if key[0]
                else (prefix if key[1] else 0)
                for key, call in asked.items()
            }
        finally:
            self._close([empty, *branches.values()])

    def _read(self, branch: int) -> ClientCall:
        return self._client.call(wire.Read(branch, self._client.number()))

    def _close(self, branches: Iterable[int]) -> None:
        with self._client.together():
            self._client.post(*(wire.Close(branch) for branch in branches))


def _shown(piece: wire.Piece, graph: Graph, ids: Mapping[int, int]) -> wire.Piece:
    if isinstance(piece, wire.Ref):
        return wire.TextPiece(graph.calls[piece.call].mark)
    return wire.Gained(ids[piece.branch]) if isinstance(piece, wire.Gained) else piece


def _text(call: ClientCall) -> wire.TextIs:
    outcome = call.wait()
    if isinstance(outcome, LmprogError):
        raise outcome
    if not isinstance(outcome, wire.TextIs):
        raise ProtocolError(f"asked for a text, the runtime answered {type(outcome).__name__}")
    return outcome


def _prompts(graph: Graph, before: Mapping[int, ClientCall]) -> Iterator[RehearsedPrompt]:
    paths: dict[int, list[Planned]] = {
        root: [] for root in graph.roots
    }  # the results on the way, by branch
    for branch, index in graph.order:
        step = graph.steps[branch][index]
        if isinstance(step, wire.Fork):
            paths.update({child: list(paths[branch]) for child in step.children})
        elif isinstance(step, wire.Generate | wire.Select):
            text = _text(before[step.call]).text
            planned = graph.calls[step.call]
            yield RehearsedPrompt(planned, graph.numbers[branch], split(text, paths[branch]), text)
            paths[branch].append(planned)


def split(text: str, results: Sequence[Planned]) -> tuple[Atom, ...]:
    """Splits `text` at the markers of `results`, which occur in that order."""
    atoms: list[Atom] = []
    for planned in results:
        literal, mark, text = text.partition(planned.mark)
        assert mark, planned.label
        atoms += [literal, planned] if literal or not atoms else [planned]
    return (*atoms, text) if text or not atoms else tuple(atoms)
