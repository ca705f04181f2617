"""The arrays of a plan, compared with a plain twin that goes token by token, on random plans."""

from __future__ import annotations

import random
from array import array
from dataclasses import fields, replace

import numpy as np
import pytest

from lmprog.runtime.scheduling.batch import Batch, build_batch
from lmprog.runtime.scheduling.generation import Scoring
from lmprog.runtime.scheduling.namespaces import Namespace
from lmprog.runtime.scheduling.plan import Copy, Mirror, Plan, PlanStates, Row
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup

NOBODY = Sequence(SequenceGroup(), array("i"), Scoring(1, ()))
"""No array depends on the sequence."""


def row(random_: random.Random, page_size: int, count: int) -> Row:
    start = random_.randrange(5 * page_size)
    pages = random_.sample(range(1000), -(-(start + count) // page_size))
    tokens = [random_.randrange(30_000) for _ in range(count)]
    wanted_from = random_.randint(start, start + count)
    return Row(NOBODY, array("i", tokens), start, start + count, array("i", pages), wanted_from)


def plan(random_: random.Random, page_size: int, longest: int) -> Plan:
    rows = [row(random_, page_size, random_.randint(1, longest)) for _ in range(9)]
    if longest == 1 and random_.random() < 0.5:  # an ordinary decode: every logit is wanted
        rows = [one._replace(logits_from=one.start) for one in rows]
    mirrors = [Mirror(at, rows[at].num_tokens - 1, 7000 + at) for at in range(9)]
    copies = [Copy(random_.randrange(500), 8000 + at) for at in range(5)]
    return Plan(
        tuple(rows),
        tuple(random_.sample(copies, random_.choice([0, 3]))),
        tuple(random_.sample(mirrors, random_.choice([0, 3]))),
    )


def plain_batch(plan: Plan, page_size: int) -> dict[str, list[int]]:
    """What `Batch` says of its arrays, in Python."""
    names = {one.name for one in fields(Batch)} - {"page_size", "adapters", "states", "apart"}
    found: dict[str, list[int]] = {name: [] for name in names}
    found["row_starts"], found["page_starts"] = [0], [0]
    for row in plan.rows:
        for offset, token in enumerate(row.tokens):
            position = row.start + offset
            if position >= row.logits_from:
                found["logit_tokens"].append(len(found["tokens"]))
            page = row.pages[position // page_size]
            found["write_tokens"].append(len(found["tokens"]))
            found["write_slots"].append(page * page_size + position % page_size)
            found["tokens"].append(token)
            found["positions"].append(position)
        found["pages"] += row.pages
        found["row_starts"].append(len(found["tokens"]))
        found["page_starts"].append(len(found["pages"]))
        found["kv_lens"].append(row.start + len(row.tokens))
    for mirror in plan.mirrors:
        found["write_tokens"].append(found["row_starts"][mirror.row] + mirror.offset)
        found["write_slots"].append(mirror.target)
    for copy in plan.copies:
        found["copies"] += [copy.source, copy.target]
    return found


@pytest.mark.parametrize("longest", [1, 2, 40])
@pytest.mark.parametrize("seed", range(20))
def test_a_batch_is_its_plan_token_by_token(seed: int, longest: int) -> None:
    random_ = random.Random(seed)
    page_size = random_.choice([1, 4, 16])
    asked = plan(random_, page_size, longest)
    batch, wanted = build_batch(asked, page_size), plain_batch(asked, page_size)
    for name, values in wanted.items():
        array_ = getattr(batch, name)
        assert array_.dtype == np.int32, name
        assert array_.flags.c_contiguous, name
        assert array_.flags.writeable, name
        assert array_.ravel().tolist() == values, name
    assert batch.copies.shape == (len(asked.copies), 2)


def test_recurrent_states_are_arrays_too_and_are_made_only_where_there_are_any() -> None:
    asked = plan(random.Random(1), 4, 2)
    assert build_batch(asked, 4).states is None
    slots = PlanStates(tuple((at - 1, at) for at in range(9)), ((0, 1, 20), (3, 1, 21)))
    states = build_batch(replace(asked, states=slots), 4).states
    assert states is not None
    assert states.sources.tolist() == [-1, 0, 1, 2, 3, 4, 5, 6, 7]
    assert states.targets.tolist() == list(range(9))
    assert states.snapshots.tolist() == [[0, 1, 20], [3, 1, 21]]


def test_rows_have_the_adapters_of_their_sequences_and_are_asked_only_where_there_are_any() -> None:
    asked = plan(random.Random(1), 4, 3)
    assert build_batch(asked, 4).adapters is None
    assert build_batch(asked, 4, has_adapters=True).adapters is None, "all are the base"
    changed = Sequence(SequenceGroup(), array("i"), Scoring(1, ()), Namespace("x", adapter=2))
    rows = (asked.rows[0], asked.rows[1]._replace(sequence=changed), *asked.rows[2:])
    adapters = build_batch(replace(asked, rows=rows), 4, has_adapters=True).adapters
    assert adapters is not None
    assert adapters.tolist() == [0, 2, *[0] * 7]
    assert build_batch(replace(asked, rows=rows), 4).adapters is None


def test_a_plan_of_nothing_is_a_batch_of_nothing() -> None:
    batch = build_batch(Plan(), 16)
    assert (batch.num_rows, batch.num_tokens, len(batch.logit_tokens)) == (0, 0, 0)
    assert batch.row_starts.tolist() == [0]
    assert batch.page_starts.tolist() == [0]
    assert batch.copies.shape == (0, 2)
