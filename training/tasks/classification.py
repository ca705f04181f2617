"""Classification: reviews by sentiment, messages by one of the labels that the prompt lists."""

from __future__ import annotations

from collections.abc import Sequence

from training import topics
from training.document import Document, Family, Page
from training.draw import Draw, ways

SENTIMENTS = ("positive", "negative", "neutral")

_OPINIONS = ways(
    "The {t} was {a}.",
    "This {t} is {a}.",
    "What a {a} {t}!",
    "I think the {t} is {a}.",
    "The {t} was really {a}.",
    "A {a} {t}.",
    "We found the {t} {a}.",
    "It was a {a} {t}.",
    "My {t} is {a} and {b}.",
    "The {t} is {a}, the rest is {b}.",
    "Such a {a} {t}!",
    "For me this {t} was {a}.",
    "All in all the {t} was {a}.",
    "The {t} seemed {a} and {b} to us.",
    "I found our {t} {a}.",
    held=(
        "I must say the {t} was {a}.",
        "Our {t} was {a} and {b}.",
        "To me the {t} is {a}.",
        "The whole {t} was {a}.",
    ),
)
_ASK_SENTIMENT = ways(
    "Is this review positive, negative or neutral?",
    "Classify the review as positive, negative or neutral.",
    "What is the sentiment: positive, negative or neutral?",
    "Sentiment (positive, negative, neutral)?",
    "Label the review: positive, negative or neutral.",
    "Decide if the review is positive, negative or neutral.",
    "",
    held=(
        "Is the sentiment of this review positive, negative or neutral?",
        "Classify the sentiment of the review as positive, negative or neutral.",
    ),
)
_ASK_TOPIC = ways(
    "Labels: {l}",
    "Choose one label: {l}.",
    "What is the message about: {l}?",
    "Classify the message as one of: {l}.",
    "Topics: {l}",
    "Pick the right label from {l}.",
    "Which topic fits: {l}?",
    "Categories: {l}",
    "Which of these fits: {l}?",
    "Find the right label: {l}.",
    "Sort the message into one of: {l}.",
    "Which label is right, {o}?",
    "The labels are {l}. Which one fits the message?",
    "Is the message about {o}?",
    "Classify the text into one of these categories: {l}.",
    held=(
        "Choose the right label from: {l}.",
        "Which label fits the message: {l}?",
        "Classify the message into one of: {l}.",
    ),
)
_HEADS = ("Review: ", "Review: ", "Text: ", "Review:\n", "Comment: ", "")
_CUES = ("Sentiment:", "Label:", "Answer:", "Sentiment:", "Class:")


def review(draw: Draw, sentiment: str) -> str:
    """One to three sentences of one sentiment."""
    words = {"positive": topics.POSITIVE, "negative": topics.NEGATIVE, "neutral": topics.NEUTRAL}[
        sentiment
    ]
    lines = {
        "positive": topics.POSITIVE_LINES,
        "negative": topics.NEGATIVE_LINES,
        "neutral": topics.NEUTRAL_LINES,
    }[sentiment]
    thing = draw.one(topics.REVIEWED)
    opinion = (
        draw.say(_OPINIONS, t=thing, a=draw.one(words), b=draw.one(words))
        .replace("a a", "an a")
        .replace("a e", "an e")
        .replace("a o", "an o")
    )
    parts = [opinion]
    if draw.chance(0.5):
        parts.append(draw.one(lines))
    if draw.chance(0.2):
        parts.append(
            draw.say(_OPINIONS, t=draw.one(topics.REVIEWED), a=draw.one(words), b=draw.one(words))
        )
    if draw.chance(0.15):
        parts.insert(
            0,
            draw.one(
                (
                    "I was there last week.",
                    "My sister gave it to me.",
                    "We went on Sunday.",
                    "I tried it yesterday.",
                    "I bought it in May.",
                )
            ),
        )
    elif draw.chance(0.2):
        parts = [draw.one(lines)]
    return " ".join(parts)


def message(draw: Draw, topic: topics.Topic) -> str:
    """A message about a topic."""
    frame = draw.template(ways(*topics.MESSAGE_FRAMES, held=topics.HELD_MESSAGE_FRAMES))
    first, second = draw.some(topic.things, 2)
    text = frame.format(t=first, u=second, T=first[0].upper() + first[1:])
    return text + (f" I like {draw.one(topic.things)}." if draw.chance(0.15) else "")


def sentiment(draw: Draw) -> Document:
    """One to four reviews, each with its label."""
    page = Page(Family.CLASSIFICATION)
    ask, head, cue = draw.template(_ASK_SENTIMENT), draw.one(_HEADS), draw.one(_CUES)
    form = draw.number(0, 2)
    title = draw.chance(0.1)
    names = tuple(name.capitalize() if title else name for name in SENTIMENTS)
    if title:
        ask = (
            ask.replace("positive", "Positive")
            .replace("negative", "Negative")
            .replace("neutral", "Neutral")
            or "Positive, Negative or Neutral?"
        )
    if form == 0 and ask:
        page.text(ask + "\n" + draw.one(("", "\n")))
    for index in range(draw.number(1, 4)):
        label = draw.one(SENTIMENTS)
        text = head + review(draw, label) + "\n"
        page.text(
            ("\n" if index and form else "") + text + (ask + "\n" if form and ask else "") + cue
        )
        page.answer(
            f" {label.capitalize() if title else label}\n",
            kind="sentiment",
            choices=tuple(f" {c}" for c in names),
        )
    return page.done()


def labels_of(draw: Draw, count: int) -> tuple[list[topics.Topic], list[str]]:
    """Some topics and the labels under which this prompt lists them."""
    chosen = draw.some(topics.TOPICS, count)
    aliased = draw.chance(0.4)
    return chosen, [
        draw.one((topic.label, *topic.aliases)) if aliased else topic.label for topic in chosen
    ]


def joined(labels: Sequence[str], last: str) -> str:
    """`a, b or c`."""
    return ", ".join(labels[:-1]) + last + labels[-1]


def topic(draw: Draw) -> Document:
    """One to four messages with the labels of this prompt."""
    page = Page(Family.CLASSIFICATION)
    chosen, labels = labels_of(draw, draw.number(2, 6))
    if draw.chance(0.1):
        labels = [label.capitalize() for label in labels]
    ask = draw.say(
        _ASK_TOPIC,
        l=draw.one((", ".join(labels), joined(labels, " or "), " / ".join(labels))),
        o=joined(labels, " or "),
    )
    first = draw.chance(0.5)
    head, cue = (
        draw.one(("Message: ", "Text: ", "Message:\n", "", "Input: ")),
        draw.one(("Label:", "Topic:", "Answer:", "Category:")),
    )
    if first:
        page.text(ask + "\n" + draw.one(("", "\n")))
    for index in range(draw.number(1, 4)):
        which = draw.number(0, len(chosen) - 1)
        page.text(
            ("\n" if index and not first else "")
            + head
            + message(draw, chosen[which])
            + "\n"
            + ("" if first else ask + "\n")
            + cue
        )
        page.answer(
            f" {labels[which]}\n", kind="topic", choices=tuple(f" {label}" for label in labels)
        )
    return page.done()


def shown_sentiment(draw: Draw) -> Document:
    """Labels shown only by examples: words, signs or numbers of the prompt's own."""
    page = Page(Family.CLASSIFICATION)
    names = draw.one(
        (
            ("positive", "negative"),
            ("good", "bad"),
            ("happy", "unhappy"),
            ("yes", "no"),
            ("1", "0"),
            ("plus", "minus"),
        )
    )
    head, cue = (
        draw.one(("Review: ", "Text: ", "", "Input: ")),
        draw.one((" ->", "\nLabel:", "\nSentiment:", "\nOutput:")),
    )
    order = [0, 1] if draw.chance(0.5) else [1, 0]
    order += [draw.number(0, 1) for _ in range(draw.number(1, 5))]
    for index, which in enumerate(order):
        page.text(f"{head}{review(draw, SENTIMENTS[which])}{cue}")
        if index < 2:
            page.text(f" {names[which]}\n")
        else:
            page.answer(
                f" {names[which]}\n", kind="shown sentiment", choices=tuple(f" {c}" for c in names)
            )
        page.text("\n" if "\n" in cue and index + 1 < len(order) else "")
    return page.done()
