"""Chat turns as a checkpoint's own Jinja template writes them.

A program opens and closes turns one by one, but a template only renders a whole conversation. So
the text around a turn is found by rendering conversations whose contents are sentinels: the text
between two sentinels is the closing of one turn and the opening of the next. The closing is what
all continuations of a turn have in common; the opening is the rest. An assistant's opening is the
template's generation prompt.

That requires that adding a turn never rewrites the text before it. Every opening is checked for
that, and a template that does rewrite (one that moves the system text to the last user turn, say)
is refused with the role's name. One exception: the opening of a *finished* assistant turn may
differ from the generation prompt (templates drop or add thinking there); what the model has seen is
kept. Contents are never trimmed.

Templates are untrusted (`Sandbox`). Knows strings and Jinja; knows no tokens and no branches.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lmprog.errors import InvalidParameter, ModelError, NotSupported, RequestRejected, UnknownName
from lmprog.runtime.documents.checkpoint_documents import (
    json_document,
    special_tokens,
    template_source,
)
from lmprog.runtime.text.special_tokens import UNGUARDED, Passage, SpecialTokenGuard
from lmprog.wire import UNSAID, Conversation

MAX_TEMPLATE_LEN = 262_144
MAX_WORK = 1_000_000
"""Loop turns, calls and products of one render together; plain text is bounded by the size."""
_CALL = 10
"""Work of a call, in loop turns."""
MAX_OUTPUT_LEN = 33_554_432
"""Characters."""


class Sandbox:
    """One compiled template. Raises ModelError for one that does not parse.

    jinja2's immutable sandbox gives templates access to nothing but their own values; of these they
    may add to lists and take from them. A render is
    bounded: the template's size, its output, and the loop turns, calls and products of one render
    have limits, by counts and not by a clock, so that a template always gives the same result.
    The names are those that `transformers` gives to templates.
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_TEMPLATE_LEN:
            raise ModelError(
                f"the chat template has {len(source):,} characters, more than {MAX_TEMPLATE_LEN:,}."
            )
        self._environment = _Environment()
        self._environment.changes_lists = re.search(r"\.(append|pop)\(", source) is not None
        try:
            self._template = self._environment.from_string(source)
            self.variables = frozenset(
                jinja2.meta.find_undeclared_variables(self._environment.parse(source))
                - set(self._environment.globals)
            )
            """The names that the template expects from outside."""
        except (jinja2.TemplateError, RecursionError) as error:
            raise ModelError(f"the chat template does not parse: {error}") from error

    def render(self, names: Mapping[str, object]) -> str:
        """Raises NotSupported, with the template's own message, where it refuses or does too
        much.
        """
        self._environment.work_left = MAX_WORK
        if self._environment.changes_lists:
            names = copy.deepcopy(names)
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(names):
                pieces.append(piece)
                length += len(piece)
                if length > MAX_OUTPUT_LEN:
                    raise NotSupported(
                        f"the chat template writes more than {MAX_OUTPUT_LEN:,} characters."
                    )
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            AttributeError,
            ArithmeticError,
            LookupError,
            RecursionError,
        ) as error:
            raise NotSupported(f"the chat template refuses the conversation: {error}") from error
        return "".join(pieces)


class _Generation(Extension):
    """`{% generation %}` marks an assistant's text for training; here it is just its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class _Counted:
    """A loop's items, each counted as work."""

    def __init__(self, items: Iterable[Any], environment: _Environment) -> None:
        self._items, self._environment = items, environment

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._environment.spend(1)
            yield item


class _Environment(ImmutableSandboxedEnvironment):
    """The names that templates use, in a sandbox that counts their work."""

    intercepted_binops = frozenset({"*", "**", "%"})
    _changes = frozenset({"append", "pop"})
    """Of lists; each counts as work."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        self.work_left = 0
        self.changes_lists = False
        """Whether the template does, so that it is given copies."""
        self.filters["tojson"] = _to_json
        self.filters["_counted"] = lambda items: _Counted(items, self)
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)

    def spend(self, amount: int) -> None:
        """Raises when a render has done too much work."""
        self.work_left -= amount
        if self.work_left < 0:
            raise jinja2.TemplateRuntimeError(f"it takes more than {MAX_WORK:,} steps")

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "_counted", [], [], None, None)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        is_change = self.changes_lists and isinstance(obj, list) and attr in self._changes
        return is_change or super().is_safe_attribute(obj, attr, value)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.spend(_CALL)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Products and powers can be larger than everything they are made of."""
        if operator == "%" and not isinstance(left, int | float):
            self.spend(len(str(left)))
            if re.search(r"\d{5}|\*", str(left)):
                raise jinja2.TemplateRuntimeError("a format asks for too much")
        elif operator == "**" and isinstance(left, int) and left.bit_length() * abs(right) > 4096:
            raise jinja2.TemplateRuntimeError("a power is too large")
        elif operator == "*":
            size = (
                len(left)
                if hasattr(left, "__len__")
                else len(right)
                if hasattr(right, "__len__")
                else 0
            )
            count = right if hasattr(left, "__len__") else left
            self.spend(size * max(0, int(count)) if size else 1)
        return super().call_binop(context, operator, left, right)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers writes it: without HTML escapes."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


MAX_MESSAGES = 4096

PLAIN = "plain"
"""Name of the template of `Role: text` lines, for models that have none."""
_PLAIN_SOURCE = (
    "{% for message in messages %}{{ message['role'] | capitalize }}: {{ message['content'] "
    "}}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
_BYTES_SOURCE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('the roles are system, user, assistant and tool') }}{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""For models without files, which speak bytes (`tokenizer.ByteTokenizer`)."""

_GENERATES = "assistant"
_FOLLOWERS = ("user", "assistant", "tool", "system")
_LEXEME = re.compile(r"<[^<>\s]*>|\[[^\[\]\s]*\]|\w+|[^\S\n]+|.", re.DOTALL)
_SENTINEL = "QZTURN{}TURNZQ"
_FOUND = re.compile(r"QZTURN(\d+)TURNZQ")


class ChatTemplate:
    """One checkpoint's template. `special` holds its `bos_token`, `eos_token` and so on. Raises
    ModelError for a template that does not parse."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        self._special = dict(special)
        self.source = source
        self._sandbox = Sandbox(source)
        self._changes_daily = "strftime_now" in source
        self._turn = functools.lru_cache(maxsize=256)(self._find_turn)
        self._parts = functools.lru_cache(maxsize=1024)(self._find_parts)

    def begin(self, messages: Sequence[Mapping[str, str]], role: str) -> str:
        """The text between the closing of the last of `messages` and the content of a new turn.

        Raises UnknownName for a role that the template leaves out, NotSupported for one that it
        refuses here or cannot add without rewriting earlier text.
        """
        return self._turn((*(message["role"] for message in messages), role), self._day())[0]

    def end(self, messages: Sequence[Mapping[str, str]], role: str, content: str) -> str:
        """The closing of a turn of `role` after `messages`. Raises like `begin`.

        It does not depend on `content`: what a template does with special contents (tool answers,
        say) is up to the program.
        """
        return self._turn((*(message["role"] for message in messages), role), self._day())[1]

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The whole conversation; `variables` are further names for the template (`tools`,
        `documents`, ...).

        Raises NotSupported, with the template's own message, where it refuses the conversation.
        """
        if len(messages) > MAX_MESSAGES:
            raise NotSupported(
                f"the conversation has {len(messages):,} messages, more than {MAX_MESSAGES:,}."
            )
        return self._sandbox.render(
            {
                **self._special,
                **(variables or {}),
                "messages": [dict(message) for message in messages],
                "add_generation_prompt": add_generation_prompt,
            }
        )

    def converse(
        self,
        messages: str,
        tools: str = "",
        guard: SpecialTokenGuard = UNGUARDED,
        variables: str = "",
    ) -> Passage:
        """A whole conversation, up to where the assistant begins. All texts are JSON.

        `guard` knows the special tokens that stay text where messages, tools or `variables` spell
        them. Raises InvalidParameter for variables that the template does not use, and NotSupported
        like `render`.
        """
        turns, tool_list = _parsed(messages), _parsed(tools) if tools else None
        more = self._variables(variables)

        def write(change: Callable[[Any], Any]) -> str:
            names, refusal = change(more), None
            for said, known in _spellings(change(turns), change(tool_list)):
                try:
                    return self.render(said, True, {**names, "tools": known})
                except NotSupported as error:
                    refusal = refusal or error
            assert refusal is not None
            raise refusal

        return guard.written(write, [turns, tool_list, more], self.source)

    def begun(self, guard: SpecialTokenGuard, asked: Conversation) -> Passage:
        """What a conversation begins with, up to `UNSAID` in it. Raises like `converse`."""
        text, quoted = self.converse(asked.messages, asked.tools, guard, asked.variables)
        end = max(0, text.rfind(UNSAID))
        return Passage(text[:end], tuple((a, min(b, end)) for a, b in quoted if a < end))

    @functools.cached_property
    def variables(self) -> tuple[str, ...]:
        """The further names that the template uses."""
        own = {*self._special, "messages", "tools", "add_generation_prompt"}
        return tuple(sorted(self._sandbox.variables - own))

    def _variables(self, text: str) -> dict[str, Any]:
        """Further names for the template, which has to use them. Raises InvalidParameter."""
        try:
            given = json.loads(text) if text else {}
        except (ValueError, RecursionError) as error:
            raise NotSupported(f"the template's variables are not JSON: {error}") from None
        wrong = next((name for name in given if name not in self.variables), None)
        if wrong is not None:
            allowed = ", ".join(self.variables) or "none"
            raise InvalidParameter(
                f"template_variables has {wrong[:60]!r}, which this model's chat template does not "
                f"use; it uses: {allowed}",
                name="template_variables",
                value=wrong[:60],
                allowed=allowed,
            )
        return dict(given)

    def _day(self) -> int:
        """Part of the cache keys of templates that write the date: a cached turn is of today."""
        return datetime.now().toordinal() if self._changes_daily else 0

    def _find_turn(self, roles: tuple[str, ...], day: int) -> tuple[str, str]:
        """Opening and closing of the last of `roles`; `day` is part of the cache key."""
        before, closing = roles[:-1], self._closing(roles[:-1])
        prompt: str | None = None
        if roles[-1] == _GENERATES:
            prompt = self._after(before, closing, self._try(before, True), roles)
            if prompt:
                return prompt, self._closing(roles)
        parts = self._with_follower(roles)
        if parts is not None:
            opening = self._after(before, closing, parts[: len(roles)], roles) or ""
            if roles[-1] == _GENERATES:
                opening = opening.rstrip(" ")  # a generated text brings its own space
        elif prompt is not None:
            # it can be generated, but the template cannot render it: no turn may follow
            opening = ""
        else:
            raise self._refusal(roles)
        return opening, self._closing(roles)

    def _after(
        self, before: tuple[str, ...], closing: str, parts: list[str] | None, roles: tuple[str, ...]
    ) -> str | None:
        """The end of `parts` after `closing`; None without parts.

        Raises NotSupported where the template rewrites the text before it.
        """
        if parts is None:
            return None
        earlier = self._with_follower(before) if before else []
        stable = (
            earlier is not None and len(parts) == len(before) + 1 and parts[-1].startswith(closing)
        )
        for index, role in enumerate(before if stable else ()):
            assert earlier is not None
            if role != _GENERATES and parts[index] != earlier[index]:
                stable = False
        if not stable:
            raise NotSupported(
                f"the chat template rewrites earlier turns when a {roles[-1]!r} turn is "
                "added after "
                f"{', '.join(before) or 'nothing'}, so such a conversation cannot grow turn "
                "by turn."
            )
        return parts[-1][len(closing) :]

    def _closing(self, roles: tuple[str, ...]) -> str:
        """The text after the last content that every continuation has; "" before the first turn,
        or where there is none.
        """
        if not roles:
            return ""
        tails = [parts[len(roles)] for parts in self._continuations(roles)]
        lexemes = [_LEXEME.findall(tail) for tail in dict.fromkeys(tails)]
        if not lexemes:
            return ""
        length = 0
        while length < len(lexemes[0]) and all(
            some[length : length + 1] == lexemes[0][length : length + 1] for some in lexemes
        ):
            length += 1
        return "".join(lexemes[0][:length])

    def _continuations(self, roles: tuple[str, ...]) -> Iterator[list[str]]:
        """The conversation alone, before a generation, and with each further turn that the template
        accepts.
        """
        for prompt in (False, True):
            parts = self._try(roles, prompt)
            if parts is not None:
                yield parts
        for follower in _FOLLOWERS:
            parts = self._try((*roles, follower), False)
            if parts is not None:
                yield parts

    def _with_follower(self, roles: tuple[str, ...]) -> list[str] | None:
        """The texts around the contents of `roles`, from the first continuation that has all.

        Some templates write a system text only together with the user turn that follows.
        """
        return next(self._continuations(roles), None)

    def _try(self, roles: tuple[str, ...], prompt: bool) -> list[str] | None:
        """The texts before, between and after the contents.

        None where the template refuses these roles, or does not write each content once, in order.
        """
        return self._parts(roles, prompt, self._day())

    def _find_parts(self, roles: tuple[str, ...], prompt: bool, day: int) -> list[str] | None:
        messages = [
            {"role": role, "content": _SENTINEL.format(at)} for at, role in enumerate(roles)
        ]
        try:
            text = self.render(messages, prompt)
        except NotSupported:
            return None
        parts = _FOUND.split(text)
        found = [int(number) for number in parts[1::2]]
        return parts[::2] if found == list(range(len(roles))) else None

    def _refusal(self, roles: tuple[str, ...]) -> RequestRejected:
        """Why a turn of the last of `roles` is not possible."""
        before = ", ".join(roles[:-1]) or "nothing"
        messages = [
            {"role": role, "content": _SENTINEL.format(at)} for at, role in enumerate(roles)
        ]
        try:
            text = self.render(messages, False)
        except NotSupported as error:
            return NotSupported(f"a {roles[-1]!r} turn after {before} is not possible: {error}")
        if _SENTINEL.format(len(roles) - 1) not in text:
            return UnknownName(
                f"the chat template leaves out the text of a {roles[-1]!r} turn after {before}.",
                name=roles[-1],
            )
        return NotSupported(
            f"the chat template does not keep the order of the turns when a {roles[-1]!r} "
            f"turn comes after {before}, "
            "so such a conversation cannot grow turn by turn."
        )


def load_template(folder: Path | None, explicit: str | None = None) -> ChatTemplate:
    """The template of a checkpoint's folder (None: of models without files), or an `explicit` one:
    "plain", or the text of a template.

    Raises NotSupported where there is none, ModelError where it cannot be read.
    """
    config = (json_document(folder, "tokenizer_config.json") if folder else None) or {}
    special = special_tokens(config)
    if folder is None and explicit is None:
        return ChatTemplate(_BYTES_SOURCE, special)
    if explicit is not None:
        return ChatTemplate(_PLAIN_SOURCE if explicit == PLAIN else explicit, special)
    assert folder is not None
    source = template_source(folder, config)
    if source is None:
        raise NotSupported(
            f"{folder.name} has no chat template, so there are no roles: write the prompt as "
            "plain text, "
            "put a chat_template.jinja into the folder, or give a template explicitly "
            f'("{PLAIN}" writes "User: ..." lines).'
        )
    return ChatTemplate(source, special)


Turns = list[dict[str, Any]]


def _spellings(turns: Turns, tools: Turns | None) -> Iterator[tuple[Turns, Turns | None]]:
    """The conversation as it was given; then, for templates that refuse it so, an empty list of
    tools where there are none, descriptions of all arguments, and the system's text in the first
    turn of the user.
    """
    yield turns, tools
    known = [] if tools is None else [_described(tool) for tool in tools]
    if known != tools:
        yield turns, known
    if [turn.get("role") for turn in turns[:2]] == ["system", "user"]:
        system, user = (turn.get("content") for turn in turns[:2])
        if isinstance(system, str) and isinstance(user, str):
            first = {**turns[1], "content": f"{system}\n\n{user}"}
            yield [first, *turns[2:]], known


def _described(tool: dict[str, Any]) -> dict[str, Any]:
    """The tool with a description of each argument, if only an empty one."""
    about = tool.get("function")
    schema = about.get("parameters") if isinstance(about, dict) else None
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not (isinstance(about, dict) and isinstance(schema, dict) and isinstance(properties, dict)):
        return tool
    told = {
        name: {"description": "", **one} if isinstance(one, dict) else one
        for name, one in properties.items()
    }
    return {**tool, "function": {**about, "parameters": {**schema, "properties": told}}}


def _parsed(text: str) -> list[Any]:
    """A list of objects. Raises NotSupported for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotSupported(f"the conversation is not JSON: {error}") from None
    if not (isinstance(value, list) and all(isinstance(one, dict) for one in value)):
        raise NotSupported("the conversation is not a list of objects.")
    return value
