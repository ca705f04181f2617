"""Where options come from, and which one wins."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from lmprog.errors import InvalidParameter, LmprogError, UnknownName
from lmprog.server.options.configuration import Configuration, configured
from lmprog.server.options.option_table import markdown, options


def chosen(
    folder: Path, *, flags: dict[str, Any] | None = None, environment: dict[str, str] | None = None
) -> Configuration:
    return configured(flags or {}, environment or {}, None, folder)


def test_a_flag_beats_the_environment_that_beats_the_file_that_beats_the_default(
    tmp_path: Path,
) -> None:
    (tmp_path / "lmprog.toml").write_text(
        'port = 1\nhost = "localhost"\nmax-running = 7\nmodel = "from-file"\n'
    )
    made = chosen(
        tmp_path, flags={"port": 3}, environment={"LMPROG_PORT": "2", "LMPROG_MAX_RUNNING": "8"}
    )
    settings = made.settings()
    assert (settings.port, settings.max_running, settings.host) == (3, 8, "localhost")
    assert settings.max_waiting == 1024
    assert made.model == "from-file"
    origins = {name: one.origin for name, one in made.chosen.items()}
    assert origins["port"] == "--port"
    assert origins["max_running"] == "LMPROG_MAX_RUNNING"
    assert origins["host"].endswith("lmprog.toml")
    assert origins["max_waiting"] == "default"


def test_a_yaml_file_says_the_same(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "lmprog.yaml").write_text(
        "port: 1\napi-key: [a, b]\ndrain-seconds: 5\npage-size: 8\nshare: false\n"
    )
    made = chosen(tmp_path)
    assert made.settings().api_keys == ("a", "b")
    assert made.settings().drain == 5.0
    assert made.runtime_options() == {"page_size": 8, "share": False}


def test_keys_come_from_the_environment_and_are_never_shown(tmp_path: Path) -> None:
    made = chosen(
        tmp_path,
        environment={"LMPROG_API_KEY": "secret-1,secret-2", "LMPROG_ADMIN_KEY": "secret-3"},
    )
    assert made.settings().api_keys == ("secret-1", "secret-2")
    assert "secret" not in "\n".join(made.lines())
    assert "LMPROG_API_KEY" in "\n".join(made.lines())


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        ("prot = 1\n", UnknownName, "'prot'"),
        ('port = "many"\n', InvalidParameter, "port in "),
        ("port = \n", InvalidParameter, "not valid TOML"),
        ("[port]\nx = 1\n", InvalidParameter, "port in "),
        ("port = 70000\n", InvalidParameter, "--port is 70000"),
        ('host = "0.0.0.0"\n', InvalidParameter, "--insecure-no-auth"),
    ],
)
def test_what_is_wrong_in_a_file_is_refused(
    tmp_path: Path, text: str, kind: type[LmprogError], sentence: str
) -> None:
    (tmp_path / "lmprog.toml").write_text(text)
    with pytest.raises(kind) as caught:
        chosen(tmp_path).settings()
    assert sentence in str(caught.value)


def test_a_wrong_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="LMPROG_PORT is 'x'"):
        chosen(tmp_path, environment={"LMPROG_PORT": "x"})
    with pytest.raises(InvalidParameter, match="LMPROG_STRICT_API"):
        chosen(tmp_path, environment={"LMPROG_STRICT_API": "perhaps"})


def test_two_files_are_one_too_many_and_a_missing_one_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="cannot be read"):
        configured({}, {}, str(tmp_path / "none.toml"), tmp_path)
    for name in ("lmprog.toml", "lmprog.yaml"):
        (tmp_path / name).write_text("")
    with pytest.raises(InvalidParameter, match="keep one"):
        chosen(tmp_path)


def test_every_option_is_explained() -> None:
    assert [
        option.name for option in options() if not option.help or option.help.startswith("default")
    ] == []
    assert len({option.flag for option in options()}) == len(options())


def test_the_page_has_the_table_of_options() -> None:
    page = (Path(__file__).parents[2] / "docs" / "server-options.md").read_text()
    found = re.search(r"<!-- options -->\n(.*?)<!-- /options -->", page, re.DOTALL)
    assert found is not None
    assert found[1] == markdown(), "write what lmprog.server.options.option_table.markdown() gives"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LMPROG_API_KEYS", "LMPROG_API_KEY"),
        ("LMPROG_MAX_RUNING", "LMPROG_MAX_RUNNING"),
        ("LMPROG_DRAIN_SECOND", "LMPROG_DRAIN_SECONDS"),
        ("LMPROG_PROT", "LMPROG_PORT"),
    ],
)
def test_a_misspelled_variable_is_refused_with_the_right_name(
    tmp_path: Path, name: str, meant: str
) -> None:
    with pytest.raises(UnknownName, match=f"{name}; did you mean {meant}\\?"):
        chosen(tmp_path, environment={name: "1"})


def test_a_variable_that_may_be_somebody_elses_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "lmprog.server")
    others = {
        "LMPROG_SERVICE_HOST": "10.0.0.1",
        "LMPROG_SERVICE_PORT": "80",
        "LMPROG_PORT_80_TCP": "tcp://10.0.0.1:80",
        "LMPROG_PORT_80_TCP_PORT": "80",
        "LMPROG_NATIVE": "0",
        "HOME": "/",
    }
    chosen(tmp_path, environment=others)
    assert "LMPROG_SERVICE_HOST is not an option" in caplog.text
    assert "LMPROG_NATIVE" not in caplog.text
