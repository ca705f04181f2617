"""What a simulated client knows of its branches and calls, and the checks of what it is told:
failures need a cause, results must be exactly the oracle's. Checks steps, too.

For each branch the script of its ops is kept. A call's prompt is the text that the script has
produced before it, known once the earlier calls are answered. Raises AssertionError; the world
adds the seed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from lmprog import wire
from lmprog.errors import BY_CODE, RequestRejected
from lmprog.radix import Node
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence, SequenceState
from lmprog.simulation import oracle


class SpoiledBranch(Exception):
    """The branch was spoiled by an earlier failure; `code` is that failure's."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(eq=False, slots=True)
class IssuedCall:
    """A call and what is known of it."""

    op: wire.Generate | wire.Select | wire.Read
    mirror: BranchMirror
    place: int
    time: float
    faults: int
    cancelled: bool = False
    ended: bool = False
    texts: list[str] = field(default_factory=list)
    failed: str | None = None
    deltas: dict[int, str] = field(default_factory=dict)


ScriptEntry = str | tuple[IssuedCall, int] | IssuedCall
"""Literal text; the text of another call's result; a call of the branch itself."""


@dataclass(eq=False, slots=True)
class BranchMirror:
    """One branch as the client knows it: its origin and the ops since."""

    number: int
    salt: str
    parent: BranchMirror | None = None
    place: int = 0
    script: list[ScriptEntry] = field(default_factory=list)
    adapter: int = 0
    """Number of the adapter that computes it."""
    closed: bool = False

    def text(self, place: int | None = None) -> str:
        """The branch's text before script entry `place`. Raises `SpoiledBranch`."""
        parts = [self.parent.text(self.place)] if self.parent else []
        for entry in self.script[:place]:
            if isinstance(entry, str):
                parts.append(entry)
                continue
            issued, index = entry if isinstance(entry, tuple) else (entry, 0)
            assert issued.ended, "a later call was answered before an earlier one"
            refused = issued.failed is not None and issubclass(
                BY_CODE[issued.failed], RequestRejected
            )
            if issued.failed is not None and not (refused and issued is entry):
                raise SpoiledBranch(issued.failed)
            if issued.texts and not isinstance(issued.op, wire.Read):
                parts.append(issued.texts[index])
        return "".join(parts)


def prompt_of(issued: IssuedCall) -> tuple[str | None, str]:
    """Why the call's branch was spoiled before it (None: it was not), and the call's prompt."""
    try:
        return None, issued.mirror.text(issued.place)
    except SpoiledBranch as spoiled:
        return spoiled.code, ""


def is_below_closed(mirror: BranchMirror | None) -> bool:
    """Whether the branch or an ancestor is closed: a fork that a closed parent never reached does
    not happen.
    """
    while mirror is not None:
        if mirror.closed:
            return True
        mirror = mirror.parent
    return False


@dataclass(frozen=True, slots=True)
class ReplyChecks:
    """`longest` is the runtime's longest sequence, `num_faults` counts the injected faults."""

    longest: int
    clock: Callable[[], float]
    num_faults: Callable[[], int]

    def check_failure(self, issued: IssuedCall, reply: wire.Failed) -> None:
        if reply.code == "cancelled" and (issued.cancelled or is_below_closed(issued.mirror)):
            return
        if reply.code == "model" and self.num_faults() > issued.faults:
            return
        op = issued.op
        timeout = None if isinstance(op, wire.Read) else op.timeout
        if (
            reply.code == "deadline"
            and timeout is not None
            and self.clock() >= issued.time + timeout
        ):
            return
        cause, prompt = prompt_of(issued)
        if cause is not None:
            assert reply.code == cause, (
                f"a spoiled branch names its cause: {reply.code}, not {cause}"
            )
            return
        if reply.code == "context_overflow":
            assert self._needs(op, prompt) > self.longest, (
                f"refused though it fits: {reply.message}"
            )
            return
        raise AssertionError(
            f"call {reply.call} failed without a cause: {reply.code}: {reply.message}"
        )

    def _needs(self, op: wire.Generate | wire.Select | wire.Read, prompt: str) -> int:
        if isinstance(op, wire.Generate):
            return len(prompt) + (op.sampling.max_tokens or 1)
        return len(prompt) + (max(map(len, op.choices)) if isinstance(op, wire.Select) else 0)

    def check_done(self, issued: IssuedCall, reply: wire.CallDone) -> None:
        op = issued.op
        assert isinstance(op, wire.Generate)
        issued.texts = [output.text for output in reply.outputs]
        prompt, adapter = issued.mirror.text(issued.place), issued.mirror.adapter
        assert self._needs(op, prompt) <= self.longest, "what can never fit is refused"
        if op.sampling.beams is not None:
            self._check_beams(issued, prompt, reply)
            return
        if op.keep != "first":
            self._check_kept(issued, prompt, reply)
            return
        assert len(reply.outputs) == op.sampling.n
        num_tokens = 0
        for index, output in enumerate(reply.outputs):
            expected = oracle.generated(prompt, op, (op.sampling.seed or 0) + index, adapter)
            assert output.text == expected.text, (
                f"call {op.call}[{index}]: {output.text!r} is not {expected.text!r}"
            )
            assert output.finish == expected.finish
            num_tokens += expected.num_tokens
            assert oracle.LETTERS.decode(output.tokens) == output.text, "its tokens are its text"
            if op.stream:
                assert issued.deltas.get(index, "") == output.text, "the deltas joined are the text"
        usage = reply.usage
        assert usage.prompt == len(prompt)
        assert usage.generated == num_tokens, "no token is generated after the end"
        assert usage.accepted <= usage.drafted
        assert 0 <= usage.cached <= usage.prompt

    def _check_beams(self, issued: IssuedCall, prompt: str, reply: wire.CallDone) -> None:
        op = issued.op
        assert isinstance(op, wire.Generate)
        expected = oracle.beamed(prompt, op, issued.mirror.adapter)
        for index, (output, wanted) in enumerate(zip(reply.outputs, expected, strict=True)):
            assert (output.text, output.finish) == (wanted.text, wanted.finish), (
                f"call {op.call}[{index}]: {output} is not {wanted}"
            )
            assert output.score is not None
            assert abs(output.score - wanted.score) < 1e-6, "its score"
            if op.stream:
                assert issued.deltas.get(index, "") == output.text, "the deltas joined are the text"
        assert reply.usage.prompt == len(prompt)

    def _check_kept(self, issued: IssuedCall, prompt: str, reply: wire.CallDone) -> None:
        """Which one ends first is the scheduler's business; that every one is right, and the
        majority, is checked.
        """
        op = issued.op
        assert isinstance(op, wire.Generate)
        seeds = range(op.sampling.seed or 0, (op.sampling.seed or 0) + op.sampling.n)
        adapter = issued.mirror.adapter
        everyone = [oracle.generated(prompt, op, seed, adapter).text for seed in seeds]
        assert set(issued.texts) <= set(everyone)
        if op.keep == "majority":
            stripped = [text.strip() for text in everyone]
            most = max(stripped.count(text) for text in stripped)
            assert stripped.count(issued.texts[0].strip()) == most, "most agree with what is kept"
        if op.stream:
            assert issued.deltas.get(0, "") == issued.texts[0], "the deltas joined are the text"

    def check_chosen(self, issued: IssuedCall, reply: wire.Chosen) -> None:
        op = issued.op
        assert isinstance(op, wire.Select)
        issued.texts = [op.choices[reply.index]]
        prompt, adapter = issued.mirror.text(issued.place), issued.mirror.adapter
        scores = oracle.scores(prompt, op, adapter)
        for option, score in zip(reply.options, scores, strict=True):
            assert abs(option.score - score) < 1e-6, f"option scored {option.score}, not {score}"
        assert reply.index in oracle.chosen(op, scores), "the best option wins"


def check_running(scheduler: Scheduler) -> None:
    """Raises AssertionError."""
    page_size, tables, pages = scheduler.config.page_size, scheduler.tables, scheduler.pages
    private: list[int] = []
    seen: set[Node] = set()
    for sequence in scheduler.running:
        assert sequence.state is SequenceState.RUNNING, "an admitted sequence runs"
        assert len(sequence.pages) * page_size >= sequence.computed, "computed tokens have pages"
        private.extend(tables.private_pages(sequence))
        _check_path(scheduler, sequence, seen)
    loading = scheduler.tier.pages_held() if scheduler.tier is not None else []
    num_private = len(private) + len(loading)
    assert len({*private, *loading}) == num_private, "a page has two owners"
    num_known = scheduler.tree.num_cached + num_private
    assert num_known == pages.num_taken, f"{num_known} of {pages.num_taken} pages have an owner"


def _check_path(scheduler: Scheduler, sequence: Sequence, seen: set[Node]) -> None:
    """`seen` are nodes that were checked already."""
    node = sequence.node
    if node is None:
        assert not sequence.shared, "shared pages are in the tree"
        return
    assert node.locks_here > 0, "a sequence locks what it stands on"
    assert node.salt == sequence.namespace.root, "salts never share a page"
    if not node.alive:
        return
    path: list[Node] = []
    while node is not None:
        path.append(node)
        if node not in seen:
            seen.add(node)
            scheduler.tree.check_node(node)
        node = node.parent
    whole = min(sequence.shared, sequence.computed // scheduler.config.page_size)
    shared = array("i", [page for node in reversed(path) for page in node.pages][:whole])
    assert shared == sequence.pages[:whole], "shared pages are those of the path"
