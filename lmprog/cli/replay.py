"""`lmprog replay FILE`: repeats a saved run and compares it token for token. Exit code 1 if it
differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lmprog.cli.run import backend_for
from lmprog.lang.runs.run_replay import Recording


def run(given: argparse.Namespace) -> int:
    recording = Recording.read(Path(given.file))
    with backend_for(given, recording.origin.model) as backend:
        replayed = recording.replay(backend)
    print(f"{replayed.num_calls} calls, {replayed.num_tokens} tokens, seed {recording.origin.seed}")
    if replayed.num_contests:
        print(f"contests (votes, races) with a winner: {replayed.num_contests}")
    if replayed.num_skipped:
        print(
            f"{replayed.num_skipped} calls that had failed or were cancelled are left out",
            file=sys.stderr,
        )
    for difference in replayed.differences:
        print(difference)
    print(
        "the same, token for token"
        if replayed.is_same
        else f"{len(replayed.differences)} calls differ"
    )
    return 0 if replayed.is_same else 1
