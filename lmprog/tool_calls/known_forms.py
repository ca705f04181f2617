"""Forms of models whose templates do not write calls, by marks in the template's source.

Such templates teach the form in words, or leave it to training.
"""

from __future__ import annotations

from lmprog import wire

_ARGUMENT = wire.KeyedValue("", '="', '"')
_KNOWN_FORMS = (
    (
        "pythonic",
        ("<|tool_call_start|>", "<|tool_list_start|>", "List of tools: ["),
        wire.CallForm(
            literals=("", "(", ")"),
            slots=("name", "arguments"),
            begin="<|tool_call_start|>[",
            between=", ",
            end="]<|tool_call_end|>",
            keyed=wire.KeyedArguments(_ARGUMENT, wire.KeyedValue("", "=", ""), ", ", quoted=True),
        ),
    ),
    (
        "granite",
        ("<|tool_call|>",),
        wire.CallForm(
            literals=('{"name": "', '", "arguments": ', "}"),
            slots=("name", "arguments"),
            begin="<|tool_call|>[",
            between=", ",
            end="]",
        ),
    ),
    ("hermes", ("<tool_call>",), wire.HERMES),
)


def known_form_of(source: str) -> tuple[str, wire.CallForm]:
    """The name and form that go with a template's source; Hermes' where nothing says otherwise."""
    for name, marks, form in _KNOWN_FORMS:
        if any(mark in source for mark in marks):
            return name, form
    return "hermes", wire.HERMES
