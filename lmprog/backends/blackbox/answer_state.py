"""What a branch on an API holds: its transcript, and text generated ahead for its next calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lmprog import wire
from lmprog.backends.blackbox.speculation import Speculated
from lmprog.backends.blackbox.transcript import Kind, Transcript
from lmprog.backends.branch_text import LeftBehind, Piece


@dataclass(frozen=True, slots=True)
class AnswerState:
    """The transcript of a branch and its speculated text. Immutable."""

    kind: Kind
    """The prompts that the model takes."""
    transcript: Transcript
    num_spec_tokens: int = 0
    """Tokens that a request may generate for later calls; 0 disables speculation."""
    speculated: Speculated | None = None
    has_missed: bool = False
    """Whether the open turn was speculated as a whole and the result did not match its beginning.
    """
    tools: wire.ToolOffer | None = None
    """The tools that the branch was last asked with."""

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return self.transcript.pieces

    def plus(self, pieces: Sequence[Piece]) -> AnswerState:
        """A copy with `pieces` appended. Keeps the speculated text as far as it matches them."""
        left, has_missed = self.speculated, self.has_missed
        for piece in pieces:
            if isinstance(piece, wire.RoleBegin | wire.RoleEnd):
                left, has_missed = None, False
            elif isinstance(piece, wire.TextPiece | LeftBehind) and left is not None:
                left = left.after(piece.text)
        transcript = self.transcript.plus(pieces, self.kind)
        return replace(self, transcript=transcript, speculated=left, has_missed=has_missed)

    def after_fork(self) -> AnswerState:
        """What a forked branch and its other children hold. Sampled text is a single sample, so
        only the first child inherits it; at temperature 0 all of them do.
        """
        if self.speculated is None or self.speculated.alike.temperature == 0:
            return self
        return replace(self, speculated=None)

    def with_result(
        self, op: wire.Generate | wire.Select, reply: wire.CallReply, left: Speculated | None = None
    ) -> AnswerState:
        """Behind a call and its reply, after which `left` is known of the text to come. Where
        branches are text, a generation of no tokens leaves nothing behind.
        """
        tools = self.tools
        if isinstance(op, wire.Generate):
            if op.sampling.max_tokens == 0 and self.kind != "pieces":
                return self
            tools = op.tools or tools
        pieces = (*self.pieces, LeftBehind(op, reply))
        transcript = replace(self.transcript, pieces=pieces)
        return replace(self, transcript=transcript, speculated=left, tools=tools)
