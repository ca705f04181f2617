"""A quick look at a checkpoint: which held-out answers would be given greedily, by one forward pass
each.

An answer is right here when every one of its tokens is the likeliest after the ones before it,
which is what greedy generation would say. No constraint and no selection helps; `training.evaluate`
is the real measure.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn import functional as F

from training.document import PAD, Family
from training.items import Item, by_length, draw_items
from training.model import Nano, Shape


def load(path: Path) -> Nano:
    """The network of a checkpoint."""
    state = torch.load(path, weights_only=True)
    net = Nano(Shape(**state["shape"]))
    net.load_state_dict(state["net"])
    return net.eval()


@torch.inference_mode()
def right(net: Nano, tokenizer: Tokenizer, items: Sequence[Item]) -> list[tuple[Item, bool, str]]:
    """For each item: whether the answer would be given, and the likeliest tokens at its place."""
    results = []
    for group in by_length(items, 16):
        pairs = [
            (tokenizer.encode(item.prompt).ids, tokenizer.encode(item.answer + item.stop).ids)
            for item in group
        ]
        longest = max(len(p) + len(a) for p, a in pairs)
        ids = torch.tensor(
            [
                F.pad(
                    torch.tensor(p + a),
                    (0, longest - len(p) - len(a)),
                    value=tokenizer.token_to_id(PAD),
                ).tolist()
                for p, a in pairs
            ]
        )
        with torch.autocast("cpu", torch.bfloat16):
            best = net(ids).argmax(-1)
        for row, (item, (prompt, answer)) in enumerate(zip(group, pairs, strict=True)):
            said = best[row, len(prompt) - 1 : len(prompt) + len(answer) - 1].tolist()
            results.append((item, said == answer, tokenizer.decode(said)))
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the share of right answers by family and kind, and some wrong ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--wrong", type=int, default=3)
    parser.add_argument("--family", default="")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    net = load(options.folder / options.checkpoint)
    tokenizer = Tokenizer.from_file(str(options.folder / "tokenizer.json"))
    for family in Family:
        if options.family not in ("", family.value):
            continue
        results = right(net, tokenizer, draw_items(family, options.count))
        kinds: dict[str, list[bool]] = collections.defaultdict(list)
        for item, good, _ in results:
            kinds[item.kind].append(good)
        share = sum(good for _, good, _ in results) / len(results)
        detail = ", ".join(f"{kind} {sum(v)}/{len(v)}" for kind, v in sorted(kinds.items()))
        print(f"{family.value}: {share:.1%}  ({detail})")
        for item, _, said in [r for r in results if not r[1]][:: max(1, len(results) // 40)][
            : options.wrong
        ]:
            print(f"    ...{item.prompt[-260:]!r} -> {said!r}, right: {item.answer!r}")


if __name__ == "__main__":
    main()
