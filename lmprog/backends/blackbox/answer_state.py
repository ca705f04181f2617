"""Where a branch of an API is: what it holds, and what was generated ahead for its next calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lmprog import wire
from lmprog.backends.blackbox.api import Api
from lmprog.backends.blackbox.speculation import Speculated
from lmprog.backends.blackbox.transcript import Item, SaidText, Transcript, TurnBegin, TurnEnd


@dataclass(frozen=True, slots=True)
class AnswerState:
    """Where a branch stands."""

    transcript: Transcript = field(default_factory=Transcript)
    num_spec_tokens: int = 0
    """How many tokens a request may say for later calls; 0: no speculation."""
    speculated: Speculated | None = None
    has_missed: bool = False
    """Whether the open turn was asked for as a whole, and began otherwise than it does here."""

    def plus(self, items: Sequence[Item], api: Api) -> AnswerState:
        """With `items` appended. What was speculated stays as far as it says the same."""
        left, has_missed = self.speculated, self.has_missed
        for item in items:
            if isinstance(item, TurnBegin | TurnEnd):
                left, has_missed = None, False
            elif left is not None:
                left = left.after(item if isinstance(item, str) else item.text)
        transcript = self.transcript.plus(items, api.kind)
        return replace(self, transcript=transcript, speculated=left, has_missed=has_missed)

    def forked(self, size: int) -> list[AnswerState]:
        """The states of `size` children. A text that was drawn is one sample, so one child has it;
        at temperature 0 all would get the same.
        """
        rest = self if self._is_certain() else replace(self, speculated=None)
        return [self, *(rest for _ in range(size - 1))]

    def after_fork(self) -> AnswerState:
        """The branch itself, when its first child has the sample."""
        return self if self._is_certain() else replace(self, speculated=None)

    def _is_certain(self) -> bool:
        return self.speculated is None or self.speculated.alike.temperature == 0

    def speculating(self, num_tokens: int) -> AnswerState:
        return replace(self, num_spec_tokens=num_tokens)

    def said(
        self, text: str, left: Speculated | None = None, output: wire.Output | None = None
    ) -> AnswerState:
        result = (
            SaidText(text)
            if output is None
            else SaidText(text, output.tokens, output.seam, output.rest)
        )
        return replace(self, transcript=self.transcript.said(result), speculated=left)
