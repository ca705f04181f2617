"""The state of a branch on an API: its transcript, and text generated ahead for its next calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lmprog import wire
from lmprog.backends.blackbox.api import Api
from lmprog.backends.blackbox.speculation import Speculated
from lmprog.backends.blackbox.transcript import (
    Item,
    Kind,
    ResultText,
    Transcript,
    TurnBegin,
    TurnEnd,
)


@dataclass(frozen=True, slots=True)
class AnswerState:
    """The transcript of a branch and its speculated text. Immutable."""

    transcript: Transcript = field(default_factory=Transcript)
    num_spec_tokens: int = 0
    """Tokens that a request may generate for later calls; 0 disables speculation."""
    speculated: Speculated | None = None
    has_missed: bool = False
    """Whether the open turn was speculated as a whole and the result did not match its beginning.
    """
    tools: wire.ToolOffer | None = None
    """The tools that the branch was last asked with."""

    def plus(self, items: Sequence[Item], api: Api) -> AnswerState:
        """A copy with `items` appended. Keeps the speculated text as far as it matches them."""
        left, has_missed = self.speculated, self.has_missed
        for item in items:
            if isinstance(item, TurnBegin | TurnEnd):
                left, has_missed = None, False
            elif left is not None:
                left = left.after(item if isinstance(item, str) else item.text)
        transcript = self.transcript.plus(items, api.kind)
        return replace(self, transcript=transcript, speculated=left, has_missed=has_missed)

    def forked(self, size: int) -> list[AnswerState]:
        """The states of `size` children. Sampled text is a single sample, so only the first child
        inherits it; at temperature 0 all of them do.
        """
        rest = self if self._is_certain() else replace(self, speculated=None)
        return [self, *(rest for _ in range(size - 1))]

    def after_fork(self) -> AnswerState:
        """The state of the forked branch itself, without a sample that its first child
        inherited.
        """
        return self if self._is_certain() else replace(self, speculated=None)

    def _is_certain(self) -> bool:
        return self.speculated is None or self.speculated.alike.temperature == 0

    def speculating(self, num_tokens: int) -> AnswerState:
        return replace(self, num_spec_tokens=num_tokens)

    def with_prompt_computed(self, output: wire.Output, kind: Kind) -> AnswerState:
        """Behind a generation of no tokens: where branches are tokens, it ends the text before."""
        return self.with_result("", output=output) if kind == "items" else self

    def with_result(
        self, text: str, left: Speculated | None = None, output: wire.Output | None = None
    ) -> AnswerState:
        transcript = self.transcript.with_result(ResultText(text, output))
        return replace(self, transcript=transcript, speculated=left)
