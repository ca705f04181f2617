"""Hostile and broken frames: decoding raises what is listed and nothing else, admission raises
nothing.
"""

from __future__ import annotations

import random

import pytest

from lmprog import wire
from lmprog.transport.channel import UNDECODABLE, Admission, Gone, Unreadable

NUM_FRAMES = 200_000
SEED = 20261121

OPS: tuple[wire.Op, ...] = (
    wire.Hello(wire.PROTOCOL_VERSION, "fuzz"),
    wire.Open(1, "salt", lora="clerk"),
    wire.Append(
        1,
        (
            wire.TextPiece("Once upon a time"),
            wire.Ref(3, 1),
            wire.Gained(2),
            wire.RoleBegin("user"),
            wire.Conversation("[]"),
        ),
    ),
    wire.Generate(
        1,
        2,
        wire.SamplingParams(temperature=0.5, stop=("\n",), logit_bias=((3, 1.5),)),
        wire.Regex("[a-z]+"),
    ),
    wire.Generate(1, 3, constraint=wire.JsonSchema('{"type":"object"}'), stream=True, timeout=3.0),
    wire.Generate(
        1,
        14,
        constraint=wire.AnyOf(
            (wire.InOrder((wire.Choices(("a",)),)), wire.Repeated(wire.Regex("b"), 0, None))
        ),
    ),
    wire.Select(1, 4, ("yes", "no"), "greedy_token_selection"),
    wire.Fork(1, (5, 6, 7), "letters"),
    wire.Read(5, 8),
    wire.Cancel(3),
    wire.Suspend(3),
    wire.Contest((2, 3), "majority"),
    wire.Append(1, (wire.TokensPiece((1, 2, 3)),)),
    wire.Encode(12, "Once upon"),
    wire.Decode(13, (1, 2), special=True),
    wire.Describe(9),
    wire.Flush(10),
    wire.Inspect(11, 20, True),
    wire.SharePrefix((1, -(2**63), 2**63 - 1)),
    wire.AwaitPrefixes(15),
    wire.Close(1),
)
REPLIES: tuple[wire.Reply, ...] = (
    wire.Welcome(1, "nano", 2048, 4096, 16, 4096, 1, adapters={"clerk": "d1"}),
    wire.Delta(2, 0, "ab", 1, (wire.TokenLogprob(7, "ab", -0.5),)),
    wire.CallDone(
        2,
        (wire.Output("ab", (1, 2), "stop", "\n", (wire.TokenLogprob(1, "a", -0.5),)),),
        wire.Usage(5, 4),
    ),
    wire.Chosen(4, 0, (wire.ScoredChoice(-1.0, 0.7, (-1.0,)),), wire.Usage()),
    wire.PrefixesAre(15, ((1, -2), (3,))),
    wire.Failed(None, "protocol", "no", {"a": 1, "b": None}),
)


def mutated(rng: random.Random, frame: bytes) -> bytes:
    """A frame that was cut, or had bytes changed, inserted, removed or repeated; or plain noise."""
    kind = rng.randrange(6)
    place = rng.randrange(len(frame))
    if kind == 0:
        return frame[:place]
    if kind == 1:
        return rng.randbytes(rng.randrange(200))
    if kind == 2:
        return frame[:place] + rng.randbytes(rng.randrange(1, 9)) + frame[place:]
    if kind == 3:
        return frame[:place] + frame[place + rng.randrange(1, 9) :]
    if kind == 4:
        return frame[:place] + frame[rng.randrange(len(frame)) :]
    changed = bytearray(frame)
    for _ in range(rng.randrange(1, 5)):
        changed[rng.randrange(len(changed))] = rng.choice(
            (0x00, 0x7F, 0x80, 0xC0, 0xCB, 0xCF, 0xD9, 0xDD, 0xFF, place % 256)
        )
    return bytes(changed)


def test_no_frame_raises_and_every_broken_one_is_counted() -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    whole = [wire.encode((op,)) for op in OPS] + [
        wire.encode(OPS[:n]) for n in range(2, len(OPS) + 1)
    ]
    admission = Admission()
    num_ops = num_gone = num_told = 0
    for number in range(NUM_FRAMES):
        client = b"%d" % (number % 7)
        welcome = admission.is_welcome(client)
        malformed = admission.counters["frames_malformed"]
        admitted = admission.admit(client, mutated(rng, rng.choice(whole)))
        messages = admitted.messages
        if admission.counters["frames_malformed"] > malformed:
            is_told = admitted.refusal is not None or any(
                isinstance(message, Unreadable) for message in messages
            )
            assert is_told == welcome
            num_told += welcome
            continue
        num_ops += sum(not isinstance(message, Gone) for message in messages)
        num_gone += len(messages)
    counters = admission.counters
    assert counters["frames_received"] == NUM_FRAMES
    assert NUM_FRAMES * 0.3 < counters["frames_malformed"] < NUM_FRAMES
    assert counters["ops_received"] == num_ops > 1000
    assert counters["clients_gone"] == num_gone - num_ops > 0
    assert num_told > 1000
    assert len(admission.known()) <= 7


def test_a_frame_with_a_bad_value_names_its_calls_and_its_branches() -> None:
    admission = Admission()
    admission.admit(b"x", wire.encode((wire.Hello(wire.PROTOCOL_VERSION),)))
    bad = wire.SamplingParams(temperature=-1.0)
    frame = wire.encode(
        (
            wire.Append(7, (wire.TextPiece("a"),)),
            wire.Generate(7, 8, bad),
            wire.Encode(9, "b"),
            wire.Cancel(8),
            wire.Read(7, 2**60),
        )
    )
    (message,) = admission.admit(b"x", frame).messages
    assert isinstance(message, Unreadable)
    assert (message.calls, message.branches) == ((8, 9), (7,))
    assert "temperature" in message.reason


def test_a_frame_of_too_many_ops_is_refused_without_being_read() -> None:
    admission = Admission()
    admission.admit(b"x", wire.encode((wire.Hello(wire.PROTOCOL_VERSION),)))
    frame = wire.encode(tuple(wire.Open(number) for number in range(wire.MAX_FRAME_OPS + 1)))
    admitted = admission.admit(b"x", frame)
    assert admitted.messages == ()
    assert admitted.refusal is not None
    assert str(wire.MAX_FRAME_OPS) in admitted.refusal.message


def test_a_frame_that_cannot_be_read_counts_as_the_ops_that_must_be_answered() -> None:
    admission = Admission()
    admission.admit(b"x", wire.encode((wire.Hello(wire.PROTOCOL_VERSION),)))
    wrong = wire.SamplingParams(temperature=-5.0)
    calls = tuple(wire.Generate(number, number, wrong) for number in range(1, 101))
    assert admission.admit(b"x", wire.encode((wire.Open(1), *calls))).num_ops == 101
    assert admission.admit(b"x", wire.encode((wire.Open(1), wire.Open(2)))).num_ops == 2


def test_what_does_decode_is_within_its_declared_ranges() -> None:
    rng = random.Random(SEED)
    whole = wire.encode(OPS)
    num_decoded = 0
    for _ in range(20_000):
        try:
            ops = wire.decode_ops(mutated(rng, whole))
        except UNDECODABLE:
            continue
        num_decoded += 1
        for op in ops:
            if isinstance(op, wire.Generate):
                assert 0.0 <= op.sampling.temperature <= 100.0
                assert 0.0 < op.sampling.top_p <= 1.0
                assert 0 <= op.call <= 2**53
            if isinstance(op, wire.Fork):
                assert 1 <= len(op.children) <= 4096
    assert num_decoded > 100


def test_a_broken_reply_raises_what_is_listed_and_nothing_else() -> None:
    rng = random.Random(SEED)
    whole = wire.encode(REPLIES)
    num_broken = 0
    for _ in range(20_000):
        try:
            wire.decode_replies(mutated(rng, whole))
        except UNDECODABLE:
            num_broken += 1
    assert num_broken > 5000


@pytest.mark.parametrize(
    "frame",
    [b"\x91" * 100_000, b"\x81\x00" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"],
)
def test_deep_nesting_and_false_lengths_are_only_counted(frame: bytes) -> None:
    admission = Admission()
    assert admission.admit(b"x", frame).messages == ()
    assert admission.counters["frames_malformed"] == 1


@pytest.mark.parametrize(
    "op",
    [
        wire.Generate(1, 1, wire.SamplingParams(temperature=float("nan"))),
        wire.Generate(1, 1, wire.SamplingParams(temperature=float("inf"))),
        wire.Generate(1, 1, wire.SamplingParams(top_p=0.0)),
        wire.Generate(1, 1, wire.SamplingParams(n=129)),
        wire.Generate(1, 1, wire.SamplingParams(stop=("",))),
        wire.Generate(1, 1, wire.SamplingParams(stop_token_ids=(2**31,))),
        wire.Generate(1, 1, wire.SamplingParams(logit_bias=((-1, 0.0),))),
        wire.Generate(1, 2**53 + 1),
        wire.Generate(1, 1, timeout=0.0),
        wire.Open(-1),
        wire.Fork(1, ()),
        wire.Select(1, 1, ()),
    ],
)
def test_a_value_outside_its_range_does_not_decode(op: wire.Op) -> None:
    with pytest.raises(wire.MalformedFrame):
        wire.decode_ops(wire.encode((op,)))
