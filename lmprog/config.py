"""The configuration of a runtime as a table: each option's type, default, help and range, which
engines do not have it, and which options it needs.

Small frozen values; what is left open (`None`) is decided from model and machine, once. The help is
what `lmprog serve --help` shows. `config_check` holds configurations to the table: an option that
would do nothing is refused. What depends on more than the configuration (a model, a machine, a
folder) is said where it is found. Knows numbers and names only; opens no file and imports nothing
heavy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

PolicyName = Literal["fcfs", "lpm", "dfs"]
AdmissionName = Literal["programs", "unlimited"]
SpeculationName = Literal["auto", "always", "off"]
DtypeName = Literal["float32", "bfloat16", "float16"]
KvPoolName = Literal["fixed", "virtual"]
KvDtypeName = Literal["float32", "bfloat16", "float16", "int8", "fp8"]

EngineKind = Literal["processor", "device", "ranks", "native pages", "torch pages", "device pages"]
"""What computes: a processor, a device, or several processes (`tp`), whatever each of them computes
on. Pages are those of the engine in use, which a second tier would keep."""


@dataclass(frozen=True, slots=True)
class Lack:
    """What engines of some kinds do not have of an option. In `says`, {name} is its name, and {it}
    the name with its value.
    """

    kinds: tuple[EngineKind, ...]
    says: str
    values: tuple[object, ...] | None = None
    """Those that they lack; None: all but the default."""
    allowed: str | None = None
    unless: tuple[str, object] | None = None
    """Another option, and the value of it with which they have this one."""


@dataclass(frozen=True, slots=True)
class Need:
    """Another option without which an option would do nothing."""

    option: str
    without: object
    """The other's value where it is not there."""
    says: str


@dataclass(frozen=True, slots=True)
class OptionRules:
    """What the table says of an option besides its type and default."""

    help: str
    least: float | None = None
    above: float | None = None
    """A bound that is no value itself."""
    most: float | None = None
    needs: tuple[Need, ...] = ()
    lacks: tuple[Lack, ...] = ()


def _rules(
    help: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    needs: tuple[Need, ...] = (),
    lacks: tuple[Lack, ...] = (),
) -> dict[str, OptionRules]:
    """What a field of the table has besides its type and default."""
    return {"rules": OptionRules(help, least, above, most, needs, lacks)}


_KEEPS_THE_CACHE = Need(
    "share", False, "{it} keeps what the cache has, and share = False switches that off"
)
_OF_DEVICES = Lack(
    ("processor",),
    "{it} is of a device; the processor's memory for keys and values is taken when it is first "
    "written, and kv_memory_mb bounds it",
)
_OF_EVENTS = Need("kv_events", None, "{name} is for kv_events, which has no address")
_NO_TIER_OF_RANKS = Lack(
    ("ranks",), "{it} is not possible with tp: pages of several processes have no second tier"
)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What the scheduler may do in one step and how long it may let a call wait."""

    page_size: int = field(default=16, metadata=_rules("tokens of one page", least=1))
    num_pages: int = field(
        default=0, metadata=_rules("pages of memory; 0: as kv_memory_mb says", least=0)
    )
    """0: as many as `RuntimeConfig.kv_memory_mb`, or the machine's memory, allows."""
    token_budget: int = field(default=2048, metadata=_rules("tokens computed in one step", least=1))
    max_rows: int = field(default=256, metadata=_rules("rows of one step", least=1))
    max_chunk: int = field(
        default=0,
        metadata=_rules("tokens of one row in one step; 0: only the budget limits it", least=0),
    )
    step_ms: int = field(
        default=50,
        metadata=_rules(
            "milliseconds that a step with decoding rows may last, half of it for small models "
            "while several accounts have calls, more where prompts would have less than half of "
            "it, or two thirds in twice as long; 0: as without such rows",
            least=0,
        ),
    )
    """Prefills beside decoding rows are cut to what the measured costs allow; alone they take what
    is fastest."""
    policy: PolicyName = field(
        default="lpm",
        metadata=_rules(
            "order of the waiting queue: arrival (fcfs), longest cached prefix (lpm), depth first"
        ),
    )
    ageing: float = field(
        default=60.0,
        metadata=_rules(
            "seconds of waiting that a level of priority or a cached context is worth", least=0
        ),
    )
    """Or a place in memory, so that waiting is bounded: see `runtime/scheduling/waiting_queue`."""
    admission: AdmissionName = field(
        default="programs",
        metadata=_rules("who gets memory: as many programs as fit until they end, or all"),
    )
    """programs: as many at a time as fit in memory until they end. unlimited: all whose next call
    fits; where they do not all fit, they evict each other's pages. With a second tier
    (`RuntimeConfig.kv_disk_mb`) that gives them back for little, programs is unlimited."""
    speculation: SpeculationName = field(
        default="auto",
        metadata=_rules(
            "try text that stood before as several tokens of one step: where it pays, always, "
            "off; the texts are the same",
        ),
    )
    """auto: where the end of a text stood before, what followed it is tried, as long as that pays
    by measured acceptance and costs. always: wherever it stood before."""
    share: bool = field(default=True, metadata=_rules("enable prefix caching"))
    """False: nothing is matched or kept, the plain twin that the cache is tested against."""
    max_waiting: int = field(
        default=16_384,
        metadata=_rules("calls that may wait; more are refused as Overloaded", least=0),
    )


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """How `lmprog.Runtime` and `lmprog serve` start a runtime. `None` means: decided from model and
    machine.
    """

    model: str = "nano"
    device: str = field(
        default="cpu",
        metadata=_rules(
            "what computes: cpu, auto (a GPU where one can be used), cuda, cuda:<number>, emulated"
        ),
    )
    """A GPU is not the default before one has been met."""
    dtype: DtypeName | None = field(
        default=None,
        metadata=_rules(
            "of weights and activations; default: the checkpoint's own, where this machine "
            "supports it"
        ),
    )
    kv_dtype: KvDtypeName | None = field(
        default=None,
        metadata=_rules(
            "of cached keys and values (int8: each with a scale, on the processor; fp8: with a "
            "layer's scales, on a device); default: dtype",
            lacks=(
                Lack(
                    ("processor",),
                    "{it} is of devices and of attention = 'reference'; on the processor keys and "
                    "values of 8 bits are int8",
                    values=("fp8",),
                    allowed="float32, bfloat16, float16, int8",
                    unless=("attention", "reference"),
                ),
            ),
        ),
    )
    engine: Literal["native", "torch"] | None = field(
        default=None,
        metadata=_rules(
            "what computes the model; default: native where a compiler is found and the "
            "architecture is known",
            lacks=(
                Lack(("device",), "{it} is of the processor; a device has none"),
                Lack(
                    ("ranks",),
                    "{it} is not possible with tp, which torch computes; leave it out",
                    values=("native",),
                    allowed="torch",
                ),
            ),
        ),
    )
    quantize: Literal["int8", "int4"] | None = field(
        default=None,
        metadata=_rules(
            "round weights to 8 or 4 bits (native engine, or a device)",
            lacks=(
                Lack(
                    ("ranks",),
                    "{it} is not possible with tp, which torch computes: no weights are rounded",
                ),
            ),
        ),
    )
    """To 8 bits with one scale an output, or to 4 with one scale 32 inputs."""
    tp: int = field(
        default=1,
        metadata=_rules(
            "tensor parallelism: processes that compute the model together, each with a part of "
            "its weights (torch engine)",
            least=1,
        ),
    )
    """`threads` and `kv_memory_mb` are of all ranks of a machine together."""
    tp_ranks: Literal["local", "torchrun"] = field(
        default="local",
        metadata=_rules(
            "who starts them: the runtime, on this machine, or torchrun (RANK, WORLD_SIZE, "
            "MASTER_ADDR, MASTER_PORT), on several",
            needs=(Need("tp", 1, "{it} is for tp of 2 and more"),),
        ),
    )
    attention: Literal["native", "reference", "tree", "flashinfer", "cascade"] | None = field(
        default=None,
        metadata=_rules(
            "processor: native, reference (asks for the torch engine); device: tree, flashinfer, "
            "cascade, reference; default: the best that is right on this machine",
            lacks=(
                Lack(
                    ("processor",),
                    "{it} is of a device; the processor has native, reference",
                    values=("tree", "flashinfer", "cascade"),
                    allowed="native, reference",
                ),
                Lack(
                    ("device",),
                    "{it} is of the processor; a device has tree, flashinfer, cascade, reference",
                    values=("native",),
                    allowed="tree, flashinfer, cascade, reference",
                ),
            ),
        ),
    )
    threads: int | None = field(
        default=None,
        metadata=_rules(
            "processor threads, of all ranks here; default: all cores; small steps of small "
            "models use one",
            least=0,
        ),
    )
    context_len: int | None = field(
        default=None, metadata=_rules("most tokens of one branch; default: the model's")
    )
    kv_memory_mb: int | None = field(
        default=None,
        metadata=_rules(
            "memory for keys and values; default: by model and machine", least=1, most=1 << 26
        ),
    )
    device_memory_fraction: float | None = field(
        default=None,
        metadata=_rules(
            "on a device: the part of its memory, as far as it is free beside the model and its "
            "largest step, that keys and values may take; default: 0.9",
            above=0,
            most=1,
            lacks=(_OF_DEVICES,),
        ),
    )
    kv_pool: KvPoolName = field(
        default="fixed",
        metadata=_rules(
            "on a device: take memory for keys and values at once (fixed), or map it when it is "
            "first needed and unmap it after kv_idle_seconds (virtual)",
            lacks=(
                _OF_DEVICES,
                Lack(("ranks",), "{it} is of one device, not of several ranks (tp); leave it out"),
            ),
        ),
    )
    served_model_name: str = field(
        default="",
        metadata=_rules(
            "what clients call the model; a fleet has several of different names, each of which "
            "is one model",
            most=256,
        ),
    )
    generation: int = field(
        default=0,
        metadata=_rules(
            "which update of the model this is, for gateways that join it: they go over to a later "
            "one, and refuse another model of the same",
            least=0,
        ),
    )
    kv_idle_seconds: int = field(
        default=900,
        metadata=_rules(
            "seconds without work after which cached keys and values are given up and their "
            "memory goes back to the system; 0: never",
            least=0,
        ),
    )
    """Pages that a branch stands on are kept."""
    kv_host_mb: int | None = field(
        default=None,
        metadata=_rules(
            "on a device: pinned memory of the host for keys and values that the device has no "
            "place for; default: none is kept",
            needs=(_KEEPS_THE_CACHE,),
            lacks=(
                Lack(
                    ("native pages", "torch pages"),
                    "{it} is memory beside a device; on the processor there is kv_disk_mb",
                ),
                _NO_TIER_OF_RANKS,
            ),
        ),
    )
    kv_disk_mb: int | None = field(
        default=None,
        metadata=_rules(
            "size of a file for keys and values that memory has no place for, found again after a"
            " restart; default: none is kept",
            needs=(_KEEPS_THE_CACHE,),
            lacks=(
                Lack(
                    ("torch pages", "device pages"),
                    "{it} needs the native engine: torch and devices keep no pages on disk",
                ),
                _NO_TIER_OF_RANKS,
            ),
        ),
    )
    """The file holds prompts; its owner alone can read it."""
    kv_disk_folder: str | None = field(
        default=None,
        metadata=_rules(
            "where that file is; default: the folder kv of the cache",
            needs=(
                Need(
                    "kv_disk_mb",
                    None,
                    "kv_disk_folder is where kv_disk_mb keeps pages, and that is not given",
                ),
            ),
        ),
    )
    kv_store: str = field(
        default="own",
        metadata=_rules(
            "who shares the pages that memory has no place for: nobody (own), all runtimes of this "
            "machine (machine; the default of several replicas), all that see kv_disk_folder "
            "(folder), or all that use a Redis or Valkey server (redis://HOST:PORT)",
            needs=(_KEEPS_THE_CACHE,),
            lacks=(
                Lack(
                    ("torch pages", "device pages"),
                    "{it} needs the native engine: torch and devices keep no pages elsewhere",
                ),
                _NO_TIER_OF_RANKS,
            ),
        ),
    )
    """machine and folder take kv_disk_mb; a server forgets by its own policy."""
    kv_events: str | None = field(
        default=None,
        metadata=_rules(
            "address at which vLLM's key/value events are published, as in tcp://127.0.0.1:5557, "
            "for routers that know the cache by them; default: none",
            needs=(
                Need(
                    "share",
                    False,
                    "kv_events tells of the cache, and share = False switches it off",
                ),
            ),
        ),
    )
    """Events have the tokens of prompts."""
    kv_events_replay: str | None = field(
        default=None,
        metadata=_rules(
            "address at which routers ask for events that they missed; default: none",
            needs=(_OF_EVENTS,),
        ),
    )
    kv_events_topic: str = field(
        default="",
        metadata=_rules(
            "their topic; llm-d wants kv@POD@MODEL; default: none", needs=(_OF_EVENTS,)
        ),
    )
    kv_events_open: bool = field(
        default=False,
        metadata=_rules(
            "allow addresses of events that other machines reach: whoever does reads prompts",
            needs=(_OF_EVENTS,),
        ),
    )
    kv_events_connect: bool = field(
        default=False,
        metadata=_rules(
            "connect to the address of events, where a router listens, and do not bind it",
            needs=(_OF_EVENTS,),
        ),
    )
    lora: tuple[str, ...] = field(
        default=(),
        metadata=_rules(
            "a LoRA adapter, as NAME=FOLDER of PEFT's files, which requests name as their model; "
            "repeat it for several",
            lacks=(
                Lack(
                    ("ranks",),
                    "{it} is not possible: there are no adapters over several ranks (tp)",
                ),
            ),
        ),
    )
    """As a keyword of `lmprog.Runtime` also a mapping of names to folders."""
    draft_model: str | None = field(
        default=None,
        metadata=_rules(
            "a small model of the same vocabulary, whose drafts the model verifies several at a "
            "time, in place of text that stood before; it has an eighth of kv_memory_mb. mtp: the "
            "layer of a Qwen 3.5 or Qwen 3 Next that predicts further tokens",
            needs=(
                Need(
                    "speculation",
                    "off",
                    '{it} is not possible with speculation = "off": it would never be asked',
                ),
            ),
            lacks=(
                Lack(
                    ("ranks",),
                    "{it} is not possible with tp: a model on several processes has none",
                ),
            ),
        ),
    )
    """On the processor only."""
    public_prefix: tuple[str, ...] = field(
        default=(),
        metadata=_rules(
            "a file whose text, or messages (.json), all keys share in the cache; repeat it for "
            "several"
        ),
    )
    """What follows them is each key's own."""
    scheduler: SchedulerConfig = SchedulerConfig()
