"""A GGUF file that is cut, changed or hostile is a ModelError: nothing is read beyond its end, and
no number in it makes memory grow.
"""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmprog.config import RuntimeConfig
from lmprog.errors import ModelError, NotSupported
from lmprog.runtime.documents.gguf_file import TextList, gguf_file
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.text.chat_template import load_template
from lmprog.runtime.text.tokenizer import load_tokenizer
from tests.gguf import writer
from tests.gguf.test_gguf_weights import quantized

FIELDS: dict[str, Any] = {
    "a.text": "Grüße",
    "a.flag": True,
    "a.count": writer.U32(7),
    "a.float": 0.5,
    "a.texts": ["one", "", "drei"],
    "a.numbers": [1, -2, 3],
}
TENSORS = {"w": writer.Tensor("F32", (2, 3), struct.pack("<6f", *range(6)))}


def opened(tmp_path: Path, content: bytes) -> Any:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return gguf_file(path)


def test_fields_and_tensors_are_what_was_written(tmp_path: Path) -> None:
    file = opened(tmp_path, writer.gguf_bytes(FIELDS, TENSORS))
    texts = file.metadata["a.texts"]
    assert isinstance(texts, TextList)
    assert texts.texts() == ["one", "", "drei"]
    assert list(file.metadata["a.numbers"]) == [1, -2, 3]
    assert {name: file.metadata[name] for name in ("a.text", "a.flag", "a.count", "a.float")} == {
        "a.text": "Grüße",
        "a.flag": True,
        "a.count": 7,
        "a.float": 0.5,
    }
    tensor = file.tensors["w"]
    assert (tensor.kind, tensor.shape) == ("F32", (2, 3))
    assert tensor.memory[tensor.start : tensor.end] == TENSORS["w"].content


def test_every_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    whole = writer.gguf_bytes(FIELDS, TENSORS)
    end = whole.index(TENSORS["w"].content) + len(TENSORS["w"].content)
    for size in range(end):
        with pytest.raises(ModelError):
            opened(tmp_path, whole[:size])
    opened(tmp_path, whole[:end])


def header(num_tensors: int, num_fields: int, rest: bytes, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_fields) + rest


def listed(kind: int, count: int, rest: bytes = b"") -> bytes:
    return header(0, 1, writer.text("a") + struct.pack("<IIQ", 9, kind, count) + rest)


def tensor(sizes: list[int], kind: int = 0, offset: int = 0, name: str = "w") -> bytes:
    packed = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return writer.text(name) + packed + struct.pack("<IQ", kind, offset)


HUGE = (1 << 64) - 1
HOSTILE = {
    "another container": b"GGML" + bytes(60),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "another version": header(0, 0, b"", version=1),
    "fields without end": header(0, HUGE, bytes(64)),
    "tensors without end": header(HUGE, 0, bytes(64)),
    "a name without end": header(0, 1, struct.pack("<Q", HUGE)),
    "a text without end": header(0, 1, writer.text("a") + struct.pack("<IQ", 8, HUGE - 8)),
    "numbers without end": listed(10, HUGE),
    "more numbers than bytes": listed(10, 1 << 20, bytes(64)),
    "texts without end": listed(8, HUGE),
    "more texts than bytes": listed(8, 1 << 20, bytes(64)),
    "texts that turn back": listed(8, 2, struct.pack("<Q", HUGE - 7) + bytes(64)),
    "a list of lists": listed(9, 1, bytes(64)),
    "an unknown kind": header(0, 1, writer.text("a") + struct.pack("<I", 99) + bytes(64)),
    "a field twice": header(0, 2, (writer.text("a") + writer.field(1)) * 2),
    "a name that is no text": header(0, 1, struct.pack("<Q", 2) + b"\xff\xfe" + writer.field(1)),
    "a tensor twice": header(2, 0, tensor([4]) * 2 + bytes(64)),
    "a tensor beyond the end": header(1, 0, tensor([1 << 40]) + bytes(64)),
    "a tensor that wraps around": header(1, 0, tensor([1 << 63, 2, 2, 1]) + bytes(64)),
    "an offset that wraps around": header(1, 0, tensor([4], offset=HUGE - 31) + bytes(64)),
    "an offset between places": header(1, 0, tensor([1], offset=3) + bytes(64)),
    "no numbers": header(1, 0, tensor([0, 5]) + bytes(64)),
    "no dimensions": header(1, 0, tensor([]) + bytes(64)),
    "too many dimensions": header(1, 0, tensor([1] * 9) + bytes(64)),
    "half a block": header(1, 0, tensor([33, 2], kind=8) + bytes(640)),
    "a type that is not read": header(1, 0, tensor([256], kind=16) + bytes(640)),
    "an alignment of nothing": header(
        0, 1, writer.text("general.alignment") + writer.field(writer.U32(0))
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_an_error_and_takes_no_memory(name: str, tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ModelError):
            opened(tmp_path, HOSTILE[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


WHOLE, _ = quantized("Q8_0", 1)
WHOLE.metadata.update(
    {**writer.byte_vocabulary(), "tokenizer.chat_template": "{% for m in messages %}{{ m }}"}
)
VALID = writer.gguf_bytes(WHOLE.metadata, WHOLE.tensors)
HEADER_END = VALID.rindex(writer.text("output.weight")) + 100
CHANGES = st.lists(
    st.tuples(
        st.integers(4, HEADER_END),
        st.one_of(
            st.binary(min_size=1, max_size=4),
            st.sampled_from([0, 1, 255, 1 << 20, 1 << 31, 1 << 40, HUGE]).map(
                lambda number: struct.pack("<Q", number)
            ),
        ),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=120)
@given(changes=CHANGES, end=st.integers(0, 40))
def test_whatever_is_changed_a_file_is_loaded_or_refused(
    changes: list[tuple[int, bytes]], end: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Everything that reads a checkpoint: header, config, weights, tokenizer, template."""
    content = bytearray(VALID)
    for at, new in changes:
        content[at : at + len(new)] = new
    path = tmp_path_factory.getbasetemp() / "changed.gguf"
    path.write_bytes(content[: len(content) - end])
    for read in (
        lambda: load_engine(RuntimeConfig(model=str(path), kv_memory_mb=8)),
        lambda: load_tokenizer(path).encode("Grüße, 123"),
        lambda: load_template(path),
    ):
        with contextlib.suppress(ModelError, NotSupported):
            read()
