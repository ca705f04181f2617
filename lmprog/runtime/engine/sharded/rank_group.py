"""What the ranks of one model say to each other (sums, the parts of logits, batches, facts), and
where each finds the others: told by whoever starts it, or by torchrun's variables.

The door of `torch.distributed`. Rank 0 leads: the others do what its batches say. What lies on a
GPU goes over NCCL, all else over gloo: which one is decided by where a tensor is. Nothing here has
a time limit, since a runtime may be idle for days: whether all ranks live is watched elsewhere
(`runtime.ranks`), and a rank that is lost is the end of the process.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter
from lmprog.runtime.scheduling.batch import Batch, Ints

log = logging.getLogger("lmprog")

RANK_LOST = 71
"""Exit status of a process whose ranks can no longer compute together."""
_NEVER = timedelta(days=3650)
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
TRANSPORTS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
"""By the kind of device that ranks compute on: what carries tensors, by where they are."""
_REFUSED = ("adapters", "states", "apart")
_ARRAYS = [one.name for one in fields(Batch) if one.name not in ("page_size", *_REFUSED)]
"""What ranks are given: all but what several ranks refuse."""
_HEAD = 2 + len(_ARRAYS)
_FIRST_INTS = 2048
"""Integers of a batch that go out with its lengths; a decoding step of a few rows has no more."""
_MESSAGE_BYTES = 2048
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Place:
    """Who a rank is, and how it finds the others."""

    rank: int
    size: int
    here: int
    """Ranks on this machine."""
    meeting: Path | None
    """A new file that the ranks of one machine meet by; None: by torchrun's variables."""
    local: int = 0
    """Its number among the ranks of this machine, by which it has its GPU."""


def place_of_environment(config: RuntimeConfig) -> Place:
    """What torchrun's variables say. Raises InvalidParameter where they say something else than
    `config`, or nothing.
    """
    absent = [name for name in _VARIABLES if not os.environ.get(name)]
    if absent:
        raise InvalidParameter(
            f"tp_ranks = 'torchrun' needs {', '.join(absent)} in the environment, as torchrun "
            "sets them; without it the runtime starts its ranks itself, on this machine",
            name="tp_ranks",
            value=config.tp_ranks,
        )
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size != config.tp:
        raise InvalidParameter(
            f"tp = {config.tp}, but WORLD_SIZE is {size}: both count the ranks",
            name="tp",
            value=config.tp,
        )
    here, local = os.environ.get("LOCAL_WORLD_SIZE", "1"), os.environ.get("LOCAL_RANK", "0")
    return Place(rank, size, int(here), None, int(local))


class RankGroup:
    """This process's end of the group. One thread uses it. Every method is called by all ranks, in
    the same order.
    """

    def __init__(self, place: Place, device: str = "cpu") -> None:
        """Waits for all ranks. `device` is this one's, as `chosen_device` names it."""
        self.rank, self.size, self.here = place.rank, place.size, place.here
        self.device = device
        kind = "cuda" if device.startswith("cuda") else "cpu"
        if kind == "cuda":
            torch.cuda.set_device(torch.device(device))
        if place.meeting is not None or _is_loopback(os.environ.get("MASTER_ADDR", "")):
            for interface in _INTERFACES:
                os.environ.setdefault(interface, _loopback())
        if place.meeting is not None:
            dist.init_process_group(
                TRANSPORTS[kind],
                init_method=f"file://{place.meeting}",
                rank=place.rank,
                world_size=place.size,
                timeout=_NEVER,
            )
        else:
            dist.init_process_group(TRANSPORTS[kind], init_method="env://", timeout=_NEVER)
        self._buffer = torch.zeros(_FIRST_INTS, dtype=torch.int32)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def close(self) -> None:
        dist.destroy_process_group()

    def sum(self, part: Tensor) -> None:
        """Replaces `part` by its sum over all ranks."""
        if part.numel():
            dist.all_reduce(part)

    def gather(self, part: Tensor) -> list[Tensor]:
        """All ranks' parts, of equal shape, in order; nothing but at rank 0."""
        parts = [torch.empty_like(part) for _ in range(self.size)] if self.leads else None
        dist.gather(part, parts, 0)
        return parts or []

    def least(self, number: int) -> int:
        found = torch.tensor([number], dtype=torch.int64)
        dist.all_reduce(found, dist.ReduceOp.MIN)
        return int(found)

    def facts(self, own: Mapping[str, Any] | None) -> dict[str, Any]:
        """What rank 0 says, as JSON; the others give None."""
        text = json.dumps(own).encode() if self.leads else b""
        length = torch.tensor([len(text)])
        dist.broadcast(length, 0)
        body = torch.frombuffer(bytearray(text or int(length)), dtype=torch.uint8)
        dist.broadcast(body, 0)
        said: dict[str, Any] = json.loads(body.numpy().tobytes())
        return said

    def messages(self, own: str) -> list[str]:
        """What every rank says, at rank 0; empty where it has nothing to say."""
        text = own.encode()[:_MESSAGE_BYTES]
        parts = self.gather(
            torch.frombuffer(bytearray(text.ljust(_MESSAGE_BYTES)), dtype=torch.uint8)
        )
        return [part.numpy().tobytes().decode(errors="replace").strip() for part in parts]

    def give(self, batch: Batch) -> None:
        """Rank 0 gives its batch to the others, who `take` it."""
        arrays = [getattr(batch, name).ravel() for name in _ARRAYS]
        head = np.array([sum(map(len, arrays)), batch.page_size, *map(len, arrays)], np.int32)
        flat = np.concatenate([head, *arrays])
        first = self._buffer.numpy()
        first[: len(flat)] = flat[:_FIRST_INTS]
        dist.broadcast(self._buffer, 0)
        if len(flat) > _FIRST_INTS:
            dist.broadcast(torch.from_numpy(flat[_FIRST_INTS:]), 0)

    def take(self) -> Batch:
        """The next batch that rank 0 gives; its arrays are valid until the next."""
        dist.broadcast(self._buffer, 0)
        flat: Ints = self._buffer.numpy()
        total, page_size, *lengths = flat[:_HEAD].tolist()
        if _HEAD + total > _FIRST_INTS:
            rest = torch.empty(_HEAD + total - _FIRST_INTS, dtype=torch.int32)
            dist.broadcast(rest, 0)
            flat = np.concatenate([flat, rest.numpy()])
        arrays, at = dict[str, Any](), _HEAD
        for name, length in zip(_ARRAYS, lengths, strict=True):
            arrays[name] = flat[at : at + length]
            at += length
        arrays["copies"] = arrays["copies"].reshape(-1, 2)
        return Batch(**arrays, page_size=page_size)


def end_process(reason: str) -> NoReturn:
    """The ranks stand at different places of a step: nothing but a new start helps."""
    log.critical("%s", reason)
    logging.shutdown()
    os._exit(RANK_LOST)


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"


def _loopback() -> str:
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
