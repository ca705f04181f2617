"""The syntax of the commands that are clients of a server: chat, batch, bench. Imports nothing
heavy.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

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
