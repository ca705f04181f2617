"""How a model's weights come into memory: packed by a first start, mapped by the next ones.

    python -m benchmarks.loading MODEL --quantize int8

Each start is a fresh process on a cache of its own, with the files of both warm in the system's
memory. `peak` is the most memory that the process ever held, over what it held before it loaded;
key/value memory is not touched. Two starts at once share the mapped file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import runner
from lmprog.native import cache_folder

_CHILD = """
import json, resource, sys, time
from lmprog.config import RuntimeConfig
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.native import interface
from lmprog.weight_cache import user_cache
from benchmarks.engine import batch
interface.opened()
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, wall, cpu = peak(), time.perf_counter(), time.process_time()
engine = load_engine(RuntimeConfig(kv_memory_mb=64, **json.loads(sys.argv[1])))
loaded = dict(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu)
loaded |= dict(peak_mb=peak() - before, packed_mb=engine.packed.num_bytes / 2**20)
cpu = time.process_time()
engine.forward(batch(1, 1, 0))
print(json.dumps(loaded | dict(first_step_ms=(time.process_time() - cpu) * 1e3)))
"""


def start(cache: Path, config: dict[str, Any], limit_gb: float = 20) -> dict[str, float]:
    """What one start took. `cache` is the folder of packed weights, kept only below a limit."""
    variables = {"LMPROG_CACHE": str(cache), "LMPROG_WEIGHT_CACHE_GB": str(limit_gb)}
    command, env = [sys.executable, "-c", _CHILD, json.dumps(config)], os.environ | variables
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


@runner.command
def main(
    model: str,
    *,
    dtype: str | None = None,
    quantize: str | None = None,
    threads: int | None = None,
) -> None:
    """The first start, the next, and one that keeps nothing on disk."""
    given = {"model": model, "dtype": dtype, "quantize": quantize, "threads": threads}
    config = {name: value for name, value in given.items() if value is not None}
    columns = ("processor s", "wall s", "peak MB", "packed MB", "peak / packed", "first step, ms")
    runner.head("start", *columns)
    with tempfile.TemporaryDirectory() as scratch:
        compiled = cache_folder() / "native"
        compiled.mkdir(parents=True, exist_ok=True)
        (Path(scratch) / "native").symlink_to(compiled)
        for name, limit_gb in (("first", 20), ("next", 20), ("without the cache", 0)):
            took = start(Path(scratch), config, limit_gb)
            peak, packed = took["peak_mb"], took["packed_mb"]
            runner.say(
                *(name, f"{took['cpu_s']:.2f}", f"{took['wall_s']:.2f}", f"{peak:,.0f}"),
                *(f"{packed:,.0f}", f"{peak / packed:.2f}", f"{took['first_step_ms']:.0f}"),
            )
