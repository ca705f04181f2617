"""Token healing: the seam between literal text and what is generated after it.

A prompt that ends with "http:" has a last token ":" that the model has hardly ever seen there,
since the text that it learned from has "://" in one token. So the last token of literal text is
taken back, and its bytes, the *seam*, are generated again: among the tokens that are a prefix of
the seam, those that are the seam, and those that begin with the seam and go on, each token is
sampled as any other, with the call's own sampling parameters, until the seam is complete. From
there on nothing is different. So the distribution over texts is that of the prompt with its last
token sampled once more; where the model samples the old token, all that follows is what it would
have been.

What is healed, and what is not:

- Only a branch that ends in literal text, appended by the program (also by a reference to another
  branch's result). A branch that ends in generated tokens, in the winner of a `select`, in tokens
  given as ids, or in what a chat template writes around a turn, is never healed; neither is a
  special token written in the text.
- Only one token is taken back. A trailing space is the most frequent case: " " becomes " word".
- Only where some token begins with the seam and goes on, as the call's constraint allows. Otherwise
  there is nothing to decide, the prompt is kept as it is, and nothing more is computed. Where there
  is one, the call takes at most one more step for each token inside the seam (most often one), and
  recomputes the page of the last token.
- A constraint begins after the seam: a token that goes beyond the seam must go on as the constraint
  allows. A grammar of llguidance cannot be asked about bytes, so nothing is healed before one.
- A token that begins or ends inside a character is kept: a replacement for part of a character is
  not text.
- The prompt's only token is kept: something must precede the first sampled token.
- A `select` is not healed: its options are tokenised together with the text before them, which has
  the same effect exactly.
- Where log-probabilities of the prompt are wanted, its tokens are kept; also where only some tokens
  may be sampled at all, and where nothing is to be generated.
- Where the prompt, `max_tokens` and a seam spelled byte by byte would not fit the context, nothing
  is healed.

The token taken back belongs to each sequence; forks and the `n` results of a call share all before
it.

Reported: `usage.prompt` counts the prompt as it was written. Tokens inside the seam are part of the
prompt; they are not in `tokens`, `logprobs`, `usage.generated`, `max_tokens` and `min_tokens`. The
token that goes beyond the seam is the first generated one. The seam's text is not given out again,
streamed or not, and no stop is found in it.

Knows branches, tokens and sampling parameters; `lmprog.constraints.seam` makes the masks.
"""

from __future__ import annotations

from array import array
from functools import cached_property

from lmprog import wire
from lmprog.constraints.constraint import Constraint
from lmprog.constraints.pieces import Pieces
from lmprog.constraints.seam import Seam, Stops
from lmprog.runtime.programs.branch import RuntimeBranch
from lmprog.runtime.text.tokenizer import Tokenizer


class Healer:
    """Finds seams, for one tokenizer and a model that has logits for `vocab_size` tokens."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, longest: int) -> None:
        """`longest`: the most tokens of one sequence."""
        self._tokenizer = tokenizer
        self._num_tokens = min(vocab_size, tokenizer.vocab_size)
        self._longest = longest

    @cached_property
    def pieces(self) -> Pieces:
        """Made on first use."""
        excluded = set(self._tokenizer.eos_ids)
        texts = (
            None if token in excluded else self._tokenizer.token_bytes(token)
            for token in range(self._num_tokens)
        )
        return Pieces(list(texts))

    def seam(
        self,
        branch: RuntimeBranch,
        prompt: array[int],
        op: wire.Generate,
        max_tokens: int,
        constraint: Constraint | None,
    ) -> Seam | None:
        """The end of `prompt`, the branch's tokens, that `op` generates again; None for nothing."""
        sampling = op.sampling
        if (
            not (op.heal and branch.ends_literal)
            or len(prompt) < 2
            or sampling.prompt_logprobs is not None
            or sampling.allowed_token_ids is not None
            or max_tokens == 0
        ):
            return None
        piece = self._tokenizer.token_bytes(prompt[-1])
        if not piece or prompt[-1] in self._tokenizer.eos_ids or prompt[-1] >= self._num_tokens:
            return None
        if not (_is_text(piece) and branch.pending.endswith(piece.decode())):
            return None
        if constraint is not None and constraint.engine != "lmprog":
            return None
        if len(prompt) - 1 + len(piece) + max_tokens > self._longest:
            return None
        seam = Seam(piece, self.pieces, constraint, sampling.stop_token_ids, prompt[-1])
        return seam if seam.beyond(0, max_tokens) else None

    def stops(self, sampling: wire.SamplingParams, constraint: Constraint) -> Stops | None:
        """How a constrained text may end besides by its constraint; None for no other way."""
        if not (sampling.stop or sampling.stop_token_ids):
            return None
        return Stops(
            tuple(stop.encode() for stop in sampling.stop), sampling.stop_token_ids, self.pieces
        )


def _is_text(piece: bytes) -> bool:
    """Whether no character is cut."""
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True
