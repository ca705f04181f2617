"""`lmprog fleet keys`: a folder of keys that runtimes and gateways take."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmprog.cli import main
from lmprog.errors import InvalidParameter
from lmprog.transport import client_keys, keys_of_runtime


def test_keys_are_for_both_sides_private_and_never_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "keys"
    assert main(["fleet", "keys", str(folder)]) == 0
    files = sorted(folder.iterdir())
    names = ["gateway.public", "gateway.secret", "runtime.public", "runtime.secret"]
    assert [one.name for one in files] == names
    assert {one.stat().st_mode & 0o777 for one in files} == {0o600}
    runtime, client = keys_of_runtime(folder), client_keys(str(folder))
    assert client is not None
    assert client.public in runtime.clients
    assert client.server == runtime.public
    before = [one.read_bytes() for one in files]
    assert main(["fleet", "keys", str(folder)]) == 2
    assert "already has" in capsys.readouterr().err
    assert [one.read_bytes() for one in files] == before


@pytest.mark.parametrize("content", [b"", b"short", b'"' * 40, b"\xff" * 40])
def test_what_is_no_key_is_refused_with_its_file(tmp_path: Path, content: bytes) -> None:
    assert main(["fleet", "keys", str(tmp_path / "keys")]) == 0
    path = tmp_path / "keys" / "runtime.secret"
    path.write_bytes(content)
    with pytest.raises(InvalidParameter, match=r"runtime\.secret is no CURVE key"):
        keys_of_runtime(tmp_path / "keys")
    path.unlink()
    with pytest.raises(InvalidParameter, match="cannot be read"):
        keys_of_runtime(tmp_path / "keys")
