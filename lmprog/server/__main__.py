"""`python -m lmprog.server --model nano --port 0`: a runtime and its gateway, in the plainest way,
for tests.

`lmprog serve` is the command for people. Prints one line of JSON when it serves; ends well on
SIGTERM and SIGINT.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys

import msgspec

from lmprog.errors import InvalidParameter, LmprogError
from lmprog.launch import RuntimeProcess
from lmprog.server.http.http_server import HttpServer, bind, run, url_of
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.service import serve


def main() -> int:
    """Exit code 0 after an orderly stop, 1 where it could not start."""
    parser = argparse.ArgumentParser(prog="lmprog.server")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--settings", default="{}", metavar="JSON", help="fields of Settings")
    parser.add_argument(
        "--options",
        default="{}",
        metavar="JSON",
        help="fields of RuntimeConfig and SchedulerConfig",
    )
    asked = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        _serve(asked.model, asked.options, asked.settings, asked.port)
    except LmprogError as error:
        sys.stderr.write(f"lmprog: {error}\n")
        return 1
    return 0


def _serve(model: str, options: str, settings_json: str, port: int) -> None:
    try:
        settings = msgspec.convert(
            {**msgspec.json.decode(settings_json), "port": port}, ServerSettings
        )
    except (msgspec.DecodeError, TypeError) as error:
        raise InvalidParameter(f"The settings are wrong: {error}.", name="settings") from None
    bound = bind(settings)
    with RuntimeProcess(model, log_to_stderr=True, **msgspec.json.decode(options)) as runtime:

        def ready(server: HttpServer) -> None:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: server.stop())
            sys.stdout.write(json.dumps({"url": url_of(bound), "runtime": runtime.address}) + "\n")
            sys.stdout.flush()

        run(lambda: serve(settings, runtime, bound, ready))


if __name__ == "__main__":
    sys.exit(main())
