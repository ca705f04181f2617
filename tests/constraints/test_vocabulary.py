"""The index holds every token where its bytes say, survives the cache, and bytes are recovered from
tokenizers.
"""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lmprog.constraints import charset
from lmprog.constraints import vocabulary as module
from lmprog.constraints.charset import contains, union
from lmprog.constraints.constraint import bit_row
from lmprog.constraints.seam import Pieces
from lmprog.constraints.token_bytes import vocabulary_of_tokenizer
from lmprog.constraints.vocabulary import Bucket, Trie, Vocabulary, build_trie, groups
from lmprog.errors import ModelError


def read_back(trie: Trie) -> list[tuple[bytes, int]]:
    """The (bytes, id) pairs of a trie, by the naive way."""
    out: list[tuple[bytes, int]] = []
    path = [b""] * (trie.deepest + 1)
    for p, node in enumerate(trie.nodes):
        depth = int(node["depth"])
        path[depth] = path[depth - 1] + bytes([int(node["byte"])])
        out += [
            (path[depth], int(token))
            for token in trie.order[node["first"] : node["first"] + node["own"]]
        ]
        below = [int(other["depth"]) for other in trie.nodes[p + 1 : p + int(node["sub"])]]
        assert all(other > depth for other in below)
        if p + int(node["sub"]) < len(trie.nodes):
            assert int(trie.nodes[p + int(node["sub"])]["depth"]) <= depth
    return out


def test_a_trie_holds_every_token_once_duplicates_included(rng: random.Random) -> None:
    for size in (0, 1, 2, 300):
        pairs = [(bytes(rng.choices(b"ab\0\xff", k=rng.randint(1, 6))), i) for i in range(size)]
        assert sorted(read_back(build_trie(pairs))) == sorted(pairs)


def whole(bucket: Bucket) -> list[tuple[bytes, int]]:
    return [(b" " + text if bucket.lead else text, i) for text, i in read_back(bucket.trie)]


def test_tokens_are_in_order_of_their_bytes_with_and_without_the_cache(
    rng: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path))
    for alphabet in (b"ab\0\xff", bytes(range(256))):  # with twins, and hardly any
        drawn = [bytes(rng.choices(alphabet, k=rng.randint(1, 6))) for _ in range(300)]
        tokens = [None, *drawn, b""]
        for _ in range(2):  # the second time from the file
            made = Vocabulary(tokens, [0])
            assert made.ordered == sorted(set(drawn))
            found, known = Pieces(made.tokens, made.index.in_order), Pieces(made.tokens)
            assert [found.at(i) for i in range(300)] == [known.at(i) for i in range(300)]
    assert len(list(tmp_path.rglob("*.npz"))) >= 2


def test_buckets_hold_each_token_once_with_those_of_the_same_groups(small: Vocabulary) -> None:
    buckets = small.index.buckets
    found = [pair for bucket in buckets for pair in whole(bucket)]
    assert sorted(found) == sorted((token, i) for i, token in enumerate(small.tokens) if token)
    for bucket in buckets:
        assert sorted(bucket.by_length.tolist()) == sorted(i for _, i in whole(bucket))
        if not bucket.groups:
            continue
        lengths = {i: len(text.decode()) for text, i in read_back(bucket.trie)}
        assert [lengths[i] for i in bucket.by_length.tolist()] == sorted(lengths.values())
        for most, count in enumerate(bucket.length_start.tolist()):
            assert count == sum(length <= most for length in lengths.values())
        for text, _ in read_back(bucket.trie):
            used = {
                g
                for char in text.decode()
                for g, ranges in enumerate(groups())
                if contains(ranges, ord(char))
            }
            assert bucket.groups == sum(1 << g for g in used)


def test_a_large_bucket_has_its_mask_ready(real: Vocabulary) -> None:
    large = [bucket for bucket in real.index.buckets if bucket.bits is not None]
    assert len(large) > 10
    for bucket in large:
        assert bucket.bits is not None
        assert np.array_equal(bucket.bits, bit_row(bucket.by_length, real.num_words))


def test_the_index_is_read_back_from_the_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path))
    tokens: list[bytes | None] = [None, b"a", b"ab", b'"x', "é".encode()]
    first = Vocabulary(tokens, [0]).index
    (path,) = (tmp_path / "vocabulary").iterdir()
    monkeypatch.setattr(module, "build_index", lambda _: pytest.fail("built twice"))
    second = Vocabulary(tokens, [0]).index
    for mine, theirs in zip(first.buckets, second.buckets, strict=True):
        assert (mine.groups, mine.lead, mine.trie.deepest) == (
            theirs.groups,
            theirs.lead,
            theirs.trie.deepest,
        )
        assert np.array_equal(mine.trie.nodes, theirs.trie.nodes)
        assert np.array_equal(mine.trie.order, theirs.trie.order)
        assert np.array_equal(mine.by_length, theirs.by_length)
        assert np.array_equal(mine.length_start, theirs.length_start)
    monkeypatch.undo()
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path))
    path.write_bytes(b"not an index")
    assert len(Vocabulary(tokens, [0]).index.buckets) == len(first.buckets)


def test_bytes_come_back_from_byte_level_bpe() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["héllo wörld, 日本 and so on\n"] * 9, trainer)
    vocabulary = vocabulary_of_tokenizer(tokenizer)
    assert vocabulary.eos_ids == (tokenizer.token_to_id("<|endoftext|>"),)
    assert len(vocabulary.alphabet.single) == 256
    for text in ("héllo wörld", "日本\t\x00\x7f", " so on\n"):
        assert (
            b"".join(vocabulary.bytes_of(i) or b"?" for i in tokenizer.encode(text).ids)
            == text.encode()
        )


def test_bytes_come_back_from_sentencepiece_with_byte_fallback(tmp_path: Path) -> None:
    vocab = {
        "<unk>": 0,
        "<s>": 1,
        "</s>": 2,
        **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)},
    }
    vocab |= {"▁hello": 259, "▁": 260, "é": 261}
    added = [{"id": i, "content": name, "special": True} for name, i in list(vocab.items())[:3]]
    added.append({"id": 262, "content": "<tool>", "special": False})
    description = {
        "added_tokens": added,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]},
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(description))
    vocabulary = vocabulary_of_tokenizer(path, size=264)
    assert len(vocabulary) == 264
    assert vocabulary.eos_ids == (2,)
    expected = {
        0: None,
        1: None,
        2: None,
        13: b"\n",
        259: b" hello",
        260: b" ",
        261: "é".encode(),
        262: b"<tool>",
        263: None,
    }
    assert {i: vocabulary.bytes_of(i) for i in expected} == expected


def test_bytes_come_back_from_tekken_and_tiktoken_files(real: Vocabulary, tmp_path: Path) -> None:
    assert len(real) == 131_072
    assert real.eos_ids == (2,)
    assert real.bytes_of(1000) == b"\0"
    assert real.bytes_of(999) is None
    path = tmp_path / "x.tiktoken"
    path.write_text(
        "".join(
            f"{base64.b64encode(token).decode()} {i}\n"
            for i, token in enumerate([b"a", b"\xff", b" the"])
        )
    )
    assert vocabulary_of_tokenizer(path).tokens == (b"a", b"\xff", b" the")


def test_a_file_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for text in ("{}", "no json"):
        path.write_text(text)
        with pytest.raises(ModelError):
            vocabulary_of_tokenizer(path)


def test_greedy_spelling_takes_the_longest_tokens_first(small: Vocabulary) -> None:
    spelled = small.greedy(b"hello world\xff")
    assert [small.bytes_of(token) for token in spelled] == [b"hello", b" world", b"\xff"]


def test_tables_of_unicode_are_read_back_or_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path))
    table = np.array([[1, 2], [3, 4]], np.int32)
    assert charset.kept_table("x", lambda: table).tolist() == [1, 2, 3, 4]
    assert charset.kept_table("x", lambda: pytest.fail("made twice")).tolist() == [1, 2, 3, 4]
    (path,) = (tmp_path / "unicode").iterdir()
    for damaged in (b"no array", b""):
        path.write_bytes(damaged)
        assert charset.kept_table("x", lambda: table).tolist() == [1, 2, 3, 4]


def test_every_character_that_is_not_special_in_json_is_of_one_group() -> None:
    ranges = groups()
    every = union(*ranges)
    assert sum(high - low + 1 for low, high in every) == sum(
        high - low + 1 for one in ranges for low, high in one
    )
    assert [code for code in range(0x20, 0x7F) if not contains(every, code)] == [
        ord('"'),
        ord("\\"),
    ]
