"""What a branch holds: what is written to it (text, chat turns, generations, selections), and what
is read of it (its variables, its text, its messages, its errors); in both spellings.

Writing never waits, reading does. Knows no tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, overload

from lmprog import wire
from lmprog.backends import Backend
from lmprog.errors import LmprogError, ProgramError, UnknownName, not_allowed
from lmprog.lang.branches.budget import Budget
from lmprog.lang.branches.call_request import BranchSettings
from lmprog.lang.branches.cursor import Cursor
from lmprog.lang.branches.gen import (
    Gen,
    Variable,
    Written,
    settle,
    value_now,
    variable_of,
    waited_for,
)
from lmprog.lang.branches.log import Item, gens_of, messages, plain_text
from lmprog.lang.branches.pending_call import Held, PendingCall, here
from lmprog.lang.ops.expressions import (
    GenOptions,
    RoleBeginExpr,
    RoleEndExpr,
    SelectOptions,
    ToolOptions,
    gen_op,
    gen_signature,
    leading,
    select_op,
)
from lmprog.lang.ops.meta import Selected
from lmprog.lang.ops.sampling import Sampling, SamplingOptions, check_lora, sampling_of
from lmprog.lang.streaming.feed import Feed

if TYPE_CHECKING:
    from typing_extensions import TypeForm, Unpack

    from lmprog.lang.branches.acting import Acting, Until
    from lmprog.lang.ops.best_of import BeamOptions, By
    from lmprog.lang.ops.text_patterns import TextPattern
    from lmprog.lang.ops.tool_calls import ToolReply, ToolResults
    from lmprog.lang.ops.tool_functions import Tool, ToolFunction, ToolSet


P = ParamSpec("P")
T = TypeVar("T")


class Turn:
    """A chat turn: complete when it was given content, else to be written inside `with`."""

    def __init__(self, branch: BranchContents, role: str, content: tuple[object, ...]) -> None:
        self._branch = branch
        self._role = role
        self._complete = bool(content)
        if any(part is None for part in content):
            raise ProgramError(
                f"s.{role}(None) says nothing; give text or a gen, or leave the turn open: "
                f"with s.{role}(): ..."
            )
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

    def __enter__(self) -> BranchContents:
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


def _text_of_message(content: object, at: int) -> object:
    """Content as services have it."""
    if not isinstance(content, list | tuple):
        if content is None:
            raise ProgramError(f"message {at} has no content: give text, or leave it out")
        return content
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise ProgramError(f"message {at} has a part that is no text: {kind}")
    return "".join(part["text"] for part in content)


def _last_result(log: Sequence[Item]) -> object:
    """The result that the log ends with, but for roles; None where it ends with text."""
    items = (item for item in reversed(log) if not isinstance(item, RoleBeginExpr | RoleEndExpr))
    last = next(items, None)
    return last if isinstance(last, PendingCall) else None


class BranchContents:
    """What a branch holds, and what can be asked on it."""

    def __init__(self, cursor: Cursor, settings: BranchSettings) -> None:
        self.cursor = cursor
        self.settings = settings

    def append(self, *contents: object) -> None:
        """Appends text, ops, results (also pending ones), or lists of these. An iterator of texts
        is read to its end; what it has given is computed meanwhile, where the machine is idle.
        """
        for content in contents:
            self.cursor.put(content, self.settings)

    def __iadd__(self, content: object) -> Self:
        self.append(content)
        return self

    def extend(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """Appends the turns of a chat, `{"role": ..., "content": ...}` each, as services have them:
        content is text, or a list of parts that are text. Raises `ProgramError`.
        """
        for at, message in enumerate(messages):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise ProgramError(f"message {at} has no role: give dicts with role and content")
            unknown = {name for name, value in message.items() if value} - {
                "role",
                "content",
                "name",
            }
            if unknown:
                raise ProgramError(
                    f"message {at} has {', '.join(sorted(unknown))}, which a branch has no words "
                    "for; append what it says as text"
                )
            self.turn(message["role"], _text_of_message(message.get("content"), at))

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
        from lmprog.lang.branches.acting import Acting, ActPlan

        plan = ActPlan.of(tools, until, steps, concurrent)
        acting = Acting(_ActingView(self, more), plan, name)
        self.cursor.scope.tasks.append(acting)
        return acting

    def show_tools(self, tools: Sequence[ToolFunction | Tool]) -> None:
        """Describes tools now, so that forks and later calls find that in the branch. Nothing is
        written where the service takes tools beside its messages.
        """
        from lmprog.lang.branches.acting import show
        from lmprog.lang.ops.tool_functions import checked_tools

        self.cursor.usable(self.settings.budget)
        show(self.cursor, checked_tools(tools))

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
        from lmprog.lang.ops.best_of import best_options

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
        from lmprog.lang.ops.best_of import beam_options

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
        from lmprog.lang.branches import outside

        self.cursor.usable(self.settings.budget)
        given: T = outside.once(self.cursor, function)(*args, **kwargs)
        return given

    def pause(self, question: str) -> Any:
        """Stops the run until somebody has answered: raises `Paused`, whose `checkpoint(path)`
        writes it to a file. Resumed with `lmprog.resume(path, answer=...)`, this is the answer.
        """
        from lmprog.lang.branches import outside

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
            raise not_allowed("backend", backend, "a backend, or None")
        lora = options.pop("lora", self.settings.lora)
        check_lora(lora)
        budget = self.settings.budget
        if timeout is not None or tokens is not None:
            budget = Budget(budget, timeout=timeout, max_total_tokens=tokens, what=what)
            budget.begin()
        sampling = sampling_of(options, ForkOptions.__annotations__).over(self.settings.sampling)
        return BranchSettings(sampling, budget, heal, backend, lora)

    # --- variables

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """All text appended inside becomes the variable `name`."""
        start = len(self.cursor.log)
        yield
        self.cursor.name(name, Written(tuple(self.cursor.log[start:])))

    def var(self, name: str) -> Gen[Any] | Variable:
        """The variable as something to await, or to put into later text without waiting."""
        found = self._named(name)
        return found if isinstance(found, Gen) else Variable(found)

    def get_var(self, name: str) -> Any:
        """The value of a variable; blocks until there is one. Raises why there is none."""
        return value_now(self._named(name))

    def set_var(self, name: str, value: object) -> None:
        self.cursor.name(name, variable_of(value, self.cursor.scope))

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def __setitem__(self, name: str, value: object) -> None:
        self.set_var(name, value)

    def __contains__(self, name: str) -> bool:
        return name in self.cursor.names

    def _named(self, name: str) -> object:
        if name not in self.cursor.names:
            known = ", ".join(sorted(self.cursor.names)) or "none yet"
            raise UnknownName(f"this branch has no variable {name!r}; it has: {known}", name=name)
        return self.cursor.names[name]

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """What is known about a generated variable, in SGLang's words; blocks. See also
        `Gen.meta`.
        """
        var = self._named(name)
        if not isinstance(var, Gen):
            raise UnknownName(
                f"{name!r} was not generated, so nothing is known about it", name=name
            )
        from lmprog.lang.branches.text_followers import meta_info

        return meta_info(var)

    # --- text

    def text(self) -> str:
        """The whole text; blocks."""
        self.sync()
        if self.cursor.failure() is None and not self.cursor.has_roles():
            return plain_text(self.cursor.log)
        plain_text(self.cursor.log)  # raises the cause where there is no text
        call = self.cursor.read()
        self.cursor.scope.client.flush()
        return _text_of(call.wait())

    async def atext(self) -> str:
        """The same for an event loop."""
        await self.settled()
        known = plain_text(self.cursor.log)  # raises the cause where there is no text
        if not self.cursor.has_roles():
            return known
        return _text_of(await self.cursor.read().arrive())

    def messages(self) -> list[dict[str, str]]:
        """The chat turns so far; blocks."""
        self.sync()
        return messages(self.cursor.log)

    def sync(self) -> None:
        """Blocks until every result in this branch is done, well or not."""
        for gen in self._everything():
            gen.wait()

    async def settled(self) -> None:
        """The same for an event loop."""
        await settle(self._everything())

    def error(self) -> LmprogError | None:
        """Why the branch cannot go on; blocks until its calls are done. None while it can."""
        self.sync()
        failed = next((gen for gen in self.cursor.gens if gen.failure() is not None), None)
        return None if failed is None else failed.error_at_site()

    def _everything(self) -> list[PendingCall]:
        named = [gen for var in self.cursor.names.values() for gen in waited_for(var)]
        return list(dict.fromkeys([*gens_of(self.cursor.log), *self.cursor.gens, *named]))

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text as it comes, of one variable or of the whole branch; needs a streaming run."""
        from lmprog.lang.branches import text_followers

        return text_followers.texts(self.cursor, var_name)

    def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """The same for an event loop; with `return_meta_data` pairs of text and meta
        information.
        """
        from lmprog.lang.branches import text_followers

        return text_followers.texts_async(self.cursor, var_name, return_meta_data)

    def __repr__(self) -> str:
        return f"<branch {self.cursor.id}, {len(self.cursor.gens)} calls>"


BranchContents.gen.__signature__ = gen_signature("self")  # type: ignore[attr-defined]


class _ActingView:
    """A branch for an act: generations with its options."""

    def __init__(self, branch: BranchContents, options: ToolOptions) -> None:
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
        from lmprog.lang.branches import outside

        return outside.with_kept_results(self._branch.cursor, reply)

    def hold(self, held: Held | None) -> None:
        self._branch.cursor.hold(held)


def _text_of(outcome: object) -> str:
    if isinstance(outcome, LmprogError):
        raise outcome
    if not isinstance(outcome, wire.TextIs):
        raise ProgramError(f"asked for a text, the backend answered {type(outcome).__name__}")
    return outcome.text


class ForkOptions(SamplingOptions, total=False):
    """The options of a fork, a copy or a view of a branch. `timeout` and `max_total_tokens` limit
    what all its calls take together; `heal` is the default of its generations; `backend`
    is where they are asked for, None for the run's own; `lora` is the adapter that computes them,
    "" for the base alone.
    """

    timeout: float | None
    max_total_tokens: int | None
    heal: bool
    backend: Backend | None
    lora: str | None


class BranchSnapshot:
    """Of one branch. It may be gone back to any number of times."""

    def __init__(self, kept: Cursor, of: Cursor) -> None:
        self._kept = kept
        self._of = of

    def close(self) -> None:
        """Nobody will go back to it. Its memory may be used for others."""
        self._kept.close()
        self._kept.scope.client.hurry()

    def go_back(self, branch: Cursor) -> None:
        """Raises `ProgramError` for another branch, or where it was closed."""
        if branch is not self._of:
            raise ProgramError(
                "this snapshot is of another branch; each branch goes back to its own"
            )
        branch.go_back_to(self._kept)


def snapshot_of(branch: Cursor) -> BranchSnapshot:
    """One of `branch`, as it is now."""
    (kept,) = branch.fork(1)
    return BranchSnapshot(kept, branch)


def restore(branch: Cursor, snapshot: BranchSnapshot) -> None:
    """`branch` is where it was."""
    snapshot.go_back(branch)
