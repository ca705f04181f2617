"""Separates a model's reasoning from its answer by the marks around the reasoning.

The reasoning is the text between the marks at the start; the answer is the rest. Leading white
space is removed from both, trailing white space from the reasoning. Works on complete and on
streamed text, with the same result. An answer's constraint holds for what comes behind. Knows texts
and constraints; what a model's marks are, its template says (`runtime/text/tool_call_derivation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from lmprog import wire
from lmprog.errors import not_allowed
from lmprog.tool_calls.harmony import ENDLESS, HarmonyStream, Stretch, ThoughtText
from lmprog.tool_calls.reading import ParsedCall
from lmprog.tool_calls.stream import CallStream


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks around a model's reasoning. `opened`: the prompt already contains the
    opening mark.
    """

    begin: str = "<think>"
    end: str = "</think>"
    opened: bool = False
    are_models: bool = False
    """Those of the model's own template are meant, and these where it has none."""

    def of_model(self, form: wire.ThoughtForm, begins_turn: bool) -> Marks:
        """These, or those of the model's template. `begins_turn`: the answer begins where the
        template may have opened a thought.
        """
        if not self.are_models:
            return self
        if not form.begin:
            return replace(self, are_models=False)
        return Marks(form.begin, form.end, begins_turn and form.prompt == "open")

    def split(self, text: str) -> tuple[str, str]:
        """The reasoning and the answer of a complete text. Without a closing mark there is no
        answer.
        """
        splitter = Splitter(self)
        first, last = splitter.push(text), splitter.finish()
        return first.reasoning + last.reasoning, first.answer + last.answer

    def stretches(self, text: str) -> list[Stretch]:
        """Where in a complete text the reasoning is, with its marks."""
        splitter = Splitter(self)
        splitter.push(text)
        splitter.finish()
        return [(0, splitter.num_reasoning)]


Wanted: TypeAlias = bool | tuple[str, str] | Marks
"""`gen(reasoning=...)`: True for the model's own marks, a pair of other marks, or `Marks`."""

THOUGHT = "_reasoning_content"
"""SGLang's end of the name of what was thought before the answer that is called like the rest of
it.
"""
_OF_MODEL = Marks(are_models=True)


def marks_of(wanted: Wanted | None) -> Marks | None:
    """The requested marks; None if reasoning is not separated. Raises `InvalidParameter`."""
    if wanted is None or wanted is False:
        return None
    marks = _OF_MODEL if wanted is True else Marks(*wanted) if isinstance(wanted, tuple) else wanted
    if not isinstance(marks, Marks) or not marks.end or not (marks.begin or marks.opened):
        allowed = "True, or a pair of texts: what opens and what closes the reasoning"
        raise not_allowed("reasoning", wanted, allowed)
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
        self._num_read = 0
        self.answering = False
        """Whether the reasoning is over, or there is none."""
        self.num_reasoning = 0
        """At the end: the characters up to behind the closing mark; `ENDLESS` without one."""

    def push(self, text: str) -> SplitText:
        """The parts that are certain after this piece."""
        self._num_read += len(text)
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
        self.num_reasoning = ENDLESS
        return SplitText(self._reasoning(held))

    def _within(self, text: str) -> SplitText:
        """Text inside the reasoning, possibly with its end."""
        reasoning, end, rest = text.partition(self._marks.end)
        if end:
            self.answering = True
            self.num_reasoning = self._num_read - len(rest)
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


class ThoughtStream:
    """An answer that comes in pieces and may begin with a thought. `rest` reads what comes behind
    it; None: all of that is text.
    """

    def __init__(self, marks: Marks, rest: CallStream | HarmonyStream | None) -> None:
        self._splitter = Splitter(marks)
        self._rest = rest

    def feed(self, text: str, tags: Sequence[int] = ()) -> list[str | ParsedCall | ThoughtText]:
        """What is certain now. `tags`: where in `text` special tokens begin."""
        split = self._splitter.push(text)
        begin = len(text) - len(split.answer)
        return self._parts(split, [at - begin for at in tags if at >= begin])

    def finish(self, output: wire.Output | None = None) -> list[str | ParsedCall | ThoughtText]:
        """The text has ended, as `output` says."""
        found = self._parts(self._splitter.finish(), ())
        return found if self._rest is None else [*found, *self._rest.finish(output)]

    @property
    def is_cut(self) -> bool:
        """At the end: whether that came within what was begun as a call."""
        return self._rest is not None and self._rest.is_cut

    def _parts(self, split: SplitText, tags: Sequence[int]) -> list[str | ParsedCall | ThoughtText]:
        found: list[str | ParsedCall | ThoughtText] = []
        if split.reasoning:
            found.append(ThoughtText(split.reasoning))
        if split.answer and self._rest is None:
            found.append(split.answer)
        elif split.answer and self._rest is not None:
            found += self._rest.feed(split.answer, tags)
        return found


def tokens_in(stretches: Sequence[Stretch], ends: Sequence[int]) -> int:
    """How many tokens begin in one of the stretches. `ends`: those of `wire.Output`. A token counts
    where its first character is: one that spells the end of a thought and more is the thought's.
    """
    begins = (0, *ends[:-1]) if ends else ()
    return sum(sum(begin <= at < end for at in begins) for begin, end in stretches)


_SPACE = wire.Regex(r"\s{0,4}")


def after_thought(
    form: wire.ThoughtForm, state: wire.ThoughtState, answer: wire.Constraint, may_be_cut: bool
) -> wire.Constraint:
    """An answer that begins with a thought, of which only the end is known. `may_be_cut`: the text
    may end in it; else it is closed while there are tokens for the answer.
    """
    if state == "closed":
        return answer
    opening = () if state == "open" else (wire.Choices((form.begin,)),)
    thought = wire.InOrder((*opening, wire.FreeText((), form.end), _SPACE))
    whole: wire.Constraint = wire.InOrder((thought, answer))
    options = [whole] if state == "open" else [whole, answer]
    if may_be_cut:
        options.append(wire.InOrder((*opening, wire.FreeText((form.end,)))))
    return options[0] if len(options) == 1 else wire.AnyOf(tuple(options))
