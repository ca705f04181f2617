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

Knows strings; knows no tokens and no branches, and leaves Jinja to `sandbox.py`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from lmprog.errors import InvalidParameter, NotSupported, RequestRejected, UnknownName
from lmprog.runtime.documents.checkpoint_documents import (
    json_document,
    special_tokens,
    template_source,
)
from lmprog.runtime.text.sandbox import Sandbox
from lmprog.runtime.text.special_tokens import UNGUARDED, Passage, SpecialTokenGuard

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
            return self.render(change(turns), True, {**change(more), "tools": change(tool_list)})

        return guard.written(write, [turns, tool_list, more], self.source)

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


def _parsed(text: str) -> list[Any]:
    """A list of objects. Raises NotSupported for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotSupported(f"the conversation is not JSON: {error}") from None
    if not (isinstance(value, list) and all(isinstance(one, dict) for one in value)):
        raise NotSupported("the conversation is not a list of objects.")
    return value
