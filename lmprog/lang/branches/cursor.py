"""One branch as its run sees it: its number, what was appended to it, its variables, its calls.

Turns contents (text, ops, pending results) into wire ops. Text is collected and sent with the next
call, as one append. The log of contents is kept so that `text()` and `messages()` need not ask the
runtime, except for how roles are written, which only the checkpoint's template knows.
`lmprog.lang.branches.branch.Branch` is the user's view of a cursor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from lmprog import wire
from lmprog.backends import Backend
from lmprog.backends.client import ClientCall
from lmprog.errors import Cancelled, LmprogError, ProgramError, check_text
from lmprog.lang.branches.budget import Budget
from lmprog.lang.branches.call_request import (
    BranchSettings,
    gen_request,
    select_request,
)
from lmprog.lang.branches.gen import Captured, Gen, Reasoned, Var, Variable
from lmprog.lang.branches.log import (
    GainedBy,
    Item,
    UnsentText,
    carry,
    check_role,
    copy_items,
    gens_of,
    last_item,
)  # fmt: skip
from lmprog.lang.branches.marks import Mark, call_of, may_have_marks, split
from lmprog.lang.branches.pending_call import (
    AnswerWithCalls,
    CallOrigin,
    Held,
    PendingCall,
    here,
    settle_now,
)
from lmprog.lang.branches.scope import Scope
from lmprog.lang.ops.expressions import Concat, GenOp, RoleBeginExpr, RoleEndExpr, SelectOp


class Cursor:
    """Owns one branch in the runtime, from its first op to `close`."""

    def __init__(
        self,
        scope: Scope,
        parent: Cursor | None = None,
        path: tuple[int, ...] = (),
        budget: Budget | None = None,
    ) -> None:
        self.scope = scope
        self.budget: Budget = budget or (scope.budget if parent is None else parent.budget)
        self.path = path
        """Which fork of which fork this is: it names calls for seeds, with their numbers."""
        self.lora: str = scope.lora if parent is None else parent.lora
        self.id = scope.client.number()
        self.log: list[Item] = [] if parent is None else list(parent.log)
        self.base = len(self.log)
        """How much of the log is the parent's."""
        self.names: dict[str, Var] = {} if parent is None else dict(parent.names)
        self.own_names: set[str] = set()
        self.gens: list[Gen[Any]] = []
        self.num_values = 0  # how often something outside of the model was asked on it
        self.num_forks = 0
        self._num_told: int = 0 if parent is None else parent._num_told  # of the log, by calls
        self.closed = False
        self.cancelled = False
        self._last: Gen[Any] | None = None if parent is None else parent._last
        """The call before the next one: when it failed, so will the next."""
        self._opened = parent is not None
        self._unsent = UnsentText(self.log)
        self.shown_tools: frozenset[str] = frozenset() if parent is None else parent.shown_tools
        """The tools that the text describes."""
        self._final_text: ClientCall | None = None
        self._was_restored = False
        self._held: Held | None = None  # to be read before anything is appended
        self._asides: list[Cursor] = []
        """Branches on which reasoning happens; they end with this branch at the latest."""
        scope.enter(self)

    @property
    def key(self) -> str:
        """Which branch of which run this is, in the keys of a checkpoint."""
        return self.scope.place + ".".join(map(str, self.path))

    # --- appending

    def put(self, content: object, settings: BranchSettings) -> None:
        """Appends `content`; `settings` are what the branch adds to the calls in it. Raises
        `ProgramError` for what no branch can hold.
        """
        self.usable(settings.budget)
        if isinstance(content, wire.Letters):
            self.put_text(content, quoted=True)
        elif isinstance(content, str):
            for piece in split(content) if may_have_marks(content) else (content,):
                if isinstance(piece, Mark):
                    call = call_of(piece, self.scope)
                    if call.is_filled_in(self.scope):
                        self.put_result(call)
                    else:
                        self.put(call, settings)
                else:
                    self.put_text(piece)
        elif isinstance(content, GenOp | SelectOp):
            self.request(content, settings)
        elif isinstance(content, Concat | list | tuple):
            for part in content.parts if isinstance(content, Concat) else tuple(content):
                self.put(part, settings)
        elif isinstance(content, RoleBeginExpr | RoleEndExpr):
            self.put_role(content)
        elif isinstance(content, PendingCall):
            if content.is_pending_in(self.scope):
                self.put_result(content)
            else:  # letters, as the runtime would fill it in
                self.put_text(content.text, quoted=True)
        elif isinstance(content, Variable):
            for part in content.contents():
                self.put(part, settings)
        else:
            self._put_other(content, settings)

    def _put_other(self, content: object, settings: BranchSettings) -> None:
        """Texts that come one by one, each sent when it is there; the results of tools."""
        if isinstance(content, Iterator):
            for part in content:
                if not isinstance(part, str):
                    raise ProgramError(f"an iterator of texts gave {type(part).__name__}")
                self.put(part, settings)
                self.send_text(early=True)
                self.scope.client.flush()
            return
        from lmprog.lang.branches import acting
        from lmprog.lang.ops.tool_calls import ToolResults

        if isinstance(content, ToolResults):
            self.put(acting.result_parts(self, content), settings)
        else:
            kind = "None" if content is None else type(content).__name__
            raise ProgramError(
                f"{kind} cannot be appended to a branch; append text, a gen, a select, a role, "
                "a list of these, or an iterator of texts"
            )

    def put_text(self, text: str, quoted: bool = False) -> None:
        check_text(text)
        self._unsent.add_text(text, quoted)
        self.scope.show()

    def put_result(self, call: PendingCall) -> None:
        """A reference to a result, of this run or of one on the same client that it is part of."""
        if call.run.family is not self.scope.family:
            raise ProgramError(
                "this is a pending result of another run; await that result before appending it"
            )
        self.scope.referenced[call.call.id] = call
        self._unsent.add_result(call)
        self.scope.show()

    def put_answer(self, answer: AnswerWithCalls) -> None:
        """What a call has left in another branch; its calls stay calls where there are fields."""
        from lmprog.lang.branches import acting

        if acting.is_native(self):
            self._unsent.add_answer(answer)
        else:
            self.put_text(answer.shown, quoted=True)

    def put_role(self, content: RoleBeginExpr | RoleEndExpr) -> None:
        check_role(self.log, content)
        self._unsent.add_role(content)

    def write_early(self, text: str) -> None:
        """Writes what is to be known from the beginning: there, where nothing was sent yet, else
        before the user's words that are not sent, else here.
        """
        if not self._opened:
            self._unsent.begin_with(text)
        elif not self._unsent.begin_turn_with(text):
            is_turn = isinstance(last_item(self.log), RoleEndExpr)
            turn = [RoleBeginExpr("user"), text, RoleEndExpr("user")]
            self.put(turn if is_turn else f"\n{text}\n", BranchSettings())
        self.scope.show()

    def put_gained(self, child: Cursor) -> None:
        """Appends all that `child` gained since it was forked."""
        self.usable(self.budget)
        if child._was_restored:  # the runtime counts what it gained from there on
            copy_items(child.log[child.base :], self)
        else:
            child.send_text()
            self._unsent.add_gained(GainedBy(child.log, child.base), child.id)
        self.send_text()  # before the child can be closed

    def send_text(self, early: bool = False) -> None:
        """Posts what was collected: after this, other branches may refer to this one. `early`: as
        `wire.Append` says it.
        """
        if not self._opened:
            self._opened = True
            self.scope.speculate(self.id, self.budget)
            self.scope.post(wire.Open(self.id, self.scope.salt, lora=self.lora))
        if self._unsent.pieces:
            for call in self._unsent.results():  # not while posting: both sides post
                if not call.is_pending_in(self.scope):
                    PendingCall.wait(call)
            with self.scope.posting:
                self.scope.post(wire.Append(self.id, self._unsent.take(), early))

    # --- calls

    def request(self, op: GenOp[Any] | SelectOp, settings: BranchSettings) -> Gen[Any]:
        """Asks for a generation or a selection here. Right after a turn it is a turn of the
        assistant: chat APIs have no other way, and templates of checkpoints want one.
        """
        self.usable(settings.budget)
        if (
            isinstance(op, GenOp)
            and op.tools is not None
            and self.scope.elsewhere(settings.backend) is None
        ):
            from lmprog.lang.branches import acting

            op = acting.offered(self, op)
        if self.begins_turn():
            gen = self._request_turn(op, settings)
        else:
            gen = self._request_here(op, settings)
        if isinstance(op, GenOp) and op.tries > 1:
            from lmprog.lang.branches import asked_gen

            asked_gen.hold(self, gen, op, settings)
        return gen

    def hold(self, held: Held | None) -> None:
        """Nothing else happens on this branch until `held` is done."""
        self._held = held

    def _request_turn(self, op: GenOp[Any] | SelectOp, settings: BranchSettings) -> Gen[Any]:
        begins = RoleBeginExpr("assistant")
        self.put_role(begins)
        try:
            gen = self._request_here(op, settings)
        except BaseException:
            self._unsent.take_back(begins)  # nothing was sent: the turn has not begun
            raise
        self.put_role(RoleEndExpr("assistant"))
        return gen

    def _request_here(self, op: GenOp[Any] | SelectOp, settings: BranchSettings) -> Gen[Any]:
        """On this branch; or beside it, where only the answer is to come here: reasoning stays on a
        branch of its own, and so does what another backend is asked.
        """
        other = self.scope.elsewhere(settings.backend)
        lora = self.scope.other_lora(settings.lora, self.lora)
        if op.reasoning is None and other is None and lora is None:
            return self.ask(op, settings, home=self)
        aside = self.fork(1, lora=lora)[0] if other is None else self._carried(other, settings.lora)
        if other is not None and isinstance(op, GenOp) and op.tools is not None:
            from lmprog.lang.branches import acting

            op = acting.offered(aside, op)
        if op.reasoning is not None:
            form = aside.scope.client.welcome.tools.thought
            is_begun = isinstance(last_item(self.log), RoleBeginExpr)
            op = replace(op, reasoning=op.reasoning.of_model(form, is_begun))
        is_thoughtful = op.reasoning is not None
        if is_thoughtful and isinstance(op, GenOp) and op.constraint is not None:
            from lmprog.lang.branches.thinking import think_and_ask

            gen = think_and_ask(aside, op, settings, home=self)
        else:
            gen = aside.ask(op, settings, home=self)
        if is_thoughtful and op.name is not None:
            from lmprog.tool_calls.thoughts import THOUGHT

            self.name(op.name + THOUGHT, Reasoned(gen))
        self._asides.append(aside)
        aside.close_when_done()
        return gen

    def _carried(self, backend: Backend, lora: str | None) -> Cursor:
        """A branch on another backend with all that this one says; waits for results in it."""
        path = (*self.path, self.num_forks, 0)
        self.num_forks += 1
        copy = Cursor(self.scope.visiting(backend, lora or ""), path=path, budget=self.budget)
        carry(self.log, copy)
        return copy

    def ask(
        self,
        op: GenOp[Any] | SelectOp,
        settings: BranchSettings,
        home: Cursor,
        thought: Gen[Any] | None = None,
    ) -> Gen[Any]:
        """The result belongs to `home`: this branch, or the one that it was forked from."""
        scope, number = self.scope, self.scope.client.number()
        wanted: wire.Generate | wire.Select
        is_cut = is_default = False
        if isinstance(op, SelectOp):
            wanted = select_request(op, self.id, number, settings, self._seed)
        else:
            wanted, is_cut, is_default = gen_request(
                op,
                self.id,
                number,
                settings,
                self._seed,
                streams=scope.feed is not None,
                default=self._default_limit,
            )
        said = self.log[self._num_told :]
        self._num_told = len(self.log)
        self.send_text()
        origin = CallOrigin(scope, home.id, home.path, here(), settings.budget, is_cut, is_default)
        kind: type[Gen[Any]] = Gen
        if isinstance(op, GenOp) and op.tries > 1:
            from lmprog.lang.branches import asked_gen

            kind = asked_gen.AskedGen
        gen: Gen[Any] = kind(op, wanted, origin, self._last, thought)
        gen.key, gen.said, gen.lora = f"{self.key}#{len(self.gens)}", said, self.lora
        self._add(gen)
        if home is not self:
            home._add(gen)
            home._unsent.add_aside(gen)
        if op.name is not None:
            home.name(op.name, gen)
        if isinstance(op, GenOp) and op.tp is not str:
            for name in gen.captured_names:
                home.name(name, Captured(gen, name))
        scope.begin(gen)
        if scope.feed is not None:
            gen.call.when_done(gen.show)
        return gen

    def _seed(self, given: int | None) -> int:
        """Of the next call: from the run's seed, or the one that was given; different for each call
        of each branch, the same in each run of the program.
        """
        base = self.scope.seed if given is None else given
        name = repr((base, self.path, len(self.gens))).encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1

    def _add(self, gen: Gen[Any]) -> None:
        self._last = gen
        self.gens.append(gen)
        self.log.append(gen)

    def name(self, name: str, value: Var) -> None:
        """Sets a variable of this branch."""
        self.names[name] = value
        self.own_names.add(name)
        self.scope.show()

    # --- forking and ending

    def fork(
        self, size: int, budget: Budget | None = None, lora: str | None = None
    ) -> list[Cursor]:
        """`size` new branches that start where this one is, with a budget and perhaps an adapter
        (`lora`) of their own; it may go on itself.
        """
        self.usable(self.budget)
        self.send_text()
        nth = self.num_forks
        self.num_forks += 1
        children = [
            Cursor(self.scope, self, (*self.path, nth, index), budget) for index in range(size)
        ]
        for child in children:
            child.lora = self.lora if lora is None else lora
            self.scope.speculate(child.id, child.budget)
        self.scope.post(wire.Fork(self.id, tuple(child.id for child in children), lora))
        return children

    def go_back_to(self, kept: Cursor) -> None:
        """Stands where `kept`, a fork of this branch, was made. The number of the branch is another
        one then; its path, and how many calls it has made, stay: no seed is used twice.
        """
        self.hold(None)
        self.usable(self.budget)
        (again,) = kept.fork(1, self.budget)
        for gen in self.gens:
            gen.was_read = gen.was_read or not gen.done()
        with self.scope.posting:
            self.scope.leave(self)
            self.scope.leave(again)
            self.scope.send(wire.Close(self.id))
            self.id = again.id
            self.scope.enter(self)
        self.log[:] = again.log
        self._unsent.clear()
        self._was_restored = True
        self.names, self.shown_tools, self._last = again.names, again.shown_tools, again._last
        self.own_names &= set(again.names)
        self._num_told = again._num_told
        self.scope.client.hurry()

    def usable(self, budget: Budget) -> None:
        """Raises where nothing can be asked of this branch any more."""
        self.scope.check()
        budget.check()
        if self._held is not None:
            settle_now(self._held)
            self._held = None
        if self.cancelled:
            raise Cancelled("a sibling branch of the same fork failed or won the race")
        if self.closed:
            raise ProgramError(
                "this branch was closed: its run, or the fork that it belongs to, is over"
            )

    def close(
        self, *, keep_text: bool = False, cancelled: bool = False, forget: bool = False
    ) -> None:
        """Frees the branch and cancels its calls. With `keep_text` its text can be read afterwards;
        with `forget` what only it computed leaves the cache at once."""
        if self.closed:
            return
        self.cancelled = cancelled
        if keep_text and self.has_roles() and self.failure() is None:
            self._final_text = self.read()
        self.closed = True
        self.scope.leave(self)
        if self._opened:
            with self.scope.posting:
                self.scope.send(wire.Close(self.id, forget))
        for aside in self._asides:
            aside.close(cancelled=cancelled)

    def close_when_done(self) -> None:
        """Closes once no call of this branch is running any more, so that none is cancelled."""

        def look() -> None:
            if all(gen.done() for gen in needed):
                self.close()
                self.scope.client.hurry()

        self.send_text()
        needed = gens_of(self.log)
        for gen in [gen for gen in needed if not gen.done()]:
            gen.call.when_done(look)
        look()

    def failure(self) -> LmprogError | None:
        """Why the branch cannot go on; None while it can."""
        failures = (gen.failure() for gen in self.gens if not gen.refused())
        return next((failure for failure in failures if failure is not None), None)

    # --- reading

    def has_roles(self) -> bool:
        return any(isinstance(item, RoleBeginExpr | RoleEndExpr) for item in self.log)

    def _default_limit(self, op: GenOp[Any]) -> int | None:
        from lmprog.wire.default_limits import default_limit

        welcome = self.scope.client.welcome
        return default_limit(
            op.constraint,
            context_len=welcome.context_len,
            is_turn=self.is_in_turn(),
            is_alone=op.keep == "first" and not op.is_thought,
            is_typed=op.tp is not str,
            is_reasoned=op.is_thought or not welcome.vocab_size,
            has_tools=op.tools is not None,
        )

    def is_in_turn(self) -> bool:
        """Whether a turn is open, which ends by itself."""
        kinds = RoleBeginExpr | RoleEndExpr
        last = next((item for item in reversed(self.log) if isinstance(item, kinds)), None)
        return isinstance(last, RoleBeginExpr)

    def begins_turn(self) -> bool:
        """Whether what is generated now is a turn of its own."""
        return isinstance(last_item(self.log), RoleEndExpr)

    def read(self) -> ClientCall:
        """The call that tells the whole text as the runtime has it."""
        if self._final_text is not None:
            return self._final_text
        if self.closed:
            raise ProgramError("this branch was closed before its text was read")
        self.send_text()
        self.scope.go_live()
        return self.scope.client.call(wire.Read(self.id, self.scope.client.number()))
