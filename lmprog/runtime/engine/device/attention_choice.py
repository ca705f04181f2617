"""Which attention a device uses, decided by evidence: tree kernels, FlashInfer or the reference.

A kernel that has never met this hardware must not give a wrong answer in silence: what is wrong on
random trees is not used, and one line of the log says what is used in its place.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch

from lmprog.errors import NotSupported
from lmprog.runtime.engine.attention import AttentionShape
from lmprog.runtime.engine.device import flashinfer_reader
from lmprog.runtime.engine.device.driver import Driver, ModuleKey
from lmprog.runtime.engine.device.evidence import kept_evidence
from lmprog.runtime.engine.device.flashinfer_reader import (
    FlashInferCascadeReader,
    FlashInferPageReader,
    why_not,
)
from lmprog.runtime.engine.device.page_pool import PageReader, ReferencePageReader

log = logging.getLogger("lmprog")

DeviceAttentionName = Literal["tree", "flashinfer", "cascade", "reference"]
NAMES: Sequence[DeviceAttentionName] = get_args(DeviceAttentionName)
"""The fastest first."""


def page_reader(
    name: DeviceAttentionName, shape: AttentionShape, device: torch.device
) -> PageReader[Any] | None:
    """What reads the pages; None: the tree kernels."""
    match name:
        case "tree":
            return None
        case "flashinfer":
            return FlashInferPageReader(shape, device)
        case "cascade":
            return FlashInferCascadeReader(shape, device)
        case "reference":
            return ReferencePageReader(shape)


def right_attention(
    driver: Driver,
    key: ModuleKey,
    shape: AttentionShape,
    asked: DeviceAttentionName | None,
    device_name: str,
) -> DeviceAttentionName:
    """The one that was asked for, else the first that is right on this device. Raises NotSupported
    where none is: then the kernels that write the pages are wrong.

    `device_name` tells the device and its driver apart from others.
    """
    names = [asked] if asked else [name for name in NAMES if _can_serve(name, shape)]
    wrong: list[str] = []
    for name in names:
        reader_of = functools.partial(page_reader, name, device=driver.device)
        # what was seen of one release of FlashInfer says nothing of another
        is_theirs = name in ("flashinfer", "cascade")
        seen = f"{name} {flashinfer_reader.version()}" if is_theirs else name
        like = shape if is_theirs else None  # theirs are compiled for each kind of layer
        evidence = kept_evidence(driver, key, device_name, seen, reader_of, like)
        if evidence.is_right:
            if wrong:
                log.warning("%s on %s; %s serves", "; ".join(wrong), device_name, name)
            return name
        wrong.append(f"{name} attention is wrong (relative error {evidence.worst:.2g})")
    raise NotSupported(
        f"{'; '.join(wrong)} on {device_name}, on random trees; please report this. "
        "device='cpu' is not concerned"
    )


def _can_serve(name: DeviceAttentionName, shape: AttentionShape) -> bool:
    """Without being asked for. The cascade only costs where nothing is shared, and may compile for
    half an hour.
    """
    return name != "cascade" and (name != "flashinfer" or why_not(shape) is None)
