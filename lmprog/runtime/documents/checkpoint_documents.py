"""The documents of a checkpoint by their usual names, wherever they come from.

A folder has them as files: `config.json`, `tokenizer.json`, `tokenizer_config.json`,
`generation_config.json`, `chat_template.jinja`. For a GGUF file the same are made of its
metadata, so that nobody else knows the difference. A chat template and the special tokens that
it names stand in one of several of them.

Of GGUF files architectures whose tensors and metadata are understood as a whole are here; others
are refused by name. Of tokenizers two kinds are understood: byte-level BPE with its list of
merges ("gpt2"), and SentencePiece BPE with scores ("llama"), whose merges follow from the
vocabulary: two pieces that make a third are merged, the third with the best score first. Knows
names, numbers and scores; reads no tensor and encodes nothing.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from lmprog.errors import ModelError
from lmprog.runtime.documents.gguf_file import GgufFile, TextList, gguf_file

ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "olmo2": "olmo2",
    "olmoe": "olmoe",
    "gpt-oss": "gpt_oss",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "smollm3": "smollm3",
    "granite": "granite",
}
"""Names of architectures in GGUF, and in config.json; a Llama with experts is a Mixtral there."""
_BY_HIDDEN = {"gemma2": 46, "gemma3": 62}
"""Of the largest model, whose scores are divided by the root of hidden / heads: its layers."""
_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_YARN = {"beta_fast": 32.0, "beta_slow": 1.0}
_LONGEST_CONTEXT = 1 << 24
_SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
}


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


def config_of(file: GgufFile) -> dict[str, Any]:
    """A config.json of the file's model. Raises ModelError for what is not understood."""
    name = file.metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        raise ModelError(
            f"{file.path.name} has the architecture {str(name)[:80]!r}; of GGUF files lmprog reads "
            f"{', '.join(ARCHITECTURES)}"
        )
    return _Config(file, str(name)).read()


class _Config:
    """The fields of one architecture."""

    def __init__(self, file: GgufFile, name: str) -> None:
        self._file = file
        self._name = name

    def read(self) -> dict[str, Any]:
        file = self._file
        config: dict[str, Any] = {name: self._size(key) for name, key in _SIZES.items()}
        heads = config["num_attention_heads"]
        if config["num_hidden_layers"] > len(file.tensors):
            raise ModelError(f"{file.path.name} has fewer tensors than layers")
        if config["max_position_embeddings"] > _LONGEST_CONTEXT:
            raise ModelError(f"{file.path.name} has a context of more than {_LONGEST_CONTEXT}")
        head_dim = self._size("attention.key_length", config["hidden_size"] // heads)
        if self._field("attention.value_length", head_dim) != head_dim:
            raise ModelError(f"{file.path.name} has values that are not as long as keys")
        turned = self._size("rope.dimension_count", head_dim)
        if turned != head_dim and self._name != "phi3":
            raise ModelError(f"{file.path.name} rotates a part of each head: not supported")
        embedding = file.tensors.get("token_embd.weight")
        if embedding is None:
            raise ModelError(f"{file.path.name} has no token_embd.weight")
        tokens = file.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, TextList) and len(tokens) > embedding.shape[0]:
            raise ModelError(f"{file.path.name} has more tokens than rows of token_embd.weight")
        config |= {
            "model_type": ARCHITECTURES[self._name],
            "num_key_value_heads": self._size("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "vocab_size": embedding.shape[0],
            "rms_norm_eps": self._number("attention.layer_norm_rms_epsilon", 1e-5),
            "rope_parameters": self._rope(),
            "tie_word_embeddings": "output.weight" not in file.tensors,
            "dtype": _FLOATS.get(usual_type(file), "bfloat16"),
        }
        if self._field("attention.clamp_kqv", 0.0):
            raise ModelError(f"{file.path.name} clamps queries, keys and values: not supported")
        if self._name not in ("qwen2", "qwen2moe") and "blk.0.attn_q.bias" in file.tensors:
            config["attention_bias"] = True
        if "blk.0.ffn_gate.bias" in file.tensors:
            config["mlp_bias"] = True
        config |= self._windows() | self._mixture()
        if self._name == "phi3" and turned != head_dim:
            config["partial_rotary_factor"] = turned / head_dim
        if self._name in _BY_HIDDEN:
            config |= self._gemma(config, head_dim)
        if self._name == "granite":
            config |= self._multipliers(head_dim)
        ends = [f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom")]
        config["eos_token_id"] = [
            file.metadata[end] for end in ends if isinstance(file.metadata.get(end), int)
        ]
        return config

    def _windows(self) -> dict[str, Any]:
        window = self._field("attention.sliding_window", 0)
        if not window or self._name.startswith("qwen"):
            return {}
        window = {"sliding_window": self._size("attention.sliding_window")}
        return window | ({"model_type": "mistral"} if self._name == "llama" else {})

    def _mixture(self) -> dict[str, Any]:
        if not self._field("expert_count", 0):
            return {}
        if self._name not in ("llama", "qwen2moe", "qwen3moe", "olmoe", "gpt-oss"):
            raise ModelError(f"{self._file.path.name} is a mixture of experts: not of {self._name}")
        found: dict[str, Any] = {
            "num_local_experts": self._size("expert_count"),
            "num_experts_per_tok": self._size("expert_used_count"),
        }
        if self._name == "llama":
            return found | {"model_type": "mixtral"}
        if self._name == "olmoe":
            return found
        inner = self._size("expert_feed_forward_length")
        if self._name == "gpt-oss":
            return found | {"intermediate_size": inner}
        if self._name == "qwen2moe":
            shared = self._size("expert_shared_feed_forward_length")
            further = {"shared_expert_intermediate_size": shared, "norm_topk_prob": False}
            return found | {"moe_intermediate_size": inner} | further
        return found | {"moe_intermediate_size": inner, "norm_topk_prob": True}

    def _gemma(self, config: dict[str, Any], head_dim: int) -> dict[str, Any]:
        """What Gemma's own config.json has."""
        layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
        is_largest = layers == _BY_HIDDEN[self._name]
        found: dict[str, Any] = {
            "query_pre_attn_scalar": config["hidden_size"] // heads if is_largest else head_dim,
            "attn_logit_softcapping": self._number("attn_logit_softcapping", 50.0),
            "final_logit_softcapping": self._number("final_logit_softcapping", 30.0),
        }
        if self._name == "gemma2":
            return found
        local = {"rope_theta": self._number("rope.freq_base_swa", 10_000.0)}
        ropes = {"full_attention": config["rope_parameters"], "sliding_attention": local}
        return {
            "query_pre_attn_scalar": found["query_pre_attn_scalar"],
            "rope_parameters": ropes,
        }

    def _multipliers(self, head_dim: int) -> dict[str, Any]:
        """Granite's; a file may leave out, or give as 0, what is as usual."""
        return {
            "embedding_multiplier": self._number("embedding_scale", 0.0) or 1.0,
            "residual_multiplier": self._number("residual_scale", 0.0) or 1.0,
            "attention_multiplier": self._number("attention.scale", 0.0) or head_dim**-0.5,
            "logits_scaling": self._number("logit_scale", 0.0) or 1.0,
        }

    def _rope(self) -> dict[str, Any]:
        base = 1e6 if self._name == "gemma3" else 10_000.0
        rope: dict[str, Any] = {"rope_theta": self._number("rope.freq_base", base)}
        kind = self._field("rope.scaling.type", "none")
        divisors = self._file.tensors.get("rope_freqs.weight")
        if divisors is not None:
            if divisors.kind != "F32" or len(divisors.shape) != 1:
                raise ModelError(f"{self._file.path.name}: rope_freqs.weight is no list of F32")
            numbers = array("f", divisors.memory[divisors.start : divisors.end])
            return rope | {"rope_type": "divided", "divisors": numbers.tolist()}
        if kind in ("linear", "yarn"):
            rope |= {"rope_type": kind, "factor": self._number("rope.scaling.factor", 1.0)}
        elif kind != "none":
            raise ModelError(f"the rotation {str(kind)[:80]!r} of GGUF files is not supported")
        if kind == "yarn":
            if self._name == "gpt-oss":
                rope["truncate"] = False
            length = self._size("rope.scaling.original_context_length")
            rope["original_max_position_embeddings"] = length
            for name in ("beta_fast", "beta_slow"):
                rope[name] = self._number(f"rope.scaling.yarn_{name}", _YARN[name])
            for name in ("attn_factor", "ext_factor", "log_multiplier"):
                if self._field(f"rope.scaling.yarn_{name}", 1.0) != 1.0:
                    raise ModelError(f"{self._file.path.name} sets yarn_{name}: not supported")
        return rope

    def _field(self, name: str, missing: Any) -> Any:
        return self._file.metadata.get(f"{self._name}.{name}", missing)

    def _size(self, name: str, missing: Any = None) -> int:
        """A whole number; a list of equal ones counts as one."""
        value = self._field(name, missing)
        if isinstance(value, array) and len(value) and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
            raise ModelError(
                f"{self._file.path.name}: {self._name}.{name} must be a positive whole number, it "
                f"is {str(value)[:80]}"
            )
        return value

    def _number(self, name: str, missing: float) -> float:
        value = self._field(name, missing)
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise ModelError(
                f"{self._file.path.name}: {self._name}.{name} must be a number, it is "
                f"{str(value)[:80]}"
            )
        return float(value)


def usual_type(file: GgufFile) -> str:
    """The type that most of the bytes of matrices are in."""
    sizes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        if len(tensor.shape) > 1:
            sizes[tensor.kind] += tensor.end - tensor.start
    return max(sizes, key=lambda kind: sizes[kind], default="F32")


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


class Documents(Protocol):
    """The documents of one checkpoint."""

    def text(self, name: str) -> str | None:
        """A document's text; None where there is no such document. Raises ModelError where it
        cannot be read.
        """
        ...


class FolderDocuments:
    """The files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def text(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{self._folder.name}/{name} cannot be read: {error}") from error


class GgufDocuments:
    """What a folder would say of the model in a GGUF file."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file

    def text(self, name: str) -> str | None:
        file = self._file
        if name == "chat_template.jinja":
            template = file.metadata.get("tokenizer.chat_template")
            return template if isinstance(template, str) and template else None
        if name == "config.json":
            return json.dumps(config_of(file))
        if name == "tokenizer.json":
            return json.dumps(tokenizer_of(file))
        if name == "tokenizer_config.json":
            return json.dumps(tokenizer_config_of(file))
        return None


def checkpoint_documents(location: Path) -> Documents:
    """The documents of a folder or of a GGUF file. Raises ModelError for a file that is none."""
    if location.is_file():
        return GgufDocuments(gguf_file(location))
    return FolderDocuments(location)


def json_document(location: Path, name: str) -> dict[str, Any] | None:
    """A document that is a JSON object; None where there is none. Raises ModelError."""
    text = checkpoint_documents(location).text(name)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{location.name}/{name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{location.name}/{name} is not a JSON object")
    return value


def template_source(location: Path, config: Mapping[str, Any]) -> str | None:
    source = checkpoint_documents(location).text("chat_template.jinja")
    if source is not None:
        return source
    other = json_document(location, "chat_template.json") or {}
    source = other.get("chat_template") or config.get("chat_template")
    if isinstance(source, list):  # several, by name
        named = {
            entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)
        }
        source = named.get("default")
    return source if isinstance(source, str) and source else None


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and others by name; "" for those that the checkpoint does not have, since
    templates use them.
    """
    found = {"bos_token": "", "eos_token": "", "unk_token": "", "pad_token": ""}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found
