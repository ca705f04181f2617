"""The command line's syntax: commands, their arguments, and one option for every field of the
configurations.

Options of `serve` are derived from the configurations (`server.options`), so that none is missing
or without effect. This module imports nothing heavy and runs nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import typing
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from lmprog import __version__
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.server.options.option_table import options
from lmprog.server.options.server_settings import ServerSettings

_WHAT = {
    ServerSettings: "the server",
    RuntimeConfig: "the runtime",
    SchedulerConfig: "its scheduler",
}

_KINDS = {str: "TEXT", int: "N", float: "X"}
"""How help writes what an option takes."""

_WHERE = "a running runtime, or a server's URL (default: a runtime of its own)"
_WHICH_MODEL = (
    "name or folder for a runtime of its own (default: nano); with a server's URL: which of its "
    "models (default: its first)"
)


class _Parser(argparse.ArgumentParser):
    """Reports an error in one sentence, without the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _add_model(doctor: argparse.ArgumentParser) -> None:
    doctor.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="whether and how this model will run here, and the memory it needs; nothing is loaded",
    )
    doctor.add_argument("--quantize", metavar="TYPE", help="for MODEL: int8 or int4")
    doctor.add_argument("--dtype", metavar="TYPE", help="for MODEL: float32 or bfloat16")
    doctor.add_argument("--context-len", type=_positive, metavar="TOKENS", help="for MODEL")


def _add_gpu(doctor: argparse.ArgumentParser) -> None:
    doctor.add_argument(
        "--gpu",
        nargs="?",
        const="cuda:0",
        metavar="DEVICE",
        help="try the kernels on a GPU: a minute (default: cuda:0; 'emulated' needs none)",
    )


def _add_quality(doctor: argparse.ArgumentParser) -> None:
    doctor.add_argument(
        "--quality",
        metavar="MODEL",
        help="what rounding the weights of a model costs on a text (--text)",
    )
    doctor.add_argument("--text", metavar="FILE", help="for --quality: a text like those you use")
    doctor.add_argument(
        "--tokens",
        type=_positive,
        default=2048,
        help="for --quality: how many tokens of the text (default: 2048)",
    )


_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


def parser() -> argparse.ArgumentParser:
    root = _Parser(
        prog="lmprog",
        description="Runs programs that call language models, on one cache of prefixes.",
    )
    root.add_argument("--version", action="version", version=f"lmprog {__version__}")
    root.add_argument("--debug", action="store_true", help="show where an error came from")
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)

    commands.add_parser(
        "demo", help="programs with forks, choices and constraints on the shipped model"
    )
    doctor = commands.add_parser(
        "doctor", help="what this machine has, what is missing, and how to get it"
    )
    _add_model(doctor)
    _add_gpu(doctor)
    _add_quality(doctor)
    _add_serve(commands)
    _add_fleet(commands)
    _add_run(commands)
    _add_evaluate(commands)
    add_clients(commands, _positive)
    _add_top(commands)
    _add_replay(commands)
    _add_trace(commands)
    _add_cache(commands)
    _add_constraint(commands)
    _add_sim(commands)
    return root


def _add_serve(commands: _Commands) -> None:
    serve = commands.add_parser(
        "serve", help="serve a model over HTTP, or to programs of other processes"
    )
    serve.add_argument("model", metavar="MODEL", nargs="?", help="name or folder (default: nano)")
    serve.add_argument(
        "--config", metavar="FILE", help="default: lmprog.toml or lmprog.yaml, where it is there"
    )
    serve.add_argument(
        "--print-config", action="store_true", help="say what is chosen, and by whom; start nothing"
    )
    serve.add_argument(
        "--programs", metavar="DIR", help="serve the programs of its .py files at /v1/programs/NAME"
    )
    serve.add_argument("--verbose", action="store_true", help="log every request (never its text)")
    serve.add_argument(
        "--no-http", action="store_true", help="the runtime alone, for lmprog.connect(ADDRESS)"
    )
    serve.add_argument(
        "--address",
        help="the same, at tcp://127.0.0.1:PORT or ipc://PATH; with --ray: of Ray's cluster",
    )
    _add_configuration(serve)


def _add_fleet(commands: _Commands) -> None:
    fleet = commands.add_parser(
        "fleet", help="several runtimes as one server: keys, drains, updates"
    )
    verbs = fleet.add_subparsers(dest="verb", metavar="VERB", required=True)
    keys = verbs.add_parser("keys", help="make keys for runtimes and gateways of several machines")
    keys.add_argument("folder", metavar="DIR", help="a new folder; all machines get it")
    drain = verbs.add_parser(
        "drain", help="take a replica out of use; what runs there goes on elsewhere"
    )
    update = verbs.add_parser(
        "update", help="go over to the model that the folder has now; programs end on the old one"
    )
    for verb, seconds, where in (
        (drain, 30, "there before they are moved"),
        (update, 600, "on each"),
    ):
        verb.add_argument("url", metavar="URL", help="of the server")
        said = f"for programs to end {where} (default: {seconds})"
        verb.add_argument("--seconds", type=float, default=float(seconds), help=said)
        verb.add_argument("--api-key", metavar="KEY", help="the admin's (default: LMPROG_API_KEY)")
    drain.add_argument("replica", metavar="REPLICA", help="as lmprog top and /metrics name it")


def _add_run(commands: _Commands) -> None:
    run = commands.add_parser("run", help="run one program of a file")
    run.add_argument(
        "program", metavar="FILE.py::FUNCTION", help="a function decorated with @lmprog.function"
    )
    run.add_argument(
        "--arg",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an argument; JSON where it is",
    )
    run.add_argument("--address", help=_WHERE)
    run.add_argument("--model", help=_WHICH_MODEL)
    run.add_argument("--temperature", type=float, help="where the program says none (default: 1)")
    run.add_argument("--seed", type=int, help="makes the run repeat itself")
    run.add_argument(
        "--checkpoint",
        metavar="FILE",
        type=Path,
        help="keep in FILE what is done; where it is there, go on from it",
    )
    run.add_argument(
        "--answer", metavar="TEXT", help="to the question for which the run of FILE was paused"
    )


def _add_evaluate(commands: _Commands) -> None:
    evaluate = commands.add_parser(
        "evaluate", help="run a program on the rows of a file, and score what it gives"
    )
    evaluate.add_argument(
        "program", metavar="FILE.py::FUNCTION", help="a function decorated with @lmprog.function"
    )
    evaluate.add_argument("--rows", metavar="FILE", required=True, help="a .csv or .jsonl file")
    evaluate.add_argument(
        "--metric",
        metavar="FILE.py::NAME|COLUMN",
        required=True,
        help="a function of (value, row), a program that judges, or the column to be equal to",
    )
    evaluate.add_argument(
        "--against", metavar="FILE.py::FUNCTION", help="another program, to compare it with"
    )
    evaluate.add_argument(
        "--at-least", metavar="X", type=float, help="exit with 1 where the score is lower"
    )
    evaluate.add_argument("--tuned", metavar="FILE", help="what program.tune(...) has saved")
    evaluate.add_argument("--concurrency", type=_positive, default=64, help="rows at a time")
    evaluate.add_argument("--checkpoint", metavar="FILE", help="keep what is done, and go on")
    evaluate.add_argument("--html", metavar="FILE", help="write a page with every row")
    evaluate.add_argument("--save", metavar="FILE", help="write the evaluation as JSON")
    evaluate.add_argument("--address", help=_WHERE)
    evaluate.add_argument("--model", help=_WHICH_MODEL)
    evaluate.add_argument("--temperature", type=float, help="where the program says none")
    evaluate.add_argument("--seed", type=int, help="of which every row has its own (default: 0)")


def _add_top(commands: _Commands) -> None:
    top = commands.add_parser("top", help="watch a server or a runtime: who runs, memory, the tree")
    top.add_argument(
        "where", metavar="URL|ADDRESS", nargs="?", help="default: http://127.0.0.1:8000"
    )
    top.add_argument("--api-key", metavar="KEY", help="of the server (default: LMPROG_API_KEY)")
    top.add_argument("--once", action="store_true", help="one picture, and no more")
    top.add_argument(
        "--cancel", type=int, metavar="NUMBER", help="end this request of a server, and no more"
    )


def _add_replay(commands: _Commands) -> None:
    replay = commands.add_parser(
        "replay", help="do a saved run again and compare it token for token"
    )
    replay.add_argument("file", metavar="FILE", help="what run.save(...) wrote")
    replay.add_argument("--address", help=_WHERE)
    replay.add_argument(
        "--model",
        help="folder of the run's model, for a runtime of its own (default: its name); with a "
        "server's URL: which of its models",
    )


def _add_trace(commands: _Commands) -> None:
    trace = commands.add_parser("trace", help="where a traced program's time and tokens went")
    trace.add_argument("file", metavar="FILE", help="what lmprog.tracing(FILE) wrote")
    trace.add_argument("--html", metavar="PAGE", help="write one page instead, for a browser")


def _add_cache(commands: _Commands) -> None:
    cache = commands.add_parser("cache", help="weights that were packed once and kept on disk")
    verbs = cache.add_subparsers(dest="verb", metavar="VERB", required=True)
    verbs.add_parser("list", help="what there is, last used first, and where")
    verbs.add_parser("clear", help="delete all of it; the next start packs again")


def _add_constraint(commands: _Commands) -> None:
    constraint = commands.add_parser(
        "constraint", help="what a regex or a JSON schema means, without a model"
    )
    explain = constraint.add_subparsers(dest="verb", metavar="VERB", required=True).add_parser(
        "explain", help="its states, what of it is forced, and an example; or draw it"
    )
    explain.add_argument(
        "what", metavar="REGEX|SCHEMA.json", help="a regex, a schema's file, or its text"
    )
    drawn = explain.add_mutually_exclusive_group()
    drawn.add_argument("--dot", action="store_true", help="draw the automaton, in DOT")
    drawn.add_argument(
        "--svg", action="store_true", help="draw the automaton as a picture, for a file"
    )
    explain.add_argument("--seed", type=int, default=0, help="of the example (default: 0)")


def _add_sim(commands: _Commands) -> None:
    sim = commands.add_parser(
        "sim", help="run the core against a simulated model and check every step"
    )
    sim.add_argument(
        "--seed", type=int, default=0, help="of the first world; it replays the same (default: 0)"
    )
    sim.add_argument("--steps", type=_positive, default=500, help="of each world (default: 500)")
    sim.add_argument(
        "--worlds",
        type=_positive,
        help="how many, each with the next seed (default: 100, or as many as --hours allow)",
    )
    sim.add_argument("--hours", type=float, help="start no more worlds after this time")
    sim.add_argument("--processes", type=_positive, default=1, help="that run worlds (default: 1)")
    sim.add_argument(
        "--check-every",
        type=_positive,
        default=16,
        metavar="N",
        help="check everything after every N-th step, after the others what the step touched "
        "(default: 16)",
    )
    sim.add_argument(
        "--states",
        action="store_true",
        help="only those worlds, one in four, whose model has recurrent states",
    )
    sim.add_argument(
        "--record",
        metavar="FILE",
        help="append a line of JSON for each 50 worlds: seeds, steps, violations",
    )


def options_of(given: argparse.Namespace) -> dict[str, Any]:
    """The configuration fields that were given, by name, for `launch.RuntimeProcess(model,
    **options)`.
    """
    names = [field.name for field in _fields()]
    return {name: getattr(given, name) for name in names if getattr(given, name, None) is not None}


def given_options(given: argparse.Namespace) -> dict[str, Any]:
    """The options of the table that were given, by name; the model too."""
    names = ["model", *(option.name for option in options())]
    return {name: getattr(given, name) for name in names if getattr(given, name, None) is not None}


def _fields() -> list[dataclasses.Field[Any]]:
    inner = [
        field
        for field in dataclasses.fields(RuntimeConfig)
        if field.name not in ("model", "scheduler")
    ]
    return [*inner, *dataclasses.fields(SchedulerConfig)]


def _add_configuration(to: argparse.ArgumentParser) -> None:
    groups = {of: to.add_argument_group(f"options of {_WHAT[of]}") for of in _WHAT}
    for option in options():
        group, kind = groups[option.of], option.kind
        if kind is bool:
            group.add_argument(
                option.flag, action=argparse.BooleanOptionalAction, default=None, help=option.help
            )
        elif typing.get_origin(kind) is typing.Literal:
            group.add_argument(option.flag, choices=typing.get_args(kind), help=option.help)
        elif typing.get_origin(kind) is tuple:
            group.add_argument(option.flag, action="append", metavar="TEXT", help=option.help)
        else:
            group.add_argument(option.flag, type=kind, metavar=_KINDS[kind], help=option.help)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


KEY_VARIABLE = "LMPROG_API_KEY"


def add_clients(commands: Any, positive: Any) -> None:
    """Adds their parsers. `positive` parses a number of at least 1."""
    chat = commands.add_parser("chat", help="talk with a model in the terminal")
    chat.add_argument(
        "where",
        metavar="MODEL|URL",
        nargs="?",
        default="nano",
        help="a model, a runtime, or a server",
    )
    chat.add_argument(
        "--model", metavar="NAME", help="which of a server's models (default: its first)"
    )
    chat.add_argument("--system", help="the system prompt")
    chat.add_argument("--temperature", type=float, help="0 is greedy (default: 1)")
    chat.add_argument(
        "--max-tokens", type=positive, help="of one answer (default: what the context holds)"
    )
    chat.add_argument("--seed", type=int, help="makes the answers repeat themselves")
    _add_key(chat)

    batch = commands.add_parser("batch", help="answer a file of requests in OpenAI's batch format")
    batch.add_argument("-i", "--input", metavar="IN.jsonl", required=True)
    batch.add_argument(
        "-o", "--output", metavar="OUT.jsonl", required=True, help="gone on with, where it is there"
    )
    where = batch.add_mutually_exclusive_group()
    where.add_argument("--model", help="for a server of its own (default: nano)")
    where.add_argument("--url", help="a running server")
    batch.add_argument(
        "--concurrency", type=positive, default=16, help="requests at once (default: 16)"
    )
    _add_key(batch)

    bench = commands.add_parser("bench", help="how long clients of a server wait")
    bench.add_argument("url", metavar="URL", help="http://HOST:PORT")
    bench.add_argument(
        "--model", metavar="NAME", help="which of the server's models (default: its first)"
    )
    bench.add_argument("--clients", type=positive, default=16, help="at once (default: 16)")
    bench.add_argument("--requests", type=positive, default=64, help="altogether (default: 64)")
    bench.add_argument(
        "--max-tokens", type=positive, default=64, help="of each answer (default: 64)"
    )
    bench.add_argument(
        "--prompt", default="Tell me about the sea.", help="what each asks, with its number behind"
    )
    _add_key(bench)


def _add_key(to: argparse.ArgumentParser) -> None:
    given = os.environ.get(KEY_VARIABLE)
    to.add_argument("--api-key", default=given, help=f"of the server (default: ${KEY_VARIABLE})")
