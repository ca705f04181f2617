"""Feeds damaged specifications to the native code of constraints, compiled with sanitizers.

    python -m tests.constraints.reader_fuzz --inputs 1000000 --seed 7 --seconds 540

The kernels are compiled with AddressSanitizer, UndefinedBehaviorSanitizer and the checks of the
standard library, and opened by child processes as any kernel is: so the readers in Python are tried
too. Each input of `mutations.py` is compiled as the runtime would do it, a random text is walked
with its masks, and a schema is read again by the reader in Python alone, which has to say the same.
What ends a process, raises anything but a refusal, takes too long, allows nothing, or is read
differently is printed with its number; `--first NUMBER --inputs 1` tries it again. The exit status
is the number of findings, at most 100.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

FLAGS = (
    "-g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all "
    "-D_GLIBCXX_ASSERTIONS"
)
PER_PROCESS = 5_000
"""Inputs of one child: what the process remembers starts anew."""
MOST_MEMORY = 3000
"""Megabytes of a child."""
_MOST_STATUS = 100


def sanitizers() -> list[str] | None:
    """The libraries that a process must open before a sanitized one; None where they are not."""
    found = []
    for name in ("asan", "ubsan"):
        if shutil.which("g++") is None:
            return None
        asked = subprocess.run(
            ["g++", f"-print-file-name=lib{name}.so"], capture_output=True, text=True, check=True
        )
        path = Path(asked.stdout.strip())
        if not path.is_absolute():
            return None
        found.append(str(path.resolve()))
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    inputs: int
    findings: list[str]


def fuzz(
    seed: int, first: int, inputs: int, seconds: float = 1e9, optimize: str = "-O1"
) -> Outcome:
    """Runs the inputs `first` and so on in child processes, until the time is over. With "-O0" the
    code is compiled twice as soon, and tries half as many inputs a second.
    """
    flags = f"{optimize} {FLAGS}"
    end = time.monotonic() + seconds
    done, findings = 0, list[str]()
    with tempfile.TemporaryDirectory() as folder:
        compiler = Path(folder) / "sanitizing"
        # Another version is another library to `lmprog.native`, which keeps it as it keeps others.
        compiler.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && echo "{flags}"\nexec g++ "$@" {flags}\n'
        )
        compiler.chmod(0o700)
        while done < inputs and time.monotonic() < end:
            some = min(PER_PROCESS, inputs - done)
            left = min(end - time.monotonic(), 1e6)
            made = _child(compiler, Path(folder), seed, first + done, some, left)
            done += made.inputs
            findings += made.findings
            # At once: a run of hours may be killed.
            print(f"inputs {first} to {first + done} tried", *made.findings, sep="\n", flush=True)
    return Outcome(done, findings)


def _child(
    compiler: Path, folder: Path, seed: int, first: int, inputs: int, seconds: float
) -> Outcome:
    preload = sanitizers()
    assert preload is not None, "there are no sanitizers"
    place, log = folder / "place", folder / "log"
    place.write_bytes(b"")
    environment = {
        **os.environ,
        "CXX": str(compiler),
        "LMPROG_NATIVE": "build",
        "LD_PRELOAD": " ".join(preload),
        "ASAN_OPTIONS": f"detect_leaks=0:hard_rss_limit_mb={MOST_MEMORY}",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", __spec__.name, "--child", str(place)]
    command += ["--seed", str(seed), "--first", str(first), "--inputs", str(inputs)]
    with log.open("w") as out:
        ended = subprocess.run(
            [*command, "--seconds", str(seconds)], env=environment, stdout=out, stderr=out
        )
    said = log.read_text(errors="replace")
    findings = [line for line in said.splitlines() if line.startswith("FINDING")]
    reached = int(place.read_bytes() or first)
    if ended.returncode:
        tail = "\n".join(said.splitlines()[-40:])
        findings.append(f"FINDING {reached}: exit status {ended.returncode}\n{tail}")
        reached += 1
    return Outcome(reached - first, findings)


# ---- the child, which alone imports what it tries


def _run(place: Path, seed: int, first: int, inputs: int, seconds: float) -> None:
    from tests.constraints.mutations import specification
    from tests.constraints.reader_trial import findings

    end = time.monotonic() + seconds
    with place.open("r+b", buffering=0) as out:
        for number in range(first, first + inputs):
            os.pwrite(out.fileno(), b"%20d" % number, 0)
            if time.monotonic() > end:
                return
            spec = specification(seed, number)
            for finding in findings(spec, random.Random(number)):
                print(f"FINDING {number}: {finding}: {str(spec)[:3000]!r}", flush=True)
        os.pwrite(out.fileno(), b"%20d" % (first + inputs), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--seconds", type=float, default=1e6, help="begins no input after these")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child is not None:
        _run(asked.child, asked.seed, asked.first, asked.inputs, asked.seconds)
        return
    outcome = fuzz(asked.seed, asked.first, asked.inputs, asked.seconds)
    last = asked.first + outcome.inputs
    print(
        f"seed {asked.seed}, inputs {asked.first} to {last}: {outcome.inputs} tried, "
        f"{len(outcome.findings)} findings"
    )
    sys.exit(min(len(outcome.findings), _MOST_STATUS))


if __name__ == "__main__":
    main()
