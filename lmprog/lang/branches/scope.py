"""The resources of one run: its settings, its branches, its calls, and what runs on its branches.

A scope is made for each run (nested runs have a parent) and is current, by a context variable,
while its program's code runs; that is how a nested call finds its backend. Closing a scope closes
all its branches, which frees what they held and cancels what they waited for.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from lmprog import wire
from lmprog.backends import Backend, Speculates
from lmprog.backends.connecting.default import default_backend
from lmprog.errors import Cancelled, LmprogError, ProgramError, not_allowed
from lmprog.lang.branches.budget import Budget
from lmprog.lang.branches.gen import Gen
from lmprog.lang.branches.pending_call import PendingCall, RunContext, RunRecord
from lmprog.lang.ops.sampling import Sampling
from lmprog.lang.streaming import branch_name, callbacks
from lmprog.lang.streaming.feed import Feed

if TYPE_CHECKING:
    from lmprog.backends.caching import CachingBackend, RunCache
    from lmprog.lang.branches.checkpointed_calls import CheckpointedCalls
    from lmprog.lang.branches.slots import Filling, MetSlots, Slot, Tuned
    from lmprog.lang.checkpoints.run_progress import Answer, RunProgress
    from lmprog.lang.streaming.trace_events import RunTrace, TraceEvent

current: ContextVar[Scope | None] = ContextVar("lmprog_scope", default=None)


def backend_of(given: Backend | None) -> Backend:
    """The one that was given, the calling program's, or the default one. A rehearsal never leaves
    its own: no service is asked for anything.
    """
    outer = current.get()
    if outer is not None and (outer.is_rehearsal or given is None):
        return outer.backend
    return default_backend() if given is None else given


def uncached_backend_of(given: Backend | None) -> Backend:
    """The same, without the folder of replies: for requests that a folder cannot answer."""
    outer = current.get()
    return outer.uncached if outer is not None and given is None else backend_of(given)


class OpenBranch(Protocol):
    """A branch that the run must close."""

    @property
    def id(self) -> int: ...

    def close(self) -> None: ...


class BranchTask(Protocol):
    """A function that runs on branches, in threads or tasks, and must not outlive the run."""

    def finish(self) -> Sequence[Exception]:
        """Waits for the threads. What failed and was not read."""
        ...

    async def finish_async(self) -> Sequence[Exception]:
        """The same for tasks."""
        ...

    async def abandon(self) -> None:
        """Cancels the tasks and waits until they have ended."""
        ...

    def stop(self) -> None:
        """What waits for a thread does not begin."""
        ...


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How a run is done, besides the program's own arguments."""

    backend: Backend | None = None
    sampling: Sampling = field(default_factory=Sampling)
    timeout: float | None = None
    max_total_tokens: int | None = None
    salt: str = ""
    lora: str | None = None
    """The adapter that computes it; None: the calling program's, on the same backend."""
    num_api_spec_tokens: int | None = None
    heal: bool | None = None
    backends: Mapping[str, Backend] = field(default_factory=dict)
    """Others that branches may go to, by name."""
    cache: Path | None = None
    """The folder of replies that are not asked for again."""
    checkpoint: Path | None = None
    """The file that the run is written to while it goes on, and that it goes on from."""
    answer: Answer | None = None
    """What the run is told that has paused."""
    tuned: Tuned | None = None
    """What fills the program's slots."""
    met: MetSlots | None = None
    """Where the slots are noted that the run comes to."""

    def as_json(self) -> dict[str, Any]:
        """Those that decide on the results, as the keywords of `using`; without backends."""
        found: dict[str, Any] = {
            **self.sampling.given(),
            "timeout": self.timeout,
            "max_total_tokens": self.max_total_tokens,
            "num_api_spec_tokens": self.num_api_spec_tokens,
            "heal": self.heal,
            "cache_salt": self.salt or None,
            "lora": self.lora,
            "cache": None if self.cache is None else str(self.cache),
            "tuned": None if self.tuned is None else self.tuned.as_json(),
        }
        return {name: value for name, value in found.items() if value is not None}

    def __post_init__(self) -> None:
        tokens = self.num_api_spec_tokens
        if tokens is not None and not (isinstance(tokens, int) and 0 <= tokens <= 65_536):
            raise not_allowed("num_api_spec_tokens", tokens, "0 <= x <= 65536")


class Scope(RunContext):
    """Owns the branches of one run."""

    def __init__(
        self,
        backend: Backend,
        settings: RunSettings,
        parent: Scope | None = None,
        *,
        feed: Feed | None = None,
        cache: RunCache | None = None,
        is_rehearsal: bool = False,
        is_visit: bool = False,
    ) -> None:
        """A run inside `parent`, where there is one; what `settings` leave open is as there. As a
        visit it is a part of the parent. What is rehearsed is in no record. Raises `ProgramError`
        for an answer without a question.
        """
        is_written = settings.checkpoint is not None and not is_rehearsal
        if settings.answer is not None and not is_written and not is_rehearsal:
            raise ProgramError("an answer needs the checkpoint whose question it answers")
        shares = parent is not None and not is_written and not is_rehearsal
        record = parent.record if parent is not None and shares else RunRecord(self._progress)
        super().__init__(backend.client, feed, record)
        self.settings = settings
        self._is_written = is_written
        self.backend = backend
        self.is_rehearsal = is_rehearsal
        self.cache = cache
        """Where replies are kept; the backend then asks only what is not there."""
        self.salt = settings.salt
        self.sampling = settings.sampling
        self.budget: Budget = Budget(
            None if parent is None else parent.budget,
            timeout=settings.timeout,
            max_total_tokens=settings.max_total_tokens,
        )
        self._inherit(settings, parent)
        self.place: str = ""
        """Which run inside of which run this is, in the keys of a checkpoint."""
        if parent is not None and shares:
            self.place = parent.place if is_visit else parent.nested_place()
        if is_written:
            self.record.needed()  # from the beginning
        self.seed: int = self._first_seed(parent if shares else None)
        """The source of every call's seed, so that each run can be repeated."""
        told = () if is_rehearsal else callbacks.get()
        self.trace: RunTrace | None = self._trace_for(told, parent) if told else None
        """Whom to tell of the run and its calls."""
        if parent is not None and is_visit:
            self.budget, self.seed, self.marks = parent.budget, parent.seed, parent.marks
            self.trace = parent.trace
        self.posted: list[wire.Op] = []
        """The ops that make branches and calls, in an order in which they can be sent again."""
        self.gens: list[Gen[Any]] = []
        self.referenced: dict[int, PendingCall] = {}
        """By call: the results, perhaps of other runs, that texts of this run refer to."""
        self.nested: set[Scope] = set()
        """Runs inside this one that still go on."""
        self.tasks: list[BranchTask] = []
        self.posting = threading.RLock()
        """Held between looking at a branch and posting a reference to it, so that it stays open."""
        self.stop: Callable[[], None] | None = None
        """Ends what the run's coroutine waits for."""
        self._open: dict[int, OpenBranch] = {}
        self._lock = threading.Lock()
        self._spent: dict[str, wire.Usage] = {}  # by model, in nested runs that are over
        self._visits: dict[tuple[int, str], Scope] = {}  # by backends' identity, and adapters
        self._checkpointed: CheckpointedCalls | None = None
        self._num_nested = 0
        self._parent = parent
        if parent is not None:
            parent.nested.add(self)
            self.ended = parent.ended  # who ends the parent from now on finds this one
            if parent.client is self.client:
                self.family = parent.family

    def _inherit(self, settings: RunSettings, parent: Scope | None) -> None:
        """What a run has of the run around it unless it is told otherwise."""
        inherits = settings.lora is None and parent is not None and parent.client is self.client
        self.lora: str = parent.lora if inherits and parent is not None else settings.lora or ""
        """The adapter that computes the run's branches; empty: the base alone."""
        outer_tokens = 0 if parent is None else parent.num_api_spec_tokens
        given_tokens = settings.num_api_spec_tokens
        self.num_api_spec_tokens: int = outer_tokens if given_tokens is None else given_tokens
        """How many tokens a request to another service's API may generate for later calls."""
        outer_backends = {} if parent is None else parent.backends
        self.backends: Mapping[str, Backend] = {**outer_backends, **settings.backends}
        """Other backends that branches may go to, by name."""

    def _trace_for(
        self, told: tuple[Callable[[TraceEvent], None], ...], parent: Scope | None
    ) -> RunTrace:
        from lmprog.lang.streaming.trace_events import RunTrace

        return RunTrace(told, None if parent is None or parent.trace is None else parent.trace.id)

    def _first_seed(self, parent: Scope | None) -> int:
        """The one that was given; runs inside of a run have seeds of their own, the same each
        time.
        """
        given = self.sampling.given().get("seed")
        if given is not None:
            return int(given)
        progress = self.record.progress if self._is_written else None
        if progress is not None and progress.known is not None:
            return progress.known.origin.seed
        if parent is None:
            return secrets.randbits(62)
        digest = hashlib.blake2b(repr((parent.seed, self.place)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 2

    # --- the way of an op and a call: to the client, or by way of the run's progress

    def post(self, op: wire.Op) -> None:
        """Posts an op of one of the branches and records it."""
        self.posted.append(op)
        self.send(op)

    def send(self, op: wire.Op) -> None:
        """Posts an op that nobody needs to do again."""
        if self.record.progress is None:
            self.client.post(op)
        else:
            self.checkpointed.post(op)

    def begin(self, gen: Gen[Any]) -> None:
        """Asks for a call that was made."""
        self.record.calls.append(gen)
        if self.record.progress is None:
            self._add(gen)
            self.client.begin(gen.wanted, gen.call)
        else:
            self.checkpointed.begin(gen, lambda: self._add(gen))

    def _add(self, gen: Gen[Any]) -> None:
        """A call is about to be posted: records it, and tells of it."""
        self.gens.append(gen)
        self.posted.append(gen.wanted)
        if self.trace is not None:
            name, model = gen.name or gen.kind, self.client.welcome.model
            branch = branch_name(gen.origin.path)
            ended = self.trace.begin_call(name, model, branch, str(gen.site))
            gen.tell_end(ended)

    def go_live(self) -> None:
        """Something is asked of the backend."""
        if self.record.progress is not None:
            self.checkpointed.go_live()

    def _progress(self, record: RunRecord) -> RunProgress:
        """That of a run which has none yet."""
        from lmprog.lang.branches.checkpointed_calls import progress_of

        settings = self.settings
        path, answer = settings.checkpoint, settings.answer
        return progress_of(record, path if self._is_written else None, answer)

    @property
    def checkpointed(self) -> CheckpointedCalls:
        """How calls are made in a run that has a progress."""
        with self._lock:
            if self._checkpointed is None:
                from lmprog.lang.branches.checkpointed_calls import CheckpointedCalls

                progress = self.record.needed()
                self._checkpointed = CheckpointedCalls(self, self.backend, progress)
            return self._checkpointed

    def filling(self, slot: Slot) -> Filling | None:
        """What fills a slot that the run comes to; None: nothing, it is as the program has it."""
        if self.settings.met is not None:
            self.settings.met.meet(slot)
        return None if self.settings.tuned is None else self.settings.tuned.filling(slot)

    def speculate(self, branch: int, budget: Budget) -> None:
        """A black-box API may generate more than a call asks for, where no budget counts tokens."""
        if self.num_api_spec_tokens and isinstance(self.backend, Speculates):
            self.backend.speculate(branch, 0 if budget.limits_tokens else self.num_api_spec_tokens)

    def nested_place(self) -> str:
        """The place of the next run inside this one."""
        with self._lock:
            self._num_nested += 1
            return f"{self.place}{self._num_nested}/"

    def enter(self, branch: OpenBranch) -> None:
        """Adds a new branch of this run. Raises when the run was ended from outside."""
        with self._lock:  # so that who ends the run either is seen here, or sees the branch
            self.check()
            self._open[branch.id] = branch

    def leave(self, branch: OpenBranch) -> None:
        with self._lock:
            self._open.pop(branch.id, None)

    def check(self) -> None:
        """Raises when the run was ended from outside, so that a program in a thread stops at its
        next op.
        """
        if self.ended is not None:
            raise type(self.ended)(self.ended.message)
        if self.record.progress is not None:
            self.record.progress.check()

    def show(self) -> None:
        """Wakes those who follow a streaming run."""
        if self.feed is not None:
            self.feed.changed()

    @property
    def cache_folder(self) -> Path | None:
        """Where replies are kept; None where they are not."""
        return None if self.cache is None else self.cache.folder

    @property
    def uncached(self) -> Backend:
        """The run's backend without its folder of replies."""
        own = self.backend
        return own if self.cache is None else cast("CachingBackend", own).inner

    def elsewhere(self, backend: Backend | None) -> Backend | None:
        """`backend` where it is another one; a rehearsal asks no other."""
        return None if backend is self.uncached or self.is_rehearsal else backend

    def other_lora(self, lora: str | None, own: str) -> str | None:
        """`lora` where it is another adapter than a branch's own; a rehearsal computes nothing."""
        return None if lora == own or self.is_rehearsal else lora

    def visiting(self, backend: Backend, lora: str = "") -> Scope:
        """The part of this run that happens on another backend, with an adapter of its own; it ends
        with the run.
        """
        with self._lock:
            visit = self._visits.get((id(backend), lora))
            if visit is None:
                visit = self._visit(backend, lora)
                self._visits[id(backend), lora] = visit
        return visit

    def _visit(self, backend: Backend, lora: str) -> Scope:
        return Scope(
            backend if self.cache is None else self.cache.over(backend),
            RunSettings(sampling=self.sampling, salt=self.salt, lora=lora, num_api_spec_tokens=0),
            self,
            feed=self.feed,
            cache=self.cache,
            is_visit=True,
        )

    def all_gens(self) -> list[Gen[Any]]:
        """The results of this run, on whatever backend."""
        return [*self.gens, *(gen for visit in self._visits.values() for gen in visit.gens)]

    def close(self) -> None:
        """Closes every branch that is still open, and sends that."""
        for visit in list(self._visits.values()):
            visit.close()
        with self._lock:
            branches = list(self._open.values())
        for branch in reversed(branches):
            branch.close()
        self.client.hurry()

    def cancel(self, error: LmprogError | None = None) -> None:
        """Ends the run from outside: every read and every further op raises."""
        self.ended = self.ended or error or Cancelled("the run was cancelled")
        for task in list(self.tasks):
            task.stop()
        for nested in list(self.nested):
            nested.cancel(self.ended)
        self.close()
        stop = self.stop
        if stop is not None:
            stop()

    def num_from_cache(self) -> int:
        """How many calls of this run, on whatever backend, were answered from a folder."""
        known: Container[int] = ()
        if self.cache is not None:
            known = cast("CachingBackend", self.backend).from_cache
        own = sum(gen.call.id in known or gen.was_answered for gen in self.gens)
        return own + sum(visit.num_from_cache() for visit in list(self._visits.values()))

    def usage(self) -> wire.Usage:
        """The work of all calls that are done, those of nested runs included."""
        return total(self.usage_by_model().values())

    def usage_by_model(self) -> dict[str, wire.Usage]:
        """The same for each model that was asked."""
        own = [usage for gen in self.gens if (usage := gen.usage) is not None]
        parts = [{self.client.welcome.model: total(own)}] if own else []
        parts += [self._spent, *(scope.usage_by_model() for scope in list(self.nested))]
        models = dict.fromkeys(model for part in parts for model in part)
        return {model: total(part[model] for part in parts if model in part) for model in models}

    def end_record(self) -> None:
        """What the run does from now on is not kept: its checkpoint may be another run's."""
        if self._parent is None or self._parent.record is not self.record:
            self.record.end()

    def over(self) -> None:
        """The run has ended: the run that contains it keeps its usage."""
        self.is_over = True
        for visit in self._visits.values():
            visit.over()
        parent = self._parent
        if self.cache is not None and (parent is None or parent.backend is not self.backend):
            self.backend.close()
        self.end_record()
        if parent is not None and self in parent.nested:
            with parent._lock:
                for model, usage in self.usage_by_model().items():
                    parent._spent[model] = total((parent._spent.get(model, wire.Usage()), usage))
                parent.nested.discard(self)


def total(usages: Iterable[wire.Usage]) -> wire.Usage:
    """The sum, field by field."""
    usages = list(usages)
    if len(usages) == 1:
        return usages[0]
    sums: dict[str, Any] = dict.fromkeys(wire.Usage.__struct_fields__, 0)
    for usage in usages:
        for name in sums:
            sums[name] += getattr(usage, name)
    return wire.Usage(**sums)
