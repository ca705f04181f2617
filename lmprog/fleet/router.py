"""Sends every program to one replica, and to another one when that dies.

Ops of a client and replies of replicas go in; frames for replicas and replies for the client come
out. A program gets its replica when its first call is asked, since its first text is known
then; its forks and later calls stay there. Without threads, sockets and clocks, so that a test can
let a replica die after any op.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lmprog import wire
from lmprog.errors import LmprogError, RuntimeGone, UnknownName
from lmprog.fleet.model_lines import Kind, kind_of
from lmprog.fleet.placement import (
    BLOCK,
    CHARACTERS_PER_TOKEN,
    PrefixMemory,
    SpeedMeter,
    best,
    choose_for_session,
    keys_of,
    mark_of,
)
from lmprog.fleet.program_log import Diverged, ProgramLog, first_text, seeded
from lmprog.fleet.questions import AnyReplica, EveryReplica, Questions
from lmprog.journal import ProgramCall, ProgramReply

PREFIX_CALL = 2**53 - 1
"""The call for what other fleets send to a replica; calls of programs count from 1."""
ASSUMED_WRITTEN = 64.0
"""Tokens that a program writes, before replicas have told it."""
TRIAL_SECONDS = 30.0
"""A program waits so long for a replica for itself; then it goes where others are."""
HOMELESS_SECONDS = 60.0
"""A program waits so long for a replica."""
WAKING_SECONDS = 900.0
"""The same where that sleeps: perhaps a machine is started for it first."""

Frames = dict[str, list[wire.Op]]


class Router:
    """`outgoing` are frames for replicas, by name; `replies` are the client's."""

    def __init__(
        self, draw: random.Random | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.outgoing: deque[tuple[str, list[wire.Op]]] = deque()
        self.replies: deque[wire.Reply] = deque()
        self.num_moved = 0
        """Programs that were built again on another replica."""
        self._num_died = 0
        """Replicas that died, were they working or not."""
        self._draw = draw or random.Random()
        self._clock = clock
        self._replicas: dict[str, Replica] = {}
        self._memory = PrefixMemory()
        self._branches: dict[int, RoutedProgram] = {}
        self._calls: dict[int, RoutedProgram] = {}
        self._holding: dict[int, RoutedProgram] = {}
        """Programs with held ops, by identity."""
        self._homeless: list[RoutedProgram] = []
        self._suspects: list[RoutedProgram] = []
        """Programs that wait to be tried alone."""
        self._stranded: dict[str, LmprogError] = {}
        """Names for which no replica will take a program, nor may join, and why."""
        self._questions = Questions()
        self.default = ""
        """The name whose model programs get that name none."""
        self._current: dict[str, str] = {}
        """By name, the digest of the model that new programs get."""
        self._retired: dict[Kind, LmprogError] = {}
        """Models that no replica has any more, nor will have, and why their programs end."""

    @property
    def loads(self) -> dict[str, int]:
        """Open programs of each replica."""
        return {one.name: one.load for one in self._replicas.values()}

    # --- replicas -------------------------------------------------------------------------------

    def renew(self, welcome: wire.Welcome) -> None:
        """From now on new programs of its name get this model; those that have begun stay with
        theirs.
        """
        self._current[welcome.served_name] = welcome.digest

    def retire(self, kind: Kind, error: LmprogError) -> None:
        """No replica has this model any more, or is given time for it: its programs fail."""
        self._retired[kind] = error
        self._give_up_where(lambda one: (one.served_name, one.model) == kind, error)

    def join(self, name: str, welcome: wire.Welcome, slots: int) -> None:
        """A replica is there; programs that wait for one may go to it."""
        kind = kind_of(welcome)
        self._stranded.pop(welcome.served_name, None)
        self._current.setdefault(*kind)
        self._retired.pop(kind, None)
        taken = {one.number for one in self._replicas.values()}
        number = min(set(range(len(taken) + 1)) - taken)
        self._replicas[name] = Replica(name, number, slots, mark=mark_of(name), kind=kind)
        characters = welcome.num_pages * welcome.page_size * CHARACTERS_PER_TOKEN
        self._memory.add(number, characters // BLOCK)
        self.outgoing.append((name, [wire.AwaitPrefixes(PREFIX_CALL)]))
        self._try_again()

    def lose(self, name: str, *, died: bool = True) -> None:
        """A replica is gone, or hangs: its programs are built again on others. One that was told
        to end did not die: then its programs are no suspects.
        """
        lost = self._replicas.pop(name, None)
        if lost is None:
            return
        self._memory.forget(lost.number)
        self.outgoing = deque(frame for frame in self.outgoing if frame[0] != name)
        self.replies.extend(self._questions.without(name))
        self._ask(self._questions.postponed())
        self._num_died += died
        programs = self._at(lost)
        asked = [one for one in programs if one.log.pending]
        for program in programs:
            program.home = None
            if died and program.log.pending:
                program.log.note_death(self._num_died, is_alone=len(asked) == 1)
        for program in programs:
            self._move(program)

    def drain(self, name: str) -> None:
        """No new program goes there; those that run stay."""
        self._replicas[name].draining = True

    def take_figures(self, name: str, figures: Mapping[str, float], *, is_silent: bool) -> None:
        """A replica's newest figures; one that is silent gets no new program while others are
        heard.
        """
        replica = self._replicas[name]
        replica.is_silent = is_silent
        if num_programs := figures.get("programs"):
            replica.written = figures.get("generated_tokens", 0.0) / num_programs
        replica.meter.take(figures)

    def evacuate(self, name: str) -> None:
        """What still runs there is moved to other replicas, if there are any to take it; nothing
        goes there any more. It is no death: programs are moved as often as replicas are drained.
        """
        self.drain(name)
        if self._has_another(source := self._replicas[name]):
            self._empty(source)

    def hedge(self, name: str) -> None:
        """A replica has not been heard for a while: programs that have got nothing of what they
        asked there are asked elsewhere, each of them once.
        """
        if self._has_another(source := self._replicas[name]):
            self._empty(source, lambda one: not one.was_hedged and one.log.waits_for_all)

    def _has_another(self, source: Replica) -> bool:
        """Whether another replica could take its programs."""
        alike = (one for one in self._replicas.values() if one.kind == source.kind)
        return any(not (one.draining or one.is_silent or one is source) for one in alike)

    def _empty(self, source: Replica, which: Callable[[RoutedProgram], bool] | None = None) -> None:
        """Its programs, or those of them, go on elsewhere, as far as they can be moved."""
        for program in self._at(source):
            if which is not None:
                if not which(program):
                    continue
                program.was_hedged = True
            if program.failure is None and program.log.movable:
                self._close(program, source)
                source.left |= program.log.unanswered
                self._leave_home(program)
                self._move(program)

    def _close(self, program: RoutedProgram, at: Replica) -> None:
        self.outgoing.append((at.name, [wire.Close(one) for one in sorted(program.branches)]))

    def strand(self, served_name: str, error: LmprogError) -> None:
        """No replica is left that could go on with a program of this name, and none is to be waited
        for: who asks gets `error`, until one joins all the same.
        """
        self._stranded[served_name] = error
        self._try_again()

    def _try_again(self) -> None:
        """What waits for a replica may have one now, or none any more."""
        homeless, self._homeless = self._homeless, []
        for program in homeless:
            self._place(program)
        self._ask(self._questions.postponed())

    def give_up_all(self, served_name: str, error: LmprogError) -> None:
        """No program of this name that is open now continues, even if a replica joins."""
        self._give_up_where(lambda one: (one.served_name or self.default) == served_name, error)

    def forget(self, served_name: str, error: LmprogError) -> None:
        """The name is served no more."""
        self._current.pop(served_name, None)
        self.give_up_all(served_name, error)

    def _give_up_where(self, is_meant: Callable[[RoutedProgram], bool], error: LmprogError) -> None:
        for program in {id(one): one for one in self._branches.values()}.values():
            if program.failure is None and is_meant(program):
                self._give_up(program, error)
        self._homeless = [one for one in self._homeless if one.failure is None]

    @property
    def waited_for(self) -> set[str]:
        """The names of models of which somebody waits for a replica."""
        names = {one.served_name for one in self._homeless} | self._questions.waited_for
        return {name or self.default for name in names}

    def tick(self, waking: Collection[str] = ()) -> None:
        """Gives up programs that have waited too long for a replica; ends trials. Replicas of the
        models that are `waking` may take long.
        """
        now = self._clock()
        for replica in self._replicas.values():
            tried = replica.trial
            if tried is not None and (tried.home is not replica or not tried.log.pending):
                replica.trial = None
                if tried.home is replica:
                    tried.log.clear()
        suspects, self._suspects = self._suspects, []
        for program in suspects:
            if program.failure is None and program.log.pending:
                self._place(program)
        for program in list(self._homeless):
            since, name = program.homeless_since, program.served_name
            most = WAKING_SECONDS if (name or self.default) in waking else HOMELESS_SECONDS
            if since is not None and now - since > most:
                self._homeless.remove(program)
                served = f" that serves {name!r}" if name else ""
                self._give_up(program, RuntimeGone(f"no replica of the fleet{served} is up"))

    def _at(self, home: Replica) -> list[RoutedProgram]:
        """The programs that run there."""
        known = (*self._branches.values(), *self._calls.values())
        return list({id(one): one for one in known if one.home is home}.values())

    # --- ops ------------------------------------------------------------------------------------

    def take_ops(self, ops: Iterable[wire.Op]) -> None:
        """Ops of the client, in order."""
        frames: Frames = {}
        for op in ops:
            program = self._program_of(op)
            if program is not None:
                self._take(program, op, frames)
            elif isinstance(op, EveryReplica | AnyReplica):
                self._ask([op])
            elif isinstance(op, ProgramCall):
                self._fail_call(op.call, UnknownName(f"there is no branch {op.branch}"))
        self.outgoing.extend(frames.items())

    def _program_of(self, op: wire.Op) -> RoutedProgram | None:
        match op:
            case wire.Open(branch=branch) if branch not in self._branches:
                cache = f"{op.lora}/{op.salt}" if op.lora else op.salt
                program = RoutedProgram(
                    ProgramLog(self._clock), cache, op.session, op.served_name, op.model
                )
                self._branches[branch] = program
                program.branches.add(branch)
                return program
            case wire.Cancel(call=call) | wire.Suspend(call=call):
                return self._calls.get(call)
            case wire.Contest(calls=calls):
                return self._calls.get(calls[0])
            case _:
                return self._branches.get(getattr(op, "branch", -1))

    def _take(self, program: RoutedProgram, op: wire.Op, frames: Frames) -> None:
        """One op of a program: now, or when the results that it refers to are known."""
        is_early = False
        match op:  # quicker than asking for each kind
            case wire.Suspend():  # nothing to do again where the program moves
                if program.home is not None and not program.held:
                    frames.setdefault(program.home.name, []).append(op)
                return
            case wire.Append():
                is_early = self._is_early(program, op)
            case wire.Fork():
                self._branches.update(dict.fromkeys(op.children, program))
                program.branches.update(op.children)
            case wire.Generate() | wire.Select() | wire.Read():  # `ProgramCall`
                self._calls[op.call] = program
                program.calls.add(op.call)
        if program.held or is_early:
            program.held.append(op)
            self._holding[id(program)] = program
        else:
            self._accept(program, op, frames)

    def _accept(self, program: RoutedProgram, op: wire.Op, frames: Frames) -> None:
        if isinstance(op, wire.Append):
            op = self._resolved(program, op)
        elif isinstance(op, ProgramCall):
            failure = program.failure or program.log.cause_of(op)
            if failure is not None:
                self._fail_call(op.call, failure)
                return
            op = seeded(op, self._draw)
        program.log.take(op)
        if program.home is not None:
            sent = program.log.journal.without_unknown(op) if isinstance(op, wire.Append) else op
            frames.setdefault(program.home.name, []).append(sent)
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

    def _is_early(self, program: RoutedProgram, op: wire.Append) -> bool:
        """Whether it refers to a result of another program that is not known yet."""
        for piece in op.pieces:
            other = self._elsewhere(program, piece)
            if other is None or other.failure is not None:
                continue
            assert isinstance(piece, wire.Ref)
            if piece.call not in other.log.journal.replies:
                return True
        return False

    def _resolved(self, program: RoutedProgram, op: wire.Append) -> wire.Append:
        """The op with the texts of other programs' results in place of references to them."""
        if not any(others := [self._elsewhere(program, piece) for piece in op.pieces]):
            return op
        pieces = tuple(
            other.log.journal.text_of(piece) if other and isinstance(piece, wire.Ref) else piece
            for other, piece in zip(others, op.pieces, strict=True)
        )
        return wire.Append(op.branch, pieces)

    def _ask(self, ops: Iterable[EveryReplica | AnyReplica]) -> None:
        """Questions about runtimes."""
        for op in ops:
            loads = self.loads
            served_name = self.default
            if isinstance(op, wire.Encode | wire.Decode):  # tokens are of one model
                served_name = op.served_name or self.default
                mine = [one for one in self._replicas.values() if one.kind[0] == served_name]
                loads = {one.name: one.load for one in mine}
            if not loads and served_name in self._stranded:
                self._fail_call(op.call, self._stranded[served_name])
                continue
            calls = op.texts_of if isinstance(op, wire.Inspect) else ()
            homes = [one.home.name for one in map(self._calls.get, calls) if one and one.home]
            for name in self._questions.ask(op, loads, homes):
                self.outgoing.append((name, [op]))

    def refuse(self, ops: Iterable[wire.Op], error: LmprogError) -> None:
        """A frame could not be sent, for what is in it: its programs cannot go on."""
        for one in {id(p): p for op in ops if (p := self._program_of(op)) is not None}.values():
            self._give_up(one, error)

    # --- replies --------------------------------------------------------------------------------

    def take_replies(self, name: str, replies: Sequence[wire.Reply]) -> None:
        """Replies of a replica. What comes from one that was lost is dropped."""
        replica = self._replicas.get(name)
        if replica is None:
            return
        for reply in replies:
            if isinstance(reply, wire.PrefixesAre):
                self._learn(replica, reply)
                continue
            call = getattr(reply, "call", None)
            if call is None:
                continue
            if call in replica.left:
                if not isinstance(reply, wire.Delta):
                    replica.left.discard(call)
                continue
            if self._questions.is_asked(call):
                self.replies.extend(self._questions.take(name, call, reply))
            elif (program := self._calls.get(call)) is not None and program.home is replica:
                self._hear(program, reply)

    def _learn(self, replica: Replica, news: wire.PrefixesAre) -> None:
        """What other fleets have sent there, as if it had been this one; asks for more."""
        for keys in news.programs:
            self._memory.remember(replica.number, keys)
        self.outgoing.append((replica.name, [wire.AwaitPrefixes(PREFIX_CALL)]))

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
            self._close(program, program.home)
            says = "a replica died, and its program went another way again"
            self._give_up(program, RuntimeGone(says))
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
            while program.held:
                if isinstance(op := program.held[0], wire.Append) and self._is_early(program, op):
                    break
                self._accept(program, program.held.popleft(), frames)
            if not program.held:
                self._holding.pop(id(program), None)
            self.outgoing.extend(frames.items())

    # --- where programs are ---------------------------------------------------------------------

    def _place(self, program: RoutedProgram) -> None:
        """Finds the program a replica, and sends it there with all that it has."""
        kind = self._kind_for(program)
        known = [one for one in self._replicas.values() if one.kind == kind]
        replicas = [one for one in known if not (one.draining or one.is_silent or one.trial)]
        replicas = replicas or [one for one in known if not one.draining] or list(known)
        if (why := self._why_nowhere(kind)) is not None:
            self._give_up(program, why)
            return
        if program.log.is_suspect and not self._is_tried(program, replicas):
            return
        if not replicas:
            if program.homeless_since is None:
                program.homeless_since = self._clock()
            self._homeless.append(program)
            return
        text = first_text(program.log.journal.ops)
        keys = keys_of(text, program.salt)
        if program.session:
            home = replicas[choose_for_session(program.session, [one.name for one in replicas])]
        else:
            mark = keys[0] if keys else mark_of(text)
            home = replicas[best(replicas, keys, mark, self._memory)]
        self._memory.remember(home.number, keys)
        program.beginning = keys[0] if keys else 0
        home.load += 1
        home.alike[program.beginning] = home.alike.get(program.beginning, 0) + 1
        program.home, program.homeless_since = home, None
        program.served_name, program.model = kind
        ops = program.log.rebuilt() if program.was_sent else list(program.log.journal.ops)
        program.was_sent = True
        told = [wire.SharePrefix(tuple(keys[: wire.MAX_PREFIX_KEYS]))] if keys else []
        self.outgoing.append((home.name, [*told, *ops]))

    def _kind_for(self, program: RoutedProgram) -> Kind:
        """The model that it has, or that it gets now: of the name that it asks for, or whichever
        is the one with which it says that it began.
        """
        name, model = program.served_name, program.model
        if model and not name:
            kinds = (one.kind for one in self._replicas.values() if one.kind[1] == model)
            return next(kinds, (self.default, model))
        name = name or self.default
        return name, model or self._current.get(name, "")

    def _why_nowhere(self, kind: Kind) -> LmprogError | None:
        """Why no replica of this kind takes a program."""
        if self._current and kind[0] not in self._current:
            return UnknownName.of_model(kind[0], self._current)
        return self._stranded.get(kind[0]) or self._retired.get(kind)

    def _is_tried(self, program: RoutedProgram, replicas: list[Replica]) -> bool:
        """Leaves one of `replicas` to a program that may have ended others: one that works on
        nothing, or where there are several one whose programs go to them. False: it waits for one.
        """
        free = [one for one in replicas if one.trial is None]
        chosen = next((one for one in free if not any(p.log.pending for p in self._at(one))), None)
        if chosen is None and len(free) > 1:
            chosen = min(free, key=lambda one: one.load)
        if chosen is not None:
            chosen.trial = program
            self._empty(chosen)
            replicas[:] = [chosen]
            return True
        if program.homeless_since is None:
            program.homeless_since = self._clock()
        if self._clock() - program.homeless_since >= TRIAL_SECONDS:
            return True
        self._suspects.append(program)
        return False

    def _move(self, program: RoutedProgram) -> None:
        """The program has lost its replica. If all its calls are answered, it moves when the next
        one is asked.
        """
        if program.failure is not None:
            return
        if not program.log.movable:
            why = f"after it had been moved {program.log.moves} times"
            why = "and it is too large to be moved" if program.log.is_large else why
            self._give_up(program, RuntimeGone(f"its replica died, {why}"))
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
            alike, beginning = program.home.alike, program.beginning
            alike[beginning] -= 1
            if not alike[beginning]:
                del alike[beginning]
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


@dataclass(eq=False, slots=True)
class Replica:
    """One runtime as the router sees it. `load` counts its open programs of this client."""

    name: str
    number: int
    slots: int
    load: int = 0
    draining: bool = False
    mark: int = 0
    """Of its name: see `placement.mark_of`."""
    is_silent: bool = False
    trial: RoutedProgram | None = None
    """The program that it is left to, to see whether it is the cause of deaths."""
    written: float = ASSUMED_WRITTEN
    """Tokens that a program writes there on average."""
    meter: SpeedMeter = field(default_factory=SpeedMeter)
    alike: dict[int, int] = field(default_factory=dict)
    """Its open programs by the key of their first block; 0: they have none."""
    kind: Kind = ("", "")
    left: set[int] = field(default_factory=set)
    """Calls of programs that went elsewhere, which it has still to answer: that they were closed,
    say. A program may be back before it does, and the answer is not of what it asks then."""


@dataclass(eq=False, slots=True)
class RoutedProgram:
    """A program and where it runs. `home` is None before its first call, and where there is no
    replica for it.
    """

    log: ProgramLog
    salt: str
    """Names the cache that it uses: its salt, and its adapter."""
    session: str = ""
    served_name: str = ""
    """The name of its model; "" before it is placed: it has said none."""
    model: str = ""
    """The digest of the model that it has begun with; "": it has not, or there are none."""
    home: Replica | None = None
    beginning: int = 0
    """The key of its first block where it was placed."""
    was_sent: bool = False
    was_hedged: bool = False
    homeless_since: float | None = None
    failure: LmprogError | None = None
    """Why it cannot go on: all its later calls fail with this."""
    branches: set[int] = field(default_factory=set)
    calls: set[int] = field(default_factory=set)
    held: deque[wire.Op] = field(default_factory=deque)
    """Ops behind one that refers to another program's result, which is not known yet."""
