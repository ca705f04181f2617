"""Tokenises the texts of branches: long ones between steps and beside them, so that others go on
meanwhile.

A text of at most `LONG` characters is tokenised where it is needed. Of longer ones together at most
about `CHARS_PER_STEP` characters are encoded in a step, a few chunks of each text in turn; what the
encoder has kept costs nothing. The parts are those of `ChunkedEncoder`, so the tokens are those of
the whole text. A part longer than `LONG` (a text without spaces, say) is encoded in a thread, those
of different texts in turn, and its text waits for that.

Whoever's text it is pays for what is encoded in turns, here and in the thread. What clients ask of
texts and tokens by themselves is done one after the other for each account, as host work.

Knows the encoder, the branches that wait and who pays; of ops only these questions.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING

from lmprog import wire
from lmprog.errors import LmprogError, Overloaded
from lmprog.runtime.programs.branch import Awaited, BranchState, RuntimeBranch
from lmprog.runtime.programs.clients import HostWork, Pieces, failed, payer_of
from lmprog.runtime.scheduling.sequence import Client
from lmprog.runtime.text.text_service import TextService
from lmprog.runtime.text.tokenizer import ChunkedEncoder, TextPart
from lmprog.transport import ClientId

if TYPE_CHECKING:
    pass

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

    __slots__ = (
        "_finish",
        "_future",
        "_is_wanted",
        "_long",
        "_part",
        "_parts",
        "error",
        "is_done",
        "last",
        "length",
        "payer",
        "seconds_elsewhere",
        "size",
        "tokens",
    )

    def __init__(
        self,
        length: int | None,
        parts: Iterator[TextPart],
        is_wanted: Callable[[], bool],
        finish: Callable[[LongText], None],
        payer: Client,
    ) -> None:
        """`length`: of the text; None: it is not refused, however long. `finish` is called once,
        with the text, unless it is not wanted any more.
        """
        super().__init__()
        self.length = length
        self.payer = payer
        self.seconds_elsewhere = 0.0
        """That the thread has worked for it and nobody has paid for."""
        self.size = 0
        """Characters of the chunks that are tokenised."""
        self.tokens = array("i")
        """Of these characters."""
        self.last: TextPart | None = None
        """What follows the last chunk. In the end the encoder knows its tokens if it is long."""
        self.error: LmprogError | None = None
        """Why it cannot be tokenised."""
        self.is_done = False
        self._parts = parts
        self._part: TextPart | None = None
        self._future: Future[array[int]] | None = None
        """Of the part, while it is encoded in the thread."""
        self._long: list[tuple[TextPart, array[int]]] = []
        self._is_wanted = is_wanted
        self._finish = finish

    @property
    def is_known(self) -> bool:
        return self.is_done

    @property
    def is_elsewhere(self) -> bool:
        """Whether a part of it is in the thread."""
        return self._future is not None

    @property
    def can_go_on(self) -> bool:
        """Whether there is something to do for the loop."""
        return self._future is None or self._future.done()

    def encode_some(self, num_chars: int, texts: LongTexts) -> int:
        """Encodes about so many characters, and is done after the last ones. Returns what that
        cost, in encoded characters.
        """
        cost = 0
        while self._is_wanted() and cost < num_chars and self.can_go_on:
            try:
                cost += self._encode_part(texts)
            except LmprogError as error:
                self.error = error.without_frames()
            if self.error is not None or self._part is None:
                for part, tokens in self._long:
                    texts.encoder.keep_long(part, tokens)
                self.is_done = True
                self._finish(self)
                return cost
        self.is_done = not self._is_wanted()
        if self.is_done and self._future is not None:
            self._future.cancel()
            self._future = None
        return cost

    def _encode_part(self, texts: LongTexts) -> int:
        """Takes the tokens of the next part, if they can be had now. Returns what that cost."""
        cost, tokens = _KEPT_COST, None
        if self._future is None:
            self._part = next(self._parts, None)
        else:
            future, self._future = self._future, None
            tokens = future.result()
        part = self._part
        if part is None:
            return cost
        if tokens is None and len(part.text) > LONG:
            tokens = texts.encoder.kept(part)
            if tokens is None:
                self._future = texts.encode_elsewhere(self, part)
                return cost
        if tokens is not None:
            self._long.append((part, tokens))
        if part.is_last:
            self.last = part
            return cost
        if tokens is None:
            cost = _KEPT_COST if texts.encoder.kept(part) else len(part.text)
            self.tokens.extend(texts.encoder.tokens(part))
        else:
            self.tokens.extend(tokens)
        self.size += len(part.text)
        if self.length is not None:
            self.error = texts.service.overflow_after(self.length, self.size, len(self.tokens))
        return cost


class LongTexts:
    """The long texts that are being tokenised. `wake` of `turn` is called with each branch that may
    go on.
    """

    def __init__(
        self,
        encoder: ChunkedEncoder,
        service: TextService,
        thread: Executor | None = None,
        charge: Callable[[Client, float], None] = lambda payer, seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a thread the loop's is used for everything. `charge`: who pays for how many
        seconds of turns.
        """
        self.encoder = encoder
        self.service = service
        self.thread = thread
        self._charge = charge
        self.clock = clock
        self.under_way: deque[LongText] = deque()
        """Texts that have begun since the last turn, and those before that are not done."""
        self._left = CHARS_PER_STEP
        """What may still be encoded before the next turn."""

    @property
    def is_busy(self) -> bool:
        """Whether the next turn has something to do."""
        return any(text.can_go_on and not text.is_done for text in self.under_way)

    def is_long(self, text: str) -> bool:
        """Whether `text` must not be tokenised at once."""
        return len(text) > LONG

    def missing(self, branch: RuntimeBranch, endings: Iterable[str] = ()) -> Awaited | None:
        """What the branch must wait for before its pending text can be tokenised, also with each of
        `endings` after it. None where that is not long, or was long and no more is left than its
        last chunk and parts whose tokens are known.
        """
        if branch.tokenising is not None or branch.refusal is not None:
            return branch.tokenising
        if self.is_long(branch.pending):
            parts = branch.parts_with(self.encoder)
            first = next(parts)
            if not first.is_last or self._is_unknown(first):
                self._begin_pending(branch)
                if branch.tokenising is not None or branch.refusal is not None:
                    return branch.tokenising
        unknown = [
            part
            for ending in endings
            if len(branch.pending) + len(ending) > LONG
            for part in branch.parts_with(self.encoder, ending)
            if self._is_unknown(part)
        ]
        if unknown:
            self._begin_parts(branch, unknown)
        return branch.tokenising

    def is_known(self, branch: RuntimeBranch, ending: str = "") -> bool:
        """Whether the branch's pending text, with `ending` after it, is long, and little of it is
        not tokenised yet.
        """
        if len(branch.pending) + len(ending) <= LONG:
            return False
        num_unknown = 0
        for part in branch.parts_with(self.encoder, ending):
            if not self.is_long(part.text) or self.encoder.kept(part) is None:
                num_unknown += len(part.text)
        return num_unknown <= LONG

    def check_length(self, branch: RuntimeBranch) -> None:
        """Raises `ContextOverflow` where the branch's text is too long to be worth tokenising."""
        if branch.refusal is not None:
            raise branch.refusal
        if len(branch.pending) > LONG and not self.is_known(branch):
            self.service.check_length(branch.pending)

    def tokenise_certain(self, branch: RuntimeBranch) -> None:
        """Tokenises what later text cannot change, so that forks and options need not do it again.

        Raises `ContextOverflow` where the text is too long to fit at all.
        """
        self.check_length(branch)
        cut = self.encoder.cutter.last(branch.pending)
        if cut:
            branch.tokenise_up_to(cut, self.encoder)

    def encode(
        self,
        text: str,
        is_wanted: Callable[[], bool],
        reply: Callable[[list[int] | LmprogError], None],
        payer: Client = None,
    ) -> None:
        """Calls `reply` with the tokens of `text`, now or in a later turn."""

        def finish(long: LongText) -> None:
            last = () if long.last is None else self.encoder.tokens(long.last)
            reply([*long.tokens, *last] if long.error is None else long.error)

        began = self.clock()
        self._begin(LongText(len(text), self.encoder.parts(text, ()), is_wanted, finish, payer))
        self._charge(payer, self.clock() - began)

    def encode_elsewhere(self, text: LongText, part: TextPart) -> Future[array[int]]:
        """The tokens of a part of `text`; where its length is checked, also why it cannot fit."""

        def encode() -> array[int]:
            began = time.thread_time()
            try:
                if text.length is not None:
                    self.service.check_length(part.text)
                return self.encoder.encode_alone(part)
            finally:
                text.seconds_elsewhere += time.thread_time() - began

        if self.thread is not None:
            return self.thread.submit(encode)
        future: Future[array[int]] = Future()
        try:
            future.set_result(encode())
        except LmprogError as error:
            future.set_exception(error)
        return future

    def turn(self, wake: Callable[[RuntimeBranch], None]) -> None:
        """Encodes what may be encoded in a step, a part of each text in turn."""
        self._left = CHARS_PER_STEP
        self.encoder.forget_long()
        elsewhere: list[LongText] = []  # or done there meanwhile: that is the next turn's
        while self.under_way and self._left > 0:
            text = self.under_way.popleft()
            if text.is_done:
                continue
            began = self.clock()
            self._left -= text.encode_some(min(self._left, CHARS_IN_TURN), self)
            self._charge(text.payer, self.clock() - began)
            if self.thread is not None and not text.is_elsewhere:
                self._charge(text.payer, text.seconds_elsewhere)
                text.seconds_elsewhere = 0.0
            if text.is_elsewhere:
                elsewhere.append(text)
            elif not text.is_done:
                self.under_way.append(text)
            else:
                for branch in text.waiting:
                    wake(branch)
                text.waiting.clear()
        self.under_way += elsewhere

    def _is_unknown(self, part: TextPart) -> bool:
        return self.is_long(part.text) and self.encoder.kept(part) is None

    def _begin_pending(self, branch: RuntimeBranch) -> None:
        """Begins the branch's pending text, whose chunks it takes; that may be done at once."""

        def finish(text: LongText) -> None:
            branch.tokenising = None
            branch.refusal = text.error
            if text.error is None and text.size:
                branch.take_tokenised(text.size, text.tokens, self.encoder)

        parts = branch.parts_with(self.encoder)
        branch.tokenising = LongText(
            len(branch.pending), parts, _wanted(branch), finish, branch.payer
        )
        self._begin(branch.tokenising)

    def _begin_parts(self, branch: RuntimeBranch, parts: list[TextPart]) -> None:
        """Begins parts that the encoder shall know for a call of the branch."""

        def finish(text: LongText) -> None:
            branch.tokenising = None

        branch.tokenising = LongText(None, iter(parts), _wanted(branch), finish, branch.payer)
        self._begin(branch.tokenising)

    def _begin(self, text: LongText) -> None:
        """Encodes what may be encoded before the next turn."""
        if self._left > 0 and all(one.is_done for one in self.under_way):
            self._left -= text.encode_some(self._left, self)
        self.under_way.append(text)


def _wanted(branch: RuntimeBranch) -> Callable[[], bool]:
    """Whether the branch still waits for its text."""
    return lambda: branch.failure is None and branch.state is BranchState.OPEN


MOST_ASKED = 32 * 1024 * 1024
"""Characters, or tokens, of an account's questions that wait; each counts as some more."""
_QUESTION = 64


class Spelling:
    """Answers what clients ask of texts and tokens: `send` takes the replies, `is_open` says of a
    client whether it is still there.
    """

    def __init__(
        self,
        texts: LongTexts,
        work: HostWork,
        send: Callable[[ClientId, wire.Reply], object],
        is_open: Callable[[ClientId], bool],
    ) -> None:
        self._texts = texts
        self._work = work
        self._send = send
        self._is_open = is_open
        self._asked: dict[Client, deque[tuple[ClientId, wire.Encode | wire.Decode]]] = {}
        """Of each account that has any ..."""
        self._sizes: dict[Client, int] = {}
        """... and how much that is."""

    def ask(self, client: ClientId, op: wire.Encode | wire.Decode) -> None:
        payer = payer_of(client, op.account)
        if isinstance(op, wire.Encode) and self._texts.is_long(op.text):
            wanted, told = partial(self._is_open, client), partial(self._tell, client, op)
            self._texts.encode(op.text, wanted, told, payer)
            return
        asked = self._asked.get(payer)
        if asked is None:
            asked = self._asked[payer] = deque()
            self._sizes[payer] = 0
            self._work.begin(payer, self._answered(payer, asked), lambda: True)
        if self._sizes[payer] >= MOST_ASKED:
            says = "this client waits for more texts and tokens than may wait; ask again later."
            self._send(client, failed(op.call, Overloaded(says)))
            return
        self._sizes[payer] += _size(op)
        asked.append((client, op))

    def _answered(
        self, payer: Client, asked: deque[tuple[ClientId, wire.Encode | wire.Decode]]
    ) -> Pieces:
        service = self._texts.service
        while asked:
            client, op = asked.popleft()
            self._sizes[payer] -= _size(op)
            if self._is_open(client):
                try:
                    reply: wire.Reply = (
                        service.encode(op) if isinstance(op, wire.Encode) else service.decode(op)
                    )
                except LmprogError as error:
                    reply = failed(op.call, error)
                self._send(client, reply)
                yield
        del self._asked[payer], self._sizes[payer]

    def _tell(self, client: ClientId, op: wire.Encode, outcome: list[int] | LmprogError) -> None:
        if isinstance(outcome, LmprogError):
            self._send(client, failed(op.call, outcome))
        else:
            self._send(client, self._texts.service.encoded(op, outcome))


def _size(op: wire.Encode | wire.Decode) -> int:
    return _QUESTION + len(op.text if isinstance(op, wire.Encode) else op.tokens)
