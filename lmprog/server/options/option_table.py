"""The options of `lmprog serve` as a table: what each is called on the command line, in the
environment, in a file.

Made from the fields of `ServerSettings`, `RuntimeConfig` and `SchedulerConfig`, so that no field
can be forgotten and no option does nothing. Imports nothing heavy: the command line's help is made
from it.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.server.options.server_settings import ServerSettings

NAMES: Mapping[str, str] = {
    "api_keys": "api_key",
    "allow_open": "insecure_no_auth",
    "drain": "drain_seconds",
    "cors_origins": "cors_origin",
}
"""What users write for a field, where that is not the field's name."""
PREFIX = "LMPROG_"
"""Of the environment's variables."""
SECRET = ("api_key", "admin_key")
"""Never shown."""

_HELP: Mapping[str, str] = {
    "host": "address to listen on; beyond this machine a key is required",
    "port": "port to listen on; 0: any free one",
    "api_key": "an API key that requests may use; repeat it for several",
    "admin_key": "the key that also permits the administrator's routes",
    "api_key_file": "a TOML file of keys with weights and limits; SIGHUP reads it again",
    "max_priority": "the highest priority that requests may claim; "
    "default: 0 where there are several keys, else 100",
    "key_share": "of all places, what one of several keys may hold while it is alone",
    "insecure_no_auth": "listen beyond this machine without any key",
    "allowed_hosts": "a name by which the server may be reached, besides its addresses; "
    "*: any; repeat it for several",
    "cors_origin": "an origin whose pages may use the server, as in https://example.org; "
    "*: any; repeat it for several",
    "served_model_name": "what clients call the model",
    "cache_isolation": "who shares the prefix cache: all, requests of one key, nobody; "
    "default: key where there are several keys, else shared",
    "allow_cache_salt": "let requests choose a cache of their own",
    "generation_config": "auto: take sampling defaults from the checkpoint's "
    "generation_config.json",
    "strict_api": "refuse unknown fields of requests",
    "ui_show_text": "show cached text on the page",
    "replicas": "runtimes to start; requests are spread over them, and survive the death of one",
    "ray": "run the runtimes as replicas of a Ray Serve application: of a cluster on this machine "
    "that is started for it, or of the one at --address (auto: that of this machine)",
    "max_replicas": "with --ray: the most runtimes, started by what waits and runs",
    "join": "the address of a runtime that runs already (lmprog serve --address): serve it, and "
    "start none; repeat it for several; ray:NAME: those of a Ray Serve application",
    "keys": "a folder of keys (lmprog fleet keys) for addresses beyond this machine",
    "max_running": "results that may be computed at once",
    "max_waiting": "results that may wait in the queue (calls, without HTTP)",
    "max_requests": "HTTP requests open at once",
    "max_body_bytes": "largest body of a request",
    "max_header_bytes": "largest headers of a request",
    "max_bodies_bytes": "bodies of all requests under way together",
    "max_stored_bytes": "all stored responses together; the oldest are forgotten first",
    "start_wait": "seconds that a request waits for a runtime that is starting; 0: refuse it",
    "request_timeout": "seconds after which a call fails",
    "body_timeout": "seconds that a client may take to send a request",
    "first_reply_wait": "seconds that a stream waits for its first text before its headers "
    "are sent",
    "keep_alive": "seconds of silence after which a stream gets a comment",
    "write_stall": "seconds after which a client that reads nothing is disconnected",
    "drain_seconds": "seconds that requests may take to finish after SIGTERM",
    "stall": "seconds without progress after which the runtime is restarted",
    "longest_step": "longest step, in seconds: a runtime that computes may take this to answer",
    "device": "what computes: cpu, auto (a GPU where one can be used), cuda, cuda:<number>, "
    "emulated",
    "dtype": "of weights and activations; "
    "default: the checkpoint's own, where this machine supports it",
    "kv_dtype": "of cached keys and values (int8: each with a scale, on the processor; fp8: with a "
    "layer's scales, on a device); default: dtype",
    "engine": "what computes the model; default: native where a compiler is found and the "
    "architecture is known",
    "quantize": "round weights to 8 or 4 bits (native engine, or a device)",
    "tp": "tensor parallelism: processes that compute the model together, each with a part of its "
    "weights (torch engine)",
    "tp_ranks": "who starts them: the runtime, on this machine, or torchrun (RANK, WORLD_SIZE, "
    "MASTER_ADDR, MASTER_PORT), on several",
    "attention": "processor: native, reference (asks for the torch engine); device: tree, "
    "flashinfer, cascade, reference; default: the best that is right on this machine",
    "threads": "processor threads, of all ranks here; default: all cores; small steps of small "
    "models use one",
    "context_len": "most tokens of one branch; default: the model's",
    "kv_memory_mb": "memory for keys and values; default: by model and machine",
    "device_memory_fraction": "on a device: the part of its memory, as far as it is free beside "
    "the model and its largest step, that keys and values may take; default: 0.9",
    "kv_pool": "on a device: take memory for keys and values at once (fixed), or map it when it is "
    "first needed and unmap it after kv_idle_seconds (virtual)",
    "kv_idle_seconds": "seconds without work after which cached keys and values are given up and "
    "their memory goes back to the system; 0: never",
    "kv_host_mb": "on a device: pinned memory of the host for keys and values that the device has "
    "no place for; default: none is kept",
    "kv_disk_mb": "size of a file for keys and values that memory has no place for, found again "
    "after a restart; default: none is kept",
    "kv_disk_folder": "where that file is; default: the folder kv of the cache",
    "kv_events": "address at which vLLM's key/value events are published, as in "
    "tcp://127.0.0.1:5557, for routers that know the cache by them; default: none",
    "kv_events_replay": "address at which routers ask for events that they missed; default: none",
    "kv_events_topic": "their topic; llm-d wants kv@POD@MODEL; default: none",
    "kv_events_open": "allow addresses of events that other machines reach: whoever does reads "
    "prompts",
    "lora": "a LoRA adapter, as NAME=FOLDER of PEFT's files, which requests name as their model; "
    "repeat it for several",
    "draft_model": "a small model of the same vocabulary, whose drafts the model verifies several "
    "at a time, in place of text that stood before; it has an eighth of kv_memory_mb",
    "public_prefix": "a file whose text, or messages (.json), all keys share in the cache; "
    "repeat it for several",
    "page_size": "tokens of one page",
    "num_pages": "pages of memory; 0: as kv_memory_mb says",
    "token_budget": "tokens computed in one step",
    "max_rows": "rows of one step",
    "max_chunk": "tokens of one row in one step; 0: only the budget limits it",
    "step_ms": "milliseconds that a step with decoding rows may last, longer where prompts would "
    "have less than half of it; 0: as long as without such rows",
    "policy": "order of the waiting queue: arrival (fcfs), longest cached prefix (lpm), "
    "depth first",
    "ageing": "seconds of waiting that a level of priority or a cached context is worth",
    "admission": "who gets memory: as many programs as fit until they end, or all",
    "speculation": "try text that stood before as several tokens of one step: where it pays, "
    "always, off; the texts are the same",
    "share": "enable prefix caching",
}


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `kind` is its type without None."""

    name: str
    field: str
    of: type
    kind: Any
    default: Any

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def help(self) -> str:
        unsaid = self.default is None or self.default is False or self.default == ()
        default = "" if unsaid else f"default: {self.default}"
        return "; ".join(filter(None, (_HELP.get(self.name, ""), default)))


def options() -> tuple[Option, ...]:
    """All of them, the server's first. Where the scheduler has a field of the same name, the
    server's is meant.
    """
    found: dict[str, Option] = {}
    for of in (ServerSettings, RuntimeConfig, SchedulerConfig):
        hints = typing.get_type_hints(of)
        for field in dataclasses.fields(of):
            name = NAMES.get(field.name, field.name) if of is ServerSettings else field.name
            if name not in found and field.name not in ("model", "scheduler"):
                found[name] = Option(
                    name, field.name, of, _without_none(hints[field.name]), field.default
                )
    return tuple(found.values())


def markdown() -> str:
    """The table of docs/server.md."""
    lines = ["| flag | variable | default | what |", "|---|---|---|---|"]
    for option in options():
        says, _, default = option.help.rpartition("default: ")
        says, default = (says.rstrip("; "), default) if says else (default, "")
        lines.append(f"| `{option.flag}` | `{option.variable}` | {default} | {says} |")
    return "\n".join(lines) + "\n"


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        rest = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
        assert len(rest) == 1, hint
        return rest[0]
    return hint
