"""The resources of one run: its settings, its branches, its calls, and what runs on its branches.

A scope is made for each run (nested runs have a parent) and is current, by a context variable,
while its program's code runs; that is how a nested call finds its backend. Closing a scope closes
all its branches, which frees what they held and cancels what they waited for.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from lmprog import wire
from lmprog.backends import Backend, Speculates
from lmprog.backends.caching.caching_backend import CachingBackend, RunCache
from lmprog.backends.default import default_backend
from lmprog.errors import Cancelled, LmprogError
from lmprog.lang.branches.budget import Budget
from lmprog.lang.branches.gen import Gen
from lmprog.lang.branches.pending_call import PendingCall
from lmprog.lang.branches.resumed_ops import ResumedOps
from lmprog.lang.branches.run_context import RunContext
from lmprog.lang.ops.sampling import Sampling
from lmprog.lang.streaming.feed import Feed
from lmprog.lang.streaming.partial import branch_name
from lmprog.lang.streaming.trace_events import RunTrace

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
    """The same, for what no folder of replies answers."""
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


class Scope(RunContext):
    """Owns the branches of one run."""

    def __init__(
        self,
        backend: Backend,
        sampling: Sampling,
        *,
        parent: Scope | None = None,
        budget: Budget | None = None,
        salt: str = "",
        feed: Feed | None = None,
    ) -> None:
        super().__init__(backend.client, feed)
        self.backend = backend
        self.sampling = sampling
        self.salt = salt
        self.lora: str = ""
        """The adapter that computes the run's branches; empty: the base alone."""
        self.num_api_spec_tokens = 0
        """How many tokens a request to another service's API may generate for later calls."""
        given = sampling.given().get("seed")
        self.seed: int = secrets.randbits(62) if given is None else given
        """The source of every call's seed, so that each run can be repeated."""
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
        self.budget: Budget = (
            Budget(None if parent is None else parent.budget) if budget is None else budget
        )
        self._open: dict[int, OpenBranch] = {}
        self._lock = threading.Lock()
        self._spent: dict[str, wire.Usage] = {}  # by model, in nested runs that are over
        self._visits: dict[tuple[int, str], Scope] = {}  # by backends' identity, and adapters
        self.backends: Mapping[str, Backend] = {} if parent is None else parent.backends
        """Other backends that branches may go to, by name."""
        self.trace: RunTrace | None = None
        """Whom to tell of the run and its calls."""
        self.cache: RunCache | None = None
        """Where replies are kept; the backend then asks only what is not there."""
        if parent is not None:
            self.progress = parent.progress
        self.place: str = "" if parent is None else parent.place
        """Which run inside of which run this is, in the keys of a checkpoint."""
        self.resumed: ResumedOps | None = None
        """What is sent in place of ops as long as a resumed run asks nothing new."""
        self._num_nested = 0
        self._parent = parent
        if parent is not None:
            parent.nested.add(self)
            self.ended = parent.ended  # who ends the parent from now on finds this one
            if parent.client is self.client:
                self.family = parent.family

    def post(self, op: wire.Op) -> None:
        """Posts an op of one of the branches and records it."""
        self.posted.append(op)
        self.send(op)

    def send(self, op: wire.Op) -> None:
        """Posts an op that nobody needs to do again."""
        if self.resumed is None:
            self.client.post(op)
        else:
            self.resumed.post(op)

    def speculate(self, branch: int, budget: Budget) -> None:
        """A black-box API may generate more than a call asks for, where no budget counts tokens."""
        if self.num_api_spec_tokens and isinstance(self.backend, Speculates):
            self.backend.speculate(branch, 0 if budget.limits_tokens else self.num_api_spec_tokens)

    def go_live(self) -> None:
        """Something is asked of the backend."""
        if self.resumed is not None:
            self.resumed.go_live()

    def resume(self) -> None:
        """Before the run begins: its progress may know what it did before."""
        if self.progress.known is not None:
            self.resumed = ResumedOps(self.backend)

    def nested_place(self) -> str:
        """The place of the next run inside this one."""
        with self._lock:
            self._num_nested += 1
            return f"{self.place}{self._num_nested}/"

    def add_call(self, gen: Gen[Any], op: wire.Op) -> None:
        """A call is about to be posted: records it, and tells of it."""
        self.gens.append(gen)
        self.posted.append(op)
        if self.trace is not None:
            name, model = gen.name or gen.kind, self.client.welcome.model
            branch = branch_name(gen.origin.path)
            ended = self.trace.begin_call(name, model, branch, str(gen.site))
            gen.tell_end(ended)

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
        self.progress.check()

    def show(self) -> None:
        """Wakes those who follow a streaming run."""
        if self.feed is not None:
            self.feed.changed()

    @property
    def uncached(self) -> Backend:
        """The run's backend without its folder of replies."""
        own = self.backend
        return own.inner if isinstance(own, CachingBackend) else own

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
                visit = Scope(
                    backend if self.cache is None else self.cache.over(backend),
                    self.sampling,
                    parent=self,
                    budget=self.budget,
                    salt=self.salt,
                    feed=self.feed,
                )
                visit.seed, visit.marks, visit.trace = self.seed, self.marks, self.trace
                visit.lora = lora
                visit.resume()
                self._visits[id(backend), lora] = visit
        return visit

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
        known = self.backend.from_cache if isinstance(self.backend, CachingBackend) else ()
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

    def over(self) -> None:
        """The run has ended: the run that contains it keeps its usage."""
        self.is_over = True
        for visit in self._visits.values():
            visit.over()
        parent = self._parent
        if isinstance(self.backend, CachingBackend) and (
            parent is None or parent.backend is not self.backend
        ):
            self.backend.close()
        if parent is None or parent.progress is not self.progress:
            self.progress.end()
        if parent is not None and self in parent.nested:
            with parent._lock:
                for model, usage in self.usage_by_model().items():
                    parent._spent[model] = total((parent._spent.get(model, wire.Usage()), usage))
                parent.nested.discard(self)


def total(usages: Iterable[wire.Usage]) -> wire.Usage:
    """The sum, field by field."""
    sums: dict[str, Any] = dict.fromkeys(wire.Usage.__struct_fields__, 0)
    for usage in usages:
        for name in sums:
            sums[name] += getattr(usage, name)
    return wire.Usage(**sums)
