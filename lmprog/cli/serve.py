"""`lmprog serve`: a model over HTTP, in the foreground. `--no-http` and `--address` delegate to
`bare`.

The first SIGINT or SIGTERM drains: new requests get 503, requests in flight may finish. A second
one stops everything at once. Exit code 0 means that all requests in flight were finished; anything
else is 1.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from lmprog.cli.arguments import given_options
from lmprog.errors import Detail, InvalidParameter
from lmprog.launch import RuntimeProcess
from lmprog.launch.child_process import become_other_rank
from lmprog.launch.runtime_process import configured
from lmprog.linux import processors
from lmprog.server.options.option_table import FOR_BOTH, options
from lmprog.server.options.server_settings import ServerSettings
from lmprog.transport import client_keys

if TYPE_CHECKING:
    from lmprog.cli.run import ServedFolder
    from lmprog.server.options.configuration import Configuration
    from lmprog.server.service import Supervise

FOR_RUNTIMES = ("max_waiting", "keys", FOR_BOTH)
"""Options of a gateway that a runtime by itself has, too."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
RAY_PREFIX = "ray:"
"""Of `--join`: the name of an application of Ray Serve follows."""
RAY_APPLICATION = "lmprog"
"""The name of the application that `--ray` starts; of several models it is followed by theirs."""
_LAST_SECONDS = 1.5
"""After a second signal: time for the final events of streams and for the runtime to stop."""


def run(given: argparse.Namespace) -> int:
    if given.no_http or (given.address is not None and not given.ray):
        return _without_http(given)
    from lmprog.server.options import configuration

    flags = given_options(given)
    chosen = configuration.configured(flags, os.environ, given.config, Path.cwd())
    if given.print_config:
        print(*chosen.lines(), sep="\n")
        chosen.settings()  # after the output: raises for contradictory options
        return 0
    settings = chosen.settings()
    _check_one_runtime(settings, chosen)
    _log(given.verbose)
    programs = None if given.programs is None else _programs(Path(given.programs))
    return _serve(chosen.model, settings, _supervise(settings, chosen, given.address), programs)


def _programs(folder: Path) -> ServedFolder:
    from lmprog.cli.run import ServedFolder

    return ServedFolder(folder)


def _without_http(given: argparse.Namespace) -> int:
    """Accepts only the options that apply without HTTP."""
    flags = given_options(given)
    for option in options():
        is_for_http = option.of is ServerSettings and option.name not in FOR_RUNTIMES
        if is_for_http and option.name in flags:
            raise InvalidParameter(
                f"{option.flag} is for HTTP, which --no-http and --address leave out.",
                name=option.name,
            )
    if given.print_config or given.config is not None or given.programs is not None:
        raise InvalidParameter(
            "--config, --print-config and --programs are for HTTP; leave out --no-http and "
            "--address."
        )
    from lmprog.cli import bare

    given.model = "nano" if given.model is None else given.model
    return bare.run(given)


def _supervise(settings: ServerSettings, chosen: Configuration, cluster: str | None) -> Supervise:
    """One runtime, or several, or those that run elsewhere; `cluster` is the address of Ray's."""
    options = chosen.runtime_options()
    if settings.join:
        return _join(settings, chosen, options)
    if settings.ray:
        return _on_ray(settings, chosen, options, cluster)
    if not settings.starts_several and not settings.models:
        from lmprog.server.service import one_runtime

        return one_runtime(lambda: RuntimeProcess(chosen.model, log_to_stderr=True, **options))
    from lmprog.server.supervision.supervised_fleet import several_runtimes

    models = models_of(settings, chosen)
    share = max(1, processors() // (settings.replicas * len(models)))
    options = {"threads": share, "log_to_stderr": True, **options}
    return several_runtimes(models, settings.replicas, options)


def models_of(settings: ServerSettings, chosen: Configuration) -> dict[str, str]:
    """What is to be started: by the names of `--models`, else the only one, without a name."""
    if settings.models and chosen.is_model_chosen:
        raise InvalidParameter(
            f"MODEL and --models both say what to serve; write --models NAME={chosen.model} too, "
            "or leave out MODEL.",
            name="models",
        )
    return settings.named_models or {"": chosen.model}


def _check_one_runtime(settings: ServerSettings, chosen: Configuration) -> None:
    """Refuses several runtimes where options are for one. Does not return where torchrun started
    this process as another rank than 0.
    """
    options = chosen.runtime_options()
    for model in models_of(settings, chosen).values():
        config = configured(model, options)
    is_alone = not (settings.starts_several or settings.ray)
    if config.tp_ranks == "torchrun" and (settings.join or not is_alone):
        raise InvalidParameter(
            "--tp-ranks torchrun is for one runtime, without --replicas, --models, --join and "
            "--ray.",
            name="tp_ranks",
        )
    if config.kv_events is not None and not is_alone:
        raise InvalidParameter(
            "--kv-events is for one runtime: several cannot share its address.", name="kv_events"
        )
    become_other_rank(config)


def _join(settings: ServerSettings, chosen: Configuration, options: Mapping[str, Any]) -> Supervise:
    """Nothing is started: what is said of runtimes to start has no meaning."""
    from lmprog.server.supervision.supervised_fleet import joined_runtimes, supervised

    said = [one for one in options if one != FOR_BOTH] + ["model"] * chosen.is_model_chosen
    if said:
        raise InvalidParameter(
            f"--join serves runtimes that run already, which have their own {', '.join(said)}.",
            name=said[0],
        )
    addresses = [one for text in settings.join for one in text.split(",")]
    names = [one.removeprefix(RAY_PREFIX) for one in addresses if one.startswith(RAY_PREFIX)]
    if names:
        from lmprog.ray.ray_cluster import joined_members

        others = [one for one in addresses if not one.startswith(RAY_PREFIX)]
        members = joined_members(names, "auto", client_keys(settings.keys), others)
        return supervised(lambda: members)
    return joined_runtimes(addresses, settings.keys)


def _on_ray(
    settings: ServerSettings, chosen: Configuration, options: Mapping[str, Any], cluster: str | None
) -> Supervise:
    """The runtimes as replicas of applications that this server starts, and ends."""
    from lmprog.ray.ray_cluster import enter, started_members
    from lmprog.server.supervision.supervised_fleet import supervised

    most = settings.max_replicas or settings.replicas
    ranks = options.get("tp", 1)
    arguments = {name: value for name, value in options.items() if name != "tp"}
    arguments |= {"replicas": (settings.replicas, most), "keys": settings.keys}
    arguments["tensor_parallel"] = ranks
    applications = {
        f"{RAY_APPLICATION}-{name}" if name else RAY_APPLICATION: {
            **arguments,
            **({FOR_BOTH: name} if name else {}),
            "model": model,
        }
        for name, model in models_of(settings, chosen).items()
    }
    share = max(1, options.get("threads") or 1, ranks)
    leave = enter(cluster, max(processors(), most * len(applications) * share))
    return supervised(lambda: started_members(applications, leave))


def _serve(
    model: str, settings: ServerSettings, supervise: Supervise, programs: ServedFolder | None
) -> int:
    from lmprog.server.http import http_server as http
    from lmprog.server.service import ServerService

    bound = http.bind(settings)
    service = ServerService(settings, supervise, programs)
    asked = 0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked += 1
        said = (
            "finishing what is under way; again to end at once" if asked == 1 else "ending at once"
        )
        os.write(2, f"lmprog: {said}\n".encode())
        service.ask_to_stop()
        if asked == 2:  # stops whatever still hangs
            signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
            signal.setitimer(signal.ITIMER_REAL, _LAST_SECONDS)

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    if settings.api_key_file is not None:  # else SIGHUP ends the server with its terminal
        reload = signal.signal(signal.SIGHUP, lambda *_: service.ask_to_reload())
        before[signal.SIGHUP] = reload
    starting = ", ".join(settings.models) or model
    doing = f"joining {', '.join(settings.join)}" if settings.join else f"starting {starting}"
    print(
        f"{doing}; {http.url_of(bound)} answers already",
        file=sys.stderr,
        flush=True,
    )
    clean = False

    async def serving() -> None:
        nonlocal clean
        clean = await service.run(
            bound, lambda facts: _announce(facts, service, http.url_of(bound))
        )

    try:
        http.run(serving)
    finally:
        # An alarm while the interpreter ends would meet the default handler, not ours.
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
    print(
        "stopped" if clean else "stopped; not everything was finished", file=sys.stderr, flush=True
    )
    return 0 if clean else 1


def _announce(facts: Mapping[str, Detail], service: Any, url: str) -> None:
    """Prints what is served, once the server is ready."""
    from lmprog.server.http.http_server import connections_allowed

    gateway = service.gateway
    info, settings = gateway.info, gateway.settings
    slots = info.num_pages * info.page_size
    key = "-H 'Authorization: Bearer KEY' " if settings.api_keys or settings.admin_key else ""
    body = (
        f'{{"model": "{gateway.model_name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    )
    lines = {
        "model": ", ".join(gateway.model_names if len(gateway.model_names) > 1 else [info.model]),
        "dtype": facts.get("dtype"),
        "engine": facts.get("engine"),
        "replicas": facts.get("replicas"),
        "context": f"{info.context_len:,} tokens",
        "pool": f"{slots:,} tokens in {info.num_pages:,} pages, about "
        f"{max(1, slots // 1024):,} requests of 1 k",
        "cache": {"shared": "one for everybody", "key": "one for each key", "strict": "none"}[
            settings.isolation
        ],
        "connections": f"at most {connections_allowed():,} at once",
        "url": url,
        "page": f"{url}/",
        "try": f"curl {url}/v1/chat/completions {key}-H 'Content-Type: application/json' -d "
        f"'{body}'",
    }
    for name, value in lines.items():
        if value is not None:
            print(f"{name:>10}  {value}")
    print("ready; Ctrl-C stops it", flush=True)


def _log(verbose: bool) -> None:
    """Logs to stderr, like the runtime."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("lmprog").setLevel(logging.INFO if verbose else logging.WARNING)
