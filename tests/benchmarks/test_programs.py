"""The benchmark of whole programs, at a tiny scale: its counts agree with the runtime's, its sides
with each other.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.ledger import account
from benchmarks.models import checkpoint
from benchmarks.pictures import PAGE
from benchmarks.programs import Bench, Line, time_table, work_table
from benchmarks.workloads import ALL
from benchmarks.workloads.agents import React
from benchmarks.workloads.questions import Hellaswag, InBatch, Mmlu
from benchmarks.workloads.shape import Workload
from benchmarks.workloads.text import Pieces, Writer
from benchmarks.workloads.thinking import Judge
from lmprog import wire
from lmprog.runtime.engine.model.locate import NANO
from lmprog.runtime.text.tokenizer import ByteTokenizer, HfTokenizer, load_tokenizer


def small(
    kind: type[Workload], tokenizer: ByteTokenizer | HfTokenizer, scale: float = 0.02
) -> Workload:
    return kind(Writer(Pieces(tokenizer), f"1 {kind.name}", scale, 0.02))


@pytest.mark.parametrize("kind", [React, Hellaswag])
def test_the_cache_saves_work_and_changes_no_output(kind: type[Workload]) -> None:
    tokenizer = ByteTokenizer()
    # Wrong drafts would be computed, too: how many depends on what steps cost.
    bench = Bench("dummy:tiny", 1, tokenizer, {"speculation": "off"})
    workload = small(kind, tokenizer)
    on, off = bench.on_lmprog(workload, share=True), bench.on_lmprog(workload, share=False)
    assert on.outputs == off.outputs
    assert on.account is not None
    assert on.account == off.account
    assert on.account.unique <= on.work["computed_tokens"] < off.work["computed_tokens"]
    unshared = on.account.prompt + on.account.decoded
    if kind is React:
        assert off.work["computed_tokens"] == unshared
    else:  # options that differ in their last token only are scored in one go
        assert off.work["computed_tokens"] <= unshared
    assert off.work["cached_tokens"] == 0
    assert on.work["calls"] == on.account.calls
    line = Line(workload.name, workload.about, on, off, None)
    [work], [times] = work_table([line]), time_table([line])
    assert work["workload"] == times["workload"] == workload.name
    assert times["equal on = off"] == "100.0%"


def test_the_peer_gives_the_same_texts() -> None:
    peers = pytest.importorskip("benchmarks.peers.transformers")
    tokenizer = load_tokenizer(NANO)
    workload = small(React, tokenizer)
    on = Bench("nano", 1, tokenizer).on_lmprog(workload, share=True)
    peer = peers.TransformersPeer(NANO, 1)
    assert workload.peer(peer) == on.outputs
    assert on.account is not None
    assert peer.num_computed >= on.account.unique


def test_the_lower_bound_counts_each_distinct_prefix_once() -> None:
    """Two forks of `ab` that go on with `c` and `d`, of which the last generated token needs no
    computing.
    """
    tokenizer = ByteTokenizer()
    ops: list[wire.Op] = [
        wire.Open(1),
        wire.Append(1, (wire.TextPiece("ab"),)),
        wire.Fork(1, (2, 3)),
        wire.Append(2, (wire.TextPiece("c"),)),
        wire.Generate(2, 4),
        wire.Append(3, (wire.TextPiece("d"), wire.Ref(4))),
        wire.Generate(3, 5),
    ]
    done = [
        wire.CallDone(
            4, (wire.Output("xyz", tuple(tokenizer.encode("xyz")), "length"),), wire.Usage(prompt=4)
        ),
        wire.CallDone(
            5, (wire.Output("x", tuple(tokenizer.encode("x")), "length"),), wire.Usage(prompt=7)
        ),
    ]
    booked = account(ops, done, tokenizer)
    assert booked.unique == len(
        {"<start>", "a", "ab", "abc", "abcx", "abcxy", "abd", "abdx", "abdxy", "abdxyz"}
    )
    assert (booked.calls, booked.prompt, booked.decoded, booked.longest) == (2, 4 + 7, 2, 8)


def test_a_text_has_the_tokens_that_were_asked_for() -> None:
    for tokenizer in (ByteTokenizer(), load_tokenizer(NANO)):
        pieces = Pieces(tokenizer)
        writer = Writer(pieces, "seed", 0.5, 1.0)
        assert pieces.length(writer.text(100) + writer.text(31)) == 50 + 16


def test_every_workload_can_be_prepared_twice_the_same() -> None:
    tokenizer = ByteTokenizer()
    assert len({kind.name for kind in ALL}) == len(ALL)
    first, second = small(InBatch, tokenizer), small(InBatch, tokenizer)
    assert first.__dict__["groups"] == second.__dict__["groups"]


def test_a_random_checkpoint_is_made_once(tmp_path: Path) -> None:
    name, folder = checkpoint("random:64x1", tmp_path)
    assert folder is not None
    assert name == str(folder)
    assert {path.name for path in folder.iterdir()} >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    with pytest.raises(ValueError, match="random:<hidden>x<layers>"):
        checkpoint("random:65x1", tmp_path)


@pytest.mark.parametrize("kind", [Mmlu, React, InBatch, Judge])
def test_the_page_has_the_counts_that_its_command_gives(kind: type[Workload]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    scale, count = map(float, re.findall(r"programs --scale (\S+) --count (\S+) --peer", page)[0])
    table = page[page.index("| workload | calls | tokens unshared") :].splitlines()
    head = [cell.strip() for cell in table[0].strip("|").split("|")]
    [said] = [line for line in table if line.startswith(f"| {kind.name} |")]
    tokenizer = load_tokenizer(NANO)
    workload = kind(Writer(Pieces(tokenizer), f"1 {kind.name}", scale, count))
    on = Bench("nano", 1, tokenizer).on_lmprog(workload, share=True)
    [row] = work_table([Line(workload.name, workload.about, on, None, None)])
    found = dict(zip(head, (cell.strip() for cell in said.strip("|").split("|")), strict=True))
    assert list(row) == head
    for name in SETTLED:
        assert row[name] == found[name], name


SETTLED = (
    "calls", "tokens unshared", "lower bound", "computed", "found", "forced", "generated",
    "hit rate", "optimal",
)  # fmt: skip
"""Columns that no machine and no load changes, unlike steps and drafts."""
