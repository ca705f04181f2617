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
FOR_BOTH = "served_model_name"
"""What gateways and the runtimes that they start have alike."""
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
    "served_model_name": "what clients call the model; with --join where several are served: the "
    "one of requests that name none",
    "cache_isolation": "who shares the prefix cache: all, requests of one key, nobody; "
    "default: key where there are several keys, else shared",
    "cache_key_file": "a file with the secret by which keys have caches, made where it is missing; "
    "servers that share it find each other's; default: made of --keys, else anew at each start",
    "allow_cache_salt": "let requests choose a cache of their own",
    "generation_config": "auto: take sampling defaults from the checkpoint's "
    "generation_config.json",
    "confine_calls": "strict, known or all: under tool_choice auto, hold calls to the schemas of "
    "tools that say strict, also wherever the model's template writes calls, or always",
    "strict_api": "refuse unknown fields of requests",
    "ui_show_text": "show texts on the page; beginnings of answers are kept for it",
    "models": "one of several models, as NAME=MODEL, which requests name; repeat it for each; the "
    "first is that of requests that name none, unless --served-model-name says another",
    "replicas": "runtimes to start, of each model; requests are spread over them, and survive the "
    "death of one",
    "ray": "run the runtimes as replicas of a Ray Serve application: of a cluster on this machine "
    "that is started for it, or of the one at --address (auto: that of this machine)",
    "max_replicas": "with --ray: the most runtimes, started by what waits and runs",
    "join": "the address of a runtime that runs already (lmprog serve --address): serve it, and "
    "start none; repeat it for several; dns:HOST:PORT: those at all addresses of a name; "
    "ray:NAME: those of a Ray Serve application",
    "keys": "a folder of keys (lmprog fleet keys) for addresses beyond this machine",
    "max_running": "results that may be computed at once",
    "max_waiting": "results that may wait in the queue (calls, without HTTP)",
    "max_requests": "HTTP requests open at once",
    "max_body_bytes": "largest body of a request",
    "max_header_bytes": "largest headers of a request",
    "memory_mb": "MiB that the server holds for all clients: bodies, answers that wait for their "
    "readers, stored responses",
    "max_stored_bytes": "all stored responses together; the oldest are forgotten first",
    "responses_file": "a file for stored responses, made where it is missing, or a server as for "
    "--kv-store (redis://...); gateways that share it continue each other's; default: kept in "
    "memory until the server ends",
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
}
"""Of the server's own options; `lmprog.config` has that of a runtime's."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `kind` is its type without None."""

    name: str
    field: str
    of: type
    kind: Any
    default: Any
    says: str = ""

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
        return "; ".join(filter(None, (self.says, default)))


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
                kind = _without_none(hints[field.name])
                says = _HELP.get(name, "") if of is ServerSettings else field.metadata["rules"].help
                found[name] = Option(name, field.name, of, kind, field.default, says)
    return tuple(found.values())


def markdown() -> str:
    """The table of docs/server-options.md."""
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
