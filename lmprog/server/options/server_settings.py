"""What the operator decides, as one frozen value, checked before anything listens.

Knows names, numbers and which of them go together. It reads no files and no environment.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal

from lmprog.errors import InvalidParameter

Isolation = Literal["shared", "key", "strict"]
Confines = Literal["strict", "known", "all"]
_SIZES = ("max_body_bytes", "memory_mb", "max_stored_bytes")
_ORIGIN = re.compile(r"\*|[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s]+")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Times in seconds, sizes in bytes. `None` means that the feature is off, or decided from the
    rest.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    """Each permits every route but the admin's. None given: no key is required."""
    admin_key: str | None = None
    """Opens everything. With `api_keys` and without this, nobody reaches the admin routes."""
    api_key_file: str | None = None
    """A file of more keys, with weights and limits; see `api_keys`. SIGHUP reads it again."""
    max_priority: int | None = None
    """The highest priority a request may claim, where its key does not say. None: 0 where there are
    several keys, else 100.
    """
    key_share: float = 0.75
    """Of all places, what one key may hold while it is alone, where there are several keys."""
    allow_open: bool = False
    """Listen beyond this machine without any key."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which the server may be reached, besides addresses, `localhost` and `host`; `*`: any
    name.
    """
    cors_origins: tuple[str, ...] = ()
    """Origins of other sites whose pages may use the server (`https://example.org`); `*`: any."""
    served_model_name: str | None = None
    """What `/v1/models` lists and requests name; None: the runtime's name of its model."""
    cache_isolation: Isolation | None = None
    """Who shares the prefix cache: everybody, requests of one key, nobody. None: `key` where there
    are several keys.
    """
    cache_key_file: str | None = None
    """A file with the secret of names of caches, made where it is missing; see `key_of_caches`.
    """
    allow_cache_salt: bool = False
    """Whether a request may choose a cache of its own with `cache_salt`."""
    generation_config: Literal["auto", "none"] = "auto"
    """Whether the checkpoint's own way to sample counts for OpenAI's and Anthropic's requests that
    do not say.
    """
    confine_calls: Confines = "known"
    """Where the model may call a tool or not, whose calls are held to the tools' schemas: those of
    tools that say `strict`, also those of models whose own template writes calls, all.
    """
    strict_api: bool = False
    """Refuse unknown fields instead of ignoring them with a warning."""
    ui_show_text: bool = False
    """Whether the page shows texts of cached prefixes and of requests, also of those that ended."""

    models: tuple[str, ...] = ()
    """Several models, each as NAME=MODEL: `replicas` runtimes are started of each."""
    replicas: int = 1
    """Runtimes that are started; with more than one, programs and requests are spread over them."""

    ray: bool = False
    """The runtimes are replicas of a Ray Serve application."""
    max_replicas: int | None = None
    """With `ray`: the most runtimes; more than `replicas` are started while there is much to do."""
    join: tuple[str, ...] = ()
    """Addresses of runtimes that run already: they are served, and none is started. `ray:NAME`:
    those of a Ray Serve application.
    """
    keys: str | None = None
    """A folder of CURVE keys, which addresses beyond this machine need."""

    max_running: int = 256
    """Results that the runtime computes at once; others wait."""
    max_waiting: int = 1024
    """Results that may wait beyond `max_running`; more are refused with 429."""
    max_requests: int = 12_000
    """HTTP requests open at once; more are refused with 503."""
    max_body_bytes: int = 8 * 1024 * 1024
    max_header_bytes: int = 64 * 1024
    memory_mb: int = 128
    """All that is held for clients: bodies, answers that wait for their readers, stored responses.
    What finds no room is refused with 413 or 429.
    """
    max_stored_bytes: int = 64 * 1024 * 1024
    """Of all stored responses; the oldest are forgotten first."""
    responses_file: str | None = None
    """Where they are kept, for all gateways that have the same file; None: in this one's memory."""

    start_wait: float = 30.0
    """A request that comes while the runtime starts waits for it this long; 0: it is refused."""
    request_timeout: float | None = None
    """After this long a call that has not ended fails with 504."""
    body_timeout: float = 60.0
    """How long a client may take to send its headers, and then its body."""
    first_reply_wait: float = 5.0
    """A stream begins with its first text, so that errors have their status; after this long it
    begins anyway.
    """
    keep_alive: float = 15.0
    """A silent stream gets a comment this often."""
    write_stall: float = 60.0
    """A client that reads nothing for this long is cut off."""
    drain: float = 30.0
    """How long requests under way may take to finish after SIGTERM."""
    stall: float = 10.0
    """A runtime that has work, but brings no token and admits nobody for this long, is
    restarted.
    """
    longest_step: float = 120.0
    """While its process computes, a runtime may take this long to answer: as long as its longest
    step.
    """

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise _wrong("port", self.port, "0 to 65535 (0: any free one)")
        for name in ("max_running", "max_waiting", "max_requests", *_SIZES):
            if getattr(self, name) < 1:
                raise _wrong(name, getattr(self, name), "at least 1")
        for name in (
            "body_timeout",
            "first_reply_wait",
            "keep_alive",
            "write_stall",
            "stall",
            "longest_step",
        ):
            if not getattr(self, name) > 0:
                raise _wrong(name, getattr(self, name), "more than 0 seconds")
        if not 0 <= self.start_wait <= 86_400:
            raise _wrong("start_wait", self.start_wait, "0 to 86,400 seconds")
        if not 0 <= self.drain <= 86_400:
            raise _wrong("drain", self.drain, "0 to 86,400 seconds")
        if self.request_timeout is not None and not 0 < self.request_timeout <= 86_400:
            raise _wrong(
                "request_timeout", self.request_timeout, "more than 0 and at most 86,400 seconds"
            )
        if not self.max_header_bytes >= 4096:
            raise _wrong("max_header_bytes", self.max_header_bytes, "at least 4096")
        for origin in self.cors_origins:
            if not _ORIGIN.fullmatch(origin):
                raise InvalidParameter(
                    f"--cors-origin is {origin!r}; it must be '*' or an origin without a path, "
                    "as in 'https://example.org' or 'http://localhost:3000'.",
                    name="cors_origins",
                    value=origin,
                )
        if any(not key for key in (*self.api_keys, self.admin_key or "x")):
            raise InvalidParameter("A key is empty; leave it out, or give one.", name="api_keys")
        self._check_fleet()
        if not 0 < self.key_share < 1:
            raise _wrong("key_share", self.key_share, "above 0 and below 1")
        if self.max_priority is not None and not -100 <= self.max_priority <= 100:
            raise _wrong("max_priority", self.max_priority, "-100 to 100")
        has_keys = bool(self.api_keys or self.admin_key or self.api_key_file)
        if not (has_keys or self.allow_open or is_loopback(self.host)):
            raise InvalidParameter(
                f"{self.host} can be reached from other machines, and no key is set: give "
                "--api-key, listen on 127.0.0.1, or say --insecure-no-auth.",
                name="host",
                value=self.host,
                allowed="127.0.0.1 without keys",
            )

    def _check_fleet(self) -> None:
        """Whether the options of several runtimes go together."""
        self._check_models()
        if self.replicas < (least := int(not self.ray)):
            raise _wrong("replicas", self.replicas, f"at least {least}")
        if not self.replicas and not self.max_replicas:
            says = "--replicas 0 lets all of them end while nobody asks; give --max-replicas, too."
            raise InvalidParameter(says, name="max_replicas")
        if self.keys and not self.join and not self.ray:
            raise InvalidParameter(
                "--keys is for --join, --ray and --address; runtimes that are started here need "
                "none.",
                name="keys",
            )
        if self.join and (self.replicas > 1 or self.ray):
            raise InvalidParameter(
                "--join serves runtimes that run already, and --replicas and --ray start some; use "
                "one of them.",
                name="ray" if self.ray else "replicas",
            )
        if self.max_replicas is not None and (not self.ray or self.max_replicas < self.replicas):
            raise InvalidParameter(
                "--max-replicas is for --ray, and at least --replicas.",
                name="max_replicas",
                value=self.max_replicas,
            )

    def _check_models(self) -> None:
        if self.models and self.join:
            raise InvalidParameter(
                "--join serves runtimes that run already, and --models starts some; use one of "
                "them.",
                name="models",
            )
        for at, one in enumerate(self.models):
            name, _, model = one.partition("=")
            if not name.strip() or not model.strip():
                says = f"--models is {one!r}; it must be NAME=MODEL, as in small=nano."
                raise InvalidParameter(says, name="models", value=one, allowed="NAME=MODEL")
            if any(other.startswith(f"{name}=") for other in self.models[:at]):
                says = f"--models has {name!r} twice; each name is one model."
                raise InvalidParameter(says, name="models", value=one)
        if self.models and self.served_model_name not in (None, *self.named_models):
            raise InvalidParameter(
                f"--served-model-name is {self.served_model_name!r}; with --models it is one of "
                f"{', '.join(self.named_models)}.",
                name="served_model_name",
                value=self.served_model_name,
            )

    @property
    def named_models(self) -> dict[str, str]:
        """Each of `models` by its name."""
        return {name: model for name, _, model in (one.partition("=") for one in self.models)}

    @property
    def starts_several(self) -> bool:
        """Whether several runtimes are started."""
        return self.replicas > 1 or len(self.models) > 1

    @property
    def isolation(self) -> Isolation:
        """`cache_isolation` with the default decided."""
        has_several = len(self.api_keys) > 1 or self.api_key_file is not None
        return self.cache_isolation or ("key" if has_several else "shared")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _wrong(name: str, value: float, allowed: str) -> InvalidParameter:
    flag = "--" + name.replace("_", "-")
    return InvalidParameter(
        f"{flag} is {value}; it must be {allowed}.", name=name, value=value, allowed=allowed
    )
