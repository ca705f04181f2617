"""Who answers the evaluation: lmprog programs on the shipped model, or transformers on the same
files.

The second is there to show that the files are an ordinary Llama and that the runtime loses nothing;
it knows no constraint, so JSON comes out freely there.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

import lmprog
from training.document import ASSISTANT, END, PAD

LONGEST = 160  # tokens an answer may have
AT_ONCE = 16  # programs in flight
_TURN = re.compile(r"<\|(system|user|assistant)\|>(.*?)<\|end\|>", re.DOTALL)


class Answerer(Protocol):
    """Answers prompts greedily; every list answers the prompts in order."""

    def __enter__(self) -> Self:
        """Start what is needed."""

    def __exit__(self, *error: object) -> None:
        """Stop it."""

    def say(self, prompts: Sequence[str], stops: Sequence[str]) -> list[str]:
        """Text up to its stop."""

    def choose(self, prompts: Sequence[str], choices: Sequence[Sequence[str]]) -> list[str]:
        """The likeliest choice by mean token log-probability."""

    def fill(self, prompts: Sequence[str], schemas: Sequence[Mapping[str, object]]) -> list[str]:
        """JSON under a schema."""


class Transformers:
    """`transformers` on the files, batches of prompts of about one length."""

    def __init__(self, model: Path, size: int = 32) -> None:
        self.net: Any = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.end, self.pad = (
            int(self.tokenizer.token_to_id(END) or 0),
            int(self.tokenizer.token_to_id(PAD) or 0),
        )
        self.newline = self.tokenizer.encode("\n").ids[0]
        self.size = size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    @torch.inference_mode()
    def say(self, prompts: Sequence[str], stops: Sequence[str]) -> list[str]:
        """Text up to its stop."""
        said = [""] * len(prompts)
        ids = [self.tokenizer.encode(prompt).ids for prompt in prompts]
        order = sorted(range(len(prompts)), key=lambda i: (stops[i], len(ids[i])))
        for start in range(0, len(order), self.size):
            group = order[start : start + self.size]
            ends = [self.end] + ([self.newline] if all(stops[i] == "\n" for i in group) else [])
            longest = max(len(ids[i]) for i in group)
            batch = torch.tensor([[self.pad] * (longest - len(ids[i])) + ids[i] for i in group])
            out = self.net.generate(
                batch,
                attention_mask=torch.tensor(
                    [[0] * (longest - len(ids[i])) + [1] * len(ids[i]) for i in group]
                ),
                max_new_tokens=LONGEST,
                do_sample=False,
                eos_token_id=ends,
                pad_token_id=self.end,
            )
            for i, row in zip(group, out[:, longest:].tolist(), strict=True):
                said[i] = (
                    self.tokenizer.decode(row, skip_special_tokens=False)
                    .split(stops[i])[0]
                    .split(END)[0]
                )
        return said

    @torch.inference_mode()
    def choose(self, prompts: Sequence[str], choices: Sequence[Sequence[str]]) -> list[str]:
        """The likeliest choice by mean token log-probability."""
        chosen = []
        for prompt, options in zip(prompts, choices, strict=True):
            head = self.tokenizer.encode(prompt).ids
            tails = [self.tokenizer.encode(option).ids for option in options]
            longest = max(len(tail) for tail in tails)
            batch = torch.tensor(
                [head + tail + [self.pad] * (longest - len(tail)) for tail in tails]
            )
            scores = self.net(batch).logits.log_softmax(-1)
            means = [
                sum(float(scores[row, len(head) - 1 + at, token]) for at, token in enumerate(tail))
                / len(tail)
                for row, tail in enumerate(tails)
            ]
            chosen.append(options[means.index(max(means))])
        return chosen

    def fill(self, prompts: Sequence[str], schemas: Sequence[Mapping[str, object]]) -> list[str]:
        """JSON, free: the schema is not enforced here."""
        return self.say(
            prompts, [END if prompt.endswith("<|assistant|>") else "\n" for prompt in prompts]
        )


@dataclass(frozen=True, slots=True)
class _Asked:
    prompt: str
    stop: str = ""
    choices: tuple[str, ...] = ()
    schema: Mapping[str, object] | None = None


def _put(s: lmprog.Branch, prompt: str) -> bool:
    """Writes a prompt as a program would: turns by their role. True if the assistant's turn is
    open.
    """
    turns = _TURN.findall(prompt)
    if not turns:
        s += prompt
        return False
    for role, text in turns:
        s.turn(role, text)
    assert prompt.endswith(ASSISTANT)
    return True


@lmprog.function
def _answer(s: lmprog.Branch, asked: _Asked) -> str:
    """One answer: a selection, JSON under its schema, or text up to its stop."""
    opened = _put(s, asked.prompt)
    with s.assistant() if opened else contextlib.nullcontext():
        if asked.choices:
            return str(s.select(*asked.choices).value)
        if asked.schema is not None:
            s += "" if opened or asked.prompt.endswith("\n") else " "
            return str(s.gen(schema=dict(asked.schema), max_tokens=LONGEST, temperature=0).value)
        stop = None if opened else asked.stop
        return str(s.gen(max_tokens=LONGEST, temperature=0, stop=stop).value)


class Programs:
    """lmprog programs on one runtime of the shipped model."""

    def __init__(self, model: Path) -> None:
        self.runtime = lmprog.Runtime(str(model))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.runtime.close()

    def _run(self, asked: Sequence[_Asked]) -> list[str]:
        return list(_answer.map(asked, concurrency=AT_ONCE, backend=self.runtime))

    def say(self, prompts: Sequence[str], stops: Sequence[str]) -> list[str]:
        """Text up to its stop."""
        return self._run(
            [_Asked(prompt, stop) for prompt, stop in zip(prompts, stops, strict=True)]
        )

    def choose(self, prompts: Sequence[str], choices: Sequence[Sequence[str]]) -> list[str]:
        """The likeliest choice by mean token log-probability."""
        return self._run(
            [
                _Asked(prompt, choices=tuple(some))
                for prompt, some in zip(prompts, choices, strict=True)
            ]
        )

    def fill(self, prompts: Sequence[str], schemas: Sequence[Mapping[str, object]]) -> list[str]:
        """JSON under a schema."""
        return self._run(
            [_Asked(prompt, schema=schema) for prompt, schema in zip(prompts, schemas, strict=True)]
        )
