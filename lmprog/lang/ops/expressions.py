"""Ops as immutable values, which have no effect until they are appended to a branch.

`lmprog.gen("tip")`, `lmprog.select(...)`, `lmprog.user(...)` create them; `+` joins them with text;
`s += op` and `s.append(op)` run them. Everything that can be checked without a runtime is checked
on creation. A keyword that is given brings what makes it a part of the op (`keywords`, `typed`,
`reasoning`, `tool_functions`). Knows the wire's types (`lmprog.wire`); knows no branches and no
results.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, get_args

from lmprog import wire
from lmprog.errors import InvalidParameter, check_text, not_allowed
from lmprog.lang.ops.keywords import (
    CONSTRAINT_NAMES,
    ConstraintOptions,
    JsonLayout,
    ValueCheck,
    constraint_of,
    dtype_of,
    trying,
    with_layout,
)
from lmprog.lang.ops.sampling import (
    ALIASES,
    Sampling,
    SamplingKeywords,
    SamplingOptions,
    sampling_of,
    unknown_option,
)

if TYPE_CHECKING:
    from lmprog.lang.ops.tool_functions import ToolSet
    from lmprog.tool_calls.thoughts import Marks, Wanted


@dataclass(frozen=True, slots=True)
class ChoiceMethod:
    """A method of comparing options; pass it as `method=` (or `choices_method=`)."""

    name: wire.SelectMethod


token_length_normalized = ChoiceMethod("token_length_normalized")
"""The mean log-probability of an option's tokens (the default)."""

greedy_token_selection = ChoiceMethod("greedy_token_selection")
"""Token by token, as greedy decoding would; a shorter option goes on with its own mean."""

unconditional_likelihood_normalized = ChoiceMethod("unconditional_likelihood_normalized")
"""The mean of log p(token | context) - log p(token): options that are likely anywhere gain nothing
from it.
"""

Method: TypeAlias = ChoiceMethod | wire.SelectMethod


def method_name(method: Method) -> wire.SelectMethod:
    """The wire's name of `method`. Raises `InvalidParameter` for an unknown one."""
    name = method.name if isinstance(method, ChoiceMethod) else method
    if name not in get_args(wire.SelectMethod):
        allowed = ", ".join(get_args(wire.SelectMethod))
        raise InvalidParameter(
            f"there is no choices method {name!r}; there are: {allowed}",
            name="method",
            value=str(name),
            allowed=allowed,
        )
    return name


T = TypeVar("T")


OnIncomplete: TypeAlias = Literal["raise", "keep"]
"""What becomes of a typed value that the token limit ended early: `IncompleteValue`, or the value
as far as it is one.
"""


class Expr:
    """Something that can be appended to a branch. `+` joins it with text or another expression."""

    __slots__ = ()

    def __add__(self, other: object) -> Concat:
        return Concat((self, other))

    def __radd__(self, other: object) -> Concat:
        return Concat((other, self))


@dataclass(frozen=True, slots=True, eq=False)
class Concat(Expr):
    """A sequence of expressions."""

    parts: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class RoleBeginExpr(Expr):
    role: str


@dataclass(frozen=True, slots=True)
class RoleEndExpr(Expr):
    role: str


@dataclass(frozen=True, slots=True)
class GenOp(Expr, Generic[T]):
    """A generation: its name, sampling parameters and constraint, and the type its text is parsed
    as.
    """

    name: str | None
    sampling: Sampling
    constraint: wire.Constraint | None = None
    tp: object = str
    timeout: float | None = None
    priority: int = 0
    reasoning: Marks | None = None
    heal: bool | None = None
    keep: wire.Keep = "first"
    judge: wire.Judge | None = None
    on_incomplete: OnIncomplete = "raise"
    tries: int = 1
    """How often it is asked for until it validates."""
    check: ValueCheck | None = None
    tools: ToolSet | None = None
    """What it may call; how, depends on the backend and is decided when it is asked for."""
    offer: wire.ToolOffer | None = None
    is_thought: bool = False
    """What stands before a confined answer; named after it."""


@dataclass(frozen=True, slots=True)
class SelectOp(Expr):
    """A choice among `choices` by likelihood: the best if `temperature` is 0, otherwise sampled."""

    reasoning: ClassVar[None] = None

    name: str | None
    choices: tuple[str, ...]
    method: wire.SelectMethod
    temperature: float = 0.0
    seed: int | None = None
    timeout: float | None = None
    priority: int = 0


class GenOptions(SamplingKeywords, ConstraintOptions, total=False):
    """The keywords of `gen` besides its type, its name and `max_tokens`.

    `heal` (on by default): token healing, that is, the model regenerates the last token of literal
    text before the generation. `keep`: which of the `n` results the branch continues from, "first",
    "best", "fastest" or "majority". `on_incomplete`: how to handle a typed value that was cut off
    by the token limit. `tries`: how often to ask until the value validates and passes `check`; see
    `checks`. `json_schema` and `ebnf`: other names of `schema` and `grammar`.
    """

    json_schema: Mapping[str, Any] | str | None
    choices_method: Method | None
    ebnf: str | None
    dtype: Any
    heal: bool
    keep: wire.Keep
    timeout: float | None
    priority: int
    reasoning: Wanted
    on_incomplete: OnIncomplete
    tries: int
    check: ValueCheck | None


class ToolOptions(GenOptions, total=False):
    """The keywords of a generation with tools. `tool_choice`: "required" for an answer that is
    calls and nothing else. `parallel_tool_calls`: whether one answer may have several.
    """

    tool_choice: Literal["auto", "required"]
    parallel_tool_calls: bool


class SelectOptions(SamplingKeywords, total=False):
    """The keywords of `select`; of the sampling ones only `temperature` and `seed` have an effect.
    `sample`: sample among the choices by their probabilities (at temperature 1 unless `temperature`
    is given) instead of choosing the best.
    """

    method: Method
    choices_method: Method | None
    sample: bool
    timeout: float | None
    priority: int


_GEN_NAMES = {"name", "max_tokens", "tools", *ToolOptions.__annotations__}
_SELECT_NAMES = {
    "name",
    "sample",
    "temperature",
    "seed",
    "method",
    "choices_method",
    "timeout",
    "priority",
}


_TOOL_NAMES = {"tools", "tool_choice", "parallel_tool_calls"}
_CONFINING = {*CONSTRAINT_NAMES, *JsonLayout.__annotations__}


class _Unsaid:
    def __repr__(self) -> str:
        return "..."


_UNSAID = _Unsaid()
"""In place of a default that the branch and the run decide."""


def gen_signature(*before: str) -> inspect.Signature:
    """What `gen` takes, for `help` and notebooks, which do not see its overloads."""
    kind = inspect.Parameter
    leading = [kind(name, kind.POSITIONAL_OR_KEYWORD) for name in before]
    leading += [
        kind(name, kind.POSITIONAL_OR_KEYWORD, default=None, annotation=annotation)
        for name, annotation in (
            ("name_or_type", "str | type | None"),
            ("max_tokens", "int | None"),
        )
    ]
    tools = "Sequence[Callable | Tool]"
    options = {"name": "str | None", "tools": tools, **ToolOptions.__annotations__}
    keywords = [
        kind(
            name, kind.KEYWORD_ONLY, default=_UNSAID, annotation=getattr(tp, "__forward_arg__", tp)
        )
        for name, tp in options.items()
    ]
    return inspect.Signature([*leading, *keywords])


_SAMPLING_NAMES = {*SamplingOptions.__annotations__, *ALIASES}


def _choices(texts: Sequence[str]) -> tuple[str, ...]:
    if isinstance(texts, str) or not texts:
        raise not_allowed("choices", texts, "at least one text, none of them empty")
    for text in texts:
        if not isinstance(text, str):
            kind = type(text).__name__
            allowed = "texts: [str(one) for one in choices]; or generate a value: gen(Literal[...])"
            raise not_allowed("choices", texts, allowed, f"{text!r} is of type {kind}")
        if not text:
            raise not_allowed("choices", texts, "at least one text, none of them empty")
        check_text(text)
    return tuple(texts)


def _constraint(options: dict[str, Any]) -> wire.Constraint | None:
    """The one constraint among the keywords, which are removed from `options`."""
    given = {name: options.pop(name, None) for name in CONSTRAINT_NAMES}
    present = {name: value for name, value in given.items() if value is not None}
    if len(present) > 1:
        names = " and ".join(present)
        raise InvalidParameter(
            f"{names} cannot be combined; give one constraint", name=names, allowed="one constraint"
        )
    if "choices" in present:
        present["choices"] = _choices(present["choices"])
    made = [constraint_of(name, value) for name, value in present.items()]
    if made:
        fields = (getattr(made[0], name) for name in made[0].__struct_fields__)
        _check_texts(fields)
    return made[0] if made else None


def _check_texts(values: Iterable[object]) -> None:
    """Raises `InvalidParameter` for half of a character."""
    for value in values:
        if isinstance(value, str):
            check_text(value)
        elif isinstance(value, tuple | list):
            _check_texts(value)


def _confined(tp: object, options: dict[str, Any]) -> tuple[wire.Constraint | None, object]:
    """The constraint, and the type that the text is parsed as: `str` for an Outlines term."""
    asked = _constraint(options)
    if tp is str:
        return with_layout(asked, options), tp
    from lmprog.lang.ops import typed
    from lmprog.lang.ops.outlines_terms import constraint_of_term, is_term
    from lmprog.lang.ops.text_patterns import TextPattern

    if asked is not None:
        why = (
            f"a type says what the text must be, and so does a constraint; give either {tp!r} or "
            "the constraint, or a type with bounds: Annotated[str, Field(pattern=...)]"
        )
        if isinstance(tp, TextPattern):
            why = "a pattern cannot be combined with another constraint; give one"
        elif is_term(tp):
            why = "a term of Outlines cannot be combined with another constraint; give one"
        raise InvalidParameter(why, name="type", allowed="one constraint")
    if is_term(tp):
        asked, tp = constraint_of_term(tp), str
    else:
        asked = typed.constraint_of(tp)
    if options.keys() & JsonLayout.__annotations__.keys():
        asked = with_layout(asked, options)
    return asked, tp


def _urgency(options: dict[str, Any]) -> tuple[float | None, int]:
    """`timeout` (seconds) and `priority`, removed from `options`. Raises `InvalidParameter`."""
    timeout, priority = options.pop("timeout", None), options.pop("priority", 0)
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout <= 86_400):
        raise not_allowed("timeout", timeout, "0 < x <= 86400 (seconds)")
    if not isinstance(priority, int) or not -100 <= priority <= 100:
        raise not_allowed("priority", priority, "-100 <= x <= 100")
    return timeout, priority


def check_name(name: object) -> None:
    """Raises `InvalidParameter` for a type in the place of a name, or a prompt."""
    if not isinstance(name, str):
        raise not_allowed("name", name, "text; a type comes first: gen(int, name='age')")
    if len(name) > _LONG_NAME or name[-1:] in _ENDS_OF_SENTENCES or len(name.split()) > _MOST_WORDS:
        raise InvalidParameter(
            f"{name!r} would be the name of the result; to have the model see it, append it first: "
            f"s.append({name!r}), or s.user(...)",
            name="name",
            value=name,
            allowed="a name",
        )


_LONG_NAME, _MOST_WORDS, _ENDS_OF_SENTENCES = 200, 2, tuple(".?!:")


def gen_op(what: object, max_tokens: int | None, options: Mapping[str, Any]) -> GenOp[Any]:
    """The op for `gen(what, max_tokens, **options)`; `what` is a name, a type or None."""
    rest = dict(options)
    _check_texts(rest.values())
    name = rest.pop("name", None)
    if isinstance(what, str):
        name, what = what, None
    if name is not None:
        check_name(name)
    tp: object = str if what is None else what
    more: dict[str, Any] = {}
    if tp is not str or not rest.keys() <= _SAMPLING_NAMES:
        more = _fields(rest, what)
    if max_tokens is not None:
        rest["max_tokens"] = max_tokens
    return GenOp(name=name, sampling=sampling_of(rest, _GEN_NAMES), **more)


def _fields(options: dict[str, Any], what: object) -> dict[str, Any]:
    """The fields of a `GenOp` besides its name and its sampling: what each keyword that was given,
    and the type `what`, make of it. They are removed from `options`.
    """
    given = options.keys()
    tp: object = what
    if what is None:
        tp = dtype_of(options)
    if options.pop("choices_method", None) is not None:
        raise InvalidParameter(
            "a generation has no choices_method; use select, or lmprog.gen with choices, "
            "which score their options",
            name="choices_method",
            allowed="an option of select",
        )
    constraint: wire.Constraint | None = None
    if tp is not str or given & _CONFINING:
        constraint, tp = _confined(tp, options)
    found: dict[str, Any] = {"tp": tp, "constraint": constraint}
    if given & _TOOL_NAMES:
        from lmprog.lang.ops.tool_functions import tools_of

        found["tools"] = tools_of(options, is_free=constraint is None and tp is str)
    if given & {"timeout", "priority"}:
        found["timeout"], found["priority"] = _urgency(options)
    if "reasoning" in given:
        from lmprog.tool_calls.thoughts import marks_of

        found["reasoning"] = marks_of(options.pop("reasoning"))
    if "heal" in given:
        found["heal"] = heal = options.pop("heal")
        if not isinstance(heal, bool):
            raise not_allowed("heal", heal, "True or False")
    if "keep" in given:
        found["keep"] = keep = options.pop("keep")
        if keep not in get_args(wire.Keep):
            raise not_allowed("keep", keep, f"one of {', '.join(get_args(wire.Keep))}")
    if "on_incomplete" in given:
        found["on_incomplete"] = wish = options.pop("on_incomplete")
        if wish not in get_args(OnIncomplete):
            raise not_allowed("on_incomplete", wish, "'raise' or 'keep'")
    if "judge" in given:
        found["judge"] = options.pop("judge")
    if given & {"tries", "check"}:
        found["tries"], found["check"] = trying(options)
    return found


def thought_op(op: GenOp[Any], marks: Marks) -> GenOp[str]:
    """The reasoning before a constrained answer: one plain text that stops at the closing mark."""
    from lmprog.tool_calls.thoughts import THOUGHT

    answers_own: dict[str, Any] = {"n": 1, "min_tokens": 0, "stop_token_ids": (), "stop_regex": ()}
    answers_own.update({"logprobs": None, "prompt_logprobs": None, "beams": None})
    given = {**op.sampling.given(), **answers_own, "stop": (marks.end,)}
    name = None if op.name is None else op.name + THOUGHT
    inside = replace(marks, opened=True)
    return GenOp(
        name=name,
        sampling=Sampling(**given),
        timeout=op.timeout,
        priority=op.priority,
        reasoning=inside,
        heal=op.heal,
        is_thought=True,
    )


def select_op(choices: Sequence[str], options: Mapping[str, Any]) -> SelectOp:
    """The op for `select(*choices, **options)`."""
    rest = dict(options)
    name, (timeout, priority) = rest.pop("name", None), _urgency(rest)
    if name is not None:
        check_name(name)
    method = rest.pop("choices_method", None) or rest.pop("method", None) or token_length_normalized
    foreign_names = sorted(set(rest) - set(SelectOptions.__annotations__))
    if foreign_names:
        raise unknown_option(foreign_names[0], _SELECT_NAMES)
    sample = rest.pop("sample", False)
    sampling = sampling_of(rest).given()
    foreign = sorted(set(sampling) - {"temperature", "seed"})
    if foreign:
        allowed = "temperature, seed"
        raise InvalidParameter(
            f"select has no {foreign[0]}; it has {allowed}", name=foreign[0], allowed=allowed
        )
    if not isinstance(sample, bool):
        raise not_allowed("sample", sample, "True or False")
    temperature, seed = sampling.get("temperature", float(sample)), sampling.get("seed")
    if sample and temperature == 0:
        raise InvalidParameter(
            "sample=True draws, and temperature=0 takes the best; give one of them",
            name="temperature",
            value=0,
            allowed="0 < x with sample=True",
        )
    once = tuple(dict.fromkeys(_choices(choices)))  # duplicate options would split their likelihood
    return SelectOp(
        name=name,
        choices=once,
        method=method_name(method),
        temperature=temperature,
        seed=seed,
        timeout=timeout,
        priority=priority,
    )


def leading(what: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, int | None]:
    """The arguments of `gen` that may be positional: a name or a type, and `max_tokens`."""
    if len(what) > 2:
        raise TypeError(
            f"gen takes a name or type and max_tokens without a keyword, not {len(what)} arguments"
        )
    first = what[0] if what else None
    if isinstance(first, str) and isinstance(what[-1], type):
        kind = what[-1].__name__
        raise TypeError(f"a type stands first: gen({kind}, name={first!r})")
    return first, what[1] if len(what) == 2 else options.pop("max_tokens", None)
