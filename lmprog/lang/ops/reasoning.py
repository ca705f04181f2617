"""Separates a model's reasoning from its answer by the marks around the reasoning.

The reasoning is the text between the marks at the start; the answer is the rest. Leading white
space is removed from both, trailing white space from the reasoning. Works on complete and on
streamed text, with the same result. Knows texts only; `cursor` keeps reasoning out of a branch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from lmprog.errors import InvalidParameter, not_allowed


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks around a model's reasoning. `opened`: the prompt already contains the
    opening mark.
    """

    begin: str = "<think>"
    end: str = "</think>"
    opened: bool = False

    def split(self, text: str) -> tuple[str, str]:
        """The reasoning and the answer of a complete text. Without a closing mark there is no
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
}  # SGLang's model names


def marks_of(wanted: Wanted | None) -> Marks | None:
    """The requested marks; None if reasoning is not separated. Raises `InvalidParameter`."""
    if wanted is None or wanted is False:
        return None
    marks = _THINK if wanted is True else Marks(*wanted) if isinstance(wanted, tuple) else wanted
    if not isinstance(marks, Marks) or not marks.end or not (marks.begin or marks.opened):
        allowed = "True, or a pair of texts: what opens and what closes the reasoning"
        raise not_allowed("reasoning", wanted, allowed)
    return marks


def marks_of_model(model_type: str) -> Marks:
    """The marks of a model family, by SGLang's name. Raises `InvalidParameter` for an
    unknown name.
    """
    marks = MODEL_TYPES.get(model_type.lower())
    if marks is None:
        allowed = ", ".join(MODEL_TYPES)
        raise InvalidParameter(
            f"there is no model_type {model_type!r}; there are: {allowed} (or give "
            f"marks=(begin, end))",
            name="model_type",
            value=model_type,
            allowed=allowed,
        )
    return marks


@dataclass(frozen=True, slots=True)
class SplitText:
    """The reasoning and the answer in a piece of text."""

    reasoning: str = ""
    answer: str = ""


class Splitter:
    """Separates streamed text. Holds back text that may become a mark, and possibly
    trailing space.
    """

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._held = ""
        self._begun = marks.opened  # inside the reasoning
        self._looks_for_begin = bool(marks.begin)
        self._space = ""  # white space of the reasoning, held back until more text follows
        self._has_reasoning = self._has_answer = False
        self.answering = False
        """Whether the reasoning is over, or there is none."""

    def push(self, text: str) -> SplitText:
        """The parts that are certain after this piece."""
        text, self._held = self._held + text, ""
        if self._looks_for_begin:
            begin = self._marks.begin
            stripped = text.lstrip()
            if (
                begin.startswith(stripped) and stripped != begin
            ):  # also if there was only white space so far
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
        """The held-back rest, at the end of the text."""
        held, self._held = self._held, ""
        if self._looks_for_begin:
            self.answering = not self._begun
        if self.answering:
            return SplitText(answer=self._answer(held))
        return SplitText(self._reasoning(held))

    def _within(self, text: str) -> SplitText:
        """Text inside the reasoning, possibly with its end."""
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
        if not self._has_reasoning:
            text = text.lstrip()
        text = self._space + text
        visible = text.rstrip()
        self._space = text[len(visible) :] if visible else text
        self._has_reasoning = self._has_reasoning or bool(visible)
        return visible

    def _answer(self, text: str) -> str:
        if not self._has_answer:
            text = text.lstrip()
        self._has_answer = self._has_answer or bool(text)
        return text
