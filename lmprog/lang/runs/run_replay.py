"""Doing a saved run again: the ops that it posted, with their seeds, and the results that it had,
token for token.

The file is JSON: who ran what on which model, the calls and their texts for people to read, and ops
and replies as the wire encodes them. The program's own code is not run again, so a replay needs no
part of it. What the run cancelled, or what failed, is left out: how far that went was a matter of
time. So who lost a contest does not run again, and who won a race is taken from the file; the
majority of a vote is found again from what its calls give now.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lmprog import wire
from lmprog.backends import Backend
from lmprog.backends.client import ClientCall
from lmprog.backends.majority import majority
from lmprog.errors import LmprogError, ModelError, ProtocolError, RequestRejected
from lmprog.journal import (
    Asking,
    Journal,
    ProgramCall,
    is_same,
    renumbered,
    shown,
    wanted_outputs,
)
from lmprog.lang.branches.scope import Scope, uncached_backend_of

FORMAT = "lmprog run 1"


@dataclass(frozen=True, slots=True)
class Difference:
    """A call that did not give what it gave before."""

    label: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.label}: it was {self.before}, now {self.now}"


@dataclass(frozen=True, slots=True)
class Replayed:
    """How a replay went. `num_skipped` calls of the run had failed or were cancelled, and were not
    done again.
    """

    num_calls: int
    num_tokens: int
    num_skipped: int
    differences: tuple[Difference, ...]
    num_contests: int = 0
    """Votes and races whose decision was looked at, too."""

    @property
    def is_same(self) -> bool:
        """Whether every call gave the same tokens, and every select the same option."""
        return not self.differences


@dataclass(frozen=True, slots=True)
class Decided:
    """A contest that had a winner: the calls that took part, and whose result was taken."""

    rule: str
    calls: tuple[int, ...]
    won: int

    def again(self, outcomes: Mapping[int, object]) -> int:
        """Who wins with these outcomes."""
        if self.rule == "first":
            return self.won  # the first in time: a fact of that run
        ended = {at: outcomes[call] for at, call in enumerate(self.calls) if call in outcomes}
        texts = {
            at: done.outputs[0].text.strip()
            for at, done in ended.items()
            if isinstance(done, wire.CallDone)
        }
        place = majority(texts, 0)
        if place is None or texts[place] == texts.get(self.calls.index(self.won)):
            return self.won  # of equal results, the one that was there when it was decided
        return self.calls[place]


@dataclass(frozen=True, slots=True)
class Recording:
    """A run that is over: where it ran, what it posted, what came of it."""

    model: str
    vocab_size: int
    seed: int
    labels: Mapping[int, str]
    ops: tuple[wire.Op, ...]
    results: Mapping[int, wire.CallReply]
    contests: tuple[Decided, ...] = ()

    @classmethod
    def of(cls, scope: Scope) -> Recording:
        welcome = scope.client.welcome
        labels: dict[int, str] = {}
        results: dict[int, wire.CallReply] = {}
        for number, gen in enumerate(scope.gens, 1):
            labels[gen.call.id] = gen.name or f"{'select' if gen.is_select else 'gen'} {number}"
            outcome = gen.call.wait(0) if gen.call.done() else None
            if isinstance(outcome, wire.CallReply):
                results[gen.call.id] = outcome
        contests = tuple(
            Decided(contest.rule, contest.calls, contest.won)
            for contest in scope.contests
            if contest.won is not None
            and labels.keys() >= set(contest.calls)  # also of runs within this one
        )
        ops = tuple(_alone(op, scope, labels) for op in list(scope.posted))
        return cls(welcome.model, welcome.vocab_size, scope.seed, labels, ops, results, contests)

    # --- files

    def write(self, path: Path) -> None:
        replies = tuple(self.results.values())
        about = {
            "format": FORMAT,
            "protocol": wire.PROTOCOL_VERSION,
            "model": self.model,
            "vocab_size": self.vocab_size,
            "seed": self.seed,
            "calls": [
                {
                    "call": call,
                    "label": label,
                    "result": shown(self.results[call]) if call in self.results else None,
                }
                for call, label in self.labels.items()
            ],
            "contests": [
                {"rule": contest.rule, "calls": contest.calls, "won": contest.won}
                for contest in self.contests
            ],
            "ops": base64.b64encode(wire.encode(self.ops)).decode(),
            "replies": base64.b64encode(wire.encode(replies)).decode(),
        }
        path.write_text(json.dumps(about, ensure_ascii=False, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Raises `RequestRejected` for a file that is no saved run, `ProtocolError` for one of
        another version.
        """
        try:
            about = json.loads(path.read_text())
            known = about["format"], about["protocol"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RequestRejected(
                f"{str(path)!r} is no saved run ({type(error).__name__}: {error})"
            ) from None
        if known != (FORMAT, wire.PROTOCOL_VERSION):
            raise ProtocolError(
                f"{str(path)!r} is of format {known[0]!r}, protocol {known[1]}; "
                f"this version reads {FORMAT!r}, protocol {wire.PROTOCOL_VERSION}"
            )
        try:
            replies = wire.decode_replies(base64.b64decode(about["replies"], validate=True))
            results = {reply.call: reply for reply in replies if isinstance(reply, wire.CallReply)}
            labels = {int(call["call"]): str(call["label"]) for call in about["calls"]}
            ops = wire.decode_ops(base64.b64decode(about["ops"], validate=True))
            contests = tuple(
                Decided(
                    str(contest["rule"]), tuple(map(int, contest["calls"])), int(contest["won"])
                )
                for contest in about.get("contests", [])
            )
            model, vocab_size, seed = (
                str(about["model"]),
                int(about["vocab_size"]),
                int(about["seed"]),
            )
            if not all(contest.won in contest.calls for contest in contests) or any(
                call not in labels for contest in contests for call in contest.calls
            ):
                raise ValueError("a contest of calls that are not there")
            return cls(model, vocab_size, seed, labels, ops, results, contests)
        except (wire.MalformedFrame, binascii.Error, ValueError, KeyError, TypeError) as error:
            raise RequestRejected(f"the saved run {str(path)!r} is damaged ({error})") from None

    # --- doing it again

    def replay(self, backend: Backend) -> Replayed:
        """Does all calls again at once; blocks. Raises `ModelError` where the backend has another
        model.
        """
        client = backend.client
        self._check(client.welcome)
        numbers = defaultdict[int, int](client.number)
        calls: dict[int, ClientCall] = {}
        journal = Journal()
        for op in self.ops:
            journal.add(op)
        journal.replies.update(self.results)
        with client.together():
            for op in journal.rebuilt(self.results):
                again = renumbered(op, numbers.__getitem__)
                if isinstance(op, Asking) and isinstance(again, Asking):
                    calls[op.call] = client.call(again)
                else:
                    client.post(again)
        client.flush()  # not at the end of an event loop's turn: its thread waits here
        try:
            outcomes = {call: pending.wait() for call, pending in calls.items()}
        finally:
            branches = (numbers[branch] for op in self.ops for branch in _made_by(op))
            client.post(*map(wire.Close, branches))
            client.flush()
        differences = []
        for call, outcome in outcomes.items():
            op, before = journal.calls[call], self.results[call]
            if not is_same(op, before, outcome):
                told = _described(op, before), _described(op, outcome)
                differences.append(Difference(self.labels[call], *told))
        differences += [
            Difference(
                f"the {contest.rule} of {len(contest.calls)}",
                self.labels[contest.won],
                self.labels[now_won],
            )
            for contest in self.contests
            if (now_won := contest.again(outcomes)) != contest.won
        ]
        tokens = sum(
            len(output.tokens) for done in self.results.values() for output in _outputs(done)
        )
        num_skipped = len(self.labels) - len(calls)
        return Replayed(len(calls), tokens, num_skipped, tuple(differences), len(self.contests))

    def _check(self, welcome: wire.Welcome) -> None:
        same_name = (
            Path(welcome.model).name == Path(self.model).name
        )  # a folder may stand elsewhere
        if not same_name or welcome.vocab_size != self.vocab_size:
            raise ModelError(
                f"the run was made with model {self.model!r} ({self.vocab_size:,} tokens), "
                "and this runtime has "
                f"{welcome.model!r} ({welcome.vocab_size:,} tokens); replay it on a runtime "
                "with the run's model"
            )


def _made_by(op: wire.Op) -> tuple[int, ...]:
    """The branches that come with it."""
    if isinstance(op, wire.Open):
        return (op.branch,)
    return op.children if isinstance(op, wire.Fork) else ()


def _alone(op: wire.Op, scope: Scope, own: Mapping[int, str]) -> wire.Op:
    """The op with the results of other runs, such as the one around this one, as their texts."""
    if not isinstance(op, wire.Append):
        return op

    def known(piece: wire.Piece) -> wire.Piece:
        if not isinstance(piece, wire.Ref) or piece.call in own:
            return piece
        gen = scope.referenced[piece.call]
        return (
            wire.letters(gen.texts[piece.index]) if gen.done() and gen.failure() is None else piece
        )

    return wire.Append(op.branch, tuple(known(piece) for piece in op.pieces))


def _outputs(result: wire.CallReply) -> tuple[wire.Output, ...]:
    return result.outputs if isinstance(result, wire.CallDone) else ()


def _described(op: ProgramCall, outcome: object) -> str:
    """What is compared of an outcome, as text."""
    if isinstance(outcome, wire.Chosen):
        return f"option {outcome.index}"
    if isinstance(outcome, wire.CallDone):
        outputs = [
            (wire.text_with_calls(output.text, output.calls), output.tokens)
            for output in wanted_outputs(op, outcome)
        ]
        return " and ".join(f"{text!r} {list(tokens)}" for text, tokens in outputs)
    return (
        f"{type(outcome).__name__}: {outcome}"
        if isinstance(outcome, LmprogError)
        else repr(outcome)
    )


def replay(path: str | Path, backend: Backend | None = None) -> Replayed:
    """Does a run that `run.save(path)` wrote again, on `backend`, that of the calling program, or
    the default one; blocks.

    Raises `ModelError` where the backend has another model.
    """
    return Recording.read(Path(path)).replay(uncached_backend_of(backend))
