"""Every message survives its encoding, whatever its values: drawn from the declared types
themselves.
"""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmprog import wire

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ids = st.integers(0, 2**53)
floats = st.floats(0.0, 1.0)
samplings = st.builds(
    wire.SamplingParams,
    temperature=st.floats(0.0, 100.0),
    top_p=st.floats(0.0, 1.0, exclude_min=True),
    top_k=st.integers(-1, 2**31 - 1),
    min_p=floats,
    seed=st.none() | st.integers(0, 2**63 - 1),
    max_tokens=st.none() | st.integers(1, 2**31 - 1),
    stop=st.lists(texts.filter(bool), max_size=16).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple),
    frequency_penalty=st.floats(-2.0, 2.0),
    logit_bias=st.lists(
        st.tuples(st.integers(0, 2**31 - 1), st.floats(-100.0, 100.0)), max_size=4
    ).map(tuple),
    logprobs=st.none() | st.integers(0, 100),
    n=st.integers(1, 128),
)
pieces = st.one_of(
    st.builds(wire.TextPiece, texts),
    st.builds(wire.TokensPiece, st.lists(st.integers(0, 2**31 - 1), max_size=9).map(tuple)),
    st.builds(wire.Ref, ids, st.integers(0, 127)),
    st.builds(wire.Gained, ids),
    st.builds(wire.RoleBegin, texts),
    st.builds(wire.RoleEnd, texts),
    st.builds(wire.Conversation, texts, texts, texts, texts),
)
constraints = st.one_of(
    st.none(),
    st.builds(wire.Regex, texts),
    st.builds(wire.JsonSchema, texts, st.sampled_from(get_args(wire.Whitespace)), st.booleans()),
    st.builds(wire.Choices, st.lists(texts, min_size=1, max_size=4).map(tuple)),
    st.builds(wire.Grammar, texts),
)
priorities = st.integers(-100, 100)
timeouts = st.none() | st.floats(0.001, 86_400.0)
OPS: dict[type[Any], st.SearchStrategy[Any]] = {
    wire.Hello: st.builds(wire.Hello, st.integers(0, 9), texts),
    wire.Open: st.builds(wire.Open, ids, texts),
    wire.Append: st.builds(wire.Append, ids, st.lists(pieces, max_size=6).map(tuple)),
    wire.Generate: st.builds(
        wire.Generate,
        *(ids, ids, samplings, constraints, st.booleans(), priorities, timeouts, st.booleans()),
        st.sampled_from(get_args(wire.Keep)),
        st.none()
        | st.builds(wire.Judge, texts, st.lists(texts, min_size=2, max_size=4).map(tuple)),
    ),
    wire.Select: st.builds(
        wire.Select,
        ids,
        ids,
        st.lists(texts, min_size=1, max_size=5).map(tuple),
        st.sampled_from(get_args(wire.SelectMethod)),
    ),
    wire.Fork: st.builds(wire.Fork, ids, st.lists(ids, min_size=1, max_size=6).map(tuple)),
    wire.Close: st.builds(wire.Close, ids),
    wire.Cancel: st.builds(wire.Cancel, ids),
    wire.Contest: st.builds(
        wire.Contest,
        st.lists(ids, min_size=1, max_size=6).map(tuple),
        st.sampled_from(get_args(wire.ContestRule)),
    ),
    wire.Read: st.builds(wire.Read, ids, ids),
    wire.Encode: st.builds(wire.Encode, ids, texts, st.booleans()),
    wire.Decode: st.builds(
        wire.Decode, ids, st.lists(st.integers(0, 2**31 - 1), max_size=9).map(tuple), st.booleans()
    ),
    wire.Describe: st.builds(wire.Describe, ids),
    wire.Inspect: st.builds(wire.Inspect, ids, st.integers(0, 2000), st.booleans()),
    wire.Flush: st.builds(wire.Flush, ids),
}
usages = st.builds(wire.Usage, ids, ids, ids, ids, ids, ids, floats, floats, floats)
logprobs = st.builds(
    wire.TokenLogprob, ids, texts, floats, st.lists(st.tuples(ids, texts, floats)).map(tuple)
)
outputs = st.builds(
    wire.Output,
    texts,
    st.lists(ids, max_size=5).map(tuple),
    st.sampled_from(get_args(wire.FinishReason)),
    st.none() | texts | ids,
    st.lists(logprobs, max_size=2).map(tuple),
    st.lists(st.tuples(ids, ids), max_size=2).map(tuple),
)
nodes = st.builds(
    wire.NodeSeen, ids, st.integers(-1, 9), ids, ids, ids, floats, ids, ids, ids, texts, texts
)
sequences = st.builds(
    wire.SequenceSeen,
    *(
        ids,
        ids,
        ids,
        ids,
        st.sampled_from(["gen", "select"]),
        st.sampled_from(["prefill", "decode", "waiting"]),
    ),
    *(
        ids,
        ids,
        ids,
        ids,
        ids,
        ids,
        ids,
        ids,
        floats,
        st.integers(-100, 100),
        ids,
        st.integers(-1, 9),
    ),
)
choices = st.builds(
    wire.ScoredChoice, floats, floats, st.lists(floats).map(tuple), st.lists(floats).map(tuple)
)
REPLIES: dict[type[Any], st.SearchStrategy[Any]] = {
    wire.Welcome: st.builds(wire.Welcome, ids, texts, ids, ids, ids, ids, ids),
    wire.Delta: st.builds(
        wire.Delta, ids, ids, texts, ids, st.lists(logprobs, max_size=3).map(tuple)
    ),
    wire.CallDone: st.builds(wire.CallDone, ids, st.lists(outputs, max_size=3).map(tuple), usages),
    wire.Chosen: st.builds(wire.Chosen, ids, ids, st.lists(choices, max_size=3).map(tuple), usages),
    wire.TextIs: st.builds(wire.TextIs, ids, texts, ids),
    wire.TokensAre: st.builds(wire.TokensAre, ids, st.lists(ids, max_size=5).map(tuple)),
    wire.Described: st.builds(wire.Described, ids, st.dictionaries(texts, floats, max_size=4)),
    wire.Snapshot: st.builds(
        wire.Snapshot,
        *(ids, floats, st.dictionaries(texts, floats, max_size=4)),
        *(st.lists(nodes, max_size=3).map(tuple), ids, ids),
        *(
            st.lists(sequences, max_size=2).map(tuple),
            ids,
            st.lists(sequences, max_size=2).map(tuple),
            ids,
        ),
    ),
    wire.Failed: st.builds(
        wire.Failed,
        st.none() | ids,
        texts,
        texts,
        st.dictionaries(texts, st.none() | texts | ids | floats | st.booleans(), max_size=3),
    ),
}


def test_every_kind_of_message_is_drawn_here() -> None:
    assert set(OPS) == set(get_args(wire.Op))
    assert set(REPLIES) == set(get_args(wire.Reply))


@given(st.lists(st.one_of(*OPS.values()), max_size=5).map(tuple))
def test_ops_survive_their_encoding(ops: tuple[wire.Op, ...]) -> None:
    assert wire.decode_ops(wire.encode(ops)) == ops


@given(st.lists(st.one_of(*REPLIES.values()), max_size=5).map(tuple))
def test_replies_survive_their_encoding(replies: tuple[wire.Reply, ...]) -> None:
    assert wire.decode_replies(wire.encode(replies)) == replies


@pytest.mark.parametrize("kind", [*OPS, *REPLIES])
def test_messages_cannot_be_changed(kind: type[Any]) -> None:
    name = kind.__struct_fields__[0]
    values = dict.fromkeys(kind.__struct_fields__, 1)
    with pytest.raises(AttributeError):
        setattr(kind(**values), name, 2)
