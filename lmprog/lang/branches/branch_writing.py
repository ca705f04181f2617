"""What is written to a branch: text, chat turns, generations, selections; in both spellings.

Nothing here waits. Knows no tokens and no wire.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, overload

from lmprog.backends import Backend
from lmprog.errors import InvalidParameter, LmprogError, ProgramError, UnknownName
from lmprog.lang.branches import outside, tool_turns
from lmprog.lang.branches.acting import Acting, ActPlan, Until
from lmprog.lang.branches.asked_gen import Held
from lmprog.lang.branches.branch_reading import BranchReading
from lmprog.lang.branches.budget import Budget
from lmprog.lang.branches.call_request import BranchSettings
from lmprog.lang.branches.cursor import Cursor
from lmprog.lang.branches.fork_options import ForkOptions
from lmprog.lang.branches.gen import Gen
from lmprog.lang.branches.log import Item
from lmprog.lang.branches.pending_call import PendingCall
from lmprog.lang.branches.site import here
from lmprog.lang.branches.snapshots import BranchSnapshot, restore, snapshot_of
from lmprog.lang.ops.beams import BeamOptions, beam_options
from lmprog.lang.ops.best_of import By, best_options
from lmprog.lang.ops.expressions import (
    GenOptions,
    RoleBeginExpr,
    RoleEndExpr,
    SelectOptions,
    ToolOptions,
    gen_op,
    leading,
    select_op,
)
from lmprog.lang.ops.meta import Selected
from lmprog.lang.ops.sampling import Sampling, check_lora, sampling_of
from lmprog.lang.ops.text_patterns import TextPattern
from lmprog.lang.ops.tool_calls import ToolReply, ToolResults
from lmprog.lang.ops.tool_functions import Tool, ToolFunction, ToolSet, checked_tools
from lmprog.lang.streaming.feed import Feed

if TYPE_CHECKING:
    from typing_extensions import TypeForm, Unpack

P = ParamSpec("P")
T = TypeVar("T")


class Turn:
    """A chat turn: complete when it was given content, else to be written inside `with`."""

    def __init__(self, branch: BranchWriting, role: str, content: tuple[object, ...]) -> None:
        self._branch = branch
        self._role = role
        self._complete = bool(content)
        if role == "assistant" and content and content[0] is _last_result(branch.cursor.log):
            site = here()
            warnings.warn_explicit(
                f"{content[0]!r} is written twice: s.gen() and s.select() append their result "
                "themselves; write s.gen() alone, or lmprog.gen() inside s.assistant(...)",
                UserWarning,
                site.file,
                site.line,
            )
        if content:
            branch.append(RoleBeginExpr(role), *content, RoleEndExpr(role))

    def __enter__(self) -> BranchWriting:
        if self._complete:
            raise ProgramError(
                f"this {self._role} turn has its content already; write `with s.{self._role}():`"
            )
        self._complete = True
        self._branch.append(RoleBeginExpr(self._role))
        return self._branch

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            self._branch.append(
                RoleEndExpr(self._role)
            )  # also after an error, which the program may go on from
        except LmprogError:
            if kind is None:  # else the branch is over, and the error on its way says why
                raise


def _last_result(log: Sequence[Item]) -> object:
    """The result that the log ends with, but for roles; None where it ends with text."""
    items = (item for item in reversed(log) if not isinstance(item, RoleBeginExpr | RoleEndExpr))
    last = next(items, None)
    return last if isinstance(last, PendingCall) else None


class BranchWriting(BranchReading):
    """A branch that can be appended to."""

    def __init__(self, cursor: Cursor, settings: BranchSettings) -> None:
        super().__init__(cursor)
        self.settings = settings

    def append(self, *contents: object) -> None:
        """Appends text, ops, results (also pending ones), or lists of these."""
        for content in contents:
            self.cursor.put(content, self.settings)

    def __iadd__(self, content: object) -> Self:
        self.append(content)
        return self

    def system(self, *content: object) -> Turn:
        """A system turn: `s.system("...")`, or `with s.system():`."""
        return Turn(self, "system", content)

    def user(self, *content: object) -> Turn:
        return Turn(self, "user", content)

    def assistant(self, *content: object) -> Turn:
        return Turn(self, "assistant", content)

    def turn(self, role: str, *content: object) -> Turn:
        """A turn of any role that the checkpoint's template knows."""
        return Turn(self, role, content)

    @overload
    def gen(
        self, name: str | None = None, max_tokens: int | None = None, **more: Unpack[GenOptions]
    ) -> Gen[str]: ...
    @overload
    def gen(
        self,
        pattern: TextPattern,
        /,
        max_tokens: int | None = None,
        *,
        name: str | None = None,
        **more: Unpack[GenOptions],
    ) -> Gen[str]: ...
    @overload
    def gen(
        self,
        tp: TypeForm[T],
        /,
        max_tokens: int | None = None,
        *,
        name: str | None = None,
        **more: Unpack[GenOptions],
    ) -> Gen[T]: ...
    @overload
    def gen(
        self,
        name: str | None = None,
        max_tokens: int | None = None,
        *,
        tools: Sequence[ToolFunction | Tool],
        **more: Unpack[ToolOptions],
    ) -> Gen[ToolReply]: ...
    def gen(self, *what: Any, **options: Any) -> Gen[Any]:
        """Generates here. The result has the type that was asked for; `str` without one.

        `choices=` confines the text to one of several; `select` scores them instead. With `tools`
        the result has a text and the calls of tools that the model makes.
        """
        first, max_tokens = leading(what, options)
        op = gen_op(first, max_tokens, options)
        return self.cursor.request(op, self.settings)

    def act(
        self,
        tools: Sequence[ToolFunction | Tool],
        name: str | None = None,
        *,
        until: Until = None,
        steps: int = 16,
        concurrent: bool = False,
        **more: Unpack[ToolOptions],
    ) -> Acting:
        """Lets the model call tools, and shows it what they give, until it answers without a call.

        `until`: a tool that ends it, and then every answer is calls; or a function of the answer.
        `steps`: how many answers at most. `concurrent`: the calls of one answer run at once.
        """
        plan = ActPlan.of(tools, until, steps, concurrent)
        acting = Acting(_ActingView(self, more), plan, name)
        self.cursor.scope.tasks.append(acting)
        return acting

    def show_tools(self, tools: Sequence[ToolFunction | Tool]) -> None:
        """Describes tools now, so that forks and later calls find that in the branch. Nothing is
        written where the service takes tools beside its messages.
        """
        self.cursor.usable(self.settings.budget)
        tool_turns.show(self.cursor, checked_tools(tools))

    @overload
    def best_of(
        self,
        k: int,
        name: str | None = None,
        max_tokens: int | None = None,
        *,
        by: By = "logprob",
        **more: Unpack[GenOptions],
    ) -> Gen[str]: ...
    @overload
    def best_of(
        self,
        k: int,
        tp: TypeForm[T],
        /,
        max_tokens: int | None = None,
        *,
        by: By = "logprob",
        **more: Unpack[GenOptions],
    ) -> Gen[T]: ...
    def best_of(self, k: int, *what: Any, by: By = "logprob", **options: Any) -> Gen[Any]:
        """Generates `k` times at once and goes on from the likeliest, by the mean log-probability
        of its tokens. Those that cannot be it any more are ended early. `.values` has the others
        that ended behind it.

        `by=lmprog.Judge(question)`: goes on from the one after which, with the question behind it,
        " yes" is likeliest.
        """
        return self.gen(*what, **best_options(k, by, options))

    @overload
    def beam(
        self,
        width: int,
        name: str | None = None,
        max_tokens: int | None = None,
        **more: Unpack[BeamOptions],
    ) -> Gen[str]: ...
    @overload
    def beam(
        self,
        width: int,
        tp: TypeForm[T],
        /,
        max_tokens: int | None = None,
        **more: Unpack[BeamOptions],
    ) -> Gen[T]: ...
    def beam(self, width: int, *what: Any, **options: Any) -> Gen[Any]:
        """Goes on with the likeliest text that a beam search of this width finds, token by token.

        `.values` has the `n` best, `.metas` their scores. `score=lmprog.Judge(question)`: goes on
        with the one of all complete texts that the judge finds best, as in `best_of`.
        """
        return self.gen(*what, **beam_options(width, options))

    def select(
        self,
        *choices: str | Sequence[str],
        name: str | None = None,
        **options: Unpack[SelectOptions],
    ) -> Gen[Selected]:
        """Appends the likeliest of `choices`; the result is that text, with the figures of all."""
        given = [
            choice if isinstance(choice, Iterable) and not isinstance(choice, str) else [choice]
            for choice in choices
        ]
        texts = [text for choice in given for text in choice]
        op = select_op(texts, {**options, "name": name})
        return self.cursor.request(op, self.settings)

    def once(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls `function`, unless the run was resumed and has called it before: then this is what
        it gave. For what is not the same each time, or must not be done twice. The result is as
        JSON has it.
        """
        self.cursor.usable(self.settings.budget)
        given: T = outside.once(self.cursor, function)(*args, **kwargs)
        return given

    def pause(self, question: str) -> Any:
        """Stops the run until somebody has answered: raises `Paused`, whose `checkpoint(path)`
        writes it to a file. Resumed with `lmprog.resume(path, answer=...)`, this is the answer.
        """
        self.cursor.usable(self.settings.budget)
        return outside.pause(self.cursor, question)

    def snapshot(self) -> BranchSnapshot:
        """Where the branch stands, to go back to by `restore`: its text, variables and messages.
        Costs no more than a fork; kept until the run ends, or `close()`.
        """
        return snapshot_of(self.cursor)

    def restore(self, snapshot: BranchSnapshot) -> None:
        """Goes back to where the branch stood; what was asked since and still runs is cancelled.
        What is asked from now on has other seeds than what was asked before.
        """
        restore(self.cursor, snapshot)

    def with_(self, **options: Unpack[ForkOptions]) -> Self:
        """The same branch, with other sampling, and perhaps limits, for what is asked through this
        view.
        """
        return type(self)(self.cursor, self._settings_for(options, "view"))

    def on(self, name: str) -> Self:
        """`with_(backend=...)` for one of the run's `backends`, by its name."""
        known = self.cursor.scope.backends
        if name not in known:
            names = ", ".join(sorted(known)) or "none; give them by using(backends={...})"
            raise UnknownName(f"there is no backend {name!r}; there are: {names}", name=name)
        return self.with_(backend=known[name])

    def over(self, sampling: Sampling) -> Self:
        """`with_` for a `Sampling`."""
        return type(self)(self.cursor, self.settings.over(sampling))

    def _settings_for(self, options: ForkOptions, what: str) -> BranchSettings:
        """This branch's settings under `options`. Limits among them hold within those of this
        branch, and their time begins now.
        """
        timeout, tokens = options.pop("timeout", None), options.pop("max_total_tokens", None)
        heal = options.pop("heal", self.settings.heal)
        backend = options.pop("backend", self.settings.backend)
        if backend is not None and not isinstance(backend, Backend):
            message = f"backend={backend!r} is not allowed; give a backend"
            raise InvalidParameter(message, name="backend", allowed="a backend, or None")
        lora = options.pop("lora", self.settings.lora)
        check_lora(lora)
        budget = self.settings.budget
        if timeout is not None or tokens is not None:
            budget = Budget(budget, timeout=timeout, max_total_tokens=tokens, what=what)
            budget.begin()
        sampling = sampling_of(options, ForkOptions.__annotations__).over(self.settings.sampling)
        return BranchSettings(sampling, budget, heal, backend, lora)


class _ActingView:
    """A branch for an act: generations with its options."""

    def __init__(self, branch: BranchWriting, options: ToolOptions) -> None:
        self._branch = branch
        self._options = options

    @property
    def feed(self) -> Feed | None:
        return self._branch.cursor.scope.feed

    @property
    def is_rehearsal(self) -> bool:
        return self._branch.cursor.scope.is_rehearsal

    @property
    def path(self) -> tuple[int, ...]:
        return self._branch.cursor.path

    def generate(self, tools: ToolSet) -> Gen[ToolReply]:
        choice: Any = {"tool_choice": "required"} if tools.is_required else {}
        kept: Any = {"on_incomplete": "keep"}  # the model is shown what is wrong with a cut call
        return self._branch.gen(tools=tools.tools, **{**choice, **kept, **self._options})

    def take(self, results: ToolResults) -> None:
        self._branch.append(results)

    def with_kept_results(self, reply: ToolReply) -> ToolReply:
        return outside.with_kept_results(self._branch.cursor, reply)

    def hold(self, held: Held | None) -> None:
        self._branch.cursor.hold(held)
