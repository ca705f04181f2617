"""`lmprog fleet keys` makes the keys of runtimes and gateways on several machines; `lmprog fleet
drain` takes a replica of a running server out of use; `lmprog fleet update` has it go over to
another model.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lmprog.cli.http_endpoint import Endpoint, Refused
from lmprog.transport import write_keys

KEY_VARIABLE = "LMPROG_API_KEY"


def run(given: argparse.Namespace) -> int:
    if given.verb == "keys":
        return _keys(Path(given.folder))
    body: dict[str, object] = {"seconds": given.seconds}
    said = "replicas are replaced, one after the other; GET /fleet shows how far it is"
    if given.verb == "drain":
        body |= {"replica": given.replica}
        said = (
            f"{given.replica} takes no new programs; what is left in {given.seconds:g} s is moved"
        )
    _post(given, f"/fleet/{given.verb}", body)
    print(said)
    return 0


def _keys(folder: Path) -> int:
    for path in write_keys(folder):
        print(path)
    print(f"runtimes:  lmprog serve MODEL --address tcp://HOST:PORT --keys {folder}")
    print(f"gateways:  lmprog serve --join tcp://HOST:PORT --keys {folder}")
    return 0


def _post(given: argparse.Namespace, path: str, body: dict[str, object]) -> None:
    key = given.api_key or os.environ.get(KEY_VARIABLE)
    with Endpoint(given.url, key, timeout=30.0) as server:
        answer = server.post(path, body)
        if answer.status != 200:
            raise Refused(answer)
