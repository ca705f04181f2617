"""Labels by likelihood: `select` scores every option in one step, and the examples in the prompt
are computed once.

python examples/few_shot_select.py [--model NAME_OR_FOLDER]
lmprog run examples/few_shot_select.py::label --arg review="What a lovely hotel!"
"""

from __future__ import annotations

import argparse

import lmprog

SHOWN = (
    ("I think the movie is excellent. I loved it.", "positive"),
    ("The room was dirty. I will not come back.", "negative"),
    ("It was a boring book.", "negative"),
    ("The coffee was really good.", "positive"),
)
REVIEWS = (
    "The concert was boring. I want my money back.",
    "What a lovely hotel! I enjoyed every minute.",
    "The phone is useless. Never again.",
    "We found the beach beautiful.",
    "The museum was terrible.",
    "Such a wonderful story! Five stars from me.",
)


@lmprog.function
async def label(s: lmprog.Branch, review: str = REVIEWS[0]) -> lmprog.Selected:
    for text, sentiment in SHOWN:
        s.append(f"Review: {text}\nSentiment: {sentiment}\n\n")
    s.append(f"Review: {review}\nSentiment:")
    return await s.select(
        " positive", " negative"
    )  # a str that also knows .scores and .probabilities


def main() -> None:
    results = label.map(REVIEWS)  # all at once; values in the items' order
    for review, chosen in zip(REVIEWS, results, strict=True):
        print(f"{chosen.strip():8}  {chosen.probabilities[chosen]:4.0%}  {review}")
    usage = results.usage
    print(f"\n{usage.prompt} prompt tokens, and {usage.computed} computed: the examples only once")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Labels by likelihood.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
