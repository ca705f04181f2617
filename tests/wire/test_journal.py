"""The record of what was asked: what is the same, and which ops build branches again."""

from __future__ import annotations

import pytest

from lmprog import wire
from lmprog.errors import DeadlineExceeded, InvalidParameter
from lmprog.journal import (
    DeadBranches,
    Journal,
    Question,
    as_line,
    is_same,
    needed,
    op_of,
    renumbered,
    reply_of,
)

OP = wire.Generate(1, 5, timeout=3.0, stream=True, priority=2)


def done(call: int, *texts: str) -> wire.CallDone:
    outputs = tuple(wire.Output(text, (len(text),), "stop") for text in texts)
    return wire.CallDone(call, outputs, wire.Usage())


def journal(*, are_tokens: bool = True) -> Journal:
    """Two calls on two branches; the second refers to the first."""
    made = Journal(are_tokens=are_tokens)
    made.ops += [
        wire.Open(1),
        wire.Fork(1, (2,)),
        OP,
        wire.Append(2, (wire.Ref(5),)),
        wire.Generate(2, 6),
    ]
    made.replies[5] = done(5, "ab<|end|>")
    return made


def test_a_call_that_is_not_asked_again_is_what_it_left() -> None:
    _, _, left, referred = journal().rebuilt()
    assert left == wire.Append(1, wire.own_pieces(OP, done(5, "ab<|end|>")))
    assert referred == wire.Append(2, (wire.letters("ab<|end|>"),))


def test_where_branches_are_texts_a_call_left_letters() -> None:
    assert journal(are_tokens=False).rebuilt()[2] == wire.Append(1, (wire.letters("ab<|end|>"),))


def test_a_call_that_is_asked_again_is_referred_to() -> None:
    made = journal()
    assert made.rebuilt({5, 6}) == made.ops


def test_contests_and_cancellations_are_only_of_calls_that_are_asked_again() -> None:
    made = journal()
    made.ops += [wire.Contest((5, 6), "first"), wire.Cancel(5), wire.Cancel(6)]
    assert made.rebuilt()[4:] == []
    assert made.rebuilt({6})[5:] == [wire.Contest((6,), "first"), wire.Cancel(6)]


def test_a_branch_is_dead_where_a_call_failed_or_is_missing_and_so_are_later_forks() -> None:
    why = DeadlineExceeded("too late")
    dead = DeadBranches()
    assert not dead.take(wire.Fork(1, (2,)))
    dead.failed(OP, why)
    assert dead.take(wire.Fork(1, (3,)))
    assert dead.take(wire.Append(4, (wire.Gained(3),)))
    assert dead.take(wire.Append(7, (wire.Ref(5),)))
    assert [dead.why(branch) for branch in (1, 2, 3, 4, 7)] == [why, None, why, why, why]


def test_a_refused_call_leaves_its_branch_alive() -> None:
    dead = DeadBranches()
    dead.failed(OP, InvalidParameter("no", name="top_p", value="2", allowed="0 < x <= 1"))
    assert dead.why(1) is None
    assert dead.take(wire.Append(2, (wire.Ref(5),))), "and has no text"


@pytest.mark.parametrize(("keep", "same"), [("first", False), ("best", True)])
def test_of_a_call_that_keeps_one_result_only_that_is_compared(keep: wire.Keep, same: bool) -> None:
    op = wire.Generate(1, 5, keep=keep)
    assert is_same(op, done(5, "a", "b"), done(5, "a", "c")) == same
    assert not is_same(op, done(5, "a", "b"), done(5, "c", "b"))
    assert not is_same(op, done(5, "a"), DeadlineExceeded("too late"))


def test_a_question_is_the_same_whatever_its_numbers_deadline_and_appends() -> None:
    def key(op: wire.Generate, *texts: str) -> str:
        pieces = tuple(map(wire.TextPiece, texts))
        return Question((), "", pieces, None).key(op, with_seed=True)

    assert key(OP, "a", "b") == key(wire.Generate(8, 9), "ab")
    assert key(OP, "a") != key(OP, "b")
    assert key(OP, "a") != key(wire.Generate(1, 5, heal=True), "a")


def test_only_what_open_branches_need_is_needed() -> None:
    ops: list[wire.Op] = [
        wire.Open(1),
        wire.Append(1, (wire.TextPiece("a"),)),
        wire.Fork(1, (2, 3)),
        wire.Append(3, (wire.TextPiece("b"),)),
        wire.Close(3),
        wire.Close(1),
    ]
    assert needed(ops) == [ops[0], ops[1], wire.Fork(1, (2,)), ops[5]]


def test_ops_and_replies_stand_in_lines_and_have_other_numbers_elsewhere() -> None:
    assert op_of(as_line(OP)) == OP
    assert reply_of(as_line(done(5, "a"))) == done(5, "a")
    with pytest.raises(ValueError, match="is no result"):
        reply_of(as_line(wire.TextIs(5, "a", 1)))  # type: ignore[arg-type]
    assert renumbered(OP, lambda number: number + 10) == wire.Generate(11, 15)
    pieces = (wire.Ref(5), wire.Gained(2), wire.TextPiece("a"))
    assert renumbered(wire.Append(1, pieces), lambda number: number + 10) == wire.Append(
        11, (wire.Ref(15), wire.Gained(12), wire.TextPiece("a"))
    )
