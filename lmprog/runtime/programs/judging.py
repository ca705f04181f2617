"""What a judge is asked about the results of a gen: the same text after each of them, and choices.

The text is tokenised after each result anew, since the seam may have other tokens. Where that is
much, it is done in a thread, and the call waits while others go on. Knows texts and tokens; when a
judge is asked, and what becomes of its verdict, is the delivery's matter.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future

from lmprog import wire
from lmprog.errors import LmprogError
from lmprog.runtime.programs.branch import RuntimeBranch
from lmprog.runtime.programs.long_texts import LONG
from lmprog.runtime.programs.result_selection import ResultSelector
from lmprog.runtime.programs.select_scoring import Ballot, make_ballot
from lmprog.runtime.text.text_service import TextService
from lmprog.runtime.text.tokenizer import Cutter, TextEncoder, Tokenizer

Ballots = dict[int, Ballot]
"""By the number of the result."""
Reply = Callable[[Ballots | LmprogError], None]
Asked = tuple[Future[Ballots], Reply]
"""What is tokenised, and who is told of it."""


class Judging:
    """The ballots of judges. One thread calls the methods."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        encoder: TextEncoder,
        texts: TextService,
        check_fits: Callable[[int, int], None],
        thread: Executor | None,
        asked: list[Asked] | None = None,
    ) -> None:
        """`encoder` is the loop's own. Without a thread the loop's is used for everything.
        `asked` has what is in the thread.
        """
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._cutter = Cutter(tokenizer)
        self._texts = texts
        self._check_fits = check_fits
        self._thread = thread
        self._asked = [] if asked is None else asked

    def length(self, judge: wire.Judge) -> int:
        """About how many tokens the judge's text and its longest choice are; of a long text only
        what is sure without tokenising it. Raises `ContextOverflow`.
        """
        self._texts.check_length(judge.text, "the judge's text")
        longest = max(judge.choices, key=len)
        self._texts.check_length(longest, "a judge's choice")
        if len(judge.text) + len(longest) > LONG:
            return 0
        encode = self._tokenizer.encode
        choices = max(len(encode(choice, start=False)) for choice in judge.choices)
        return len(encode(judge.text, start=False)) + choices

    def ask(self, branch: RuntimeBranch, selector: ResultSelector, reply: Reply) -> None:
        """Calls `reply` with the ballots about the results of a gen of `branch`: now, or in a later
        turn where the texts are long together.
        """
        judge = selector.judge
        assert judge is not None
        judged = {}
        for index, found in selector.finished.items():
            judged[index] = one = RuntimeBranch(branch.id, branch.salt, branch.adapter)
            one.adopt(found.tokens, "", found.ended.rest)
            one.append(judge.text)
        longest = max(map(len, judge.choices))
        if self._thread is not None and len(judged) * (len(judge.text) + longest) > LONG:
            future = self._thread.submit(self._ballots, judged, judge.choices, self._tokenizer)
            self._asked.append((future, reply))
            return
        try:
            ballots = self._ballots(judged, judge.choices, self._encoder)
        except LmprogError as error:
            reply(error)
        else:
            reply(ballots)

    def turn(self) -> None:
        """Replies with what the thread has done."""
        ended = [one for one in self._asked if one[0].done()]
        self._asked[:] = [one for one in self._asked if one not in ended]
        for future, reply in ended:
            error = future.exception()
            if error is not None and not isinstance(error, LmprogError):
                raise error
            reply(future.result() if error is None else error)

    def _ballots(
        self, judged: dict[int, RuntimeBranch], choices: tuple[str, ...], encoder: TextEncoder
    ) -> Ballots:
        """May be called in any thread with the tokenizer itself. Raises `ContextOverflow`."""
        ballots = {}
        for index, one in judged.items():
            if cut := self._cutter.last(one.pending):  # not again for each choice
                one.tokenise_up_to(cut, encoder)
            options = [one.tokens_with(encoder, choice) for choice in choices]
            self._check_fits(max(map(len, options)), 0)
            ballots[index] = make_ballot(one.tokens_with(encoder), options, None)
        return ballots
