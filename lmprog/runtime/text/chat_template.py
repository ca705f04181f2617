"""Chat turns as the checkpoint's own Jinja template writes them.

A program opens and closes turns one by one, but a template only knows how to write a whole
conversation. So the text around a turn is found by rendering conversations whose contents are
sentinels: what stands between two sentinels is the closing of one turn and the opening of the next.
A closing is what all continuations of a turn have in common; an opening is the rest. An assistant's
opening is the template's generation prompt.

That works only if adding a turn never rewrites what stands before it. Every opening is checked for
it, and a template that does rewrite (one that moves the system text to the last user turn, say) is
refused with the role's name. One exception: how a *finished* assistant turn opens may differ from
the generation prompt (templates drop or add thinking there); what the model has seen stays as it
is. Contents are never trimmed: the program's text is the text.

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

from lmprog.errors import InvalidParameter, ModelError, NotSupported, RequestRejected, UnknownName
from lmprog.runtime.text.sandbox import Sandbox
from lmprog.runtime.text.special_tokens import UNGUARDED, Passage, SpecialTokenGuard

MAX_MESSAGES = 4096

PLAIN = "plain"
"""The name of a template for models that have none: `Role: text` lines."""
_PLAIN_SOURCE = (
    "{% for message in messages %}{{ message['role'] | capitalize }}: {{ message['content'] }}\n{% endfor %}"
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
        self._source = source
        self._sandbox = Sandbox(source)
        self._changes_daily = "strftime_now" in source
        self._turn = functools.lru_cache(maxsize=256)(self._find_turn)
        self._parts = functools.lru_cache(maxsize=1024)(self._find_parts)

    def begin(self, messages: Sequence[Mapping[str, str]], role: str) -> str:
        """What stands between the closing of the last of `messages` and the content of a new turn
        of `role`.

        Raises UnknownName for a role that the template leaves out, NotSupported for one that it
        refuses here or that it cannot add without rewriting what stands before.
        """
        return self._turn((*(message["role"] for message in messages), role), self._day())[0]

    def end(self, messages: Sequence[Mapping[str, str]], role: str, content: str) -> str:
        """What closes the turn of `role` that stands after `messages`. Raises like `begin`. The
        `content` is not looked at: what a template does with special contents (tool answers, say)
        is the program's to write."""
        return self._turn((*(message["role"] for message in messages), role), self._day())[1]

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The whole conversation; `variables` are further names for the template (`tools`,
        `documents`, ...).

        Raises NotSupported with the template's own words where it refuses the conversation.
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
        plain: str = "",
        mark: str = "",
        guard: SpecialTokenGuard = UNGUARDED,
        variables: str = "",
    ) -> Passage:
        """A whole conversation, up to where the assistant begins. All texts but `mark` are JSON.

        `plain` is written, without tools, where the template's source does not have `mark`. `guard`
        knows the special tokens that stay text where messages, tools or `variables` spell them.
        Raises InvalidParameter for variables that the template does not use, and NotSupported like
        `render`.
        """
        if mark and mark not in self._source:
            messages, tools = plain, ""
        turns, told = _parsed(messages), _parsed(tools) if tools else None
        more = self._variables(variables)

        def write(change: Callable[[Any], Any]) -> str:
            return self.render(change(turns), True, {**change(more), "tools": change(told)})

        return guard.written(write, [turns, told, more], self._source)

    def _variables(self, text: str) -> dict[str, Any]:
        """Further names for the template, which has to use them. Raises InvalidParameter."""
        try:
            given = json.loads(text) if text else {}
        except (ValueError, RecursionError) as error:
            raise NotSupported(f"the template's variables are not JSON: {error}") from None
        own = {*self._special, "messages", "tools", "add_generation_prompt"}
        known = self._sandbox.variables - own
        wrong = next((name for name in given if name not in known), None)
        if wrong is not None:
            allowed = ", ".join(sorted(known)) or "none"
            raise InvalidParameter(
                f"template_variables has {wrong[:60]!r}, which this model's chat template does not "
                f"use; it uses: {allowed}",
                name="template_variables",
                value=wrong[:60],
                allowed=allowed,
            )
        return dict(given)

    def _day(self) -> int:
        """Changes when the answer of `strftime_now` may, so that no date is remembered for longer
        than its day.
        """
        return datetime.now().toordinal() if self._changes_daily else 0

    def _find_turn(self, roles: tuple[str, ...], day: int) -> tuple[str, str]:
        """Opening and closing of the last of `roles`; `day` only keeps remembered answers apart."""
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
            # it can be generated, though the template cannot write it down: no turn may follow
            opening = ""
        else:
            raise self._refusal(roles)
        return opening, self._closing(roles)

    def _after(
        self, before: tuple[str, ...], closing: str, parts: list[str] | None, roles: tuple[str, ...]
    ) -> str | None:
        """The end of `parts` after `closing`, having seen that its beginning is what stands
        already; None without parts. Raises NotSupported where the template rewrites."""
        if parts is None:
            return None
        standing = self._with_follower(before) if before else []
        stable = (
            standing is not None and len(parts) == len(before) + 1 and parts[-1].startswith(closing)
        )
        for index, role in enumerate(before if stable else ()):
            assert standing is not None
            if role != _GENERATES and parts[index] != standing[index]:
                stable = False
        if not stable:
            raise NotSupported(
                f"the chat template rewrites earlier turns when a {roles[-1]!r} turn is added after "
                f"{', '.join(before) or 'nothing'}, so such a conversation cannot grow turn by turn."
            )
        return parts[-1][len(closing) :]

    def _closing(self, roles: tuple[str, ...]) -> str:
        """What stands after the last content, whatever comes next; "" before the first turn, or
        where nothing can.
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
        takes.
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
        """The texts around the contents of `roles`, from the first continuation that shows all of
        them: some templates write a system text only together with the user turn that follows."""
        return next(self._continuations(roles), None)

    def _try(self, roles: tuple[str, ...], prompt: bool) -> list[str] | None:
        """The texts before, between and after the contents. None where the template refuses these
        roles, or does not write each content once, in order."""
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
            f"the chat template does not keep the order of the turns when a {roles[-1]!r} turn comes after {before}, "
            "so such a conversation cannot grow turn by turn."
        )


def load_template(folder: Path | None, explicit: str | None = None) -> ChatTemplate:
    """The template of a checkpoint's folder (None: of the models without files), or an `explicit`
    one: "plain", or the text of a template. Raises NotSupported where there is none, ModelError
    where it cannot be read."""
    config = _read_json(folder / "tokenizer_config.json") if folder else {}
    special = _special_tokens(config)
    if folder is None and explicit is None:
        return ChatTemplate(_BYTES_SOURCE, special)
    if explicit is not None:
        return ChatTemplate(_PLAIN_SOURCE if explicit == PLAIN else explicit, special)
    assert folder is not None
    source = _source_in(folder, config)
    if source is None:
        raise NotSupported(
            f"{folder.name} has no chat template, so there are no roles: write the prompt as plain text, "
            "put a chat_template.jinja into the folder, or give a template explicitly "
            f'("{PLAIN}" writes "User: ..." lines).'
        )
    return ChatTemplate(source, special)


def _parsed(text: str) -> list[Any]:
    """A list of objects. Raises NotSupported for other JSON, or none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotSupported(f"the conversation is not JSON: {error}") from None
    if not (isinstance(value, list) and all(isinstance(one, dict) for one in value)):
        raise NotSupported("the conversation is not a list of objects.")
    return value


def _source_in(folder: Path, config: Mapping[str, Any]) -> str | None:
    try:
        return (folder / "chat_template.jinja").read_text("utf-8")
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{folder.name}/chat_template.jinja cannot be read: {error}") from error
    source = _read_json(folder / "chat_template.json").get("chat_template") or config.get(
        "chat_template"
    )
    if isinstance(source, list):  # several, by name
        named = {
            entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)
        }
        source = named.get("default")
    return source if isinstance(source, str) and source else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its like; "" for those that the checkpoint does not have, so that templates
    may add them.
    """
    found = {"bos_token": "", "eos_token": "", "unk_token": "", "pad_token": ""}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _read_json(path: Path) -> dict[str, Any]:
    """Empty where there is no such file."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path.parent.name}/{path.name} cannot be read: {error}") from error
    return value if isinstance(value, dict) else {}
