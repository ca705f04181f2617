"""What a model is told of tools as text, where its template does not: descriptions, results.

Knows forms and texts. The gateway and the language both write these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmprog import wire
from lmprog.tool_calls.writing import WrittenCall, as_json, written


def tools_text(shown: Sequence[dict[str, Any]], form: wire.CallForm) -> str:
    """Describes tools, and the form in which they are called."""
    example = WrittenCall("the_function", {"an_argument": "its value"}, "a1b2c3d4e")
    return (
        "You have these functions, each described by the JSON schema of its arguments:\n<tools>\n"
        + "\n".join(as_json(tool) for tool in shown)
        + "\n</tools>\n\nTo call one, write its name and arguments in this form, and nothing "
        "after:\n" + written(form, [example]).strip()
    )


def result_text(text: str) -> str:
    """What a tool answered."""
    return f"<tool_response>\n{text}\n</tool_response>"


def function_shape(name: str, description: str | None, parameters: Any) -> dict[str, Any]:
    """A tool in OpenAI's shape, which templates know, too."""
    about: dict[str, Any] = {"name": name}
    if description:
        about["description"] = description
    about["parameters"] = parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": about}
