"""Files of checkpoints that are damaged or hostile: safetensors headers, tokenizer files and the JSON
beside them are read, or refused as a ModelError, and nothing else happens.
"""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from lmprog.errors import ModelError
from lmprog.runtime.assembly import suggested_sampling
from lmprog.runtime.engine.model.checkpoint import Checkpoint
from lmprog.runtime.text.tokenizer import HfTokenizer

FILES = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
HEADER = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    "__metadata__": {"format": "pt"},
}
DATA = bytes(range(32))
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def safetensors(header: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + DATA


def read_weights(folder: Path, content: bytes) -> dict[str, Any]:
    (folder / "model.safetensors").write_bytes(content)
    checkpoint = Checkpoint(folder)
    readable = [name for name in checkpoint.names if checkpoint.dtype(name) in ("F32", "BF16")]
    return {name: checkpoint.array(name).copy() for name in readable}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to everything inside of a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = [(*path, key) for key, _ in inner]
    for key, one in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(one, dict | list):
            found += places(one, (*path, key))
    return found


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return copy


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    made = read_weights(tmp_path, safetensors(json.dumps(HEADER).encode()))
    assert {name: array.shape for name, array in made.items()} == {"a": (2, 3), "b": (4,)}
    assert made["a"].tobytes() + made["b"].tobytes() == DATA


@FILES
@given(st.binary(max_size=60), st.none() | st.integers(0, 2**64 - 1))
@example(b"", None)
@example(b"[" * 50, None)
@example(b'{"a": 1}', 2**64 - 1)
def test_any_bytes_of_a_safetensors_file_are_read_or_refused(
    tmp_path: Path, header: bytes, length: int | None
) -> None:
    with contextlib.suppress(ModelError):
        read_weights(tmp_path, safetensors(header, length))


@FILES
@given(st.sampled_from(places(HEADER)), ANYTHING)
@example(("a", "shape"), [2**32, 2**32])
@example(("a", "shape"), [-1])
@example(("a", "data_offsets"), [24, 0])
@example(("a", "data_offsets"), [0, 2**63])
@example(("a", "dtype"), ["F32"])
@example(("a", "dtype"), {})
@example(("a", "shape"), "23")
def test_a_header_with_anything_in_a_place_is_read_within_the_file_or_refused(
    tmp_path: Path, place: tuple[Any, ...], new: Any
) -> None:
    content = safetensors(json.dumps(changed(HEADER, place, new)).encode())
    with contextlib.suppress(ModelError):
        for array in read_weights(tmp_path, content).values():
            assert array.nbytes <= len(DATA)


def _tokenizer() -> dict[str, Any]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: at for at, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    described: dict[str, Any] = json.loads(made.to_str())
    return described


TOKENIZER = _tokenizer()
CONFIG = {"eos_token": {"content": "<end>"}, "bos_token": "<end>", "add_bos_token": True}
CONFIG |= {"added_tokens_decoder": {"256": {"content": "<end>", "special": True}}}
GENERATION: dict[str, Any] = {"eos_token_id": [256], "temperature": 0.5, "top_k": 3}
_PLACES = [
    *(("tokenizer.json", place) for place in places(TOKENIZER) if place[:2] != ("model", "vocab")),
    ("tokenizer.json", ("model", "vocab")),
    ("tokenizer.json", ("model", "vocab", "a")),
    *(("tokenizer_config.json", place) for place in places(CONFIG)),
    *(("generation_config.json", place) for place in places(GENERATION)),
]


def read_tokenizer(folder: Path, files: dict[str, Any]) -> str:
    for name, content in files.items():
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / name).write_bytes(text)
    tokenizer = HfTokenizer(folder)
    suggested_sampling(folder)
    return tokenizer.decode(tokenizer.encode("Grüße, 123"))


def _files() -> dict[str, Any]:
    names = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
    return dict(zip(names, (TOKENIZER, CONFIG, GENERATION), strict=True))


def test_whole_files_of_a_tokenizer_are_read(tmp_path: Path) -> None:
    assert read_tokenizer(tmp_path, _files()) == "Grüße, 123"


@FILES
@given(st.sampled_from(_PLACES), ANYTHING)
@example(("tokenizer_config.json", ("added_tokens_decoder",)), {"x": 1})
@example(("tokenizer_config.json", ("added_tokens_decoder",)), {"257": 1})
@example(("generation_config.json", ("eos_token_id",)), ["x"])
@example(("generation_config.json", ("eos_token_id",)), {})
@example(("generation_config.json", ("eos_token_id",)), 1.5)
@example(("tokenizer.json", ("model",)), None)
@example(("tokenizer.json", ("model", "vocab", "a")), 2**31)
@example(("tokenizer.json", ("decoder",)), {"type": "ByteLevel"})
def test_a_tokenizers_files_with_anything_in_a_place_are_read_or_refused(
    tmp_path: Path, place: tuple[str, tuple[Any, ...]], new: Any
) -> None:
    files = _files()
    files[place[0]] = changed(files[place[0]], place[1], new)
    with contextlib.suppress(ModelError):
        read_tokenizer(tmp_path, files)


@FILES
@given(st.sampled_from(sorted(_files())), st.binary(max_size=40))
@example("tokenizer.json", b"{}")
@example("tokenizer.json", b"null")
@example("tokenizer_config.json", b"[" * 40)
@example("generation_config.json", b"\xff")
def test_any_bytes_of_a_tokenizers_files_are_read_or_refused(
    tmp_path: Path, name: str, content: bytes
) -> None:
    with contextlib.suppress(ModelError):
        read_tokenizer(tmp_path, {**_files(), name: content})


@pytest.mark.parametrize("name", sorted(_files()))
def test_a_refusal_names_the_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match=name):
        read_tokenizer(tmp_path, {**_files(), name: b"{nothing"})
