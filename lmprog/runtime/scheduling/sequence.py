"""Sequences and the groups they belong to: what the scheduler moves forward.

A call (a gen or select) runs as a *sequence group* of one or more *sequences*: one for each of a
gen's `n` results, one for each option of a select. A sequence is a list of tokens that grows while
its keys and values are computed. Its *task* (`Generation` or `Scoring`) says what is done with its
logits; the scheduler only asks the task from which position on logits are needed.

Knows lengths and states. Knows no text and no tensors, and decides nothing.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from lmprog.errors import LmprogError
from lmprog.radix import Node
from lmprog.radix.frames import WindowStretch
from lmprog.radix.snapshots import StateSnapshot
from lmprog.runtime.scheduling.generation import Generation, Scoring
from lmprog.runtime.scheduling.namespaces import SHARED_NAMESPACE, Namespace

if TYPE_CHECKING:
    from lmprog.runtime.scheduling.draft_worth import DraftRecord


Client: TypeAlias = Hashable
"""Who pays for calls: a pair of a connection and a name, of which one is empty; or anything."""


def name_of(client: Client) -> str:
    """Empty where it has none."""
    return str(client[1]) if isinstance(client, tuple) else ""


class SequenceState(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    """Neither waits nor runs: its reader does not take what there is."""
    ENDED = "ended"


@dataclass(slots=True)
class GroupTiming:
    """Seconds on the runtime's clock; None until the event has happened."""

    submitted: float
    admitted: float | None = None
    """When its first step began."""
    first_token: float | None = None
    ended: float | None = None


@dataclass(eq=False, slots=True)
class SessionTurn:
    """One request of a session (`sessions`). Its harness says the first two, as far as it does."""

    name: str = ""
    """Of its session, for this client."""
    label: str = ""
    """Which its session has in common with few others of this client, at most."""
    tool: str = ""
    """Which tool the answer calls; known when it has ended."""
    number: int = 0
    """Of the program that it belongs to; 0 until it is submitted."""
    prompt_end: int = 0
    prompt: int = 0
    """A hash of its tokens."""


@dataclass(eq=False, slots=True)
class SequenceGroup:
    """The sequences of one call, and the work that they have in common."""

    priority: int = 0
    program: int | None = None
    """The program that it belongs to; a larger number is a younger one. None: one of its own."""
    client: Client = None
    """Clients share the machine fairly ..."""
    weight: float = 1.0
    """... by their weights."""
    sequences: list[Sequence] = field(default_factory=list)
    timing: GroupTiming = field(default_factory=lambda: GroupTiming(0.0))
    prompt_len: int = 0
    computed: int = 0
    """Tokens of its sequences that went through the model, with those computed again."""
    drafted: int = 0
    """Tokens that were guessed, and computed for the case that they are sampled."""
    accepted: int = 0
    """Of these, what was sampled."""
    recomputed: int = 0
    """Of those that went through the model, tokens that had been computed before and were lost."""
    computed_from: int | None = None
    """Lowest position of the prompt that was computed; None where none was."""
    preemptions: int = 0
    goes_on: bool = False
    """Its sequences follow others of the same call, whose work they find in the tree."""
    turn: SessionTurn | None = None
    """Set where it is all that its program may do, unless a session goes on with it."""
    expected: int | None = None
    """How many tokens each of its generations will have, as its client guesses."""

    @property
    def cached(self) -> int:
        """Length of the prompt's beginning that was found in the tree and never computed.

        It is counted once, however many sequences share the prompt: what they find of each other's
        work is neither cached nor computed.
        """
        return 0 if self.computed_from is None else min(self.computed_from, self.prompt_len)

    def count_computed(self, sequence: Sequence, start: int, count: int) -> None:
        """The tokens `start .. start + count` of one of its sequences were computed."""
        self.computed += count
        if start < sequence.reached:
            self.recomputed += min(count, sequence.reached - start)
        if sequence.extends_prompt:
            begin = self.computed_from
            self.computed_from = start if begin is None else min(begin, start)


NOTHING = -1
"""In place of a slot of the state pool: the state before the first token."""


class OwnState:
    """Of one running sequence."""

    __slots__ = ("at", "fork", "slot", "source")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.at = NOTHING
        """How many tokens the state in the slot has gathered; `NOTHING`: none was written yet."""
        self.source: StateSnapshot | None = None
        """What the first row reads, locked until it is computed."""
        self.fork = NOTHING
        """Where the tree's tokens ended that its next row computes again."""


class OwnWindow:
    """Of one running sequence of a model whose layers with windows have frames of their own."""

    __slots__ = ("entered", "first", "fork", "has_part", "stretch")

    def __init__(self) -> None:
        self.first = 0
        """The first page of its table whose frame it holds; all behind it are held, too ..."""
        self.has_part = False
        """... but for the last one, where that is the tree's and partly filled."""
        self.entered = 0
        """Where the tree's tokens ended that it goes on from, until its first row is planned."""
        self.fork = 0
        """Where the tree's whole pages ended, while it computes some of them again; else 0."""
        self.stretch: WindowStretch | None = None
        """What it went on from."""


class Sequence:
    """One growing token sequence of a group.

    Positions `0 .. computed` have keys and values, in `pages` (page index -> page). The first
    `shared` pages belong to the tree and are kept alive by the lock on `node`; the others are the
    sequence's own until it enters the tree.
    """

    __slots__ = (
        "admission_order",
        "arrival",
        "computed",
        "drafts",
        "error",
        "extends_prompt",
        "group",
        "load",
        "matched",
        "namespace",
        "node",
        "num_found",
        "num_loads",
        "num_memory_preemptions",
        "num_resets",
        "num_settled",
        "num_tokens_at_enqueue",
        "pages",
        "queued_at",
        "reached",
        "recurrent",
        "shared",
        "state",
        "sweep",
        "task",
        "tokens",
        "waits_since",
        "window",
    )

    def __init__(
        self,
        group: SequenceGroup,
        tokens: array[int],
        task: Generation | Scoring,
        namespace: Namespace = SHARED_NAMESPACE,
    ) -> None:
        self.group = group
        self.tokens = tokens
        self.task = task
        self.namespace = namespace
        self.extends_prompt = True
        """It begins with the prompt of its group; not so where a select scores an option alone."""
        self.num_settled = 0
        """Tokens of its branch when that was computed last; 0 where it never was."""
        self.reached = 0
        """So many of its first tokens were computed before it ran last, for it or its branch."""
        self.num_found = 0
        """Tokens found in the tree at its first admission."""
        self.queued_at = 0.0
        """When it was submitted, in seconds."""
        self.waits_since: tuple[float, ...] = ()
        """The wait clock when it was last put into the queue."""
        self.state = SequenceState.WAITING
        self.node: Node | None = None
        self.pages: array[int] = array("i")
        self.shared = 0
        self.computed = 0
        self.num_resets = 0
        """How often it gave all of its pages up: what a step computes meanwhile is not its own."""
        self.num_tokens_at_enqueue = len(tokens)
        """Known tokens when it was last put into the queue. They enter the tree when they are
        planned; tokens generated since enter when the sequence ends."""
        self.matched = 0
        """Length of its cached prefix at the last look-up while it waited: a hint for the
        policy.
        """
        self.arrival = 0
        """Number of the scheduler's step in which the sequence was submitted."""
        self.admission_order = 0
        """Order of first admission; the sequence with the highest admission order is preempted
        first.
        """
        self.num_memory_preemptions = 0
        """How often it was preempted because memory ran out."""
        self.load: int | None = None
        """The load from the second tier that it waited for last."""
        self.num_loads = 0
        """How many it has waited for."""
        self.sweep = 0
        """dfs: number of the sweep that it belongs to."""
        self.recurrent: OwnState | None = None
        """Its recurrent state while it runs; None where the model has none."""
        self.window: OwnWindow | None = None
        """Which frames it holds; None where it has no pages, or the model no frames."""
        self.drafts: DraftRecord | None = None
        """Kept by whoever drafts for it; None before the first draft."""
        self.error: LmprogError | None = None

    def keys(self, end: int) -> array[int]:
        """The keys under which the tree knows its first `end` tokens."""
        tokens, space = self.tokens[:end], self.namespace
        return space.keys(tokens) if space.shift else tokens

    @property
    def logits_from(self) -> int:
        """The first position whose logits are still needed: it must be computed, not found."""
        return self.task.logits_from(len(self.tokens))

    @property
    def num_generated(self) -> int:
        """Tokens that its generation has made; 0 for a scoring."""
        return self.task.generated if isinstance(self.task, Generation) else 0

    @property
    def remaining(self) -> int:
        """Known tokens that have no keys and values yet."""
        return len(self.tokens) - self.computed

    @property
    def num_due(self) -> int:
        """Those that may be computed now: without the last one, as long as it is not known which
        tokens may follow it.
        """
        task = self.task
        known = len(self.tokens) - self.computed
        return known if task.is_plain or task.is_ready() else known - 1


def check_sequences(
    running: Iterable[Sequence], waiting: Iterable[Sequence], held: set[int], page_size: int
) -> None:
    """Raises AssertionError where an invariant is broken; `held` are the pages of the tree."""
    waits = set(waiting)
    for sequence in running:
        assert sequence.state is SequenceState.RUNNING, "an admitted sequence runs"
        assert sequence not in waits, "an admitted sequence does not wait"
        whole = min(sequence.shared, sequence.computed // page_size)
        assert all(page in held for page in sequence.pages[:whole]), "shared pages are in the tree"
        if sequence.node is not None:
            assert sequence.node.salt == sequence.namespace.root, "salts never share a page"
        room = len(sequence.pages) * page_size
        assert room >= sequence.computed, "computed tokens have pages"
    for sequence in waits:
        assert sequence.state is SequenceState.WAITING, "a queued sequence waits"
        assert sequence.node is None, "a waiting sequence locks nothing"
        assert not sequence.pages, "a waiting sequence has no pages"
