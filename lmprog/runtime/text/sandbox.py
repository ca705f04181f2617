"""Renders untrusted chat templates safely.

jinja2's immutable sandbox gives templates access to nothing but their own values. A render is
bounded: the template's size, its output, and the loop turns, calls and products of one render have
limits, by counts and not by a clock, so that a template always gives the same result. The names are
those that `transformers` gives to templates.

Knows Jinja; knows no roles and no turns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.meta
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lmprog.errors import ModelError, NotSupported

MAX_TEMPLATE_LEN = 262_144
MAX_WORK = 1_000_000
"""Loop turns, calls and products of one render together; plain text is bounded by the size."""
_CALL = 10
"""Work of a call, in loop turns."""
MAX_OUTPUT_LEN = 33_554_432
"""Characters."""


class Sandbox:
    """One compiled template. Raises ModelError for one that does not parse."""

    def __init__(self, source: str) -> None:
        if len(source) > MAX_TEMPLATE_LEN:
            raise ModelError(
                f"the chat template has {len(source):,} characters, more than {MAX_TEMPLATE_LEN:,}."
            )
        self._environment = _Environment()
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

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        self.work_left = 0
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
