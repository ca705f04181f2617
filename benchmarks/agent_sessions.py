"""Sessions of agents: made with the figures of public traces, or read from the files of one.

A session is a list of calls, each with a whole prompt, an answer's length and a pause before it; how
they are sent, and how long that takes, is not known here.
"""

from __future__ import annotations

import json
import random
import zlib
from array import array
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.virtual_time import TOKEN

MOST_PROMPT = 60_000
MOST_ANSWER = 2000


@dataclass(frozen=True, slots=True)
class Call:
    """`think`: seconds since the answer before it."""

    prompt: array[int]
    answer: int
    think: float = 0.0
    agent: int = 0
    """Of those that take turns in a session."""


Session = list[Call]


class Texts:
    """Tokens that nobody else has."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def __call__(self, count: float) -> array[int]:
        return array("i", (self._dice.getrandbits(30) for _ in range(max(1, int(count)))))

    def spread(self, middle: float, ninth: float, most: float) -> float:
        """Of a long-tailed distribution with that median and ninth decile."""
        above = self._dice.gauss(0.0, 1.0) / 1.2816  # 1 is the ninth decile
        return min(most, middle * float((ninth / middle) ** above))


def coding(dice: random.Random, count: int) -> list[Session]:
    """Like Mini-SWE-agent: a long common beginning, many short calls, tools of a second; the prompts
    keep the results and leave the answers out."""
    text = Texts(dice)
    common, sessions = text(1100), list[Session]()
    for _ in range(count):
        prompt, calls = common + text(text.spread(350, 1500, 2000)), list[Call]()
        curious = text.spread(1.0, 4.0, 10.0)
        for turn in range(int(min(30, max(6, dice.gauss(21, 9))))):
            think = text.spread(0.1, 0.8, 3.0) if turn else 0.0
            calls.append(Call(prompt[:], int(text.spread(98, 190, 390)), think))
            prompt = prompt + text(curious * text.spread(26, 500, 2650))
        sessions.append(calls)
    return sessions


def teams(dice: random.Random, count: int) -> list[Session]:
    """Like Magentic-One: an orchestrator and those it asks take turns, each with its own prompt, of
    which the next one of the same agent has nearly all; tools of seconds, some of minutes."""
    text = Texts(dice)
    sessions = []
    beginnings = [text(60), text(25), text(500)]
    for _ in range(count):
        task = text(300)
        prompts = [beginning + task for beginning in beginnings]
        calls = []
        for turn in range(int(min(44, max(10, dice.gauss(31, 9))))):
            agent = 0 if turn % 2 == 0 else dice.choice((1, 1, 2))
            think = min(140.0, text.spread(2.0, 8.0, 140.0)) if turn else 0.0
            prompt = prompts[agent] + text(60)  # what is asked anew at its end
            calls.append(Call(prompt, int(text.spread(377, 563, 2000)), think, agent))
            if dice.random() < 0.3:
                prompts[agent] = prompts[agent] + text(text.spread(150, 2500, 6000))
        sessions.append(calls)
    return sessions


def chatting(dice: random.Random, count: int) -> list[Session]:
    """People who read: half of the chats have one turn, pauses are of a minute."""
    text = Texts(dice)
    common, sessions = text(800), list[Session]()
    for _ in range(count):
        prompt, calls = common + text(text.spread(120, 2500, 12_000)), []
        turn = 0
        while not turn or (turn < 20 and dice.random() < 0.65):
            answer = int(text.spread(250, 800, 2000))
            calls.append(Call(prompt[:], answer, dice.expovariate(1 / 60) if turn else 0.0))
            prompt = prompt + array("i", [TOKEN] * answer) + text(text.spread(40, 300, 2000))
            turn += 1
        sessions.append(calls)
    return sessions


KINDS = {"miniswe": coding, "magentic": teams, "chat": chatting}


def pieces(text: str) -> array[int]:
    """Four letters a token."""
    end = min(len(text) // 4, MOST_PROMPT) * 4
    return array("i", [zlib.crc32(text[i : i + 4].encode()) >> 2 for i in range(0, end, 4)] or [1])


def recorded(folder: Path, count: int) -> list[Session]:
    """The sessions of a folder's files. A pause is what is left of the time between two calls when
    the model's own, at a hundred tokens a second, is taken away."""
    sessions = []
    for file in sorted(folder.glob("*.jsonl"))[:count]:
        lines = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
        lines.sort(key=lambda line: line["timestamp"])
        calls = list[Call]()
        for before, line in pairwise([None, *lines]):
            said = line["output"]
            said = said if isinstance(said, str) else json.dumps(said)
            think = 0.0
            if before is not None:
                gap = (line["timestamp"] - before["timestamp"]) / 1e6
                think = max(0.05, gap - calls[-1].answer / 100 - 0.3)
            answer = min(max(1, len(said) // 4), MOST_ANSWER)
            calls.append(Call(pieces(line["input"]), answer, think))
        if calls:
            sessions.append(calls)
    return sessions


def sessions_of(like: str, trace: Path | None, count: int) -> list[Session]:
    """Those of a folder, else made ones."""
    return KINDS[like](random.Random(1), count) if trace is None else recorded(trace, count)


def common_length(tokens: array[int], others: array[int]) -> int:
    """Tokens that both begin with."""
    most = min(len(tokens), len(others))
    return next((at for at in range(most) if tokens[at] != others[at]), most)
