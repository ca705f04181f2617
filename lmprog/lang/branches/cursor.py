"""One branch as its run sees it: its number, what was appended to it, its variables, its calls.

Turns contents (text, ops, pending results) into wire ops. Text is collected and sent with the next
call, as one append. The log of contents is kept so that `text()` and `messages()` need not ask the
runtime, except for how roles are written, which only the checkpoint's template knows.
`lmprog.lang.branches.branch_view.Branch` is the user's view of a cursor.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lmprog import wire
from lmprog.backends import Speculates
from lmprog.errors import Cancelled, LmprogError, ProgramError
from lmprog.lang.branches.appended import GainedBy, Item, gens_of, last_role, text_of
from lmprog.lang.branches.references import Mark, split
from lmprog.lang.branches.results_of_calls import Gen
from lmprog.lang.branches.site import here
from lmprog.lang.branches.variables import Reasoned, Variable
from lmprog.lang.client import ClientCall
from lmprog.lang.ops.expressions import (
    Concat,
    GenOp,
    RoleBeginExpr,
    RoleEndExpr,
    SelectOp,
    thought_op,
)
from lmprog.lang.ops.sampling import Sampling, with_max_tokens
from lmprog.lang.ops.typed import natural_stops
from lmprog.lang.programs.budget import Budget
from lmprog.lang.programs.scope import Scope
from lmprog.lang.streaming.listening import marks_of_op
from lmprog.lang.streaming.reasoning import THOUGHT

if TYPE_CHECKING:
    from lmprog.lang.branches.variables import Var


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
        self.path = (
            path  # which fork of which fork; with the number of the call it names a call for seeds
        )
        self.id = scope.client.number()
        self.log: list[Item] = [] if parent is None else list(parent.log)
        self.base = len(self.log)  # how much of the log is the parent's
        self.names: dict[str, Var] = {} if parent is None else dict(parent.names)
        self.own_names: set[str] = set()
        self.gens: list[Gen[Any]] = []
        self._last: Gen[Any] | None = (
            None if parent is None else parent._last
        )  # when it failed, so will the next
        self.num_forks = 0
        self.closed = False
        self.cancelled = False
        self._opened = parent is not None
        self._pieces: list[
            wire.Piece | Gen[Any]
        ] = []  # a result here is waited for before it is sent
        self._final_text: ClientCall | None = None
        self._asides: list[
            Cursor
        ] = []  # where reasoning happens; they end with this branch at the latest
        scope.enter(self)

    # --- appending
    # ----------------------------------------------------------------------------------------------

    def put(self, content: object, sampling: Sampling) -> Gen[Any] | None:
        """Appends `content`; `sampling` is what the branch adds to the generations in it. Returns
        the last of them.
        """
        self.usable()
        if isinstance(content, str):
            for piece in split(content):
                self._put_text(piece)
        elif isinstance(content, GenOp | SelectOp):
            return self.request(content, sampling)
        elif isinstance(content, Concat):
            return self._put_all(content.parts, sampling)
        elif isinstance(content, list | tuple):
            return self._put_all(tuple(content), sampling)
        elif isinstance(content, RoleBeginExpr | RoleEndExpr):
            self._put_role(content)
        elif isinstance(content, Gen):
            self._put_text(content.mark() if content.can_be_marked(self.scope) else content.text)
        elif isinstance(content, Variable):
            return self._put_all(tuple(content.contents()), sampling)
        else:
            kind = "None" if content is None else type(content).__name__
            raise ProgramError(
                f"{kind} cannot be appended to a branch; append text, a gen, a select, a role, or a list of these"
            )
        return None

    def _put_all(self, parts: tuple[object, ...], sampling: Sampling) -> Gen[Any] | None:
        last: Gen[Any] | None = None
        for part in parts:
            made = self.put(part, sampling)
            last = last if made is None else made
        return last

    def _put_text(self, piece: str | Mark) -> None:
        if isinstance(piece, Mark):
            gen = self.scope.marked.get(piece.call)
            if gen is None:
                raise ProgramError(
                    "this text refers to a pending result of another run; await that result first"
                )
            self.log.append(gen)
            self._pieces.append(wire.Ref(piece.call, piece.index))
        else:
            self.log.append(piece)
            last = self._pieces[-1] if self._pieces else None
            if isinstance(last, wire.TextPiece):
                self._pieces[-1] = wire.TextPiece(last.text + piece)
            else:
                self._pieces.append(wire.TextPiece(piece))
        self.scope.show()

    def _put_role(self, content: RoleBeginExpr | RoleEndExpr) -> None:
        last, begins = last_role(self.log), isinstance(content, RoleBeginExpr)
        role = last.role if isinstance(last, RoleBeginExpr) else None
        if begins and role is not None:
            raise ProgramError(
                f"the turn of {content.role!r} cannot begin before that of {role!r} has ended"
            )
        if not begins and role != content.role:
            raise ProgramError(
                f"no turn of {content.role!r} can end here; open is {'none' if role is None else f'that of {role!r}'}"
            )
        self.log.append(content)
        self._pieces.append(wire.RoleBegin(content.role) if begins else wire.RoleEnd(content.role))

    def put_gained(self, child: Cursor) -> None:
        """Appends all that `child` gained since it was forked."""
        self.usable()
        child.send_text()
        self.log.append(GainedBy(child))
        self._pieces.append(wire.Gained(child.id))
        self.send_text()  # before the child can be closed

    def send_text(self) -> None:
        """Posts what was collected: after this, other branches may refer to this one."""
        if not self._opened:
            self._opened = True
            self._speculate()
            self.scope.post(wire.Open(self.id, self.scope.salt))
        if self._pieces:
            for piece in self._pieces:  # not while posting: who answers may have to post, too
                if isinstance(piece, Gen) and not piece.can_be_marked(self.scope):
                    piece.wait()
            with self.scope.posting:
                pieces, self._pieces = tuple(self._known(piece) for piece in self._pieces), []
                self.scope.post(wire.Append(self.id, pieces))

    def _known(self, piece: wire.Piece | Gen[Any]) -> wire.Piece:
        """A reference to a result that is there is its text: the branch that made it may be closed
        by now.
        """
        if isinstance(piece, Gen):
            return wire.TextPiece(text_of(piece)) if piece.done() else wire.Ref(piece.call.id)
        if not isinstance(piece, wire.Ref):
            return piece
        gen = self.scope.marked[piece.call]
        return (
            wire.TextPiece(gen.texts[piece.index])
            if gen.done() and gen.failure() is None
            else piece
        )

    def _speculate(self) -> None:
        """A black-box API may say more than a call asks for, where nobody counts the tokens."""
        backend = self.scope.backend
        if self.scope.num_api_spec_tokens and isinstance(backend, Speculates):
            backend.speculate(
                self.id, 0 if self.budget.limits_tokens else self.scope.num_api_spec_tokens
            )

    # --- calls
    # --------------------------------------------------------------------------------------------------

    def request(self, op: GenOp[Any] | SelectOp, sampling: Sampling) -> Gen[Any]:
        """Asks for a generation or a selection here; what the op says goes over `sampling`."""
        self.usable()
        if marks_of_op(op) is None:
            return self._ask(op, sampling, home=self)
        [aside] = self.fork(
            1
        )  # reasoning stays on a branch of its own; only the answer stands here
        if isinstance(op, GenOp) and op.constraint is not None:
            gen = aside._think_and_ask(op, sampling, home=self)
        else:
            gen = aside._ask(op, sampling, home=self)
        if op.name is not None:
            self.name(op.name + THOUGHT, Reasoned(gen))
        self._asides.append(aside)
        aside.close_when_done()
        return gen

    def _think_and_ask(self, op: GenOp[Any], sampling: Sampling, home: Cursor) -> Gen[Any]:
        """Free reasoning between its marks, then what is confined: two calls, of which `home` gets
        the second.
        """
        marks = op.reasoning
        assert marks is not None
        if not marks.opened:
            self._put_text(marks.begin)
        thought = self._ask(thought_op(op, marks), sampling, home=self)
        self._put_text(marks.end)
        gen = self._ask(replace(op, reasoning=None), sampling, home=home)
        gen.follow(thought)
        return gen

    def _ask(self, op: GenOp[Any] | SelectOp, sampling: Sampling, home: Cursor) -> Gen[Any]:
        """The result stands on `home`: this branch, or the one that it was forked from."""
        gen: Gen[Any] = Gen(self.scope, op, here(), self._last, self.budget)
        wanted = self._wire_op(op, sampling, len(self.gens))
        self.send_text()
        feed = self.scope.feed
        listens = isinstance(wanted, wire.Generate) and wanted.stream
        gen.bind(
            ClientCall(wanted.call, gen.hear if listens else None)
        )  # before a follower can find it in the log
        if self.budget.limits_tokens:
            gen.limit(is_cut=self._is_cut(wanted, op, sampling))
        self._stands(gen)
        if home is not self:
            home._stands(gen)
            home._pieces.append(gen)
        if op.name is not None:
            home.name(op.name, gen)
        self.scope.gens.append(gen)
        self.scope.posted.append(wanted)
        self.scope.client.begin(wanted, gen.call)
        if feed is not None:
            gen.call.when_done(gen.show)
        return gen

    def _stands(self, gen: Gen[Any]) -> None:
        self._last = gen
        self.gens.append(gen)
        self.log.append(gen)

    def _wire_op(
        self, op: GenOp[Any] | SelectOp, sampling: Sampling, ordinal: int
    ) -> wire.Generate | wire.Select:
        timeout = self.budget.time_left(op.timeout)
        number = self.scope.client.number()
        if isinstance(op, SelectOp):
            seed = (
                op.seed
                if op.seed is not None or op.temperature == 0
                else self._seed(sampling, ordinal)
            )
            return wire.Select(
                self.id, number, op.choices, op.method, op.temperature, seed, op.priority, timeout
            )
        merged = op.sampling.over(sampling)
        if op.sampling.given().get("seed") is None:
            merged = Sampling(seed=self._seed(merged, ordinal)).over(merged)
        if "stop" not in merged.given():
            merged = Sampling(stop=natural_stops(op.tp)).over(merged)
        sampled = self._within_tokens(merged.resolve())
        stream = (
            self.scope.feed is not None or op.reasoning is not None
        )  # whose tokens are counted as they come
        ways = (op.heal, op.keep, op.judge)
        return wire.Generate(
            self.id, number, sampled, op.constraint, stream, op.priority, timeout, *ways
        )

    @staticmethod
    def _is_cut(
        wanted: wire.Generate | wire.Select, op: GenOp[Any] | SelectOp, sampling: Sampling
    ) -> bool:
        if isinstance(wanted, wire.Select) or isinstance(op, SelectOp):
            return False
        return wanted.sampling.max_tokens != op.sampling.over(sampling).resolve().max_tokens

    def _within_tokens(self, sampling: wire.SamplingParams) -> wire.SamplingParams:
        """Generates no more than the budget has left; raises where that is less than must be
        generated.
        """
        left = self.budget.tokens_left()
        if left is None or (
            sampling.max_tokens is not None and sampling.max_tokens * sampling.n <= left
        ):
            return sampling
        each = left // sampling.n
        if each < max(sampling.min_tokens, 1):
            raise self.budget.out_of_tokens()
        return with_max_tokens(sampling, each)

    def _seed(self, sampling: Sampling, ordinal: int) -> int:
        """A run's or branch's seed, different for each call of each branch, the same in each run of
        the program.
        """
        seed = sampling.given().get("seed")
        seed = self.scope.seed if seed is None else seed
        name = repr((seed, self.path, ordinal)).encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1

    def name(self, name: str, value: Var) -> None:
        """Sets a variable of this branch."""
        self.names[name] = value
        self.own_names.add(name)
        self.scope.show()

    # --- forking and ending
    # -------------------------------------------------------------------------------------

    def fork(self, size: int, budget: Budget | None = None) -> list[Cursor]:
        """`size` new branches that start where this one stands, with a budget of their own; it may
        go on itself.
        """
        self.usable()
        self.send_text()
        nth = self.num_forks
        self.num_forks += 1
        children = [
            Cursor(self.scope, self, (*self.path, nth, index), budget) for index in range(size)
        ]
        for child in children:
            child._speculate()
        self.scope.post(wire.Fork(self.id, tuple(child.id for child in children)))
        return children

    def usable(self) -> None:
        """Raises where nothing can be asked of this branch any more."""
        self.scope.check()
        self.budget.check()
        if self.cancelled:
            raise Cancelled(
                "this branch was cancelled, because another one of its fork failed or has won"
            )
        if self.closed:
            raise ProgramError(
                "this branch was closed: its run, or the fork that it belongs to, is over"
            )

    def close(self, *, keep_text: bool = False, cancelled: bool = False) -> None:
        """Frees the branch and cancels its calls. With `keep_text` its text can be read
        afterwards.
        """
        if self.closed:
            return
        self.cancelled = cancelled
        if keep_text and self.has_roles() and self.failure() is None:
            self._final_text = self.read()
        self.closed = True
        self.scope.leave(self)
        if self._opened:
            with self.scope.posting:
                self.scope.client.post(wire.Close(self.id))
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
    # ------------------------------------------------------------------------------------------------

    def has_roles(self) -> bool:
        return any(isinstance(item, RoleBeginExpr | RoleEndExpr) for item in self.log)

    def read(self) -> ClientCall:
        """The call that tells the whole text as the runtime has it."""
        if self._final_text is not None:
            return self._final_text
        if self.closed:
            raise ProgramError("this branch was closed before its text was read")
        self.send_text()
        return self.scope.client.call(wire.Read(self.id, self.scope.client.number()))

    def waits_for(self) -> list[Gen[Any]]:
        """All results that the text is made of."""
        return gens_of(self.log)
