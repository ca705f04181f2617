"""One side of a comparison as a process: a case a line on stdin, what it took a line on stdout.

Imports nothing but the standard library, since peers run in an environment of their own. A side's
`run` gives its outputs: token ids of each generation, or texts, or numbers of choices.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Case = dict[str, Any]


def serve(run: Callable[[Case], list[Any]], clock: Callable[[], float] = time.process_time) -> None:
    """Until stdin ends. `clock` is the processor time of all processes of the side."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries print where they like
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        wall, cpu = time.perf_counter(), clock()
        outputs = run(case)
        took = {"cpu": clock() - cpu, "wall": time.perf_counter() - wall, "outputs": outputs}
        print(json.dumps(took), file=answers, flush=True)
