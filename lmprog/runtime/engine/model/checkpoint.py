"""Reads a checkpoint's safetensors files: which there are, what is in them, and what is wrong with
them.

Files are memory-mapped; nothing is read before it is asked for. Names, sizes and places are checked
first: a damaged or hostile file is an error, never a read beyond its end. Pickled checkpoints
(`.bin`) are refused: reading them runs their code. Knows numpy and files; knows no torch and no
model but the weights it is told to expect.
"""

from __future__ import annotations

import json
import math
import mmap
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmprog import linux
from lmprog.errors import ModelError
from lmprog.runtime.documents.gguf_file import gguf_parts

FLOATS: Mapping[str, type[np.generic]] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
"""Types that are read, as safetensors spells them, and how numpy holds them: bfloat16 as its
bits.
"""
_FORMS: Mapping[str, type[np.generic]] = {
    **FLOATS,
    "I64": np.int64,
    "I32": np.int32,
    "I8": np.int8,
    "U8": np.uint8,
    "F8_E4M3": np.uint8,
}
"""The same with those that quantized weights are made of; floats of 8 bits are their bits too."""
_ITEM_BYTES = {name: np.dtype(kind).itemsize for name, kind in _FORMS.items()}
_OTHER_PARTS = (
    *("model.visual.", "mtp.", "model.vision_tower.", "model.audio_tower."),
    *("model.embed_vision.", "model.embed_audio.", "model.vision_embedder."),
)
_RENAMED = (
    (re.compile(r"^(base_model\.model\.)?model\.language_model\."), r"\1model."),
    (re.compile(r"^(base_model\.model\.)?backbone\."), r"\1model."),
    (re.compile(r"^model\.embeddings\."), "model.embed_tokens."),
)
"""What names of weights begin with, an adapter's too, and what with here."""
_LONGEST_HEADER = 100 << 20


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a weight lies: bytes `start .. end` of a file."""

    memory: mmap.mmap
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class Checkpoint:
    """The mapped safetensors files of one folder. Arrays that it gave out stay valid.

    Of a model that also sees pictures there is the text part, under the names that it has alone;
    what drafts further tokens is left out, unless it `predicts`.
    """

    def __init__(self, folder: Path, predicts: bool = False) -> None:
        self.folder = folder
        self._stored: dict[str, Stored] = {}
        for path in checkpoint_files(folder):
            for told, stored in _contents(path).items():
                if told.startswith(_OTHER_PARTS) and not (predicts and told.startswith("mtp.")):
                    continue
                name = told
                for pattern, begin in _RENAMED:
                    name = pattern.sub(begin, name)
                if name in self._stored:
                    raise ModelError(f"the weight {name} is in two files of {folder}")
                self._stored[name] = stored

    @property
    def names(self) -> set[str]:
        return set(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored[name].shape

    def dtype(self, name: str) -> str:
        """As safetensors spells it: F32, BF16, F16, I8 ..."""
        return self._stored[name].dtype

    def array(self, name: str) -> NDArray[Any]:
        """The weight, in the file's own memory. Raises ModelError for types that nothing reads."""
        stored = self._stored[name]
        if stored.dtype not in _FORMS:
            raise ModelError(f"{name} is of the type {stored.dtype}, which is not read")
        kind = _FORMS[stored.dtype]
        return np.frombuffer(stored.memory, kind, math.prod(stored.shape), stored.start).reshape(
            stored.shape
        )

    def number_type(self, name: str) -> np.dtype[Any]:
        """Of `array`."""
        return np.dtype(FLOATS[self.dtype(name)])

    def rows(self, name: str, first: int, end: int) -> NDArray[Any]:
        """Rows `first .. end` of a matrix."""
        return self.array(name)[first:end]

    def release(self, name: str, first: int, end: int) -> None:
        """Lets the system take back the memory that holds these rows; they are read from the file
        if asked for again.
        """
        stored = self._stored[name]
        row = (stored.end - stored.start) // max(1, stored.shape[0])
        page = mmap.PAGESIZE
        # Pages that begin in the range: the next range's first page may be released too early,
        # which costs one more fault; none is left over.
        start, stop = (-(-(stored.start + row * at) // page) * page for at in (first, end))
        stop = min(stop, len(stored.memory) // page * page)
        if stop > start:
            linux.forget_pages(stored.memory, start, stop - start)

    def check(self, wanted: Mapping[str, tuple[int, ...]], tied_head: bool) -> None:
        """Raises ModelError unless exactly `wanted` is there; one error tells all that is wrong."""
        there = {name: self.shape(name) for name in self.names if says_more(name, tied_head)}
        check_weights(self.folder, there, wanted, self.unread_types(there.keys() & wanted.keys()))

    def unread_types(self, names: Set[str]) -> list[str]:
        """Those of `names` that are of a type that is not read, each with it."""
        kinds = ((name, self.dtype(name)) for name in sorted(names))
        return [f"{name} is {kind}" for name, kind in kinds if kind not in FLOATS]


def _contents(path: Path) -> dict[str, Stored]:
    """What a file's header says is in it."""
    try:
        size = path.stat().st_size
        with path.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if size < 8 or length > min(size - 8, _LONGEST_HEADER):
                raise ValueError("its header is cut off")
            header = json.loads(opened.read(length))
            memory = mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY)
        if not isinstance(header, dict):
            raise ValueError("its header is no object")
        header.pop("__metadata__", None)
        return {name: _place(memory, entry, 8 + length) for name, entry in header.items()}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{path} is no readable safetensors file: {error}") from error


def _place(memory: mmap.mmap, entry: Mapping[str, Any], first: int) -> Stored:
    dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, start, end)):
        raise ValueError(f"sizes and offsets must be whole numbers, not {shape} and {start}, {end}")
    if not start <= end <= len(memory) - first:
        raise ValueError(f"a weight lies at {start} .. {end} of {len(memory) - first} bytes")
    if dtype in _ITEM_BYTES and math.prod(shape) * _ITEM_BYTES[dtype] != end - start:
        raise ValueError(f"{dtype} numbers of shape {shape} are not {end - start} bytes")
    return Stored(memory, str(dtype), tuple(shape), first + start, first + end)


def checkpoint_files(folder: Path) -> list[Path]:
    """The files with weights: those that the index of a folder names, else the only ones there
    are; or the GGUF file that the checkpoint is, with those that go on with it.
    """
    if folder.is_file():
        return gguf_parts(folder)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelError(f"{index} is malformed: {type(error).__name__}: {error}") from error
        absent = [name for name in names if not (folder / name).is_file()]
        if absent:
            raise ModelError(f"{index} names files that are not there: {listed(absent)}")
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if files:
        return files
    if list(folder.glob("*.bin")) or list(folder.glob("*.pt")) or list(folder.glob("*.pth")):
        raise ModelError(
            f"{folder} has its weights as pickled files (.bin, .pt), which lmprog does not "
            "read: unpickling runs code "
            "from the file. Save them as safetensors, with save_pretrained of transformers "
            "for example."
        )
    raise ModelError(f"{folder} has no weights: no model.safetensors and no index of one")


# --- the weights that a config asks for -----------------------------------------------------------

_SHOWN = 8
"""Names in an error message; more are counted."""

Sizes = Mapping[str, tuple[int, ...]]


def check_weights(
    location: Path, there: Sizes, wanted: Sizes, unread_types: Sequence[str] = ()
) -> None:
    """Raises ModelError unless exactly `wanted` is there; one error tells all that is wrong."""
    wrong = []
    if missing := sorted(wanted.keys() - there.keys()):
        wrong.append(f"missing weights: {listed(missing)}")
    if surplus := sorted(there.keys() - wanted.keys()):
        wrong.append(f"weights that the config does not explain: {listed(surplus)}")
    sizes = [
        f"{name} is {list(there[name])} instead of {list(wanted[name])}"
        for name in sorted(there.keys() & wanted.keys())
        if there[name] != wanted[name]
    ]
    if sizes:
        wrong.append(f"wrong sizes: {listed(sizes)}")
    if unread_types:
        wrong.append(f"types other than F32, BF16 and F16: {listed(unread_types)}")
    if wrong:
        raise ModelError(
            f"the weights of {location} do not fit its config.json; " + "; ".join(wrong)
        )


def says_more(name: str, tied_head: bool) -> bool:
    """Whether a decoder needs the weight: some tools save the tied head a second time, older ones
    what follows from the config.
    """
    is_tied = tied_head and name == "lm_head.weight"
    return not is_tied and not name.endswith("rotary_emb.inv_freq")


def listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
