"""Tokenises long texts a part at a time, between steps, so that others go on meanwhile.

A text of at most `LONG` characters is tokenised where it is needed. Of longer ones together at most
about `CHARS_PER_STEP` characters are encoded in a step, a few chunks of each text in turn; what the
encoder has kept costs nothing. The chunks are those of `ChunkedEncoder`, so the tokens are those of
the whole text. A part without any cut is one chunk, however long it is.

Knows the encoder and the branches that wait; does not know ops, clients or steps.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator

from lmprog.errors import LmprogError
from lmprog.runtime.programs.branch import Awaited, BranchState, RuntimeBranch
from lmprog.runtime.text.chunked_encoder import ChunkedEncoder, EncodedChunk
from lmprog.runtime.text.text_service import TextService

LONG = 16_384
"""Characters of the longest text that is tokenised at once: some milliseconds."""
CHARS_PER_STEP = 16_384
"""Characters of long texts that are encoded in a step; the last chunk may go beyond."""
CHARS_IN_TURN = 4_096
"""Characters of one text that are encoded before it is the next one's turn."""
_KEPT_COST = 16
"""Encoded characters that take as long as looking up a chunk that was kept."""


class LongText(Awaited):
    """What has been tokenised of one long text so far."""

    __slots__ = ("_chunks", "_finish", "_is_wanted", "error", "is_done", "length", "size", "tokens")

    def __init__(
        self,
        length: int,
        chunks: Iterator[EncodedChunk],
        is_wanted: Callable[[], bool],
        finish: Callable[[LongText], None],
    ) -> None:
        """`finish` is called once, with the text, unless it is not wanted any more."""
        super().__init__()
        self.length = length
        self.size = 0
        """Characters that are tokenised. In the end what follows the last chunk is left over."""
        self.tokens = array("i")
        self.error: LmprogError | None = None
        """Why it cannot be tokenised."""
        self.is_done = False
        self._chunks = chunks
        self._is_wanted = is_wanted
        self._finish = finish

    @property
    def is_known(self) -> bool:
        return self.is_done

    def encode_part(self, num_chars: int, texts: TextService) -> int:
        """Encodes about so many characters, and is done after the last ones. Returns what that
        cost, in encoded characters.
        """
        cost = 0
        while self._is_wanted() and cost < num_chars:
            chunk = None
            try:
                chunk = next(self._chunks, None)
            except LmprogError as error:
                self.error = error
            if chunk is not None:
                self.size = chunk.end
                self.tokens.extend(chunk.tokens)
                cost += chunk.num_encoded or _KEPT_COST
                self.error = texts.overflow_after(self.length, self.size, len(self.tokens))
            if chunk is None or self.error is not None:
                self.is_done = True
                self._finish(self)
                return cost
        self.is_done = not self._is_wanted()
        return cost


class LongTexts:
    """The long texts that are being tokenised. `wake` of `turn` is called with each branch that may
    go on.
    """

    def __init__(self, encoder: ChunkedEncoder, texts: TextService) -> None:
        self._encoder = encoder
        self._texts = texts
        self._queue: deque[LongText] = deque()
        self._left = CHARS_PER_STEP
        """What may still be encoded before the next turn."""

    @property
    def is_busy(self) -> bool:
        """Whether a text waits for the next turn."""
        return bool(self._queue)

    def is_long(self, text: str) -> bool:
        """Whether `text` must not be tokenised at once, and can be taken apart."""
        return len(text) > LONG and self._encoder.has_chunk(text)

    def missing(self, branch: RuntimeBranch) -> LongText | None:
        """What the branch must wait for before its pending text can be tokenised. None where that
        is not long, or was long and no more than its last chunk is left.
        """
        if isinstance(branch.tokenising, LongText):
            return branch.tokenising
        if branch.refusal is not None or not self.is_long(branch.pending):
            return None

        def is_wanted() -> bool:
            return branch.failure is None and branch.state is BranchState.OPEN

        def finish(text: LongText) -> None:
            branch.tokenising = None
            branch.refusal = text.error
            if text.error is None:
                branch.take_tokenised(text.size, text.tokens, self._encoder)

        chunks = self._encoder.chunks(branch.pending, branch.quoted, start=not branch.tokens)
        text = LongText(len(branch.pending), chunks, is_wanted, finish)
        branch.tokenising = text
        return None if self._begin(text) else text

    def encode(
        self,
        text: str,
        is_wanted: Callable[[], bool],
        reply: Callable[[list[int] | LmprogError], None],
    ) -> None:
        """Calls `reply` with the tokens of `text`, now or in a later turn."""

        def finish(long: LongText) -> None:
            if long.error is not None:
                reply(long.error)
                return
            rest = text[long.size :]
            try:
                self._texts.check_length(rest)
                reply([*long.tokens, *self._encoder.encode(rest, start=not long.size)])
            except LmprogError as error:
                reply(error)

        self._begin(LongText(len(text), self._encoder.chunks(text, ()), is_wanted, finish))

    def _begin(self, text: LongText) -> bool:
        """Encodes what may be encoded before the next turn; whether that is all."""
        if not self._queue and self._left > 0:
            self._left -= text.encode_part(self._left, self._texts)
        if not text.is_done:
            self._queue.append(text)
        return text.is_done

    def turn(self, wake: Callable[[RuntimeBranch], None]) -> None:
        """Encodes what may be encoded in a step, a part of each text in turn."""
        self._left = CHARS_PER_STEP
        while self._queue and self._left > 0:
            text = self._queue.popleft()
            self._left -= text.encode_part(min(self._left, CHARS_IN_TURN), self._texts)
            if not text.is_done:
                self._queue.append(text)
                continue
            for branch in text.waiting:
                wake(branch)
            text.waiting.clear()
