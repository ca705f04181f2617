"""How well nano judges: the better of two answers, with reasoning and at once, each pair in both
orders.

Through lmprog programs, on held-out names and pairs of numbers. No bar is set for it. Knows nothing
of training.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

import lmprog
from training.draw import Draw, Split
from training.tasks.writing import Judged, of_subject, of_sum, of_text

KINDS: Mapping[str, Callable[[Draw], Judged]] = {
    "subject": of_subject,
    "sum": of_sum,
    "text": of_text,
}


@lmprog.function
async def judge(s: lmprog.Branch, judged: Judged, good_first: bool, reasons: bool) -> bool:
    """Whether the good answer is chosen."""
    first, second = (judged.good, judged.bad) if good_first else (judged.bad, judged.good)
    s.append(
        f"{judged.context}Question: {judged.question}\nAnswer A: {first.text}\nAnswer B: "
        f"{second.text}\n"
    )
    s.append("Which answer is better, A or B?\n")
    if reasons:
        s.append("Reasoning:")
        s.gen(stop="\n", max_tokens=100, temperature=0)
        s.append("\n")
    s.append("Judgment:")
    return (await s.select(" A", " B") == " A") is good_first


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the share of right judgments by kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--count", type=int, default=60, help="pairs of a kind")
    options = parser.parse_args(arguments)
    with lmprog.Runtime(options.model) as runtime:
        for name, make in KINDS.items():
            pairs = [
                make(Draw(f"judging:{name}:{number}", Split.HELD))
                for number in range(options.count)
            ]
            for reasons in (True, False):
                asked = [(pair, first, reasons) for pair in pairs for first in (True, False)]
                right = sum(run.value for run in judge.run_batch(asked, backend=runtime))
                print(f"{name}, {'reasoning' if reasons else 'at once'}: {right} of {len(asked)}")


if __name__ == "__main__":
    main()
