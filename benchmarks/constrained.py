"""What constraints cost and save in a runtime, what hard ones cost others, and whether one is ever used up.

python -m benchmarks.constrained programs [--model nano]    without, with masks, and with jump-forward
python -m benchmarks.constrained bombs [--processor]        do hard patterns of strangers slow others down?
python -m benchmarks.constrained steps                      the longest step with 32 rows of each of 20 bombs
python -m benchmarks.constrained endurance                  thousands of generations through one constraint
"""

from __future__ import annotations

import gc
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Annotated, Any

from benchmarks import runner
from benchmarks.constraint_engines import TEKKEN
from benchmarks.models import prepared
from benchmarks.own_loop import ME, ManyTokens, ModelFreeLoop, OwnLoop
from benchmarks.workloads.documents import FIELDS, MOST, PATTERN
from benchmarks.workloads.text import Pieces, Writer
from lmprog import wire
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.constraints.compiling.compiler import DEFAULT_LIMITS, compile_constraint
from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.regular import RegularConstraint
from lmprog.constraints.token_bytes import vocabulary_of_tokenizer
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import GrammarError, RequestRejected
from lmprog.runtime.assembly import assemble
from lmprog.runtime.main import COLLECTED_EVERY
from lmprog.runtime.text.tokenizer import load_tokenizer
from lmprog.simulation.world import SimChannel

# -- whole programs

WAYS = ("off", "masks", "jump-forward")
Step = tuple[str, str, int]
"""Literal text, the pattern of the generation after it, its `max_tokens`."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one way of one workload took."""

    seconds: float
    cpu: float
    forced: int
    passes: int
    steps: int
    lengths: tuple[int, ...]
    """Tokens of each generation, in the order of the calls."""


def ops_of(
    programs: Sequence[Sequence[Step]], way: str, lengths: Sequence[int]
) -> Iterator[wire.Op]:
    """All programs; `lengths`: tokens of each generation where there is no constraint to end it."""
    call = 0
    for branch, program in enumerate(programs):
        yield wire.Open(branch)
        for literal, pattern, most in program:
            yield wire.Append(branch, (wire.TextPiece(literal),))
            drawn: dict[str, Any] = {"temperature": 1.0, "seed": call}
            if way == "off":
                sampling = wire.SamplingParams(**drawn, max_tokens=lengths[call], ignore_eos=True)
                yield wire.Generate(branch, call, sampling, heal=False)
            else:
                jump: Any = "canonical" if way == "jump-forward" else "exact"
                sampling = wire.SamplingParams(**drawn, max_tokens=most, jump=jump)
                yield wire.Generate(branch, call, sampling, wire.Regex(pattern), heal=False)
            call += 1


def worked(
    own: OwnLoop, programs: Sequence[Sequence[Step]], way: str, lengths: Sequence[int] = ()
) -> Work:
    """All programs at once, on an empty cache."""
    own.say(ME, wire.Flush(0))
    own.turn()
    own.say(ME, *ops_of(programs, way, lengths))
    expected, done, stats = sum(map(len, programs)), dict[int, int](), own.loop.scheduler.stats
    before = (stats.forced_tokens, stats.rows, stats.steps)
    began, cpu = time.perf_counter(), time.process_time()
    while len(done) < expected:
        for came in own.turn():
            if isinstance(came.reply, wire.CallDone):
                done[came.reply.call] = len(came.reply.outputs[0].tokens)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    after = (stats.forced_tokens, stats.rows, stats.steps)
    forced, passes, steps = (b - a for a, b in zip(before, after, strict=True))
    own.say(ME, *(wire.Close(branch) for branch in range(len(programs))))
    own.turn()
    sizes = tuple(done[call] for call in sorted(done))
    return Work(seconds, cpu, forced, passes, steps, sizes)


def workloads(pieces: Pieces, count: float) -> dict[str, list[list[Step]]]:
    """The programs, with seeded random words for documents and names."""
    writer = Writer(pieces, "constrained", 1.0, count)
    documents = [writer.text(1000, 3000) for _ in range(writer.number(20))]
    names = [writer.text(20) for _ in range(writer.number(50))]
    chain = [(literal, pattern, MOST) for literal, pattern in FIELDS]
    return {
        "json decode": [[(text + chain[0][0], *chain[0][1:]), *chain[1:]] for text in documents],
        "json jump-forward": [[(name, PATTERN, 512)] for name in names],
    }


def programs(
    *,
    model: Annotated[str, "as in benchmarks.programs"] = "nano",
    count: Annotated[float, "multiplies the number of programs"] = 1.0,
    repeat: int = 3,
    threads: int | None = None,
) -> None:
    """The two JSON programs of `benchmarks.workloads.documents`, on one runtime, in one process, three
    ways: *off* (no constraint, as many tokens as the constrained run wrote, call by call), *masks*
    (every token is picked under a mask), *jump-forward* (forced tokens are appended as well). All
    programs of a way run at once; ways take turns, and the median of the repetitions counts. Tokens
    are those of the results, forced ones included; forward passes are rows of the batches (one
    sequence in one step), and steps are batches.
    """
    with prepared(model) as (name, folder):
        own = OwnLoop(name, speculation="off", threads=threads)
        pieces = Pieces(load_tokenizer(folder))
    columns = (
        "way, tokens, forced, forward passes, per token, steps, seconds, cpu seconds, tokens/s"
    )
    runner.head("program", *columns.split(", "), texts=2)
    for title, all_of in workloads(pieces, count).items():
        lengths = worked(own, all_of, "jump-forward").lengths  # warm as well
        sides = {way: partial(worked, own, all_of, way, lengths) for way in WAYS}
        for way, works in runner.in_turn(sides, repeat).items():
            one, tokens = works[0], sum(works[0].lengths)
            seconds, cpu = median(w.seconds for w in works), median(w.cpu for w in works)
            runner.say(
                *(title, way, f"{tokens:,}", f"{one.forced:,}", f"{one.passes:,}"),
                *(f"{one.passes / tokens:.2f}", f"{one.steps:,}", f"{seconds:.2f}"),
                *(f"{cpu:.2f}", f"{tokens / seconds:,.0f}"),
            )


# -- hard patterns

NUM_STREAMS, NUM_BOMBS = 4, 50
BOMB_TOKENS = 48  # tokens of each of the others; what their shortest texts need
PATTERNS = (r"[ab]*a[ab]{24}", r"(\w+\s?){1,200}", r".{1,100000}", r"\w{1,16}")
TOO_LARGE = "a{1000000000}"
LETTERS = "|".join(chr(0x4E00 + i) for i in range(20_000))


def slowest(number: int) -> dict[str, wire.Constraint]:
    """Another `number` makes others of the same kind, so that none is compiled already."""
    choices = tuple(f"{number}-{i * 7919 % 1_000_003}" for i in range(100_000))
    return {
        "20,000 letters, repeated": wire.Regex(f"({LETTERS}){{{number},}}"),
        "(a?){5000}a{5000}": wire.Regex(f"(a?){{5000}}a{{{5000 + number}}}"),
        "65,536 choices": wire.Choices(choices[: 1 << 16]),
        "enum of 100,000 texts": wire.JsonSchema(json.dumps({"enum": choices})),
    }


def hard_ones() -> list[wire.Constraint]:
    """Each is new, so that none is compiled already; every tenth is refused for its size."""
    found: list[wire.Constraint] = []
    for number in range(NUM_BOMBS):
        if number % 10 == 0:
            found.append(wire.Regex(f"{TOO_LARGE}z{number}"))
        elif number % 5 == 0:
            fields = {f"p{number}_{index}": {"type": "string"} for index in range(200)}
            found.append(wire.JsonSchema(json.dumps({"type": "object", "properties": fields})))
        else:
            found.append(wire.Regex(f"{PATTERNS[number % len(PATTERNS)]}z{number}"))
    return found


def collect_as_the_runtime_does() -> None:
    """From now on, with what is there left alone."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED_EVERY)


class Bench:
    """One runtime without a process; calls are numbered as they are made."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.refused: list[wire.Failed] = []
        self.ended: set[int | None] = set()
        self.channel = SimChannel()
        # Drafts bring several tokens of a stream at once, and a step is what is measured here.
        config = RuntimeConfig(model="nano", scheduler=SchedulerConfig(speculation="off"))
        self.loop, _ = assemble(config, self.channel)
        self.num_calls = 0

    def ask(self, constraint: wire.Constraint | None, max_tokens: int, stream: bool) -> int:
        self.num_calls += 1
        number, text = self.num_calls, wire.TextPiece(f"Once upon a time {self.num_calls}")
        sampling = wire.SamplingParams(seed=number, max_tokens=max_tokens, ignore_eos=True)
        gen = wire.Generate(number, number, sampling, constraint, stream)
        ops = (wire.Open(number), wire.Append(number, (text,)), gen)
        self.channel.inbox += [(ME, op) for op in ops]
        return number

    def gaps(self, others: Sequence[wire.Constraint | None], steps: int) -> tuple[list[float], int]:
        """Milliseconds between the streams' texts, sorted; how many of the others were answered
        meanwhile.
        """
        streams = {self.ask(None, steps, stream=True) for _ in range(NUM_STREAMS)}
        self.turns(8)
        asked = {self.ask(constraint, BOMB_TOKENS, stream=False) for constraint in others}
        found: list[float] = []
        last = self.clock()
        while not streams <= self.ended:
            replies = self.turns(1)
            if any(isinstance(reply, wire.Delta) and reply.call in streams for reply in replies):
                now = self.clock()
                found.append(1e3 * (now - last))
                last = now
        meanwhile = len(asked & self.ended)
        self.rest()
        return sorted(found), meanwhile

    def rest(self) -> None:
        self.turns(5)
        while self.loop.interpreter.awaits_thread or not self.loop.scheduler.idle:
            self.turns(1)

    def turns(self, count: int) -> list[wire.Reply]:
        for _ in range(count):
            self.loop.step()
        sent, self.channel.sent = self.channel.sent, []
        replies = [reply for _, reply in sent]
        ends = [one for one in replies if isinstance(one, wire.CallDone | wire.Failed)]
        self.ended |= {one.call for one in ends}
        self.refused += [one for one in ends if isinstance(one, wire.Failed)]
        return replies


def decided_in(spec: wire.Constraint, vocabulary: Vocabulary) -> tuple[float, str]:
    """Seconds of processor time until the first mask or the refusal."""
    begin = time.process_time()
    try:
        made = compile_constraint(spec, vocabulary)
        made.mask(made.start, max(1, made.distance(made.start)))
        answer = "compiled"
    except RequestRejected:
        answer = "refused"
    return time.process_time() - begin, answer


def bombs(
    *,
    steps: Annotated[int, "tokens of each stream"] = 250,
    processor: Annotated[bool, "count processor time"] = False,
) -> None:
    """Four unconstrained streams decode on nano; 50 calls with hard constraints arrive at once (those of
    docs/constraints.md, and objects of 200 optional properties). Measured is the time between two
    steps that bring the streams text: alone, with 50 calls that have no constraint (what any 50 calls
    cost), and with the hard ones, in one process: the runtime's own loop and compiler, no sockets.
    Then come the three that were the slowest to decide, each asked for three times, with the processor
    time until its first mask on 131,072 tokens. Seconds of the clock: only a quiet machine gives
    figures. `--processor` counts processor time of the whole process instead, the compiler's thread
    included: what the streams would wait at most if there were one core.
    """
    bench = Bench(time.process_time if processor else time.perf_counter)
    bench.ask(wire.Regex("warm+"), 8, stream=False)
    bench.rest()
    collect_as_the_runtime_does()
    each = [slowest(number) for number in range(1, 4)]
    others: dict[str, Sequence[wire.Constraint | None]] = {
        "alone": [],
        "with 50 calls without constraints": [None] * NUM_BOMBS,
        "with 50 hard ones": hard_ones(),
        **{f"with three of {name}": [one[name] for one in each] for name in each[0]},
    }
    for name, those in others.items():
        gaps, answered = bench.gaps(those, steps)
        p50, p99 = runner.middle_and_p99(gaps)
        print(
            f"{name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, worst {gaps[-1]:.1f} ms; "
            f"{answered} answered meanwhile",
            flush=True,
        )
    vocabulary = vocabulary_of_tokenizer(TEKKEN)
    vocabulary.prepare()
    decided_in(wire.Regex("warm+"), vocabulary)
    for name, spec in slowest(4).items():
        seconds, answer = decided_in(spec, vocabulary)
        print(f"{name}: {answer} in {seconds:.2f} s of processor time", flush=True)


# -- the longest step

NUM_ROWS, NUM_BYSTANDERS, SMALL_PATTERNS = 32, 4, 7
STEP_PATTERNS = r"""
    (?s)(.{0,100}(cat|dog|bird)){5,10}.{0,100} .*(a|b).{300} (.*,){40}x [ab]*a[ab]{1500} (a?){5000}a{5000}
    .*a.{300}b .{1,100000} (\w+\s?){1,200} ((a{1,30}){1,30}){1,30} (.*a.{24}){3} (\w{1,100}){1,100}
    (.|.?|..){1,1000}x (\d+,?)*(\w+;?)*[^z]{100,5000} (a|aa){1,1000}(b|bb){1,1000} a{1000000000}
"""


def numbered(pattern: str, number: int) -> wire.Constraint:
    return wire.Regex(f"{pattern}z{{0,{number}}}")


STEP_BOMBS: dict[str, Callable[[int], wire.Constraint]] = {
    **{
        pattern: partial(numbered, pattern)
        for pattern in (*STEP_PATTERNS.split(), "(" * 99 + "a" + ")*" * 99)
    },
    "20,000 letters": lambda number: wire.Regex(f"({LETTERS}){{{number},}}"),
    "100,000 choices": lambda number: slowest(number)["65,536 choices"],
    "512 optional properties": lambda number: wire.JsonSchema(
        json.dumps({"properties": {f"p{i}_{number}": {"type": "string"} for i in range(512)}})
    ),
    "3,500 rules": lambda number: wire.Grammar(
        "root ::= a0\n"
        + "\n".join(f'a{i} ::= "x{number}" a{i + 1} | "y"' for i in range(3499))
        + '\na3499 ::= "z"\n'
    ),
}


def steps(*, seconds: float = 3.0) -> None:
    """A loop around a model that computes nothing, with 131,000 tokens. For each bomb, 32 rows of it and 4
    rows without constraints run for so long. Reported are the loop's processor time in the longest turn, without the
    model's; the texts of others and of its rows; and the process's until small patterns of others are compiled, or called.
    """
    tokenizer = ManyTokens(vocabulary_of_tokenizer(TEKKEN).tokens)
    letters = set(b"ab, catdogbir0123xyz")
    pieces = map(tokenizer.token_bytes, range(tokenizer.vocab_size))
    hot = [at for at, piece in enumerate(pieces) if piece and set(piece) <= letters]
    bench = ModelFreeLoop(tokenizer, hot)
    alone = [bench.compiled_in(wire.Regex(f"warm[a-z]{{3,{9 + i}}}")) for i in range(40)][20:]
    usual, call = (1e3 * median(of) for of in zip(*alone, strict=True))
    beside_all: list[float] = []
    collect_as_the_runtime_does()
    bench.took = []
    print(f"a small pattern alone: compiled in {usual:.2f} ms, its call in {call:.1f} ms")
    worst_of_all = 0.0
    for index, (name, bomb) in enumerate(STEP_BOMBS.items()):
        spec, began = bomb(index + 3), time.perf_counter()
        rows = [bench.ask(spec, 12_000) for _ in range(NUM_ROWS)]
        others = [bench.ask(None, 12_000) for _ in range(NUM_BYSTANDERS)]
        beside = [
            bench.compiled_in(wire.Regex(f"b{index}{n}[a-z]{{3,9}}")) for n in range(SMALL_PATTERNS)
        ]
        compiled, call = (1e3 * median(of) for of in zip(*beside, strict=True))
        beside_all.append(compiled)
        until = time.perf_counter() + seconds
        refused: tuple[float, str] | None = None
        while time.perf_counter() < until:
            bench.turn()
            reply = bench.ended.get(rows[0])
            if refused is None and isinstance(reply, wire.Failed):
                refused = time.perf_counter() - began, reply.message
        took, bench.took = bench.took, []
        num_failed = sum(isinstance(bench.ended.get(one), wire.Failed) for one in rows)
        worst_of_all = max(worst_of_all, *took)
        print(
            f"{name[:46]}: longest step {max(took):.1f} ms, mean {sum(took) / len(took):.2f}; "
            f"texts of others {min(bench.texts.get(one, 0) for one in others)}, of its rows "
            f"{min(bench.texts.get(one, 0) for one in rows)}..{max(bench.texts.get(one, 0) for one in rows)} "
            f"in {len(took)} turns; a small pattern compiled in {compiled:.2f} ms, its call in "
            f"{call:.1f} ms; {num_failed} failed",
            "" if refused is None else f"({refused[0]:.2f} s: {refused[1][:60]})",
            flush=True,
        )
        bench.channel.inbox += [(ME, wire.Close(call)) for call in (*rows, *others)]
        for _ in range(20):
            bench.turn()
    print(
        f"longest step of all: {worst_of_all:.1f} ms; a small pattern is compiled in {median(beside_all) / usual:.2f} "
        f"times at the median and {max(beside_all) / usual:.2f} times at most of what it takes alone"
    )


# -- one constraint, used again and again

EDGE, LATE = 100, 1000
"""Generations at the beginning and at the end whose times are compared, and those after which the
process must not grow at all: by then all states that may be held were.
"""
Write = Callable[[random.Random], str]


def random_words(rng: random.Random, low: int, high: int) -> str:
    return "".join(rng.choice("abcdefgh   ,;é") for _ in range(rng.randint(low, high)))


def sentences(rng: random.Random) -> str:
    return "".join(rng.choice("ABC") + random_words(rng, 6, 60) + ". " for _ in range(2))


def question(rng: random.Random) -> str:
    return (
        random_words(rng, 20, 60)
        + "?"
        + "".join(f" {random_words(rng, 10, 50)}." for _ in range(2))
    )


def few_words(rng: random.Random) -> str:
    """A JSON string of at most 30 words and 300 characters."""
    some = ["".join(rng.choices("abcdefghé,", k=rng.randint(1, 8))) for _ in range(29)]
    return json.dumps(" ".join(some[: rng.randint(2, 29)]), ensure_ascii=False)


BOUNDED_WORDS = r'{"type": "string", "maxLength": 300, "pattern": "^(?:\\S+\\s+){0,29}\\S+$"}'
ENDURED: dict[str, tuple[wire.Constraint, Write]] = {
    "sentences": (wire.Regex(r"([A-Z].{5,150}\. ?){2,6}"), sentences),
    "question": (wire.Regex(r".{20,200}\?( .{10,100}\.){1,3}"), question),
    "bounded words": (wire.JsonSchema(BOUNDED_WORDS), few_words),
}


@dataclass(slots=True)
class Endured:
    """What became of all generations through one constraint."""

    num_failed: int = 0
    num_tokens: int = 0
    num_collections: int = 0
    most_states: int = 0
    grown: int = 0
    """Kilobytes of the process, from the `EDGE`th generation to the `LATE`th."""
    grown_late: int = 0
    """From there to the last."""
    first: float = 0.0
    last: float = 0.0
    """Microseconds of processor time a token, of the first and the last `EDGE` generations."""


def endure(
    case: str, vocabulary: Vocabulary, count: int, limits: CompileLimits = DEFAULT_LIMITS
) -> Endured:
    """`count` generations, every one with a text that the constraint takes."""
    spec, write = ENDURED[case]
    made = compile_constraint(spec, vocabulary, limits)
    assert isinstance(made, RegularConstraint), "the cases are regular"
    rng, out = random.Random(0), Endured()
    times: list[float] = []
    marks: list[int] = []
    for number in range(count):
        tokens = vocabulary.greedy(write(rng).encode())
        begin = time.thread_time()
        out.num_failed += not finishes(made, tokens)
        times.append((time.thread_time() - begin) * 1e6 / len(tokens))
        out.num_tokens += len(tokens)
        out.most_states = max(out.most_states, made.num_states)
        if number + 1 in (EDGE, LATE, count):
            gc.collect()
            marks.append(runner.Footprint.of(os.getpid()).kilobytes)
    if count > EDGE:
        out.grown = marks[1] - marks[0]
    if count > LATE:
        out.grown_late = marks[2] - marks[1]
    out.num_collections = made.num_collections
    edge = min(EDGE, count)
    out.first, out.last = sum(times[:edge]) / edge, sum(times[-edge:]) / edge
    return out


def finishes(made: RegularConstraint, tokens: list[int]) -> bool:
    """Whether the tokens are allowed one after the other, and may end."""
    state = made.start
    try:
        for token in tokens:
            if not made.mask(state).allows(token):
                return False
            state = made.advance(state, token)
    except GrammarError:
        return False
    return made.is_final(state)


def small_vocabulary() -> Vocabulary:
    """Bytes, and all pairs of small letters with a blank."""
    letters = "abcdefghijklmnopqrstuvwxyz "
    pairs = [(one + other).encode() for one in letters for other in letters]
    return Vocabulary([None, *(bytes([byte]) for byte in range(256)), *pairs], [0])


def endurance(*, generations: int = 10_000) -> None:
    """Generations through one compiled constraint, a mask before every token, on two vocabularies: texts
    with counters that no other generation had, so that states are always new. Reported are failures,
    how often states were forgotten, what the process grew by, and the processor time of a token among
    the first and among the last generations.
    """
    large = ("131,072 tokens", vocabulary_of_tokenizer(TEKKEN))
    for name, vocabulary in (large, ("986 tokens", small_vocabulary())):
        vocabulary.prepare()
        for case in ENDURED:
            found = endure(case, vocabulary, generations)
            print(
                f"{name}, {case}: {found.num_failed} of {generations} failed, "
                f"{found.num_tokens} tokens, states forgotten {found.num_collections} times, "
                f"at most {found.most_states} held; grew by {found.grown / 1024:.1f} MB "
                f"behind the first {EDGE}, then by {found.grown_late / 1024:.1f} MB behind "
                f"the first {LATE:,}; a token took {found.first:.0f} us first, "
                f"{found.last:.0f} us last",
                flush=True,
            )


COMMANDS = runner.commands(programs, bombs, steps, endurance)
