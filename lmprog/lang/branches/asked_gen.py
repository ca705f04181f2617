"""A result that may be asked for again: `gen(T, tries=3, check=...)`.

What does not validate stays in the branch; the error is shown behind it, and the model is asked
again, on the same prefix. Until the result is read, nobody knows how often that is, so the branch
cannot go on before. Knows attempts and their order; how a branch asks again is the cursor's part.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from lmprog import wire
from lmprog.errors import ValidationFailed
from lmprog.lang.branches.call_request import BranchSettings
from lmprog.lang.branches.gen import Gen
from lmprog.lang.branches.log import Item
from lmprog.lang.branches.pending_call import CallOrigin, Held, PendingCall, RunContext
from lmprog.lang.ops.expressions import GenOp, RoleBeginExpr, RoleEndExpr, SelectOp
from lmprog.lang.streaming.feed import AskedAgain

T = TypeVar("T")


class AskedGen(Gen[T]):
    """The result of several attempts, of which this is the first. Its text, value and figures are
    those of the last one.
    """

    def __init__(
        self,
        op: GenOp[T] | SelectOp,
        wanted: wire.Generate | wire.Select,
        origin: CallOrigin,
        previous: PendingCall | None,
        thought: PendingCall | None = None,
    ) -> None:
        super().__init__(op, wanted, origin, previous, thought)
        self.ask_again: Callable[[ValidationFailed], Gen[T]] | None = None
        """Shows the branch what was wrong, and asks once more. Set by the branch."""
        self._latest: Gen[T] = self
        tries = op.tries if isinstance(op, GenOp) and not origin.run.is_rehearsal else 1
        self._num_left = tries - 1
        self._is_settled = False
        self._settling = threading.RLock()
        self._turn: asyncio.Lock | None = None

    def done(self) -> bool:
        """Whether reading would not wait: the last attempt is known to be the last."""
        return self._is_settled

    def is_filled_in(self, run: RunContext) -> bool:
        """Always false: the runtime cannot know whether the model will be asked again."""
        return False

    def is_pending_in(self, run: RunContext) -> bool:
        return False

    def wait(self) -> None:
        """Blocks until an attempt validates, or none is left."""
        with self._settling:
            while not self._is_settled:
                PendingCall.wait(self._latest)
                self._judge()

    async def wait_async(self) -> None:
        """The same for an event loop."""
        if self._turn is None:
            self._turn = asyncio.Lock()
        async with self._turn:
            while not self._is_settled:
                await PendingCall.wait_async(self._latest)
                self._judge()

    def _judge(self) -> None:
        """Reads the last attempt, which is done: it is the result, or the next one begins. That is
        not the program's reading.
        """
        latest, was_read = self._latest, self.was_read
        try:
            if latest._own_failure() is None:  # a call that failed is raised where it is read
                Gen._read(latest)
        except ValidationFailed as error:
            if self._num_left:
                self._num_left -= 1
                feed = self.run.feed
                if feed is not None:
                    feed.add(AskedAgain(self.name, error.message, self.origin.path))
                assert self.ask_again is not None, "the branch has set it"
                self._latest = self.ask_again(error)
                return
        finally:
            self.was_read = was_read
        self._is_settled = True

    def reply(self) -> wire.CallReply:
        return PendingCall.reply(self) if self._latest is self else self._latest.reply()

    def cancel(self) -> None:
        """Ends the attempt that is under way; there will be no other."""
        self._num_left = 0
        PendingCall.cancel(self._latest)

    def _read(self) -> list[T]:
        return Gen._read(self) if self._latest is self else self._latest._read()


class AskedBranch(Protocol):
    """A branch that asks again."""

    log: list[Item]

    def put(self, content: object, settings: BranchSettings) -> None: ...

    def put_text(self, text: str, quoted: bool = False) -> None: ...

    def request(self, op: GenOp[Any], settings: BranchSettings) -> Gen[Any]: ...

    def hold(self, held: Held | None) -> None: ...


def hold(branch: AskedBranch, gen: Gen[Any], op: object, settings: BranchSettings) -> None:
    """Keeps the branch until it is known whether `gen` is asked for again."""
    assert isinstance(gen, AskedGen), "it was made to be asked for again"
    is_turn = isinstance(branch.log[-1], RoleEndExpr)

    def ask_again(error: ValidationFailed) -> Gen[Any]:
        nonlocal op
        branch.hold(None)
        op = further_op(op, error)
        if is_turn:
            branch.put(turn_after(error), settings)
        else:
            branch.put_text(text_after(error, branch.log, gen), quoted=True)
        again = branch.request(op, settings)
        branch.hold(gen)
        return again

    gen.ask_again = ask_again
    branch.hold(gen)


def further_op(op: object, error: ValidationFailed) -> GenOp[Any]:
    """The op of the next attempt; of several texts to choose from, without what was wrong."""
    assert isinstance(op, GenOp), "only generations are asked for again"
    constraint = None if op.constraint is None else op.constraint.without(error.text)
    return replace(op, tries=1, constraint=constraint)


def turn_after(error: ValidationFailed) -> list[object]:
    """What the model is told after a turn of its own."""
    return [RoleBeginExpr("user"), _request(error), RoleEndExpr("user")]


def text_after(error: ValidationFailed, items: Sequence[object], gen: PendingCall) -> str:
    """The same inside of a turn, or where there are none: behind it the line that led to `gen`, as
    far as it is literal text, begins again.
    """
    place = next(at for at in reversed(range(len(items))) if items[at] is gen)
    line = ""
    for item in reversed(items[:place]):
        if not isinstance(item, str) or isinstance(item, wire.Letters):
            break
        _, line_break, end = item.rpartition("\n")
        line = end + line
        if line_break:
            break
    return f"\n{_request(error)}\n{line}"


def _request(error: ValidationFailed) -> str:
    message = error.message.strip()
    return f"That is not right: {message}{'' if message.endswith('.') else '.'} Answer again."
