"""Nano's tokenizer: a byte-level BPE whose words are the same tokens wherever they stand.

A space is a token of its own before every word but the commonest ones, and digits and signs stand
alone. So a name has the same tokens after a space, a quote or a bracket, and copying it is copying.
Knows no model.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.document import END, PAD, SPECIALS, Document
from training.draw import Split
from training.words import words_of
from training.world import documents

VOCABULARY = 2048
# Words that are hardly ever an answer keep their space: it makes texts a fifth shorter.
GLUED = words_of(
    "the a an is in of and to was for has with it that at on from as are by be not or this "
    "what does do who which "
    "how old where name live lives years works work my your you I need have will can me his "
    "her he she they we "
    "there when if but all about one after before more than then now many much would should "
    "every each"
)
PATTERN = (
    rf" (?:{'|'.join(GLUED)})(?![A-Za-z0-9])| "
    r"?[^\x00-\x7F]+|[A-Z]?[a-z]+|[A-Z]|[0-9]|\n| |[^A-Za-z0-9\n ]"
)
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('nano knows the roles system, user and assistant') }}{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Tokens:
    """A document as ids, and which of them the model has to say. `steps` has the positions of the
    tokens before answers' words where something has to be worked out, and what.
    """

    ids: tuple[int, ...]
    answer: tuple[bool, ...]
    steps: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def __add__(self, other: Tokens) -> Tokens:
        """Both documents, one after the other."""
        later = tuple((len(self.ids) + position, steps) for position, steps in other.steps)
        return Tokens(self.ids + other.ids, self.answer + other.answer, self.steps + later)


def train(texts: Iterable[str], vocabulary: int = VOCABULARY) -> Tokenizer:
    """A tokenizer trained on texts, with all 256 bytes and the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        show_progress=False,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIALS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def balanced(texts: Iterable[str], ceiling: int = 400) -> Iterable[str]:
    """Texts with every word at most `ceiling` times, so that common templates do not eat the
    vocabulary.
    """
    seen: collections.Counter[str] = collections.Counter()
    for text in texts:
        fresh = []
        for special in SPECIALS:
            text = text.replace(special, " ")
        for word in re.findall(PATTERN, text):
            seen[word] += 1
            if seen[word] <= ceiling:
                fresh.append(word)
        yield "\n".join(fresh)


def encode(tokenizer: Tokenizer, document: Document) -> Tokens:
    """The ids of a document, segment by segment, as a program's appends and generations meet the
    runtime.
    """
    ids: list[int] = []
    answer: list[bool] = []
    steps: list[tuple[int, tuple[int, ...]]] = []
    encoded = tokenizer.encode_batch(
        [segment.text for segment in document.segments], add_special_tokens=False
    )
    for segment, piece in zip(document.segments, encoded, strict=True):
        if segment.steps:
            spaces = next(i for i, (a, b) in enumerate(piece.offsets) if segment.text[a:b].strip())
            steps.append((len(ids) + spaces - 1, segment.steps))
        ids += piece.ids
        answer += [segment.answer] * len(piece.ids)
    return Tokens(tuple(ids), tuple(answer), tuple(steps))


def configuration() -> dict[str, object]:
    """tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": END,
        "pad_token": PAD,
        "unk_token": None,
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "chat_template": TEMPLATE,
    }


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(configuration(), indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train on the first documents of the training split."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=60_000)
    options = parser.parse_args(arguments)
    source = documents(Split.TRAIN)
    texts = (next(source).text for _ in range(options.documents))
    save(train(balanced(texts)), options.out)


if __name__ == "__main__":
    main()
