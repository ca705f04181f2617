"""What a task makes: a document of segments, some of which the model has to say.

An answer segment knows enough to be judged: its choices when it is a selection, its schema when it
is JSON. Knows no tokens.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

END = "<|end|>"
SYSTEM = "<|system|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
PAD = "<|pad|>"
SPECIALS = (END, SYSTEM, USER, ASSISTANT, PAD)


class Family(enum.Enum):
    """The families of the evaluation table."""

    READING = "reading"
    EXTRACTION = "extraction"
    CLASSIFICATION = "classification"
    FEW_SHOT = "few-shot"
    ARITHMETIC = "arithmetic"
    DIALOGUE = "dialogue"
    TOOLS = "tools"
    WRITING = "writing"
    CALLS = "calls"
    CORRECTION = "asked again"
    TAGGED = "tagged"


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of text. `answer` is what the model learns to say; `judged` answers may be asked in
    evaluation. `steps` are what has to be worked out before the answer, one class of each kind of
    `probes.STEPS`: in training, probes look for them inside of the network.
    """

    text: str
    answer: bool = False
    judged: bool = False
    choices: tuple[str, ...] = ()
    schema: Mapping[str, object] | None = None
    kind: str = ""
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """A prompt with its answers, in order. `text` is their concatenation."""

    family: Family
    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(segment.text for segment in self.segments)


@dataclass(slots=True)
class Page:
    """Collects the segments of one document."""

    family: Family
    segments: list[Segment] = field(default_factory=list)

    def text(self, text: str) -> None:
        """Append text that is given."""
        if text:
            self.segments.append(Segment(text))

    def answer(
        self,
        text: str,
        *,
        judged: bool = True,
        choices: Sequence[str] = (),
        schema: Mapping[str, object] | None = None,
        kind: str = "",
        steps: tuple[int, ...] = (),
    ) -> None:
        """Append text that the model has to say, with its ending."""
        self.segments.append(Segment(text, True, judged, tuple(choices), schema, kind, steps))

    def done(self) -> Document:
        """The document, ended."""
        while self.segments and not self.segments[-1].answer and not self.segments[-1].text.strip():
            self.segments.pop()
        if self.segments and self.segments[-1].answer and not self.segments[-1].text.endswith(END):
            self.segments.append(Segment(END, True))
        return Document(self.family, tuple(self.segments))
