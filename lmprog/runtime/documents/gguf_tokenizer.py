"""What a GGUF file's metadata says of text, in the words of tokenizer.json.

Two kinds are understood: byte-level BPE with its list of merges ("gpt2"), and SentencePiece BPE
with scores ("llama"), whose merges follow from the vocabulary: two pieces that make a third are
merged, the third with the best score first. Knows names and scores; encodes nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from lmprog.errors import ModelError
from lmprog.runtime.documents.gguf_file import GgufFile, TextList

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Kinds of tokens, as GGUF numbers them."""
_SPACE = "\u2581"
_LONGEST_PIECE = 256
"""Characters up to which a piece's parts are looked for; longer ones are blanks and rules."""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_GPT4O = "|".join(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_CONTRACTIONS}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_CONTRACTIONS}?",
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "gpt2", "default", "olmo"), (_GPT2,)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), (_QWEN2,)),
    "gpt-4o": (_GPT4O,),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), (r"\p{N}", _GPT2)),
}
"""How texts are cut before merging, by `tokenizer.ggml.pre`: one pattern after the other."""
_BEGINS_ALWAYS = frozenset({"llama-bpe", "llama3", "llama-v3"})
"""Those that put a first token before every text where the file does not say."""


def tokenizer_of(file: GgufFile) -> dict[str, Any]:
    """A tokenizer.json. Raises ModelError for kinds that are not understood."""
    names = _names(file)
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        described = _byte_level(file, names)
    elif kind == "llama":
        described = _sentencepiece(file, names)
    else:
        raise ModelError(
            f"{file.path.name} has a tokenizer of the kind {str(kind)[:80]!r}; of GGUF files "
            "lmprog reads gpt2 (byte-level BPE) and llama (SentencePiece BPE)"
        )
    return (
        {"version": "1.0", "truncation": None, "padding": None}
        | described
        | {"added_tokens": list(_added(file, names))}
    )


def tokenizer_config_of(file: GgufFile) -> dict[str, Any]:
    """A tokenizer_config.json: names of special tokens, and whether texts begin with one."""
    names = _names(file)
    config: dict[str, Any] = {}
    ids = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    for short, long in ids.items():
        token = file.metadata.get(f"tokenizer.ggml.{long}_token_id")
        if isinstance(token, int) and 0 <= token < len(names):
            config[f"{short}_token"] = names[token]
    begins = file.metadata.get("tokenizer.ggml.add_bos_token")
    if not isinstance(begins, bool):
        is_sentencepiece = file.metadata.get("tokenizer.ggml.model") == "llama"
        begins = is_sentencepiece or file.metadata.get("tokenizer.ggml.pre") in _BEGINS_ALWAYS
    return config | {"add_bos_token": begins}


def _byte_level(file: GgufFile, names: Sequence[str]) -> dict[str, Any]:
    pre = file.metadata.get("tokenizer.ggml.pre", "default")
    if pre not in _SPLITS:
        raise ModelError(
            f"{file.path.name} cuts texts in a way that lmprog does not know "
            f"(tokenizer.ggml.pre = {str(pre)[:80]!r}); it knows {', '.join(sorted(_SPLITS))}"
        )
    merges = file.metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, TextList):
        raise ModelError(f"{file.path.name} has no tokenizer.ggml.merges")
    vocabulary = _vocabulary(names)
    pairs = [pair.split(" ") for pair in merges.texts()]
    if any(len(pair) != 2 for pair in pairs):
        raise ModelError(f"{file.path.name}: a merge is not two pieces with a space between")
    cut: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in _SPLITS[pre]
    ]
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    bytes_ |= {"use_regex": False}
    return {
        "normalizer": {"type": "NFC"} if _SPLITS[pre] == (_QWEN2,) else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cut, bytes_]},
        "post_processor": None,
        "decoder": bytes_,
        "model": _bpe(vocabulary, pairs) | {"ignore_merges": _SPLITS[pre] == (_LLAMA3,)},
    }


def _sentencepiece(file: GgufFile, names: Sequence[str]) -> dict[str, Any]:
    scores = file.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, array) or len(scores) != len(names):
        raise ModelError(f"{file.path.name} has no score for each of its tokens")
    kinds = _kinds(file, len(names))
    unknown = next((at for at, kind in enumerate(kinds) if kind == _UNKNOWN), None)
    prefixed = file.metadata.get("tokenizer.ggml.add_space_prefix", True)
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    before = [{"type": "Prepend", "prepend": _SPACE}] if prefixed else []
    back = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefixed else []
    model = _bpe(_vocabulary(names), _merges(names, scores, kinds))
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*before, replaced]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": model
        | {"byte_fallback": True, "fuse_unk": True}
        | {"unk_token": None if unknown is None else names[unknown]},
    }


def _bpe(vocabulary: dict[str, int], merges: list[list[str]]) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": vocabulary,
        "merges": merges,
    }


def _merges(names: Sequence[str], scores: Sequence[float], kinds: Sequence[int]) -> list[list[str]]:
    """The merges that make each piece, best score first; of one piece, by the ids of its parts."""
    ids = {name: at for at, name in enumerate(names) if kinds[at] not in (_CONTROL, _USER_DEFINED)}
    found = []
    for name, at in ids.items():
        if len(name) > _LONGEST_PIECE:
            continue
        for cut in range(1, len(name)):
            left, right = ids.get(name[:cut]), ids.get(name[cut:])
            if left is not None and right is not None:
                found.append((-scores[at], at, left, right))
    found.sort()
    return [[names[left], names[right]] for _, _, left, right in found]


def _added(file: GgufFile, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Tokens that are found in a text before it is cut: special ones, and those users added."""
    seen: set[str] = set()
    for at, kind in enumerate(_kinds(file, len(names))):
        if kind not in (_UNKNOWN, _CONTROL, _USER_DEFINED) or not names[at] or names[at] in seen:
            continue
        seen.add(names[at])
        yield {
            "id": at,
            "content": names[at],
            "special": kind != _USER_DEFINED,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }


def _names(file: GgufFile) -> list[str]:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, TextList) or not len(tokens):
        raise ModelError(f"{file.path.name} has no tokens: no tokenizer.ggml.tokens")
    return tokens.texts()


def _kinds(file: GgufFile, count: int) -> Sequence[int]:
    """The kind of each token; where the file does not say, all are normal."""
    kinds = file.metadata.get("tokenizer.ggml.token_type")
    if kinds is None:
        return [1] * count
    if not isinstance(kinds, array) or len(kinds) != count:
        raise ModelError(f"{file.path.name} has no type for each of its tokens")
    return kinds


def _vocabulary(names: Sequence[str]) -> dict[str, int]:
    """The first of equal names wins."""
    found: dict[str, int] = {}
    for at, name in enumerate(names):
        found.setdefault(name, at)
    return found
