"""Random programs on the real core with deaths of their replicas at random steps, compared with the
same programs without a death.

    python -m tests.fleet.deaths 1000
"""

from __future__ import annotations

import random
import sys

from lmprog import wire
from tests.fleet.replicas import Fleet, RandomProgram, outcome, streamed

PATTERNS = 3
"""Of deaths, for each program."""


def run(program: RandomProgram, deaths: list[int]) -> tuple[list[wire.Reply], Fleet]:
    """The program frame by frame, a step or two between them; at these steps its replica dies."""
    fleet, heard = Fleet(3), []
    rng = random.Random(7)
    for frame in program.frames[:-1]:
        fleet.say(*frame)
        for _ in range(rng.randrange(0, 4)):
            heard += fleet.step()
            if fleet.steps in deaths:
                fleet.add()
                home = fleet.router._branches[program.root].home
                if home is not None:
                    fleet.kill(home.name)
    while fleet.steps < max(deaths, default=0) + 1:
        heard += fleet.step()
        if fleet.steps in deaths and (home := fleet.router._branches[program.root].home):
            fleet.kill(home.name)
    heard += fleet.until_idle()
    fleet.say(*program.frames[-1])
    heard += fleet.until_idle()
    return heard, fleet


def trial(number: int) -> list[str]:
    """What was wrong with the program of that number; it runs once without a death, and once for
    each pattern of deaths.
    """
    rng = random.Random(number)
    program = RandomProgram(rng, first=0)
    calm, _ = run(program, [])
    wrong = []
    for _ in range(PATTERNS):
        deaths = sorted(rng.sample(range(1, 14), rng.choice([1, 1, 2])))
        heard, fleet = run(program, deaths)
        if outcome(heard) != outcome(calm) or streamed(heard) != streamed(calm):
            wrong.append(f"program {number} differs with deaths at steps {deaths}")
        if sum(fleet.router.loads.values()):
            wrong.append(f"program {number} is not forgotten after deaths at steps {deaths}")
    return wrong


def main(count: int = 1000) -> int:
    """Prints what was wrong; 0 where nothing was."""
    wrong = [text for number in range(count) for text in trial(number)]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{count} programs, {PATTERNS} patterns of deaths each: {len(wrong)} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
