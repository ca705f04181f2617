"""Small frozen configurations of a runtime; what is `auto` is resolved once, into a new value.

This module knows numbers and names only; it opens no file and imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PolicyName = Literal["fcfs", "lpm", "dfs"]
AdmissionName = Literal["programs", "unlimited"]
SpeculationName = Literal["auto", "always", "off"]
DtypeName = Literal["float32", "bfloat16", "float16"]
KvPoolName = Literal["fixed", "virtual"]
KvDtypeName = Literal["float32", "bfloat16", "float16", "int8", "fp8"]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What the scheduler may do in one step and how long it may let a call wait."""

    page_size: int = 16
    num_pages: int = 0
    """Pages of key/value memory; 0: as many as `RuntimeConfig.kv_memory_mb`, or the machine's
    memory, allows.
    """
    token_budget: int = 2048
    """Most tokens computed in one step, over all rows."""
    max_rows: int = 256
    """Most rows in one step."""
    max_chunk: int = 0
    """Most tokens of one row in one step; 0: only the budget limits it."""
    step_ms: int = 50
    """Milliseconds that a step with decoding rows may last: prefills beside them are cut to what
    the measured costs allow. Alone they take what is fastest. 0: no bound."""
    policy: PolicyName = "lpm"
    ageing: float = 60.0
    """Seconds of waiting that a whole context of cached prefix, a level of priority, or a place in
    memory is worth, so that waiting is bounded: see `runtime/scheduling/policy`."""
    admission: AdmissionName = "programs"
    """programs: as many programs at a time as fit in memory until they end. unlimited: all whose
    next call fits; where they do not all fit, they evict each other's pages. With a second tier
    (`RuntimeConfig.kv_disk_mb`) that gives them back for little, programs is unlimited.
    """
    speculation: SpeculationName = "auto"
    """auto: where the end of a text stood before, what followed it is tried as several tokens of
    one step, as long as that pays by measured acceptance and costs; texts are the same. always:
    wherever it stood before. off: never."""
    share: bool = True
    """False switches the tree off (nothing is matched or kept): the plain twin that the cache is
    tested against.
    """
    max_waiting: int = 16_384
    """Calls waiting beyond which a new one is refused as `Overloaded`."""


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """How `lmprog.Runtime` and `lmprog serve` start a runtime. `None` means: decided from model and
    machine.
    """

    model: str = "nano"
    device: str = "cpu"
    """cpu, auto (a GPU where one can be used: not the default before a GPU has been met), cuda,
    cuda:<number>, or emulated: the kernels of a GPU on the processor, for tests."""
    dtype: DtypeName | None = None
    kv_dtype: KvDtypeName | None = None
    """How keys and values are kept; int8: each token's of a head with a scale of its own, on the
    processor only; fp8: as e4m3 floats with two scales a layer, on a device and in the reference
    attention."""
    engine: Literal["native", "torch"] | None = None
    """None: native where a compiler is found and the architecture is known to it."""
    quantize: Literal["int8", "int4"] | None = None
    """Weights rounded to 8 bits (one scale an output) or 4 (one scale 32 inputs): by the native
    engine, or on a device."""
    tp: int = 1
    """Tensor parallelism: processes (ranks) that compute each step together, with a part of every
    layer's weights and heads each; torch engine, or a device for each. `threads` and
    `kv_memory_mb` are of all ranks of a machine together."""
    tp_ranks: Literal["local", "torchrun"] = "local"
    """Who starts the ranks: the runtime, on this machine, or torchrun and its like, which say by
    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT who is who; only there on several machines."""
    attention: Literal["native", "reference", "tree", "flashinfer", "cascade"] | None = None
    """On the processor: native, or the reference, which asks for the torch engine. On a device:
    tree (our kernels), flashinfer, its cascade, the reference; None: the first that is right."""
    threads: int | None = None
    context_len: int | None = None
    kv_memory_mb: int | None = None
    device_memory_fraction: float | None = None
    """Of a device's memory that is free beside the model and its largest step, what keys and values
    may take where neither `kv_memory_mb` nor `num_pages` says; None: 0.9."""
    kv_pool: KvPoolName = "fixed"
    """Of a device: fixed, memory for all pages is taken at once; virtual, addresses are, and memory
    is mapped when pages are first written and unmapped after `kv_idle_seconds`."""
    kv_idle_seconds: int = 900
    """Seconds without work after which cached keys and values that no branch stands on are given
    up, and the memory of all free pages goes back to the system; 0: never."""
    kv_host_mb: int | None = None
    """Keys and values that a device's memory has no place for are kept in so much pinned memory of
    the host; None: they are not."""
    kv_disk_mb: int | None = None
    """Keys and values that memory has no place for are kept in a file of at most this size, and
    found again after a restart; None: they are not. The file holds prompts; its owner alone can
    read it.
    """
    kv_disk_folder: str | None = None
    """Where; None: the folder `kv` of lmprog's cache."""
    kv_events: str | None = None
    """Where to publish which blocks of tokens the cache has, for routers that read vLLM's events;
    None: nowhere. Events have the tokens of prompts."""
    kv_events_replay: str | None = None
    """Where routers ask for events that they missed; None: nowhere."""
    kv_events_topic: str = ""
    kv_events_open: bool = False
    """Whether these addresses may be reached from other machines, without keys."""
    lora: tuple[str, ...] = ()
    """LoRA adapters, each as "name=folder" of PEFT's layout: branches and requests name them. As a
    keyword of `lmprog.Runtime` also a mapping of names to folders."""
    draft_model: str | None = None
    """A small model of the same vocabulary, which drafts what `model` may say next, in place of
    looking it up in the text. An eighth of `kv_memory_mb` is its own. On the processor only."""
    public_prefix: tuple[str, ...] = ()
    """Files of texts and first messages that caches of different keys share; what follows them is
    each key's own.
    """
    scheduler: SchedulerConfig = SchedulerConfig()
