"""What a model thinks before it answers, told apart from the answer by the marks that it writes
around it.

The reasoning is what stands between the marks at the beginning of the text; the answer is the rest.
Neither begins with space, and the reasoning does not end with it. Works on a whole text and on a
text that comes in pieces, with the same result. Knows texts; where reasoning is kept out of a
branch is `cursor`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from lmprog.errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class Marks:
    """How a model writes its reasoning. With `opened` the prompt has opened it: text begins as
    reasoning.
    """

    begin: str = "<think>"
    end: str = "</think>"
    opened: bool = False

    def split(self, text: str) -> tuple[str, str]:
        """The reasoning and the answer of a whole text. Reasoning that never ends leaves no
        answer.
        """
        splitter = Splitter(self)
        first, last = splitter.push(text), splitter.finish()
        return first.reasoning + last.reasoning, first.answer + last.answer


Wanted: TypeAlias = bool | tuple[str, str] | Marks
"""`gen(reasoning=...)`: True for `<think>` and `</think>`, a pair of other marks, or `Marks`."""

THOUGHT = "_reasoning_content"
"""SGLang's end of the name of what was thought before the answer that is called like the rest of
it.
"""
_THINK = Marks()
MODEL_TYPES = {
    **dict.fromkeys(
        (
            "deepseek-v3",
            "glm45",
            "interns1",
            "kimi_k2",
            "mimo",
            "minimax",
            "nano_v3",
            "nemotron_3",
            "qwen3",
        ),
        _THINK,
    ),
    **dict.fromkeys(
        ("deepseek-r1", "minimax-append-think", "qwen3-thinking", "step3", "step3p5"),
        Marks(opened=True),
    ),
    "kimi": Marks("◁think▷", "◁/think▷"),
    "mistral": Marks("[THINK]", "[/THINK]"),
}  # SGLang's names of models


def marks_of(wanted: Wanted | None) -> Marks | None:
    """The marks that are meant; None where reasoning is not to be told apart. Raises
    `InvalidParameter`.
    """
    if wanted is None or wanted is False:
        return None
    marks = _THINK if wanted is True else Marks(*wanted) if isinstance(wanted, tuple) else wanted
    if not isinstance(marks, Marks) or not marks.end or not (marks.begin or marks.opened):
        allowed = "True, or a pair of texts: what opens and what closes the reasoning"
        raise InvalidParameter(
            f"reasoning={wanted!r} is not allowed; give {allowed}",
            name="reasoning",
            value=repr(wanted),
            allowed=allowed,
        )
    return marks


def marks_of_model(model_type: str) -> Marks:
    """The marks of a kind of model, by SGLang's name of it. Raises `InvalidParameter` for one that
    is not known.
    """
    marks = MODEL_TYPES.get(model_type.lower())
    if marks is None:
        allowed = ", ".join(MODEL_TYPES)
        raise InvalidParameter(
            f"there is no model_type {model_type!r}; there are: {allowed} (or give marks=(begin, end))",
            name="model_type",
            value=model_type,
            allowed=allowed,
        )
    return marks


@dataclass(frozen=True, slots=True)
class SplitText:
    """A piece of text told apart."""

    reasoning: str = ""
    answer: str = ""


class Splitter:
    """Tells a text apart that comes in pieces. It holds back what may become a mark, and space that
    may be the last.
    """

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._held = ""
        self._begun = marks.opened  # inside the reasoning
        self._looks_for_begin = bool(marks.begin)
        self._space = ""  # of the reasoning, until more of it comes
        self._told_reasoning = self._told_answer = False
        self.answering = False
        """Whether the reasoning is over, or there is none."""

    def push(self, text: str) -> SplitText:
        """What is certain now."""
        text, self._held = self._held + text, ""
        if self._looks_for_begin:
            begin = self._marks.begin
            stripped = text.lstrip()
            if (
                begin.startswith(stripped) and stripped != begin
            ):  # also where nothing but space has come
                self._held = text
                return SplitText()
            if stripped.startswith(begin):
                self._begun, text = True, stripped[len(begin) :]
            self._looks_for_begin = False
            self.answering = not self._begun
        if self.answering:
            return SplitText(answer=self._answer(text))
        return self._within(text)

    def finish(self) -> SplitText:
        """The rest, when nothing more comes."""
        held, self._held = self._held, ""
        if self._looks_for_begin:
            self.answering = not self._begun
        if self.answering:
            return SplitText(answer=self._answer(held))
        return SplitText(self._reasoning(held))

    def _within(self, text: str) -> SplitText:
        """Text inside the reasoning, perhaps with its end."""
        reasoning, end, rest = text.partition(self._marks.end)
        if end:
            self.answering = True
            return SplitText(self._reasoning(reasoning), self._answer(rest))
        keep = next(
            (
                n
                for n in range(len(self._marks.end) - 1, 0, -1)
                if text.endswith(self._marks.end[:n])
            ),
            0,
        )
        self._held = text[len(text) - keep :]
        return SplitText(self._reasoning(text[: len(text) - keep]))

    def _reasoning(self, text: str) -> str:
        if not self._told_reasoning:
            text = text.lstrip()
        text = self._space + text
        told = text.rstrip()
        self._space = text[len(told) :] if told else text
        self._told_reasoning = self._told_reasoning or bool(told)
        return told

    def _answer(self, text: str) -> str:
        if not self._told_answer:
            text = text.lstrip()
        self._told_answer = self._told_answer or bool(text)
        return text
