"""Where the options of `lmprog serve` come from: a flag beats the environment, that beats a file,
that the default.

The file is `lmprog.toml` or `lmprog.yaml` in the current folder, or the one that `--config` names;
it is flat, one option a line, by the names of the flags. TOML is read by Python itself; YAML needs
PyYAML, and is read as plain data. Nothing is guessed: an unknown option, or a value of the wrong
type, is refused with its origin.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import logging
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from lmprog.errors import InvalidParameter, UnknownName
from lmprog.server.options.option_table import FOR_BOTH, PREFIX, SECRET, Option, options
from lmprog.server.options.server_settings import ServerSettings

FILES = ("lmprog.toml", "lmprog.yaml")
DEFAULT = "default"
OTHER_VARIABLES = ("LMPROG_NATIVE", "LMPROG_CACHE", "LMPROG_PORTABLE")
"""Variables of the package that are not options of the server."""

log = logging.getLogger("lmprog.server")
_MODEL = Option("model", "model", str, str, "nano")


@dataclass(frozen=True, slots=True)
class OptionValue:
    """A value, and who chose it."""

    value: Any
    origin: str

    def shown(self, option: Option) -> str:
        """For people: keys are not shown."""
        if option.name in SECRET and self.value:
            many = len(self.value) if isinstance(self.value, tuple) else 1
            return f"({many} set)"
        return "none" if self.value in (None, ()) else msgspec.json.encode(self.value).decode()


@dataclass(frozen=True, slots=True)
class Configuration:
    """Every option's value with its origin, by name."""

    chosen: Mapping[str, OptionValue]

    @property
    def model(self) -> str:
        model: str = self.chosen["model"].value
        return model

    @property
    def is_model_chosen(self) -> bool:
        """Whether anybody named a model."""
        return self.chosen["model"].origin != DEFAULT

    def settings(self) -> ServerSettings:
        """The gateway's. Raises InvalidParameter where they do not go together."""
        return ServerSettings(
            **{o.field: self.chosen[o.name].value for o in options() if o.of is ServerSettings}
        )

    def runtime_options(self) -> dict[str, Any]:
        """What was chosen for the runtime; what was not is left to it."""
        given = [
            o
            for o in options()
            if (o.of is not ServerSettings or o.name == FOR_BOTH)
            and self.chosen[o.name].origin != DEFAULT
        ]
        return {option.field: self.chosen[option.name].value for option in given}

    def lines(self) -> list[str]:
        """One for each option: its value and origin."""
        known = [_MODEL, *options()]
        width = max(len(option.name) for option in known)
        return [
            f"{option.name:<{width}}  {value.shown(option)}  # {value.origin}"
            for option in known
            for value in [self.chosen[option.name]]
        ]


def configured(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: str | None, folder: Path
) -> Configuration:
    """`flags` by the options' names, without those not given. Raises InvalidParameter,
    UnknownName.
    """
    _check_variables(environment)
    path = Path(file) if file is not None else _found(folder)
    written = {} if path is None else _read(path)
    known = {option.name: option for option in (_MODEL, *options())}
    for name in written:
        if name not in known:
            raise UnknownName(
                f"unknown option {name!r} in {path}; valid: {', '.join(known)}.", name=name
            )
    return Configuration(
        {name: _choose(option, flags, environment, written, path) for name, option in known.items()}
    )


def _check_variables(environment: Mapping[str, str]) -> None:
    """Refuses misspelled variables. Others with our prefix may belong to somebody else: Kubernetes
    sets some for a service of our name. They are logged.
    """
    known = [option.variable for option in (_MODEL, *options())]
    for name in environment:
        if not name.startswith(PREFIX) or name in known or name in OTHER_VARIABLES:
            continue
        names = [variable.removeprefix(PREFIX) for variable in known]
        near = difflib.get_close_matches(name.removeprefix(PREFIX), names, 1, 0.74)
        if near:
            raise UnknownName(
                f"unknown environment variable {name}; did you mean {PREFIX}{near[0]}?", name=name
            )
        log.warning("the environment variable %s is not an option, and is ignored", name)


def _choose(
    option: Option,
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    written: Mapping[str, Any],
    path: Path | None,
) -> OptionValue:
    if option.name in flags:
        given = "MODEL" if option is _MODEL else option.flag
        return OptionValue(_typed(option, flags[option.name], given, strict=True), given)
    if environment.get(option.variable):
        text = environment[option.variable]
        value = text.split(",") if option.kind == tuple[str, ...] else text
        return OptionValue(_typed(option, value, option.variable, strict=False), option.variable)
    if option.name in written:
        value = written[option.name]
        if option.kind == tuple[str, ...] and isinstance(value, str):
            value = [value]
        return OptionValue(
            _typed(option, value, f"{option.name} in {path}", strict=True), str(path)
        )
    return OptionValue(option.default, DEFAULT)


def _typed(option: Option, value: Any, where: str, strict: bool) -> Any:
    """Floats may be written as integers; texts of the environment become what they say."""
    try:
        return msgspec.convert(value, option.kind, strict=strict)
    except msgspec.ValidationError as error:
        shown = "(hidden)" if option.name in SECRET else repr(value)
        raise InvalidParameter(f"{where} is {shown}: {error}.", name=option.name) from None


def _found(folder: Path) -> Path | None:
    """The file of the folder, if there is one. Two are one too many."""
    there = [folder / name for name in FILES if (folder / name).is_file()]
    if len(there) > 1:
        raise InvalidParameter(
            f"Both {there[0]} and {there[1]} are there; keep one, or say --config.", name="config"
        )
    return there[0] if there else None


def _read(path: Path) -> dict[str, Any]:
    """The file's options by their names."""
    try:
        text = path.read_text(encoding="utf-8")
        read = _yaml(text, path) if path.suffix in (".yaml", ".yml") else tomllib.loads(text)
    except OSError as error:
        raise InvalidParameter(
            f"{path} cannot be read: {error.strerror or error}.", name="config"
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidParameter(f"{path} is not valid TOML: {error}.", name="config") from None
    if not isinstance(read, dict) or not all(isinstance(name, str) for name in read):
        raise InvalidParameter(
            f"{path} must be a table of options, one a line, as in 'port: 8000'.", name="config"
        )
    return {name.replace("-", "_"): value for name, value in read.items()}


def _yaml(text: str, path: Path) -> Any:
    if importlib.util.find_spec("yaml") is None:
        raise InvalidParameter(
            f"{path} needs PyYAML, which is not installed; write a lmprog.toml.", name="config"
        )
    yaml: Any = importlib.import_module("yaml")  # it tells no types
    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise InvalidParameter(f"{path} is not valid YAML: {error}.", name="config") from None
