"""How a result stands in text. Every part that writes a result into a text uses this module.

In its own branch, a result is the tokens that the branch had when the call ended. A branch that is
given `own_pieces` goes on exactly as the branch that the result came of, whatever follows: one that
is built anew (for a cache, from a checkpoint, on another replica) gives the same answers.

In the text of another branch, a result is letters, whatever it spells: no special token is read in
it (`letters`). That holds when it was read before and when it is still to come, so that no answer
depends on when a result arrived, and nothing that a model repeats of a stranger's text becomes a
special token. It holds for what one branch gains of another, too (`Gained`), but for an option that
was chosen there, which is the program's own text and is read as the text before it.

Knows ops and replies; knows no branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from lmprog.wire.ops import Generate, Read, Select, TextPiece, TokensPiece
from lmprog.wire.replies import CallDone, CallReply, Chosen, Output, TextIs
from lmprog.wire.tool_calls import HERMES, SentCall


class Letters(str):
    """Text in which no special token is read, where texts are kept before they are pieces."""

    __slots__ = ()


OwnPiece: TypeAlias = TextPiece | TokensPiece
END_OF_TEXT = TokensPiece(())
"""What stands before it is tokenised by itself, with what the checkpoint puts before a text."""


def own_pieces(
    op: Generate | Select, reply: CallReply, *, is_first: bool = True
) -> tuple[OwnPiece, ...]:
    """What the call left in its branch, where branches are tokens. `is_first`: there may be nothing
    before it.
    """
    if isinstance(reply, Chosen):
        assert isinstance(op, Select), "only a select chooses"
        return choice_pieces(op.choices[reply.index])
    return output_pieces(reply.outputs[0], is_first=is_first)


def output_pieces(output: Output, *, is_first: bool = True) -> tuple[OwnPiece, ...]:
    """A generation's own tokens, also those that healed the text before, and what no token spells.
    An empty one ends the text before it all the same; where there is no text, its first token comes
    after what the checkpoint puts there.
    """
    if output.healed is not None:
        ids = (*output.healed, *output.tokens)
        return (TokensPiece(ids, output.rest, heals=True),)
    piece = TokensPiece(output.tokens, output.rest)
    return (END_OF_TEXT, piece) if is_first else (piece,)


def choice_pieces(text: str) -> tuple[OwnPiece, ...]:
    """An option that was chosen was tokenised with the text before it, and stands apart from what
    follows.
    """
    return TextPiece(text), END_OF_TEXT


def letters(text: str) -> TextPiece:
    """A result's text in the text of another branch, and wherever branches are texts."""
    return TextPiece(text, quoted=True)


def text_with_calls(text: str, calls: Sequence[SentCall]) -> str:
    """An answer whose calls came in fields, as one text: to be shown and quoted, in Hermes' form.
    It is never read again: nothing tells what was a call in it.
    """
    if not calls:
        return text
    before, between, after = HERMES.literals
    shown = [before + call.name + between + (call.arguments or "{}") + after for call in calls]
    return "\n".join(filter(None, (text.rstrip(), HERMES.between.join(shown))))


def result_texts(
    op: Generate | Select | Read, reply: CallDone | Chosen | TextIs
) -> tuple[str, ...]:
    """What references to the call stand for."""
    if isinstance(reply, CallDone):
        return tuple(text_with_calls(one.text, one.calls) for one in reply.outputs)
    if isinstance(reply, TextIs):
        return (reply.text,)
    assert isinstance(op, Select), "only a select chooses"
    return (op.choices[reply.index],)
