"""Sends every program to one replica, and to another one when that dies.

Ops of a client go in, replies of replicas go in; frames for replicas and replies for the client
come out. A program gets its replica when its first call is asked, since its first text is known
then; its forks and later calls stay there. Without threads, sockets and clocks, so that a test can
let a replica die after any op.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from lmprog import wire
from lmprog.errors import LmprogError, RuntimeGone, UnknownName
from lmprog.fleet.policy import choose
from lmprog.fleet.prefix_memory import BLOCK, PrefixMemory, keys_of
from lmprog.fleet.program_log import Diverged, ProgramCall, ProgramLog, ProgramReply

CHARACTERS_PER_TOKEN = 4
"""How many blocks a replica's pages hold is only guessed at."""
LONGEST_PREFIX = 256 * BLOCK
"""Characters of a program's first text that count for its replica."""
HOMELESS_SECONDS = 60.0
"""A program waits so long for a replica."""

Everywhere = wire.Describe | wire.Flush
Anywhere = wire.Encode | wire.Decode | wire.Inspect
Frames = dict[str, list[wire.Op]]


@dataclass(eq=False, slots=True)
class Replica:
    """One runtime as the router sees it. `load` counts its open programs of this client."""

    name: str
    number: int
    slots: int
    load: int = 0
    draining: bool = False


@dataclass(eq=False, slots=True)
class RoutedProgram:
    """A program and where it runs. `home` is None before its first call, and where there is no
    replica for it.
    """

    log: ProgramLog
    salt: str
    home: Replica | None = None
    was_sent: bool = False
    homeless_since: float | None = None
    failure: LmprogError | None = None
    """Why it cannot go on: all its later calls fail with this."""
    branches: set[int] = field(default_factory=set)
    calls: set[int] = field(default_factory=set)
    held: deque[wire.Op] = field(default_factory=deque)
    """Ops behind one that refers to a result of another program, which is not known yet."""


@dataclass(eq=False, slots=True)
class _Gathering:
    """A question to all replicas, whose figures are added up."""

    waiting: set[str]
    figures: dict[str, float] = field(default_factory=dict)


class Router:
    """`outgoing` are frames for replicas, by name; `replies` are the client's. Whoever drives the
    router takes both from there.
    """

    def __init__(
        self, draw: random.Random | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.outgoing: deque[tuple[str, list[wire.Op]]] = deque()
        self.replies: deque[wire.Reply] = deque()
        self.num_moved = 0
        """Programs that were built again on another replica."""
        self._draw = draw or random.Random()
        self._clock = clock
        self._replicas: dict[str, Replica] = {}
        self._memory = PrefixMemory()
        self._branches: dict[int, RoutedProgram] = {}
        self._calls: dict[int, RoutedProgram] = {}
        self._holding: dict[int, RoutedProgram] = {}
        """Programs with held ops, by identity."""
        self._homeless: list[RoutedProgram] = []
        self._gathering: dict[int, _Gathering] = {}
        self._asked: dict[int, tuple[Replica, Anywhere]] = {}
        self._postponed: list[Anywhere | Everywhere] = []

    @property
    def loads(self) -> dict[str, int]:
        """Open programs of each replica."""
        return {one.name: one.load for one in self._replicas.values()}

    # --- replicas -------------------------------------------------------------------------------

    def join(self, name: str, welcome: wire.Welcome, slots: int) -> None:
        """A replica is there; programs that wait for one may go to it."""
        taken = {one.number for one in self._replicas.values()}
        number = next(n for n in range(len(taken) + 1) if n not in taken)
        self._replicas[name] = Replica(name, number, slots)
        characters = welcome.num_pages * welcome.page_size * CHARACTERS_PER_TOKEN
        self._memory.add(number, characters // BLOCK)
        homeless, self._homeless = self._homeless, []
        for program in homeless:
            self._place(program)
        postponed, self._postponed = self._postponed, []
        for op in postponed:
            self._ask(op)

    def lose(self, name: str) -> None:
        """A replica is gone, or hangs: its programs are built again on others."""
        lost = self._replicas.pop(name, None)
        if lost is None:
            return
        self._memory.forget(lost.number)
        self.outgoing = deque(frame for frame in self.outgoing if frame[0] != name)
        for call in [call for call, one in self._gathering.items() if name in one.waiting]:
            self._gathered(call, name, {})
        for call, (replica, op) in list(self._asked.items()):
            if replica is lost:
                del self._asked[call]
                self._ask(op)
        orphans = {id(one): one for one in self._branches.values() if one.home is lost}
        orphans |= {id(one): one for one in self._calls.values() if one.home is lost}
        for program in orphans.values():
            program.home = None
            self._move(program)

    def drain(self, name: str) -> None:
        """No new program goes there; those that run stay."""
        self._replicas[name].draining = True

    def tick(self) -> None:
        """Gives up programs that have waited too long for a replica."""
        now = self._clock()
        for program in list(self._homeless):
            since = program.homeless_since
            if since is not None and now - since > HOMELESS_SECONDS:
                self._homeless.remove(program)
                self._give_up(program, RuntimeGone("no replica of the fleet is up"))

    # --- ops ------------------------------------------------------------------------------------

    def take_ops(self, ops: Iterable[wire.Op]) -> None:
        """Ops of the client, in order."""
        frames: Frames = {}
        for op in ops:
            if isinstance(op, Everywhere | Anywhere):
                self._ask(op)
                continue
            program = self._program_of(op)
            if program is not None:
                self._take(program, op, frames)
            elif isinstance(op, ProgramCall):
                self._fail_call(op.call, UnknownName(f"there is no branch {op.branch}"))
        self.outgoing.extend(frames.items())

    def _program_of(self, op: wire.Op) -> RoutedProgram | None:
        match op:
            case wire.Open(branch=branch, salt=salt):
                program = RoutedProgram(ProgramLog(self._clock), salt)
                self._branches[branch] = program
                program.branches.add(branch)
                return program
            case wire.Cancel(call=call):
                return self._calls.get(call)
            case wire.Contest(calls=calls):
                return self._calls.get(calls[0])
            case wire.Hello():
                return None
            case _:
                return self._branches.get(getattr(op, "branch", -1))

    def _take(self, program: RoutedProgram, op: wire.Op, frames: Frames) -> None:
        """One op of a program: now, or when the results that it refers to are known."""
        if isinstance(op, wire.Fork):
            self._branches.update(dict.fromkeys(op.children, program))
            program.branches.update(op.children)
        elif isinstance(op, ProgramCall):
            self._calls[op.call] = program
            program.calls.add(op.call)
        if program.held or self._is_early(program, op):
            program.held.append(op)
            self._holding[id(program)] = program
        else:
            self._accept(program, op, frames)

    def _accept(self, program: RoutedProgram, op: wire.Op, frames: Frames) -> None:
        failure = program.failure or program.log.cause_of(op)
        if failure is not None and isinstance(op, ProgramCall):
            self._fail_call(op.call, failure)
            return
        op = self._resolved(program, _seeded(op, self._draw))
        program.log.take(op)
        if program.home is not None:
            frames.setdefault(program.home.name, []).append(op)
        elif isinstance(op, ProgramCall) and program.homeless_since is None:
            self._place(program)
        if program.log.over:
            self._forget(program)

    def _elsewhere(self, program: RoutedProgram, piece: wire.Piece) -> RoutedProgram | None:
        """The other program whose result `piece` refers to; None where it is no such reference."""
        if not isinstance(piece, wire.Ref):
            return None
        other = self._calls.get(piece.call)
        return None if other is program else other

    def _is_early(self, program: RoutedProgram, op: wire.Op) -> bool:
        """Whether it refers to a result of another program that is not known yet."""
        if not isinstance(op, wire.Append):
            return False
        for piece in op.pieces:
            other = self._elsewhere(program, piece)
            if other is None or other.failure is not None:
                continue
            assert isinstance(piece, wire.Ref)
            if piece.call not in other.log.replies:
                return True
        return False

    def _resolved(self, program: RoutedProgram, op: wire.Op) -> wire.Op:
        """The op with the texts of other programs' results in place of references to them."""
        if not isinstance(op, wire.Append):
            return op
        others = [self._elsewhere(program, piece) for piece in op.pieces]
        if not any(others):
            return op
        pieces = tuple(
            piece if other is None else _text_for(other.log, piece)
            for other, piece in zip(others, op.pieces, strict=True)
        )
        return wire.Append(op.branch, pieces)

    def _ask(self, op: Everywhere | Anywhere) -> None:
        """Questions about runtimes: to all of them, or to any."""
        if not self._replicas:
            self._postponed.append(op)
        elif isinstance(op, Everywhere):
            self._gathering[op.call] = _Gathering(set(self._replicas))
            self.outgoing.extend((name, [op]) for name in self._replicas)
        else:
            replica = max(self._replicas.values(), key=lambda one: one.load)
            self._asked[op.call] = (replica, op)
            self.outgoing.append((replica.name, [op]))

    # --- replies --------------------------------------------------------------------------------

    def take_replies(self, name: str, replies: Sequence[wire.Reply]) -> None:
        """Replies of a replica. What comes from one that was lost is dropped."""
        replica = self._replicas.get(name)
        if replica is None:
            return
        for reply in replies:
            call = getattr(reply, "call", None)
            if call is None:
                continue
            if call in self._gathering and isinstance(reply, wire.Described):
                self._gathered(call, name, reply.figures)
            elif call in self._asked:
                del self._asked[call]
                self.replies.append(reply)
            elif (program := self._calls.get(call)) is not None and program.home is replica:
                self._hear(program, reply)

    def _hear(self, program: RoutedProgram, reply: wire.Reply) -> None:
        try:
            if isinstance(reply, wire.Delta):
                new: wire.Reply | None = program.log.hear_delta(reply)
            elif isinstance(reply, ProgramReply):
                new = program.log.hear_reply(reply)
            else:
                return
        except Diverged:
            assert program.home is not None
            frame: list[wire.Op] = [wire.Close(one) for one in sorted(program.branches)]
            self.outgoing.append((program.home.name, frame))
            self._give_up(
                program, RuntimeGone("a replica died, and its program went another way again")
            )
            return
        if new is not None:
            self.replies.append(new)
            if not isinstance(new, wire.Delta):
                self._release_held()
        if program.log.over:
            self._forget(program)

    def _release_held(self) -> None:
        """Ops that waited for a result go on, each program's in order."""
        for program in list(self._holding.values()):
            frames: Frames = {}
            while program.held and not self._is_early(program, program.held[0]):
                self._accept(program, program.held.popleft(), frames)
            if not program.held:
                self._holding.pop(id(program), None)
            self.outgoing.extend(frames.items())

    def _gathered(self, call: int, name: str, figures: dict[str, float]) -> None:
        gathering = self._gathering[call]
        gathering.waiting.discard(name)
        for figure, value in figures.items():
            gathering.figures[figure] = gathering.figures.get(figure, 0.0) + value
        if not gathering.waiting:
            del self._gathering[call]
            self.replies.append(wire.Described(call, gathering.figures))

    # --- where programs are ---------------------------------------------------------------------

    def _place(self, program: RoutedProgram) -> None:
        """Finds the program a replica, and sends it there with all that it has."""
        replicas = [one for one in self._replicas.values() if not one.draining]
        replicas = replicas or list(self._replicas.values())
        if not replicas:
            if program.homeless_since is None:
                program.homeless_since = self._clock()
            self._homeless.append(program)
            return
        keys = keys_of(_first_text(program.log.ops), program.salt)
        matched = self._memory.matched(keys, [one.number for one in replicas])
        loads = [one.load for one in replicas]
        home = replicas[choose(matched, loads, replicas[0].slots, self._draw)]
        self._memory.remember(home.number, keys)
        home.load += 1
        program.home, program.homeless_since = home, None
        ops = program.log.rebuilt() if program.was_sent else list(program.log.ops)
        program.was_sent = True
        self.outgoing.append((home.name, ops))

    def _move(self, program: RoutedProgram) -> None:
        """Its replica is lost. A program whose calls are all answered moves with its next one."""
        if program.failure is not None:
            return
        if not program.log.movable:
            why = f"its replica died, after it had been moved {program.log.moves} times"
            self._give_up(program, RuntimeGone(why))
            return
        self.num_moved += 1
        if program.log.pending:
            self._place(program)

    def _give_up(self, program: RoutedProgram, error: LmprogError) -> None:
        """Every call of the program fails, and every later one."""
        program.failure = error
        for call in program.log.give_up():
            self._fail_call(call, error)
        self._leave_home(program)
        self._release_held()

    def _fail_call(self, call: int, error: LmprogError) -> None:
        self.replies.append(wire.Failed(call, error.code, error.message, error.details()))

    def _leave_home(self, program: RoutedProgram) -> None:
        if program.home is not None:
            program.home.load -= 1
            program.home = None

    def _forget(self, program: RoutedProgram) -> None:
        """The program is over."""
        self._leave_home(program)
        for branch in program.branches:
            self._branches.pop(branch, None)
        for call in program.calls:
            self._calls.pop(call, None)
        if program in self._homeless:
            self._homeless.remove(program)


def _seeded(op: wire.Op, draw: random.Random) -> wire.Op:
    """The op with a seed where it has none, so that it can be done again."""
    if isinstance(op, wire.Generate) and op.sampling.seed is None:
        sampling = msgspec.structs.replace(op.sampling, seed=draw.getrandbits(63))
        return msgspec.structs.replace(op, sampling=sampling)
    if isinstance(op, wire.Select) and op.seed is None:
        return msgspec.structs.replace(op, seed=draw.getrandbits(63))
    return op


def _text_for(log: ProgramLog, piece: wire.Piece) -> wire.Piece:
    """The text of a result of another program; the reference itself where there is none."""
    assert isinstance(piece, wire.Ref)
    reply = log.replies.get(piece.call)
    if isinstance(reply, wire.CallDone):
        return wire.TextPiece(reply.outputs[piece.index].text, quoted=True)
    if isinstance(reply, wire.Chosen):
        return wire.TextPiece(log.choice_of(reply), quoted=True)
    if isinstance(reply, wire.TextIs):
        return wire.TextPiece(reply.text, quoted=True)
    return piece


def _first_text(ops: Sequence[wire.Op]) -> str:
    """What the program's branches begin with, as far as it is known when its first call is asked."""
    parts: list[str] = []
    length = 0
    for op in ops:
        if isinstance(op, wire.Append):
            for piece in op.pieces:
                text = _text_of(piece)
                parts.append(text)
                length += len(text)
        if length > LONGEST_PREFIX:
            break
    return "".join(parts)[:LONGEST_PREFIX]


def _text_of(piece: wire.Piece) -> str:
    match piece:
        case wire.TextPiece(text=text):
            return text
        case wire.RoleBegin(role=role):
            return f"<{role}>"
        case wire.Conversation(messages=messages, tools=tools):
            return tools + messages
        case wire.TokensPiece(ids=ids):
            return ",".join(map(str, ids))
        case _:
            return ""
